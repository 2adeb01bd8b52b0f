"""The simulated world: every request has one outcome, nothing happens in the past, and queues are as theory says."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sim.engine.step_model.engine import StepConfig
from sim.pool.cluster import TOO_LONG, Cluster
from sim.pool.contract import Record, RunResult, SimRequest
from sim.pool.control import ActionKind, PoolAction, PoolView
from sim.pool.faults import Fault, Kill, KillApiProcess, RestartScheduler, Slow
from sim.pool.network import Network
from sim.pool.pool import ReplicaSpec
from sim.pool.run import simulate
from sim.pool.settings import RunConfig
from sim.pool.timeline import Timeline
from tests.support.simulated import CAPACITY, MODEL, RoundRobin, poisson, pool
from workers.wire import ReplicaState, Targets

FAULTS: dict[str, Sequence[Fault]] = {
    "none": (),
    "a replica dies": (Kill(10.0, "r1"),),
    "two die at once": (Kill(10.0, "r1"), Kill(10.0, "r2")),
    "one dies twice": (Kill(5.0, "r1"), Kill(22.0, "r1")),
    "all die": tuple(Kill(10.0, f"r{number}") for number in range(4)),
    "a short hang": (Slow(10.0, "r0", 0.0, 5.0),),
    "a hang that gets it killed": (Slow(10.0, "r0", 0.0, 100.0),),
    "a straggler": (Slow(5.0, "r3", 0.3, 20.0),),
    "an API process dies": (KillApiProcess(10.0, 1),),
    "everything": (Kill(8.0, "r1"), Slow(9.0, "r2", 0.0, 6.0), RestartScheduler(10.0), KillApiProcess(11.0, 0)),
}  # fmt: skip


def run(
    requests: Sequence[SimRequest], replicas: Sequence[ReplicaSpec], config: RunConfig | None = None
) -> RunResult:
    return simulate(RoundRobin, requests, replicas, config or RunConfig())


def outcome(record: Record) -> str:
    """Its one outcome; fails when it has none or two."""
    answered = record.finished_at >= 0
    assert answered != bool(record.refused), record
    return record.refused or "answered"


def facts(result: RunResult) -> list[tuple[object, ...]]:
    return [
        (record.request.key, record.router, record.replica_id, record.first_token_at, record.finished_at)
        for record in result.records
    ]


def test_the_same_seed_gives_the_same_records_and_another_seed_does_not() -> None:
    requests = poisson(10, 20, 1)
    assert facts(run(requests, pool(4))) == facts(run(requests, pool(4)))
    assert facts(run(requests, pool(4))) != facts(run(requests, pool(4), RunConfig(seed=2)))


@pytest.mark.parametrize("name", FAULTS)
def test_every_request_has_exactly_one_outcome(name: str) -> None:
    requests = poisson(12, 25, 3)
    config = RunConfig(faults=FAULTS[name])
    result = run(requests, pool(4, cold_start_s=10.0), config)
    assert [record.request.key for record in result.records] == [request.key for request in requests]
    outcomes = {outcome(record) for record in result.records}
    allowed = {"answered"}
    if any(isinstance(fault, KillApiProcess) for fault in FAULTS[name]):
        allowed.add("api_process_died")
    if name == "all die":
        allowed.add("attempts_failed")
    assert outcomes <= allowed


@pytest.mark.parametrize("name", FAULTS)
def test_effects_follow_their_causes(name: str) -> None:
    result = run(poisson(12, 25, 4), pool(4, cold_start_s=10.0), RunConfig(faults=FAULTS[name]))
    engine_s = Network().engine_s[0]
    for record in result.records:
        if record.finished_at >= 0:
            assert record.request.at <= record.dispatched_at
            prefill_s = (record.request.prompt_tokens - record.cached_tokens) / CAPACITY.prefill_tokens_per_s
            least_s = 2 * engine_s + 0.5 * prefill_s  # half: the noise of a step
            assert record.first_token_at >= record.dispatched_at + least_s
            assert record.finished_at >= record.first_token_at
            assert 0 <= record.cached_tokens < record.request.prompt_tokens
            if record.request.output_tokens > 20:
                assert record.tpot_s > 0.5 * CAPACITY.step_base_s


def test_nothing_can_be_planned_for_the_past() -> None:
    timeline = Timeline()
    timeline.at(5.0, timeline.at, 4.0, print)
    with pytest.raises(ValueError, match="already"):
        timeline.run(lambda: True, math.inf)


def test_metrics_show_the_pool_as_it_was() -> None:
    routing: list[RoundRobin] = []

    def factory(setup: object) -> RoundRobin:
        routing.append(RoundRobin(setup))  # type: ignore[arg-type]
        return routing[-1]

    simulate(factory, poisson(20, 10, 5), pool(2), RunConfig(faults=(Kill(4.0, "r0"),)))
    heard = routing[0].heard[1:]
    assert len(heard) > 15
    for now, views in heard:
        for view in views:
            assert 0.05 <= now - view.scraped_at <= 0.2
    first_failed = next(now for now, views in heard if views[0].state is not ReplicaState.READY)
    assert 4.05 <= first_failed <= 4.0 + 0.5 + 0.2
    assert any(view.running > 0 for _, views in heard for view in views)


def test_what_a_replica_took_down_is_tried_elsewhere_and_the_replica_comes_back_empty() -> None:
    requests = poisson(10, 60, 6)
    result = run(requests, pool(3, cold_start_s=15.0), RunConfig(faults=(Kill(20.0, "r1"),)))
    retried = [record for record in result.records if record.attempts > 1]
    assert retried
    assert all(record.finished_at > 20.0 and not record.refused for record in retried)
    away = [record for record in result.records if record.replica_id == "r1"]
    dispatched = sorted(record.dispatched_at for record in away)
    assert not [at for at in dispatched if 21.0 < at < 35.0]
    assert [at for at in dispatched if at > 35.0]
    assert result.replica_seconds["loading"] == pytest.approx(15.0)


def test_a_short_hang_delays_and_loses_nothing() -> None:
    requests = poisson(10, 30, 7)
    hung = run(requests, pool(2), RunConfig(faults=(Slow(10.0, "r0", 0.0, 6.0),)))
    assert {outcome(record) for record in hung.records} == {"answered"}
    assert not [
        record
        for record in hung.records
        if record.replica_id == "r0" and 10.01 < record.first_token_at < 16.0
    ]
    smooth = run(requests, pool(2))
    assert (
        max(record.ttft_s for record in hung.records) > 4.0 > max(record.ttft_s for record in smooth.records)
    )


def test_a_straggler_is_slower_by_its_factor() -> None:
    requests = [request(key, 10.0 * key) for key in range(4)]
    quick = run(requests, pool(1))
    slow = run(requests, pool(1, speed=0.5))
    for fast, late in zip(quick.records, slow.records, strict=True):
        assert late.tpot_s == pytest.approx(2 * fast.tpot_s, rel=0.1)


def test_what_no_replica_could_ever_take_is_refused_at_the_door() -> None:
    result = run([replace(request(0, 0.0), prompt_tokens=40_000)], pool(1))
    assert result.records[0].refused == TOO_LONG


def test_a_single_replica_with_one_seat_is_an_m_d_1_queue() -> None:
    """Pollaczek-Khinchine: with deterministic service S and utilisation rho the mean wait is rho*S/(2*(1-rho))."""
    capacity = msgspec_replace(CAPACITY, max_num_seqs=1)
    spec = ReplicaSpec("r0", MODEL, StepConfig(capacity, noise_cv=0.0), Targets())
    alone = simulate(RoundRobin, [request(0, 1.0)], [spec]).records[0]
    service_s = alone.finished_at - alone.dispatched_at
    rho = 0.7
    requests = [
        replace(each, prompt_tokens=700, output_tokens=20, blocks=())
        for each in poisson(rho / service_s, 4000 * service_s, 8)
    ]
    result = simulate(RoundRobin, requests, [spec])
    waits = [record.finished_at - record.request.at - service_s for record in result.records]
    assert statistics.fmean(waits) == pytest.approx(rho * service_s / (2 * (1 - rho)), rel=0.15)


class Parks:
    """Puts r1 to sleep at 5 s, wakes it at 20 s, stops r2 at 5 s and starts it at 30 s."""

    every_s = 1.0

    def __init__(self) -> None:
        self.views: list[tuple[float, PoolView]] = []

    def observe(self, view: PoolView, now: float) -> list[PoolAction]:
        self.views.append((now, view))
        plan = {
            5.0: [PoolAction(ActionKind.SLEEP, "r1"), PoolAction(ActionKind.STOP, "r2")],
            20.0: [PoolAction(ActionKind.WAKE, "r1")],
            30.0: [PoolAction(ActionKind.START, "r2")],
        }
        return plan.get(now, [])


def test_a_controller_moves_replicas_and_pays_for_what_it_holds() -> None:
    controller = Parks()
    replicas = pool(3, wake_s=(4.0, 9.0), cold_start_s=10.0, create_s=5.0)
    result = run(poisson(6, 60, 9), replicas, RunConfig(controller=controller))
    assert {outcome(record) for record in result.records} == {"answered"}
    states = {
        round(now): {view.replica_id: view.state for view in seen.replicas} for now, seen in controller.views
    }
    assert states[19]["r1"] is ReplicaState.ASLEEP
    assert "r2" not in states[19]
    assert states[21]["r1"] is ReplicaState.LOADING
    assert states[25]["r1"] is ReplicaState.READY
    assert states[40]["r2"] is ReplicaState.LOADING
    assert states[46]["r2"] is ReplicaState.READY
    assert sum(load.arrived for _, view in controller.views for load in view.loads.values()) > 300
    whole = result.seconds * 3 * CAPACITY.gpus
    parked = result.gpu_seconds["asleep"] + result.gpu_seconds["stopped"]
    assert result.gpu_hours * 3600 == pytest.approx(whole - parked)
    assert parked > 2 * 30


def test_two_policies_meet_the_same_arrivals_and_delays() -> None:
    class Backwards(RoundRobin):
        name = "backwards"

        def metrics(self, views, now):  # type: ignore[no-untyped-def]
            super().metrics(list(reversed(views)), now)

    requests = poisson(10, 20, 10)
    one = Cluster(RoundRobin, requests, pool(3), RunConfig())
    other = Cluster(Backwards, requests, pool(3), RunConfig())
    one.run()
    other.run()
    assert [record.router for record in one.records] == [record.router for record in other.records]
    assert one.delays.of_call() == other.delays.of_call()


def request(key: int, at: float) -> SimRequest:
    return SimRequest(key, at, "t", MODEL, 700, 20)


def msgspec_replace(capacity: object, **changes: object) -> object:
    import msgspec

    return msgspec.structs.replace(capacity, **changes)  # type: ignore[type-var]
