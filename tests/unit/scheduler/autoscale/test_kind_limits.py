"""Minimum and maximum of kinds of hosts hold, beside those of regions, whatever is bound where."""

from collections import Counter

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.core.autoscale.plan import view
from scheduler.core.autoscale.state import (
    Binding,
    CreationFailures,
    HostOption,
    ModelSpec,
    PlaceLimits,
    Rung,
)
from tests.unit.scheduler.autoscale.test_autoscaler import demand
from tests.unit.scheduler.autoscale.test_bound_demand import (
    B300,
    EAST,
    GPU,
    H200,
    IN_EAST,
    IN_WEST,
    USD,
    WEST,
    Cloud,
    bound,
)
from tests.unit.scheduler.autoscale.test_region_limits import limited, looks, within


def of(kind: str, least: int, most: int) -> PlaceLimits:
    return PlaceLimits(Binding(kinds=(kind,)), least, most)


def test_a_minimum_of_a_kind_comes_before_demand_and_budget_and_stays() -> None:
    cloud = Cloud(limited(of(H200, 1, 4), budget=0.0))
    cloud.add(EAST, B300, Rung.STOPPED)
    plan = cloud.look()
    [row] = plan.create
    assert (row.kind, row.count) == (H200, 1)
    assert "on hosts of kind gpu-h200: at least 1 are to be awake" in row.reason
    [place] = view(plan, cloud.seen.replicas).models[0].places
    assert (place.kinds, place.target, place.words) == ((H200,), 1, "on hosts of kind gpu-h200")
    cloud.act(plan)
    for _ in range(60):
        plan = cloud.look()
        assert plan.create == []
        assert [row.kind for row in cloud.replicas.values() if row.rung is Rung.AWAKE] == [H200]
        cloud.act(plan)


def test_a_replica_on_another_kind_does_not_count_and_one_of_the_kind_wakes() -> None:
    cloud = Cloud(limited(of(H200, 1, 4)))
    cloud.add(EAST, B300)
    sleeping = cloud.add(EAST, H200, Rung.SLEEP_1)
    plan = cloud.look(demand("m", 1))
    assert plan.create == []
    assert sleeping in {row.replica_id for row in plan.replicas if row.rung is Rung.AWAKE}


def test_beyond_a_maximum_the_next_kind_is_created_or_none() -> None:
    cloud = Cloud(limited(of(B300, 0, 1), of(H200, 0, 2)))
    plan = cloud.look(demand("m", 60, waiting=60))
    assert {row.kind: row.count for row in plan.create} == {B300: 1, H200: 2}
    cloud.act(plan, joins=False)
    plan = cloud.look(demand("m", 60, waiting=60))
    assert plan.create == [], "those that come count"
    assert "at most 1 may be awake on hosts of kind gpu-b300" in plan.models[0].reason
    assert "at most 2 may be awake on hosts of kind gpu-h200" in plan.models[0].reason


def test_nothing_wakes_beyond_a_maximum() -> None:
    cloud = Cloud(limited(of(B300, 0, 1)))
    cloud.add(EAST, B300)
    cloud.add(EAST, B300, Rung.SLEEP_1)
    cloud.add(WEST, H200, Rung.STOPPED)
    plan = cloud.look(demand("m", 60, waiting=60))
    kinds = {row.replica_id: row.kind for row in cloud.seen.replicas}
    awake = Counter(kinds[row.replica_id] for row in plan.replicas if row.rung is Rung.AWAKE)
    assert awake == {B300: 1, H200: 1}
    assert {row.kind for row in plan.create} == {H200}


def test_a_lower_maximum_puts_replicas_to_rest_at_once() -> None:
    cloud = Cloud(limited(of(H200, 0, 1)))
    for kind in (H200, H200, H200, B300):
        cloud.add(EAST, kind)
    plan = cloud.look(demand("m", 40))
    assert "at most 1 may be awake on hosts of kind gpu-h200" in plan.models[0].reason
    cloud.act(plan)
    awake = sorted(row.kind for row in cloud.replicas.values() if row.rung is Rung.AWAKE)
    assert awake == [B300, H200]


def test_a_host_with_room_for_more_replicas_than_the_maximum_is_created_for_those_that_may_be_awake() -> None:
    model = limited(of(H200, 0, 2))
    model = msgspec.structs.replace(model, kinds=(HostOption(H200, 40.0, 4, (WEST,), "H200"),))
    [row] = Cloud(model).look(demand("m", 60, waiting=60)).create
    assert (row.kind, row.count) == (H200, 1)


def test_one_replica_meets_the_minima_of_its_region_and_of_its_kind() -> None:
    cloud = Cloud(limited(within(WEST, 1, 4), of(H200, 1, 4)))
    for _ in range(5):
        cloud.act(cloud.look())
    assert [(row.region, row.kind) for row in cloud.replicas.values()] == [(WEST, H200)]


def test_the_maximum_of_a_region_comes_before_the_minimum_of_a_kind() -> None:
    """Hosts of this kind are created in the east alone."""
    cloud = Cloud(limited(of(B300, 2, 4), within(EAST, 0, 1)))
    for _ in range(5):
        plan = cloud.look(demand("m", 1))
        cloud.act(plan)
    assert cloud.awake() == [EAST]
    assert "at most 1 may be awake in nyc2" in plan.models[0].reason


@pytest.mark.parametrize("joins", [True, False])
def test_a_kind_that_fails_is_not_replaced_by_another_for_its_minimum(joins: bool) -> None:
    cloud = Cloud(limited(of(B300, 1, 4)))
    cloud.failures = [CreationFailures(B300, 3, 0.0, "no capacity")]
    assert cloud.look().create == []
    cloud.failures = [CreationFailures(B300, 3, 900.0, "no capacity")]
    plan = cloud.look()
    assert [(row.kind, row.count) for row in plan.create] == [(B300, 1)]
    cloud.act(plan, joins)
    assert cloud.look().create == []


bounds = st.tuples(st.integers(0, 2), st.integers(0, 2))


def meets(spec: ModelSpec, limits: PlaceLimits) -> bool:
    """Whether the maxima of the regions leave room for the minimum of a kind."""
    most = {each.where.regions[0]: each.most for each in spec.places if each.where.regions}
    option = next(each for each in spec.kinds if each.kind in limits.where.kinds)
    return limits.least <= sum(most.get(region, 8) for region in option.regions)


@settings(deadline=None, max_examples=100)
@given(
    looks,
    bounds,
    bounds,
    st.one_of(st.none(), st.integers(1, 4)),
    st.integers(4, 8),
    st.lists(st.sampled_from([(EAST, B300), (EAST, H200), (WEST, H200)]), max_size=4),
)
def test_limits_of_kinds_hold_in_every_plan(
    load: list[tuple[int, dict[Binding, tuple[int, int]], bool]],
    b300: tuple[int, int],
    h200: tuple[int, int],
    east: int | None,
    high: int,
    first: list[tuple[str, str]],
) -> None:
    kinds = {kind: of(kind, low, low + more) for kind, (low, more) in {B300: b300, H200: h200}.items()}
    regions = [] if east is None else [within(EAST, 0, east)]
    cloud = Cloud(limited(*regions, *kinds.values(), high=high))
    for region, kind in first:
        cloud.add(region, kind)
    for arrivals, by_place, joins in load:
        rows = [bound(where, came, held) for where, (came, held) in by_place.items()]
        plan = cloud.look(demand("m", arrivals), *rows)
        there = {row.replica_id: row for row in cloud.seen.replicas}
        up = [there[row.replica_id] for row in plan.replicas if row.rung is Rung.AWAKE]
        awake = Counter(row.kind for row in up)
        coming = Counter(host.kind for host in cloud.creating.values())
        created = Counter[str]()
        for row in plan.create:
            created[row.kind] += row.count
        assert awake.total() <= high
        for kind, limit in kinds.items():
            assert awake[kind] <= limit.most
            will_be = awake[kind] + coming[kind] + created[kind]
            assert will_be <= max(limit.most, awake[kind] + coming[kind])
            if east is None:
                assert will_be >= limit.least
        if east is not None:
            assert sum(row.region == EAST for row in up) <= east
        cloud.act(plan, joins)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(bounds, min_size=4, max_size=4),
    st.sets(st.integers(0, 3)),
    st.integers(1, 5),
    st.integers(0, 20),
    st.lists(st.sampled_from([(EAST, B300), (EAST, H200), (WEST, H200)]), max_size=4),
    st.one_of(st.none(), st.tuples(st.sampled_from([B300, H200]), st.sampled_from(["", EAST, WEST]))),
)
@example([(1, 2), (1, 0), (0, 0), (2, 0)], {0, 1, 3}, 4, 20, [(EAST, H200), (EAST, H200)], (H200, ""))
@example([(2, 2), (0, 0), (2, 2), (1, 0)], {0, 1, 2, 3}, 3, 20, [], None)
def test_plans_settle_under_steady_demand_although_minima_exclude_each_other(
    pairs: list[tuple[int, int]],
    chosen: set[int],
    high: int,
    arrivals: int,
    first: list[tuple[str, str]],
    failing: tuple[str, str] | None,
) -> None:
    """Limits that cannot hold together create no host again and again, and move no replica to and fro."""
    places = [Binding(kinds=(B300,)), Binding(kinds=(H200,)), IN_EAST, IN_WEST]
    limits = [
        PlaceLimits(where, low, low + more)
        for number, (where, (low, more)) in enumerate(zip(places, pairs, strict=True))
        if number in chosen
    ]
    cloud = Cloud(limited(*limits, high=high))
    if failing is not None:
        kind, region = failing
        cloud.failures = [CreationFailures(kind, 5, 0.0, "no capacity", region)]
    for region, kind in first:
        cloud.add(region, kind)
    for _ in range(40):
        cloud.act(cloud.look(demand("m", arrivals)))
    made, awake = cloud.made, cloud.awake()
    for _ in range(40):
        cloud.act(cloud.look(demand("m", arrivals)))
    assert (cloud.made, cloud.awake()) == (made, awake)


def test_a_minimum_of_a_kind_and_bound_demand_share_hosts() -> None:
    cloud = Cloud(limited(of(H200, 2, 4)))
    for _ in range(8):
        cloud.act(cloud.look(bound(IN_WEST, 1), bound(IN_EAST, 1)))
    found = Counter((row.region, row.kind) for row in cloud.replicas.values())
    assert sum(count for (_, kind), count in found.items() if kind == H200) >= 2
    assert any(region == WEST for region, _ in found)
    assert any(region == EAST for region, _ in found)
    assert found.total() <= 4


def test_kinds_differ_from_classes_of_gpu() -> None:
    assert set(GPU) == set(USD) == {B300, H200}
    assert Binding(kinds=(B300,)).words == "on hosts of kind gpu-b300"
    assert not Binding(kinds=(B300,)).allows(EAST, "b300", H200)
    assert Binding((EAST,), (), (B300,)).within(Binding(kinds=(B300,)))
    assert not Binding(kinds=(B300,)).overlaps(Binding(kinds=(H200,)))
