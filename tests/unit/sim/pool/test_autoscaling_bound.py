"""The bound of what any policy could save: schedules made in full knowledge of the day, and how they are followed."""

import itertools
import random
from collections.abc import Sequence

import pytest

from scheduler.core.autoscale.state import (
    HostObservation,
    ModelSpec,
    Observation,
    ReplicaObservation,
    Rung,
    RungFigures,
)
from sim.pool.autoscaling import POLICIES, SHARED, TUNING_SEED, Policy, compare, penstock_scaler
from sim.pool.autoscaling_bound import SLICE_S, OraclePolicy, oracle, schedule, shares, slices
from sim.pool.autoscaling_load import Lengths
from sim.pool.autoscaling_policies import Static
from sim.pool.autoscaling_report import rows
from sim.pool.autoscaling_scenario import Scenario, play, single_model, two_models
from tests.unit.scheduler.autoscale.test_laws import NODE, TARGETS

SPEC = ModelSpec("m", NODE, TARGETS, {})
LENGTHS = Lengths(prompt=9_000, output=400)


def cost(
    path: Sequence[int], broken: Sequence[Sequence[int]], price: float, wake: float, start: int
) -> float:
    """What a schedule costs, by the definition."""
    ups = sum(max(0, to - before) for before, to in itertools.pairwise([start, *path]))
    return SLICE_S * sum(path) + wake * ups + price * sum(broken[n - 1][at] for at, n in enumerate(path))


@pytest.mark.parametrize("seed", range(12))
def test_no_schedule_is_cheaper_than_the_one_found(seed: int) -> None:
    rng = random.Random(seed)
    each = [sorted((rng.randrange(60) for _ in range(3)), reverse=True) for _ in range(5)]
    broken = list(zip(*each, strict=True))
    price, wake, start = rng.uniform(0.5, 6), rng.uniform(0, 150), rng.randrange(1, 4)
    found = schedule(broken, price, wake, start)
    every = itertools.product(range(1, 4), repeat=5)
    best = min(cost(path, broken, price, wake, start) for path in every)
    assert cost(found, broken, price, wake, start) == pytest.approx(best)


def test_dear_promises_buy_replicas_and_cheap_ones_do_not() -> None:
    broken = [[0, 9, 0], [0, 0, 0]]
    assert schedule(broken, 100.0, 10.0, 1) == [1, 2, 1]
    assert schedule(broken, 1.0, 10.0, 1) == [1, 1, 1]


def test_two_models_share_hosts_by_who_would_break_more() -> None:
    busy_first, busy_later = [[9, 0], [4, 0], [0, 0]], [[0, 9], [0, 4], [0, 0]]
    assert shares(busy_first, busy_later, 4) == [3, 1]
    assert shares(busy_first, busy_first, 4)[0] == 2


def test_promises_are_counted_in_the_slice_of_their_request() -> None:
    assert slices([0.0, 59.9, 60.0, 130.0], 120.0) == [2, 2]


def test_foresight_wakes_in_time_and_only_where_there_is_room() -> None:
    ladder = {Rung.STOPPED: RungFigures(90.0)}
    specs = {name: ModelSpec(name, NODE, TARGETS, ladder) for name in ("a", "b")}
    policy = OraclePolicy(specs, {"a": [1, 1, 2], "b": [1, 1, 1]})
    hosts = [HostObservation(f"h{n}", 8, 0.0, contracted=True) for n in range(3)]
    seen = [
        ReplicaObservation(f"h{n}/{model}", model, f"h{n}", Rung.AWAKE if up else Rung.STOPPED)
        for model, awake in (("a", {0}), ("b", {1}))
        for n, up in ((n, n in awake) for n in range(3))
    ]
    assert policy.evaluate(Observation(20.0, hosts, seen, [])) == {}
    assert policy.evaluate(Observation(30.0, hosts, seen, [])) == {"h2/a": Rung.AWAKE}, "h1 belongs to b"


def office(hours: float = 0.5) -> Scenario:
    return single_model(
        "office", SPEC, day_s=3_600.0 * hours, peak_rps=2.0, lengths=LENGTHS, replicas=6, wake_s=30.0
    )


def test_the_bound_keeps_the_promises_for_less_than_anybody() -> None:
    scenario = office()
    day = scenario.arrivals(1)
    bound = play(scenario, oracle(scenario, 100.0, 1), day)
    mine = play(scenario, penstock_scaler(scenario, 0.02), day)
    assert bound.attainment >= mine.attainment - 0.002
    assert bound.gpu_s < mine.gpu_s
    assert list(scenario.tables) == [("m", 1)]


def shared(hosts: int = 8) -> Scenario:
    other = ModelSpec("n", NODE, TARGETS, {})
    return two_models(
        SPEC, other, day_s=1_200.0, peak_rps=(1.5, 1.5), lengths=LENGTHS, hosts=hosts, wake_s=5.5
    )


def test_contracted_hosts_are_paid_for_whoever_is_awake() -> None:
    scenario = shared().on(4)
    result = play(scenario, Static(scenario.specs, 1), scenario.arrivals(1))
    assert result.gpu_s == pytest.approx(4 * 8 * 1_200.0)


def test_hosts_are_dealt_out_or_shared() -> None:
    parted, on = shared().parted(5), shared().on(5)
    assert {spec.model: spec.max_awake for spec in parted.specs.values()} == {"m": 3, "n": 2}
    assert len({host for _, host in parted.homes}) == len(parted.homes) == 5
    assert {spec.max_awake for spec in on.specs.values()} == {5}
    assert len(on.homes) == 10


def test_rows_tell_both_promises_and_what_is_saved_against_the_static_peak() -> None:
    scenario = office(0.1)
    policies = [
        Policy("static", lambda s, _, __: Static(s.specs, 4), 1.0, 1.0),
        Policy("penstock", lambda s, _, __: Static(s.specs, 3), 1.0, 1.0),
    ]
    static, mine = rows(compare(scenario, policies, target=0.5, seeds=2, tuning_days=1))
    assert mine["saves_static"] == pytest.approx(static["ours_saves"])
    assert "saves_static" not in static
    assert 0.0 < mine["saves_static"] < 0.3
    for row in (static, mine):
        broken = (1 - row["ttft_attainment"]) + (1 - row["tpot_attainment"])
        assert max(1 - row["ttft_attainment"], 1 - row["tpot_attainment"]) <= 1 - row["attainment"] + 2e-5
        assert 1 - row["attainment"] <= broken + 2e-5


@pytest.mark.parametrize("hindsight", [False, True])
def test_only_the_static_peak_is_found_on_the_days_that_are_compared(hindsight: bool) -> None:
    met: list[int] = []

    def make(scenario: Scenario, knob: float, seed: int) -> Static:
        met.append(seed)
        return Static(scenario.specs, round(knob))

    policy = Policy("static", make, 4, 2, whole=True, hindsight=hindsight)
    compare(office(0.1), [policy], target=0.5, seeds=2, tuning_days=1)
    assert (TUNING_SEED in met) is not hindsight
    assert SHARED["static"].hindsight
    assert [name for name, each in POLICIES.items() if each.hindsight] == ["static"]
