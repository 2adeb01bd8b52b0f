"""Service and client over real sockets: placing, queueing, commands, death of either side."""

import asyncio
import contextlib
from collections import Counter
from types import SimpleNamespace

import msgspec
import pytest
from prometheus_client import generate_latest

from core.clock import SystemClock
from core.db import Database
from core.errors import Refused, Unavailable
from core.ids import uuid7
from scheduler import client as client_module
from scheduler import connection as connection_module
from scheduler import fallback
from scheduler import service as service_module
from scheduler.core.model_queue import MAX_EXPIRED
from scheduler.core.policy import Rng
from scheduler.messages import Announce, AnnouncedRequest, FromClient
from scheduler.plan_actor import PlanActor
from scheduler.plan_store import PlanStore
from scheduler.provider_hosts import ProviderHosts
from scheduler.sessions import Session
from scheduler.wire import Placement, PlaceRequest, PoolSnapshot, Released
from tests.support.ports import free_port
from tests.support.scheduling import MODEL, agent, capacity, client, replica, request, service
from tests.support.waiting import until
from tests.unit.workers.test_acting import NOW
from tests.unit.workers.test_acting import host as provider_host
from workers.acting.places import Places
from workers.acting.plan import PlannedRemoval, StoredPlan
from workers.ranks import rank_id
from workers.wire import KvDelta, KvResync, RankStatus, ReplicaCommand, ReplicaState


def released(placement: Placement, **fields) -> Released:
    return Released(placement.request_id, placement.replica_id, **fields)


async def test_place_and_release_move_the_load_at_once() -> None:
    async with service() as scheduler, agent(scheduler.port, replica(slots=2)), client(scheduler.port) as api:
        one = await api.place(request())
        two = await api.place(request())
        assert one.url == "http://127.0.0.1:1/host/r0"
        assert one.epoch == scheduler.epoch
        waiting = asyncio.create_task(api.place(request()))
        await until(lambda: scheduler.state.queue_views(0.0)[0].waiting == 1)
        api.release(released(one))
        three = await waiting
        assert three.queue_s > 0
        for placement in (two, three, three, one):
            api.release(released(placement))
        await until(lambda: not scheduler.state.active)
        assert scheduler.state.fleet.replicas["host/r0"].load.running == 0


async def test_two_clients_share_the_slots() -> None:
    async with (
        service() as scheduler,
        agent(scheduler.port, replica(slots=3)),
        client(scheduler.port) as one,
        client(scheduler.port) as two,
    ):
        tasks = [asyncio.create_task((one, two)[n % 2].place(request())) for n in range(40)]
        done = 0
        while done < 40:
            finished = await until(lambda: [n for n, task in enumerate(tasks) if task and task.done()])
            assert len(scheduler.state.active) <= 3
            for n in finished:
                (one, two)[n % 2].release(released(tasks[n].result()))
                tasks[n] = None
                done += 1
        await until(lambda: not scheduler.state.active)


async def test_a_refusal_says_why_and_when_to_come_back() -> None:
    async with service() as scheduler, agent(scheduler.port, replica(slots=1)), client(scheduler.port) as api:
        await api.place(request())
        with pytest.raises(Refused) as caught:
            await api.place(request(deadline_s=0.2))
        assert caught.value.status == 503
        assert caught.value.details["reason"] == "queue_deadline"
        assert caught.value.details["position"] == 1
        assert caught.value.details["warm_replicas"] == 1
        assert (caught.value.retry_after_s or 0) >= 1
    async with service(grace_s=0.0) as scheduler, client(scheduler.port) as api:
        with pytest.raises(Refused) as caught:
            await api.place(request())
        assert caught.value.details["reason"] == "no_replica"


@pytest.mark.promise(24)
async def test_a_cancelled_caller_leaves_the_queue_and_holds_nothing() -> None:
    async with service() as scheduler, agent(scheduler.port, replica(slots=1)), client(scheduler.port) as api:
        first = await api.place(request())
        waiting = asyncio.create_task(api.place(request()))
        await until(lambda: scheduler.state.waiting)
        waiting.cancel()
        await until(lambda: not scheduler.state.waiting)
        racing = []
        for _ in range(30):
            task = asyncio.create_task(api.place(request()))
            await asyncio.sleep(0)
            racing.append(task)
        api.release(released(first))
        for task in racing:
            task.cancel()
        await asyncio.gather(*racing, return_exceptions=True)
        await until(lambda: not scheduler.state.active and not scheduler.state.waiting)


async def test_a_dead_client_frees_its_load() -> None:
    async with (
        service() as scheduler,
        agent(scheduler.port, replica(slots=2)),
        client(scheduler.port) as heir,
    ):
        async with client(scheduler.port) as mortal:
            await mortal.place(request())
            await mortal.place(request())
            waiting = asyncio.create_task(mortal.place(request()))
            await until(lambda: scheduler.state.waiting)
        with pytest.raises(Refused):
            await waiting
        heirs = await asyncio.wait_for(heir.place(request()), 60)
        assert heirs.queue_s < 60
        assert len(scheduler.state.active) == 1


async def test_a_restart_under_load_loses_no_request() -> None:
    port = free_port()
    async with agent(port, replica("host/r0", slots=8), replica("host/r1", slots=8)), client(port) as api:
        epochs = set()

        async def serve_one() -> None:
            placement = await api.place(request(deadline_s=30))
            epochs.add(placement.epoch)
            api.prefill_done(placement)
            await asyncio.sleep(0.05)
            api.progress(placement, 10)
            api.release(released(placement, output_tokens=10))

        async with service(port):
            tasks = [asyncio.create_task(serve_one()) for _ in range(300)]
            await until(lambda: sum(task.done() for task in tasks) > 20)
        await until(lambda: not api.connected)
        assert not all(task.done() for task in tasks)
        async with service(port) as second:
            await asyncio.gather(*tasks)
            await until(lambda: not second.state.active and not second.state.waiting)
            assert second.epoch in epochs
            assert all(entry.load.running == 0 for entry in second.state.fleet.replicas.values())


async def test_a_restart_keeps_open_placements_counted() -> None:
    port = free_port()
    async with agent(port, replica(slots=2)), client(port) as api:
        async with service(port):
            held = [await api.place(request()) for _ in range(2)]
            waiting = asyncio.create_task(api.place(request()))
            await asyncio.sleep(0)
        await until(lambda: not api.connected)
        async with service(port) as second:
            await until(
                lambda: len(second.state.active) == 2 and second.state.waiting and second.state.fleet.replicas
            )
            assert not waiting.done()
            api.release(released(held[0]))
            placement = await waiting
            assert placement.epoch == second.epoch


async def test_without_the_scheduler_the_client_places_by_itself_under_a_cap() -> None:
    port = free_port()
    async with agent(port, replica("host/r0", slots=16), replica("host/r1", slots=16)), client(port) as api:
        async with service(port):
            await until(lambda: len(api.snapshot().replicas) == 2)
        tasks = [asyncio.create_task(api.place(request())) for _ in range(20)]
        await until(lambda: sum(task.done() for task in tasks) == 8)
        placed = [task.result() for task in tasks if task.done()]
        assert {placement.epoch for placement in placed} == {""}
        assert sorted(placement.replica_id for placement in placed).count("host/r0") == 4
        api.release(released(placed[0]))
        await until(lambda: sum(task.done() for task in tasks) == 9)
        with pytest.raises(Refused) as caught:
            await api.place(request(deadline_s=0.1))
        assert caught.value.details["reason"] == "scheduler_away"
        async with service(port) as second:
            await asyncio.gather(*tasks)
            await until(lambda: len(second.state.active) == 19)


async def test_without_the_scheduler_the_client_counts_its_placements_on_each_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[Counter[str]] = []

    def choose(
        request: PlaceRequest, snapshot: PoolSnapshot, added: Counter[str], rng: Rng
    ) -> Placement | None:
        counted.append(added.copy())
        return fallback.choose(request, snapshot, added, rng)

    monkeypatch.setattr(client_module, "fallback", SimpleNamespace(**{**vars(fallback), "choose": choose}))
    port = free_port()
    ranks = [RankStatus(), RankStatus()]
    engine = replica("host/r0", capacity=msgspec.structs.replace(capacity(64), dp_ranks=2), ranks=ranks)
    async with agent(port, engine), client(port) as api:
        async with service(port):
            await until(lambda: api.snapshot().replicas)
            before = await api.place(request())
        held = [await api.place(request()) for _ in range(4)]
        api.release(released(held.pop(0)))
        api.release(released(before))
        await api.place(request())
        expected = Counter(rank_id("host/r0", each.rank or 0) for each in held)
        expected.subtract([rank_id("host/r0", before.rank or 0)])
        expected["host/r0"] = 2
        assert {name: count for name, count in counted[-1].items() if count} == {
            name: count for name, count in expected.items() if count
        }


async def test_nothing_starts_an_engine_on_a_host_that_may_be_destroyed() -> None:
    """Neither the plan, nor a waiting request, nor a person: jobs may destroy it at any moment."""
    store = PlanStore(Database("postgresql://penstock@127.0.0.1:1/none"), 1)
    store.hosts = ProviderHosts(NOW, (provider_host(1, name="host-of-agent-1"),))
    store.put(StoredPlan(destroy=(PlannedRemoval("host-of-agent-1", "idle", drained=True),)), 0.0)
    actor = PlanActor(store, Places(), dict, SystemClock())
    async with (
        service(actor=actor) as scheduler,
        agent(scheduler.port, replica()) as host,
        client(scheduler.port) as api,
    ):
        await until(lambda: api.snapshot().replicas)
        for action in ("wake", "resume", "restart"):
            refused = await api.command(ReplicaCommand(str(uuid7()), "host/r0", action))
            assert not refused.ok
            assert "is being destroyed" in refused.message
        assert host.commands == []
        assert (await api.command(ReplicaCommand(str(uuid7()), "host/r0", "stop"))).ok


async def test_commands_reach_the_agent_and_its_answer_returns() -> None:
    async with (
        service() as scheduler,
        agent(scheduler.port, replica()) as host,
        client(scheduler.port) as api,
    ):
        await until(lambda: api.snapshot().replicas)
        result = await api.command(ReplicaCommand(str(uuid7()), "host/r0", "drain"))
        assert (result.ok, result.message) == (True, "drain done")
        assert (host.commands[0].action, host.commands[0].hold) == ("drain", True)
        unknown = await api.command(ReplicaCommand(str(uuid7()), "host/none", "drain"))
        assert not unknown.ok
        assert "host/r0" in unknown.message
        silly = await api.command(ReplicaCommand(str(uuid7()), "host/r0", "explode"))
        assert not silly.ok
        host.answers = False
        pending = asyncio.create_task(api.command(ReplicaCommand(str(uuid7()), "host/r0", "wake")))
        await until(lambda: len(host.commands) == 2)
        await host.close()
        assert "connection was lost" in (await pending).message


async def test_silent_replicas_are_not_routed_to_and_shown_as_failed() -> None:
    async with (
        service() as scheduler,
        agent(scheduler.port, replica()) as host,
        client(scheduler.port) as api,
    ):
        await until(lambda: [r for r in api.snapshot().replicas if r.state is ReplicaState.READY])
        host.silent = True
        await until(lambda: [r for r in api.snapshot().replicas if r.state is ReplicaState.FAILED])
        waiting = asyncio.create_task(api.place(request()))
        await until(lambda: scheduler.state.waiting)
        assert not waiting.done()
        host.silent = False
        assert (await waiting).replica_id == "host/r0"
        host_view = api.snapshot().hosts[0]
        assert (host_view.host_id, host_view.host_kind) == ("host-of-agent-1", "local-cpu")


async def test_a_failed_attempt_moves_on_to_another_replica() -> None:
    async with (
        service(grace_s=0.0) as scheduler,
        agent(scheduler.port, replica("host/r0"), replica("host/r1")),
        client(scheduler.port) as api,
    ):
        await until(lambda: len(api.snapshot().replicas) == 2)
        first = await api.place(request("same"))
        api.release(released(first, failed=True))
        second = await api.place(request("same", exclude=[first.replica_id]))
        assert {first.replica_id, second.replica_id} == {"host/r0", "host/r1"}
        with pytest.raises(Refused) as caught:
            await api.place(request("other", exclude=["host/r0", "host/r1"]))
        assert caught.value.details["reason"] == "no_other_replica"


async def test_a_wrong_token_is_turned_away_with_a_word() -> None:
    async with service() as scheduler, client(scheduler.port, token="wrong") as api:
        with pytest.raises(Unavailable, match="wrong internal token"):
            await api.command(ReplicaCommand("c", "host/r0", "drain"))
        assert not api.connected
        assert scheduler.state.active == {}


async def test_the_same_request_cannot_wait_twice() -> None:
    async with service() as scheduler, client(scheduler.port) as api:
        waiting = asyncio.create_task(api.place(request("same")))
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="already waits"):
            await api.place(request("same"))
        waiting.cancel()
        assert scheduler.state.active == {}


async def test_the_snapshot_shows_queues() -> None:
    async with service() as scheduler, agent(scheduler.port, replica(slots=1)), client(scheduler.port) as api:
        await api.place(request())
        waiting = asyncio.create_task(api.place(request()))
        queue = (await until(lambda: [q for q in api.snapshot().queues if q.waiting]))[0]
        assert (queue.model, queue.in_flight) == (MODEL, 1)
        waiting.cancel()


@pytest.mark.parametrize("silent", [False, True])
async def test_an_address_that_only_accepts_is_no_scheduler(
    silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy without its backend hangs up, a frozen scheduler says nothing: the client then places by itself."""
    monkeypatch.setattr(connection_module, "SILENT_S", 0.3)
    monkeypatch.setattr(connection_module, "BACKOFF_S", (0.05, 0.1))

    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            if silent:
                await reader.read()
            writer.close()
            await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.create_task(handle(reader, writer)))

    port = free_port()
    async with agent(port, replica(slots=16)), client(port) as api:
        async with service(port):
            await until(lambda: len(api.snapshot().replicas) == 1)
        server = await asyncio.start_server(accept, "127.0.0.1", port)
        placement = await api.place(request(deadline_s=10.0))
        assert placement.epoch == ""
        server.close()
    await until(lambda: all(handler.done() for handler in handlers))


async def test_kv_events_are_taken_from_the_replicas_own_agent_only_and_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service_module, "MAX_KV_HASHES", 10)
    async with service() as scheduler, agent(scheduler.port, replica()):
        await until(lambda: scheduler.state.fleet.replicas)
        taken = []
        monkeypatch.setattr(scheduler.state.fleet, "kv_events", taken.append)
        own, stranger = scheduler._agents["agent-1"], Session(scheduler._door)
        stranger.name = "agent-2"
        fine = KvDelta("host/r0", "boot-1", 1, stored=[1, 2])
        scheduler.on_agent_message(own, fine)
        scheduler.on_agent_message(
            own, KvDelta("host/r0", "boot-1", 2, stored=list(range(8)), removed=[1, 2, 3])
        )
        scheduler.on_agent_message(own, KvDelta("host/none", "boot-1", 1))
        scheduler.on_agent_message(stranger, fine)
        assert taken == [fine]


async def test_an_agent_whose_events_have_a_gap_is_asked_for_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[KvResync] = []
    async with service() as scheduler, agent(scheduler.port, replica(prefix_kind="tokens")):
        await until(lambda: scheduler.state.fleet.replicas)
        own = scheduler._agents["agent-1"]
        monkeypatch.setattr(own, "send", asked.append)
        scheduler.on_agent_message(own, KvDelta("host/r0", "boot-1", 1, stored=[1], cleared=True))
        scheduler.on_agent_message(own, KvDelta("host/r0", "boot-1", 2, stored=[2]))
        assert asked == []
        scheduler.on_agent_message(own, KvDelta("host/r0", "boot-1", 4, stored=[4]))
        scheduler.on_agent_message(own, KvDelta("host/r0", "boot-1", 5, stored=[5]))
        assert asked == [KvResync("host/r0")]


async def test_an_agent_that_has_told_everything_before_is_asked_at_a_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scheduler.core.prefix.RESYNC_S", 0.0)
    async with service() as scheduler, agent(scheduler.port, replica(prefix_kind="tokens")) as told:
        await until(lambda: told.resyncs)
        assert told.resyncs[0] == KvResync("host/r0")


async def test_metrics_name_bands_predictions_and_tenants() -> None:
    async with service() as scheduler, agent(scheduler.port, replica(slots=1)), client(scheduler.port) as api:
        first = await api.place(request(tenant="metric-tenant"))
        api.prefill_done(first)
        waiting = asyncio.create_task(api.place(request(tier="batch")))
        view = (await until(lambda: [q for q in api.snapshot().queues if q.waiting]))[0]
        assert [(band.tier, band.waiting) for band in view.bands] == [("batch", 1)]
        assert ("metric-tenant", 1) in [(tenant.tenant_id, tenant.running) for tenant in view.tenants]
        scheduler._push_snapshot()
        shown = generate_latest().decode()
        assert f'penstock_scheduler_queue_waiting{{band="batch",model="{MODEL}"}} 1.0' in shown
        assert f'penstock_scheduler_tenant_service{{model="{MODEL}",tenant="metric-tenant"}} 200.0' in shown
        assert f'penstock_scheduler_ttft_ratio_count{{model="{MODEL}"}}' in shown
        assert f'penstock_scheduler_prediction_mape{{kind="ttft",model="{MODEL}"}}' in shown
        waiting.cancel()


async def test_what_one_round_of_decisions_puts_off_is_done_before_the_next_tick() -> None:
    async with service() as scheduler:
        assert scheduler._ticker is not None
        scheduler._ticker.cancel()
        queued = [AnnouncedRequest(request(f"r{n}", deadline_s=0.0), 1.0) for n in range(500)]
        scheduler.state.announce("api", Announce([], queued), 0.0)
        scheduler.dispatch()
        assert scheduler.state.waiting == 500 - MAX_EXPIRED
        for _ in range(500 // MAX_EXPIRED):
            await asyncio.sleep(0)
        assert scheduler.state.waiting == 0


async def test_what_happens_in_one_tick_leaves_in_one_frame_and_progress_once_for_all() -> None:
    async with (
        service() as scheduler,
        agent(scheduler.port, replica(slots=64, kv=1_000_000)),
        client(scheduler.port) as api,
    ):
        await until(lambda: api.snapshot().replicas)
        frames: list[FromClient] = []
        received = scheduler.on_client_message

        def record(session: Session, message: FromClient) -> None:
            frames.append(message)
            received(session, message)

        scheduler.on_client_message = record  # type: ignore[method-assign]
        held = await asyncio.gather(*(api.place(request()) for _ in range(20)))
        assert [len(frame.requests) for frame in frames] == [20]
        frames.clear()
        for count, placement in enumerate(held, 1):
            api.prefill_done(placement)
            api.progress(placement, count)
        await until(lambda: sum(entry.produced for entry in scheduler.state.active.values()) == 210)
        assert sum(frame.progress is not None for frame in frames) == 1
        assert sum(bool(frame.prefilled) for frame in frames) == 1
        frames.clear()
        for placement in held:
            api.progress(placement, 1)  # not more than before
            api.release(released(placement))
        await until(lambda: not scheduler.state.active)
        assert [(len(frame.released), frame.progress) for frame in frames] == [(20, None)]
