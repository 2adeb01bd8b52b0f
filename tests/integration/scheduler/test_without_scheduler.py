"""API processes without any scheduler: they place by the last snapshot, beside what they had, and in fair order."""

import asyncio
from contextlib import AsyncExitStack

from scheduler.client import SchedulerClient
from scheduler.wire import Placement, Released
from tests.support.ports import free_port
from tests.support.scheduling import agent, client, replica, request, service
from tests.support.waiting import until


async def test_streams_that_ran_before_leave_room_for_new_ones() -> None:
    port = free_port()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(agent(port, replica(slots=64)))
        clients = [await stack.enter_async_context(client(port)) for _ in range(3)]
        async with service(port):
            for api in clients:
                for _ in range(20):
                    await api.place(request())
        placed = await asyncio.gather(*(api.place(request()) for api in clients for _ in range(8)))
        assert {each.epoch for each in placed} == {""}
        more = asyncio.create_task(clients[0].place(request()))
        await _is_left_waiting(clients[0], more)
        clients[0].release(Released(placed[0].request_id, placed[0].replica_id))
        assert (await more).epoch == ""


async def _is_left_waiting(api: SchedulerClient, task: "asyncio.Task[Placement]") -> None:
    """The timer has looked at the request, and found no room."""
    looked = []
    place = api._place_waiting_locally
    api._place_waiting_locally = lambda: looked.append(place())  # type: ignore[method-assign]
    await until(lambda: len(looked) > 1)
    assert not task.done()


async def test_what_has_ended_may_be_replaced() -> None:
    port = free_port()
    async with agent(port, replica(slots=64)), client(port) as api:
        async with service(port):
            held = [await api.place(request()) for _ in range(20)]
        for each in held:
            api.release(Released(each.request_id, each.replica_id))
        again = await asyncio.gather(*(api.place(request()) for _ in range(28)))
        assert {each.epoch for each in again} == {""}


async def test_a_tenant_with_many_requests_does_not_keep_others_from_their_turn() -> None:
    port = free_port()
    async with agent(port, replica(slots=32)), client(port) as api:
        async with service(port):
            await until(lambda: api.snapshot().complete, what="the scheduler knows all replicas")
        await until(lambda: api._connection.away)
        held = await asyncio.gather(*(api.place(request(tenant="greedy")) for _ in range(8)))
        order: list[str] = []

        async def place(tenant: str) -> None:
            await api.place(request(tenant=tenant))
            order.append(tenant)

        tasks = [asyncio.create_task(place("greedy")) for _ in range(20)]
        tasks += [asyncio.create_task(place("modest")) for _ in range(4)]
        await until(lambda: len(api._waiting) == 24)
        for each in held:
            api.release(Released(each.request_id, each.replica_id))
        await until(lambda: len(order) == 8)
        assert order.count("modest") == 4, "each has half of the room"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_scheduler_that_had_no_time_to_learn_of_the_replicas_changes_nothing() -> None:
    port = free_port()
    async with client(port) as api:
        async with service(port, grace_s=0.0), agent(port, replica(slots=64)):
            await until(lambda: api.snapshot().replicas and api.snapshot().complete)
        async with service(port, grace_s=60.0) as second:
            await until(lambda: api.snapshot().epoch == second.epoch)
            assert not api.snapshot().replicas
        assert api.can_place
        assert (await api.place(request())).epoch == ""
