"""The autoscaler's plans over time: idempotent, bounded, calm, and kind to hot caches."""

import random
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.autoscale.autoscaler import Autoscaler
from scheduler.core.autoscale.model_planner import AutoscalerSettings
from scheduler.core.autoscale.plan import Plan, changes, shown, view
from scheduler.core.autoscale.state import (
    CacheValue,
    DemandObservation,
    HostObservation,
    ModelSpec,
    Observation,
    ReplicaObservation,
    Rung,
    RungFigures,
)
from tests.unit.scheduler.autoscale.test_laws import NODE, TARGETS, _poisson

LADDER = {Rung.SLEEP_1: RungFigures(5.5, 430.0), Rung.STOPPED: RungFigures(98.0)}


def spec(model: str = "m", *, gpus: int = 8, low: int = 1, high: int = 8, usd: float = 1.0) -> ModelSpec:
    capacity = msgspec.structs.replace(NODE, gpus=gpus)
    return ModelSpec(model, capacity, TARGETS, LADDER, low, high, usd)


def hosts(count: int, *, contracted: bool = False, ram_gb: float = 3_700.0) -> list[HostObservation]:
    return [HostObservation(f"h{n}", 8, ram_gb, contracted, 64.0) for n in range(count)]


def pool(model: str, rungs: list[Rung], **more: object) -> list[ReplicaObservation]:
    return [
        ReplicaObservation(f"h{n}/{model}", model, f"h{n}", rung, since_s=900.0, **more)  # type: ignore[arg-type]
        for n, rung in enumerate(rungs)
    ]


def demand(model: str, arrivals: int, waiting: int = 0, uncached: float = 6_000.0) -> DemandObservation:
    square = 1.5 * uncached * uncached
    return DemandObservation(model, arrivals, 8_000, uncached, square, 400, 2.6e5, waiting, waiting * 8_000.0)


def applied(plan: Plan, replicas: list[ReplicaObservation]) -> list[ReplicaObservation]:
    """The pool once everything has been set in motion."""
    want = {row.replica_id: row.rung for row in plan.replicas}
    return [
        replica
        if want[replica.replica_id] is replica.rung
        else msgspec.structs.replace(
            replica,
            rung=want[replica.replica_id],
            since_s=0.0,
            ready_in_s=90.0 if want[replica.replica_id] is Rung.AWAKE else 0.0,
        )
        for replica in replicas
    ]


def run(
    scaler: Autoscaler,
    seen: list[HostObservation],
    replicas: list[ReplicaObservation],
    rate: float,
    looks: int,
    *,
    seed: int = 1,
    uncached: float = 6_000.0,
) -> tuple[list[ReplicaObservation], list[int]]:
    """Looks every two seconds at one model under Poisson arrivals; wakes take 98 s."""
    rng, targets = random.Random(seed), []
    for number in range(looks):
        now = 2.0 * number
        scaler.observe(
            Observation(now, seen, replicas, [demand("m", _poisson(2 * rate, rng), uncached=uncached)])
        )
        plan = scaler.plan()
        targets.append(plan.models[0].target)
        replicas = [
            msgspec.structs.replace(row, since_s=row.since_s + 2, ready_in_s=max(0.0, row.ready_in_s - 2))
            for row in applied(plan, replicas)
        ]
    return replicas, targets


rungs = st.lists(st.sampled_from([Rung.AWAKE, Rung.SLEEP_1, Rung.STOPPED]), min_size=6, max_size=6)


@given(rungs, rungs, st.integers(0, 400), st.integers(0, 400), st.integers(0, 60), st.booleans())
def test_a_plan_is_idempotent_and_within_gpus_and_limits(
    first: list[Rung], second: list[Rung], some: int, others: int, waiting: int, contracted: bool
) -> None:
    # A host cannot begin with more awake than it has GPUs for.
    second = [
        Rung.SLEEP_1 if one is Rung.AWAKE and two is Rung.AWAKE else two
        for one, two in zip(first, second, strict=True)
    ]
    scaler = Autoscaler({"a": spec("a", high=4), "b": spec("b", low=0, usd=3.0)})
    seen, replicas = hosts(6, contracted=contracted), pool("a", first) + pool("b", second)
    looks = [demand("a", some, waiting), demand("b", others)]
    scaler.observe(Observation(0.0, seen, replicas, looks))
    scaler.observe(Observation(2.0, seen, replicas, looks))
    plan = scaler.plan()
    assert plan == scaler.plan()
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan
    awake = [row for row in plan.replicas if row.rung is Rung.AWAKE]
    assert len({row.host_id for row in awake}) == len(awake)
    assert all(row.target <= {"a": 4, "b": 8}[row.model] or row.target <= row.awake for row in plan.models)
    after = applied(plan, replicas)
    assert changes(plan, after) == []
    same = Autoscaler({"a": spec("a", high=4), "b": spec("b", low=0, usd=3.0)})
    same.observe(Observation(0.0, seen, after, looks))
    same.observe(Observation(2.0, seen, after, looks))
    again = changes(same.plan(), after)
    missing = {row.model for row in plan.models if row.target > sum(one.model == row.model for one in awake)}
    assert not again or missing


def test_pending_replicas_are_counted() -> None:
    scaler = Autoscaler({"m": spec()})
    replicas = pool("m", [Rung.AWAKE] + [Rung.STOPPED] * 7)
    waking: list[int] = []
    for number in range(20):
        scaler.observe(Observation(2.0 * number, hosts(8), replicas, [demand("m", 8)]))
        plan = scaler.plan()
        waking.append(len(changes(plan, replicas)))
        replicas = applied(plan, replicas)
    awake = sum(row.rung is Rung.AWAKE for row in replicas)
    assert sum(waking) == awake - 1, "every wake was ordered once"
    assert awake < 8


@pytest.mark.parametrize("rate", [0.7, 2.3, 4.1])
def test_no_flapping_under_constant_noisy_load(rate: float) -> None:
    turns = 0
    for seed in (1, 2):
        scaler, replicas = Autoscaler({"m": spec()}), pool("m", [Rung.AWAKE] * 4 + [Rung.STOPPED] * 4)
        _, targets = run(scaler, hosts(8), replicas, rate, 1_500, seed=seed)
        settled = targets[600:]
        turns += sum(one != other for one, other in pairwise(settled))
        assert max(settled) - min(settled) <= 1
    assert turns <= 4, "twice up and down in an hour"


def test_never_below_the_minimum_and_down_only_after_five_minutes() -> None:
    scaler = Autoscaler({"m": spec(low=2)})
    _, targets = run(scaler, hosts(8), pool("m", [Rung.AWAKE] * 8), 0.02, 400)
    assert targets[:150] == [8] * 150
    assert targets[-1] == 2


def test_looks_at_irregular_times_scale_down_too() -> None:
    """No look of a live scheduler is exactly the time of the window before another one."""
    scaler = Autoscaler({"m": spec()}, AutoscalerSettings(stabilization_s=20.0))
    seen, replicas = hosts(3), pool("m", [Rung.AWAKE] * 3)
    targets = {}
    for number in range(16):
        now = 2.03 * number
        scaler.observe(Observation(now, seen, replicas, [demand("m", 0)]))
        targets[now] = scaler.plan().models[0].target
    assert {target for at, target in targets.items() if at < 20.0} == {3}
    assert {target for at, target in targets.items() if at > 22.1} == {1}


def test_a_model_that_nobody_uses_any_more_goes_to_rest() -> None:
    scaler = Autoscaler({"m": spec(low=0)}, AutoscalerSettings(stabilization_s=20.0))
    replicas = pool("m", [Rung.AWAKE])
    for now in range(0, 800, 4):
        arrivals = int(now == 40)
        scaler.observe(Observation(now, hosts(1), replicas, [demand("m", arrivals)]))
        if now == 60:
            assert scaler.plan().models[0].target == 1
    row = scaler.plan().models[0]
    assert (row.target, row.planned_rps) == (0, 0.0)


def test_a_flash_crowd_wakes_within_ten_seconds() -> None:
    scaler = Autoscaler({"m": spec()})
    replicas, _ = run(scaler, hosts(8), pool("m", [Rung.AWAKE] * 2 + [Rung.SLEEP_1] * 6), 0.5, 400)
    before = sum(row.rung is Rung.AWAKE for row in replicas)
    for number in range(5):
        now = 800.0 + 2 * number
        scaler.observe(Observation(now, hosts(8), replicas, [demand("m", 12)]))
        replicas = applied(scaler.plan(), replicas)
    assert sum(row.rung is Rung.AWAKE for row in replicas) >= before + 2


def test_scaling_down_spares_the_hot_cache() -> None:
    scaler = Autoscaler({"m": spec()})
    hot = CacheValue(hit_tokens_per_s=4_000.0)
    replicas = [
        msgspec.structs.replace(row, cache=hot if row.replica_id in {"h0/m", "h3/m"} else CacheValue(5.0))
        for row in pool("m", [Rung.AWAKE] * 5)
    ]
    after, _ = run(scaler, hosts(5), replicas, 0.5, 400)
    awake = {row.replica_id for row in after if row.rung is Rung.AWAKE}
    assert len(awake) < 5
    assert {"h0/m", "h3/m"} & awake
    cold = {row.replica_id for row in after} - {"h0/m", "h3/m"}
    gone = {row.replica_id for row in after} - awake
    assert gone <= cold or cold <= gone, "hot caches go only after all cold ones"


def test_a_cache_that_carries_the_load_keeps_its_replica() -> None:
    """Fewer replicas would do for what is uncached now, but what the others save would have to be prefilled."""

    def left(cache: CacheValue) -> int:
        replicas = pool("m", [Rung.AWAKE] * 6, cache=cache)
        rows, _ = run(Autoscaler({"m": spec()}), hosts(6), replicas, 1.4, 300, uncached=1_500.0)
        return sum(row.rung is Rung.AWAKE for row in rows)

    assert left(CacheValue(hit_tokens_per_s=9_000.0)) > left(CacheValue())


def test_contracted_replicas_stay_awake_until_another_model_wants_the_gpus() -> None:
    scaler = Autoscaler({"m": spec(), "n": spec("n", low=0)})
    seen = hosts(3, contracted=True)
    replicas = pool("m", [Rung.AWAKE] * 3) + pool("n", [Rung.SLEEP_1] * 3)
    for number in range(300):
        scaler.observe(Observation(2.0 * number, seen, replicas, [demand("m", number % 2)]))
        assert changes(scaler.plan(), replicas) == []
    for number in range(300, 310):
        look = [demand("m", number % 2), demand("n", 4)]
        scaler.observe(Observation(2.0 * number, seen, replicas, look))
    found = changes(scaler.plan(), replicas)
    assert [row.after for row in found][:1] == [Rung.SLEEP_1]
    assert found[-1].model == "n"
    assert found[-1].after is Rung.AWAKE
    assert "its GPUs go to n" in found[0].reason
    assert scaler.plan().destroy == []


@pytest.mark.parametrize("contracted", [False, True])
def test_idle_droplets_are_destroyed_by_the_ladder_and_contracted_hosts_are_not(contracted: bool) -> None:
    ladder = {Rung.STOPPED: RungFigures(98.0), Rung.DESTROYED: RungFigures(398.0)}
    model = msgspec.structs.replace(spec(low=0), ladder=ladder)
    scaler, replicas = (
        Autoscaler({"m": model}, AutoscalerSettings(stabilization_s=10.0)),
        pool("m", [Rung.STOPPED] * 2),
    )
    seen = hosts(2, contracted=contracted)
    destroyed = []
    for number in range(200):
        scaler.observe(Observation(2.0 * number, seen, replicas, []))
        destroyed.append([row.host_id for row in scaler.plan().destroy])
    # Ski rental: 300 s of idle cost are what bringing one up again costs more than waking what rests there.
    assert destroyed[149] == []
    assert destroyed[150] == ([] if contracted else ["h0", "h1"])


def test_a_held_replica_stays_as_it_is_and_another_one_is_woken() -> None:
    first, *others = pool("m", [Rung.STOPPED] * 3)
    scaler = Autoscaler({"m": spec(low=1)})
    scaler.observe(Observation(0.0, hosts(3), [first, *others], [demand("m", 0)]))
    assert [row.replica_id for row in changes(scaler.plan(), [first, *others])] == ["h0/m"]
    held = [msgspec.structs.replace(first, held=True), *others]
    scaler.observe(Observation(2.0, hosts(3), held, [demand("m", 0)]))
    assert [row.replica_id for row in changes(scaler.plan(), held)] == ["h1/m"]
    asleep = [msgspec.structs.replace(row, rung=Rung.SLEEP_1, since_s=1e9, held=True) for row in held]
    scaler.observe(Observation(4.0, hosts(3), asleep, [demand("m", 0)]))
    assert changes(scaler.plan(), asleep) == []


def test_sleepers_go_down_rung_by_rung_and_one_that_is_wanted_comes_up() -> None:
    scaler = Autoscaler({"m": spec(low=0)})
    rows = pool("m", [Rung.SLEEP_1] * 2)
    old = [rows[0], msgspec.structs.replace(rows[1], since_s=100.0)]
    scaler.observe(Observation(0.0, hosts(2), old, []))
    found = changes(scaler.plan(), old)
    assert [(row.replica_id, row.after) for row in found] == [("h0/m", Rung.STOPPED)]
    assert "has cost as much as coming back from stopped would" in found[0].reason
    scaler.observe(Observation(2.0, hosts(2), old, [demand("m", 1)]))
    assert {row.after for row in changes(scaler.plan(), old)} >= {Rung.AWAKE}


def test_many_running_answers_wake_replicas_although_nothing_waits() -> None:
    scaler = Autoscaler({"m": spec()})
    rows = pool("m", [Rung.AWAKE] + [Rung.SLEEP_1] * 3)
    for number in range(3):
        look = Observation(2.0 * number, hosts(4), rows, [demand("m", 1)])
        scaler.observe(look)
    calm = scaler.plan().models[0].target
    busy = [msgspec.structs.replace(rows[0], running=240), *rows[1:]]
    scaler.observe(Observation(6.0, hosts(4), busy, [demand("m", 1)]))
    row = scaler.plan().models[0]
    assert row.target > calm
    assert "240 answers run" in row.reason


def test_a_known_model_takes_another_specification_and_keeps_its_demand() -> None:
    scaler = Autoscaler({"m": spec()})
    run(scaler, hosts(8), pool("m", [Rung.AWAKE] * 4 + [Rung.STOPPED] * 4), 3.0, 200)
    before = scaler.plan().models[0]
    slower = msgspec.structs.replace(NODE, prefill_tokens_per_s=NODE.prefill_tokens_per_s / 2)
    scaler.add(msgspec.structs.replace(spec(), capacity=slower))
    scaler.observe(
        Observation(402.0, hosts(8), pool("m", [Rung.AWAKE] * 4 + [Rung.STOPPED] * 4), [demand("m", 6)])
    )
    after = scaler.plan().models[0]
    assert after.target > before.target
    assert after.planned_rps == pytest.approx(before.planned_rps, rel=0.5)


def test_reasons_are_sentences_about_the_load_and_views_are_bounded() -> None:
    scaler = Autoscaler({"m": spec(high=300)})
    replicas = pool("m", [Rung.AWAKE] + [Rung.STOPPED] * 199)
    for number in range(40):
        scaler.observe(Observation(2.0 * number, hosts(200), replicas, [demand("m", 400)]))
    whole = view(scaler.plan(), replicas)
    assert whole.models[0].reason.startswith("m: 1 -> ")
    assert "req/s" in whole.models[0].reason
    assert len(whole.changes) == whole.changes_total > 64  # all are carried out
    assert shown(whole).changes == whole.changes[:64]
    assert shown(whole).changes_total == whole.changes_total
