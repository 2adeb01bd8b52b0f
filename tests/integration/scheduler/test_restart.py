"""A restart of the scheduler under load: no request is lost, and nobody's service is forgotten or made up."""

import asyncio

from scheduler import service as service_module
from scheduler.client import SchedulerClient
from scheduler.core.rules import NEW_TENANT
from scheduler.messages import TenantCounter
from scheduler.service import SchedulerService
from scheduler.wire import Released
from tests.support.ports import free_port
from tests.support.scheduling import MODEL, agent, client, replica, request, service
from tests.support.waiting import until

TENANTS = ("greedy", "modest", "rare")
OUTPUT = 20


def named(counters: list[TenantCounter]) -> dict[str, float]:
    return {counter.tenant_id: counter.service for counter in counters}


class Load:
    """Requests of three tenants through several API processes; remembers what was served."""

    def __init__(self, clients: list[SchedulerClient]) -> None:
        self.clients = clients
        self.finished = 0
        self.resting = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.paused = asyncio.Event()
        self.paused.set()

    def start(self, count: int) -> None:
        for n in range(count):
            tenant = TENANTS[0] if n % 10 < 7 else TENANTS[1] if n % 10 < 9 else TENANTS[2]
            self.tasks.append(asyncio.create_task(self._one(self.clients[n % len(self.clients)], tenant)))

    async def _one(self, api: SchedulerClient, tenant: str) -> None:
        placement = await api.place(request(tenant=tenant, deadline_s=60.0))
        api.prefill_done(placement)
        await asyncio.sleep(0.01)
        self.resting += 1
        await self.paused.wait()
        self.resting -= 1
        api.progress(placement, OUTPUT)
        api.release(Released(placement.request_id, placement.replica_id, 100, 0, OUTPUT))
        self.finished += 1


def service_of(scheduler: SchedulerService) -> dict[str, float]:
    return named(scheduler.state.counters())


async def test_counters_survive_a_restart_under_load_and_no_request_is_lost() -> None:
    port = free_port()
    async with (
        agent(port, replica("host/r0", slots=6), replica("host/r1", slots=6)),
        client(port) as one,
        client(port) as two,
        client(port) as three,
    ):
        load = Load([one, two, three])
        async with service(port) as first:
            await until(lambda: all(api.connected for api in load.clients))
            load.start(500)
            await until(lambda: load.finished > 200)
            load.paused.clear()  # what is held stays held, so that what was told last is what there was
            await until(lambda: load.resting == 12)
            before, floor = service_of(first), service_of(first)[NEW_TENANT]
            kept = {tenant: before[tenant] for tenant in TENANTS if tenant in before}
            await until(lambda: named(one._counters.not_from("")).items() >= kept.items())
        await until(lambda: not any(api.connected for api in load.clients))
        async with service(port) as second:
            await until(lambda: all(api.connected for api in load.clients))
            await until(lambda: len(second.state.active) >= 12)
            after = service_of(second)
            for tenant in kept:
                now = after.get(tenant, after[NEW_TENANT])  # forgotten once a newcomer begins no lower
                assert now >= kept[tenant] - 1e-6, f"{tenant} was forgiven {kept[tenant] - now}"
                meanwhile = now - max(kept[tenant], floor)
                assert meanwhile <= 14 * 200, "only what was placed meanwhile is on top"
            load.paused.set()
            await asyncio.gather(*load.tasks)
            await until(lambda: not second.state.active)


async def test_a_process_that_comes_later_learns_all_counters_at_once() -> None:
    async with service() as scheduler, agent(scheduler.port, replica()), client(scheduler.port) as early:
        placement = await early.place(request(tenant="t1"))
        async with client(scheduler.port) as late:
            await until(lambda: "t1" in named(late._counters.not_from("")))
            assert late._counters.not_from(scheduler.epoch) == [], "the one who said it need not be told"
        early.release(Released(placement.request_id, placement.replica_id, 100, 0, 50))
        await until(lambda: named(early._counters.not_from("")).get("t1") == 200.0)


async def test_a_lost_connection_to_the_same_scheduler_charges_nobody_twice() -> None:
    async with service() as scheduler, agent(scheduler.port, replica()), client(scheduler.port) as api:
        placement = await api.place(request(tenant="t1"))
        assert service_of(scheduler)["t1"] == 200.0
        for _ in range(3):
            session = scheduler._clients[api.name]
            session.abort()
            await until(lambda old=session: scheduler._clients.get(api.name) not in (old, None))
            await until(lambda: len(scheduler.state.active) == 1)
            assert service_of(scheduler)["t1"] == 200.0
        api.release(Released(placement.request_id, placement.replica_id, 100, 40, 10))
        await until(lambda: not scheduler.state.active)
        assert service_of(scheduler)["t1"] == 80.0


async def test_a_client_that_was_frozen_until_it_seemed_dead_charges_nobody_twice(monkeypatch) -> None:
    monkeypatch.setattr(service_module, "CLIENT_GRACE_S", 0.0)
    async with service() as scheduler, agent(scheduler.port, replica()), client(scheduler.port) as api:
        placement = await api.place(request(tenant="t1", blocks=[1, 2]))
        api.prefill_done(placement)
        await until(lambda: all(entry.prefilled for entry in scheduler.state.active.values()))
        for _ in range(2):
            scheduler._clients[api.name].abort()
            await until(lambda: not scheduler.state.active)
            assert service_of(scheduler)["t1"] == 100.0
            await until(lambda: len(scheduler.state.active) == 1)
            assert service_of(scheduler)["t1"] == 200.0
            assert len(scheduler.state.fleet.replicas["host/r0"].prefix) == 2
        api.release(Released(placement.request_id, placement.replica_id, 100, 40, 10))
        await until(lambda: not scheduler.state.active)
        assert service_of(scheduler)["t1"] == 80.0


async def test_what_was_placed_without_a_scheduler_is_charged_by_the_next_and_only_by_it() -> None:
    port = free_port()
    async with agent(port, replica(slots=32)), client(port) as api:
        async with service(port):
            await until(lambda: api.snapshot().replicas)
        placement = await api.place(request(tenant="t1"))
        assert placement.epoch == ""
        for _ in range(2):
            async with service(port) as scheduler:
                await until(lambda now=scheduler: len(now.state.active) == 1)
                assert service_of(scheduler)["t1"] == 200.0
                scheduler._push_counters()
                await until(lambda: "t1" in named(api._counters.not_from("")))
            await until(lambda: not api.connected)
        api.release(Released(placement.request_id, placement.replica_id, 100, 0, 50))


async def test_a_client_that_waits_for_more_than_a_frame_holds_is_back_after_a_restart() -> None:
    port = free_port()
    long = list(range(2**63, 2**63 + 4096))
    async with client(port) as api:
        async with service(port, grace_s=60.0) as first:
            await until(lambda: api.connected)
            waiting = [
                asyncio.create_task(api.place(request(f"r{n}", deadline_s=60.0, blocks=long)))
                for n in range(400)
            ]
            await until(lambda: first.state.waiting == len(waiting))
        async with service(port, grace_s=60.0) as second:
            await until(lambda: second.state.waiting == len(waiting))
            assert all(ticket.admitted for ticket in second.state.queues[MODEL].queue)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
