"""Minimum and maximum of single regions hold, whatever is bound where."""

from collections import Counter

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.autoscale.autoscaler import Autoscaler
from scheduler.core.autoscale.state import (
    Binding,
    CreationFailures,
    HostObservation,
    ModelSpec,
    Observation,
    PlaceLimits,
    ReplicaObservation,
    Rung,
)
from tests.unit.scheduler.autoscale.test_autoscaler import demand, spec
from tests.unit.scheduler.autoscale.test_bound_demand import (
    B300,
    EAST,
    H200,
    IN_EAST,
    IN_WEST,
    QUICK,
    WEST,
    Cloud,
    bound,
    model,
)
from tests.unit.scheduler.autoscale.test_hosts import LADDER


def within(region: str, least: int, most: int) -> PlaceLimits:
    return PlaceLimits(Binding((region,)), least, most)


def limited(*limits: PlaceLimits, high: int = 8, budget: float = 1e9) -> ModelSpec:
    return msgspec.structs.replace(model(0, high, budget), places=limits)


def test_a_minimum_of_a_region_comes_before_demand_and_budget_and_stays() -> None:
    cloud = Cloud(limited(within(WEST, 1, 4), budget=0.0))
    plan = cloud.look()
    [row] = plan.create
    assert (row.kind, row.count, row.regions) == (H200, 1, (WEST,))
    assert "in tor1: at least 1 are to be awake" in row.reason
    cloud.act(plan)
    for _ in range(60):
        plan = cloud.look()
        assert (plan.create, plan.destroy, cloud.awake()) == ([], [], [WEST])
        cloud.act(plan)
    assert cloud.look(bound(IN_WEST, 0, waiting=50)).create == [], "more would exceed the budget"


def test_a_minimum_elsewhere_does_not_count_for_it() -> None:
    cloud = Cloud(limited(within(WEST, 2, 4)))
    for _ in range(3):
        cloud.add(EAST)
    cloud.add(WEST)
    [row] = cloud.look(demand("m", 1)).create
    assert (row.count, row.regions) == (1, (WEST,))


def test_beyond_a_maximum_hosts_are_created_elsewhere_or_not_at_all() -> None:
    cloud = Cloud(limited(within(EAST, 0, 1), within(WEST, 0, 2)))
    found = Counter[str]()
    for row in cloud.look(demand("m", 60, waiting=60)).create:
        [region] = row.regions
        found[region] += row.count
    assert found == {EAST: 1, WEST: 2}
    cloud.add(EAST)
    plan = cloud.look(bound(IN_EAST, 40, waiting=40))
    assert plan.create == [], "nor is a host elsewhere of use"
    assert plan.models[0].reason.endswith("at most 1 may be awake in nyc2")
    cloud.add(EAST, rung=Rung.SLEEP_1)
    plan = cloud.look(bound(IN_EAST, 40, waiting=40))
    assert sum(row.rung is Rung.AWAKE for row in plan.replicas) == 1


def test_a_lower_maximum_puts_replicas_to_rest_at_once() -> None:
    cloud = Cloud(limited(within(EAST, 0, 1)))
    for region in (EAST, EAST, EAST, WEST):
        cloud.add(region)
    plan = cloud.look(demand("m", 40))
    cloud.act(plan)
    assert cloud.awake() == [EAST, WEST]
    assert "at most 1 may be awake in nyc2" in plan.models[0].reason


def test_replicas_elsewhere_leave_room_below_the_maximum_for_a_minimum() -> None:
    cloud = Cloud(limited(within(WEST, 1, 4), high=3))
    for _ in range(3):
        cloud.add(EAST)
    plan = cloud.look(demand("m", 40))
    assert [row.regions for row in plan.create] == [(WEST,)]
    assert "at most 3 may be awake, 1 of them in tor1" in plan.models[0].reason
    cloud.act(plan)
    assert cloud.awake() == [EAST, EAST, WEST]
    for _ in range(5):
        plan = cloud.look(demand("m", 40))
        assert plan.create == []
        cloud.act(plan)
    assert cloud.awake() == [EAST, EAST, WEST]


def test_a_minimum_for_which_no_host_can_be_created_creates_none_elsewhere_again_and_again() -> None:
    """Replicas elsewhere leave room for it, and are not created anew."""
    cloud = Cloud(limited(within(WEST, 1, 4), high=3))
    for _ in range(3):
        cloud.add(EAST)
    cloud.failures = [CreationFailures(H200, 3, 0.0, "no capacity", WEST)]
    for _ in range(30):
        plan = cloud.look(demand("m", 40))
        assert plan.create == []
        cloud.act(plan)
    assert cloud.awake() == [EAST, EAST]


def test_a_minimum_of_a_region_is_not_outbid() -> None:
    poor = msgspec.structs.replace(spec("m", low=0, usd=0.001), ladder=LADDER, places=(within(WEST, 1, 4),))
    rich = msgspec.structs.replace(spec("rich", low=0, usd=1_000.0), ladder=LADDER)
    scaler = Autoscaler({"m": poor, "rich": rich}, QUICK)
    host = HostObservation("w", 8, 900.0, True, 64.0, B300, WEST)
    rows = [
        ReplicaObservation("w/m", "m", "w", Rung.AWAKE, 900.0, region=WEST, gpu="b300"),
        ReplicaObservation("w/rich", "rich", "w", Rung.SLEEP_1, 900.0, region=WEST, gpu="b300"),
    ]
    for number in range(40):
        scaler.observe(Observation(2.0 * number, [host], rows, [demand("rich", 5, waiting=5)]))
        plan = scaler.plan()
        assert [row.replica_id for row in plan.replicas if row.rung is Rung.AWAKE] == ["w/m"]


looks = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.dictionaries(
            st.sampled_from([IN_EAST, IN_WEST, Binding((EAST, WEST)), Binding((), ("h200",))]),
            st.tuples(st.integers(0, 10), st.integers(0, 3)),
            max_size=3,
        ),
        st.booleans(),
    ),
    min_size=3,
    max_size=30,
)
bounds = st.tuples(st.integers(0, 2), st.integers(0, 2))


@settings(deadline=None, max_examples=100)
@given(looks, bounds, bounds, st.integers(4, 8), st.lists(st.sampled_from([EAST, WEST]), max_size=4))
def test_limits_of_regions_hold_in_every_plan(
    load: list[tuple[int, dict[Binding, tuple[int, int]], bool]],
    east: tuple[int, int],
    west: tuple[int, int],
    high: int,
    first: list[str],
) -> None:
    limits = {
        region: within(region, low, low + more) for region, (low, more) in {EAST: east, WEST: west}.items()
    }
    cloud = Cloud(limited(*limits.values(), high=high))
    for region in first:
        cloud.add(region)
    for arrivals, by_place, joins in load:
        rows = [bound(where, came, held) for where, (came, held) in by_place.items()]
        plan = cloud.look(demand("m", arrivals), *rows)
        awake = Counter(row.region for row in plan.replicas if row.rung is Rung.AWAKE)
        coming = Counter(host.region for host in cloud.creating.values())
        created = Counter[str]()
        for row in plan.create:
            [region] = row.regions
            created[region] += row.count
        assert awake.total() <= high
        for region, limit in limits.items():
            assert awake[region] <= limit.most
            there = awake[region] + coming[region] + created[region]
            assert there <= max(limit.most, awake[region] + coming[region])
            assert there >= limit.least
        cloud.act(plan, joins)
