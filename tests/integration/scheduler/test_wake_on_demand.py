"""The scheduler wakes a replica for requests that wait, over its sockets."""

import asyncio
from collections.abc import Callable

import pytest

from core.errors import Refused
from scheduler.core.waking import Arrival, Creatable, Waker
from scheduler.wire import PlaceRequest
from tests.support.scheduling import MODEL, FakeAgent, agent, client, replica, request, service
from tests.support.waiting import until
from workers.wire import LifeTimes, ReplicaState, StageTime

ASLEEP = replica(state=ReplicaState.ASLEEP, sleep_level=1, phase="asleep_1")


def waker(allowed: Callable[[str], bool] = lambda model: True) -> Waker:
    return Waker(lambda model, rung: 5.0, allowed, 2.0)


def patient(name: str) -> PlaceRequest:
    return request(name, deadline_s=1.0, wake_deadline_s=30.0)


async def woken(host: FakeAgent) -> None:
    """Wait for the command, and obey it."""
    await until(lambda: host.commands)
    host.replicas = [replica()]


async def test_a_request_for_a_sleeping_model_wakes_it_once_and_is_placed() -> None:
    async with (
        service(waker=waker(), grace_s=0.0) as scheduler,
        agent(scheduler.port, ASLEEP) as host,
        client(scheduler.port) as api,
    ):
        await until(lambda: [view.wakes for view in api.snapshot().models] == [True])
        assert api.snapshot().models[0].ready_in_s == 5.0
        asked = [asyncio.create_task(api.place(patient(name))) for name in ("one", "two")]
        await woken(host)
        assert {(await one).replica_id for one in asked} == {"host/r0"}
        assert [(each.action, each.replica_id) for each in host.commands] == [("wake", "host/r0")]
        await until(lambda: [view.wakes for view in api.snapshot().models] == [False])


async def test_a_request_that_cannot_wait_so_long_is_told_and_the_next_finds_it_awake() -> None:
    slow = replica(
        state=ReplicaState.ASLEEP,
        sleep_level=2,
        phase="asleep_2",
        times=LifeTimes(wake_2=StageTime(90.0, 90.0, 1)),
    )
    async with (
        service(waker=waker(), grace_s=0.0) as scheduler,
        agent(scheduler.port, slow) as host,
        client(scheduler.port) as api,
    ):
        await until(lambda: api.snapshot().models)
        with pytest.raises(Refused, match="needs about 90 s to serve, more than the 30 s allowed") as refused:
            await api.place(patient("one"))
        assert (refused.value.details["reason"], refused.value.retry_after_s) == ("waking", 90.0)
        await woken(host)
        await until(lambda: api.snapshot().replicas[0].state is ReplicaState.READY)
        assert (await api.place(patient("two"))).replica_id == "host/r0"


async def test_a_request_for_a_model_whose_host_is_being_created_is_held() -> None:
    told = waker()
    async with service(waker=told, grace_s=0.0) as scheduler, client(scheduler.port) as api:
        told.arrivals = {MODEL: [Arrival(scheduler._clock.monotonic() + 20.0, "here", "")]}
        await until(lambda: [view.model for view in api.snapshot().models] == [MODEL])
        [view] = api.snapshot().models
        assert view.ready_in_s is not None
        assert 0.0 < view.ready_in_s <= 20.0
        asked = asyncio.create_task(api.place(patient("one")))
        await until(lambda: api.snapshot().queues)
        async with agent(scheduler.port, replica()):
            assert (await asked).replica_id == "host/r0"
        told.arrivals, told.creatable = {}, {"another": [Creatable((), "", 60.0)]}
        await until(lambda: any(view.model == "another" and view.wakes for view in api.snapshot().models))


async def test_a_model_with_a_maximum_of_zero_stays_asleep() -> None:
    never = waker(lambda model: model != MODEL)
    async with (
        service(waker=never, grace_s=0.0) as scheduler,
        agent(scheduler.port, ASLEEP) as host,
        client(scheduler.port) as api,
    ):
        await until(lambda: api.snapshot().models)
        with pytest.raises(Refused, match="no warm replica"):
            await api.place(patient("one"))
        assert host.commands == []
