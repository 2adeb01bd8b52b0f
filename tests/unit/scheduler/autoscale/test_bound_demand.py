"""Demand that is bound to regions and classes of GPU is planned for there, and only there."""

import itertools
import random
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.autoscale.autoscaler import Autoscaler
from scheduler.core.autoscale.floors import Floor, in_order, shortfalls
from scheduler.core.autoscale.model_planner import AutoscalerSettings
from scheduler.core.autoscale.plan import Plan, view
from scheduler.core.autoscale.state import (
    UNBOUND,
    Binding,
    CreatingHost,
    CreationFailures,
    DemandObservation,
    HostObservation,
    HostOption,
    ModelSpec,
    Observation,
    ReplicaObservation,
    Rung,
)
from tests.unit.scheduler.autoscale.test_autoscaler import applied, demand, hosts, pool, spec
from tests.unit.scheduler.autoscale.test_hosts import LADDER

EAST, WEST = "nyc2", "tor1"
B300, H200 = "gpu-b300", "gpu-h200"
GPU = {B300: "b300", H200: "h200"}
USD = {B300: 64.0, H200: 40.0}
IN_EAST, IN_WEST = Binding((EAST,)), Binding((WEST,))
QUICK = AutoscalerSettings(stabilization_s=20.0, swap_stabilization_s=10.0)


def model(
    low: int = 0, high: int = 8, budget: float = 1e9, *, h200: tuple[str, ...] = (EAST, WEST)
) -> ModelSpec:
    """B300 hosts are created in the east alone."""
    kinds = (
        HostOption(B300, USD[B300], 1, (EAST,), "B300"),
        HostOption(H200, USD[H200], 1, h200, "H200"),
    )
    return msgspec.structs.replace(
        spec(low=low, high=high), ladder=LADDER, kinds=kinds, budget_usd_per_hour=budget
    )


def bound(where: Binding, arrivals: int, waiting: int = 0) -> DemandObservation:
    return msgspec.structs.replace(demand("m", arrivals, waiting), where=where)


@dataclass
class Cloud:
    """Hosts of two kinds in two regions, each with one replica of the model, as the plan wants them."""

    spec: ModelSpec
    scaler: Autoscaler = field(init=False)
    now: float = 0.0
    hosts: dict[str, HostObservation] = field(default_factory=dict)
    replicas: dict[str, ReplicaObservation] = field(default_factory=dict)
    creating: dict[str, CreatingHost] = field(default_factory=dict)
    failures: list[CreationFailures] = field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        self.scaler = Autoscaler({"m": self.spec}, QUICK)

    def add(self, region: str, kind: str = H200, rung: Rung = Rung.AWAKE) -> str:
        """A host that has joined; returns its name."""
        self.made += 1
        name = f"h{self.made}"
        self.hosts[name] = HostObservation(name, 8, 3_700.0, False, USD[kind], kind, region)
        self.replicas[name] = ReplicaObservation(
            name, "m", name, rung, since_s=900.0, region=region, gpu=GPU[kind], kind=kind
        )
        return name

    def look(self, *rows: DemandObservation) -> Plan:
        self.now += 2.0
        self.seen = Observation(
            self.now,
            list(self.hosts.values()),
            list(self.replicas.values()),
            list(rows),
            list(self.creating.values()),
            self.failures,
        )
        self.scaler.observe(self.seen)
        return self.scaler.plan()

    def act(self, plan: Plan, joins: bool = True) -> None:
        """Do what a plan says. Creations end at once, or not at all."""
        self.replicas = {row.replica_id: row for row in applied(plan, list(self.replicas.values()))}
        self.replicas = {
            name: msgspec.structs.replace(row, since_s=row.since_s + 2.0, ready_in_s=0.0)
            for name, row in self.replicas.items()
        }
        for gone in plan.destroy:
            del self.hosts[gone.host_id], self.replicas[gone.host_id]
        for row in plan.create:
            option = next(each for each in self.spec.kinds if each.kind == row.kind)
            region = (row.regions or option.regions)[0]
            for _ in range(row.count):
                if joins:
                    self.add(region, row.kind)
                else:
                    self.made += 1
                    name = f"n{self.made}"
                    self.creating[name] = CreatingHost(
                        name, row.kind, "m", 0.0, USD[row.kind], region, GPU[row.kind]
                    )

    def awake(self) -> list[str]:
        return sorted(row.region for row in self.replicas.values() if row.rung is Rung.AWAKE)


def test_requests_of_a_region_without_hosts_get_one_there_and_no_one_elsewhere() -> None:
    cloud = Cloud(model())
    cloud.add(EAST)
    plan = cloud.look(demand("m", 1), bound(IN_WEST, 0, waiting=2))
    [row] = plan.create
    assert (row.kind, row.count, row.regions) == (H200, 1, (WEST,))
    assert row.reason.startswith("m: 1 more in tor1: 2 requests are held")
    [shown] = view(plan, cloud.seen.replicas).models
    [place] = shown.places
    assert (place.regions, place.awake, place.pending, place.target) == ((WEST,), 0, 0, 1)
    assert shown.target == 2
    assert "1 more in tor1" in shown.reason
    cloud.act(plan, joins=False)
    for _ in range(30):  # it is on its way
        plan = cloud.look(demand("m", 1), bound(IN_WEST, 0, waiting=2))
        assert plan.create == []
    assert plan.models[0].places[0].pending == 1


def test_a_host_for_a_region_serves_what_may_run_anywhere_too() -> None:
    cloud = Cloud(model())
    for number in range(40):
        some = int(number % 10 == 0)
        cloud.act(cloud.look(demand("m", some), bound(IN_WEST, some)))
    assert cloud.awake() == [WEST]


def test_a_sleeping_replica_of_the_region_wakes_and_no_other() -> None:
    cloud = Cloud(model())
    east, west = cloud.add(EAST, rung=Rung.STOPPED), cloud.add(WEST, rung=Rung.STOPPED)
    plan = cloud.look(bound(IN_WEST, 0, waiting=1))
    assert {row.replica_id: row.rung for row in plan.replicas} == {east: Rung.STOPPED, west: Rung.AWAKE}
    assert plan.create == []
    [change] = view(plan, cloud.seen.replicas).changes
    assert change.region == WEST


def test_no_host_is_created_where_no_kind_may_be() -> None:
    cloud = Cloud(model(h200=(EAST,)))
    cloud.add(EAST)
    plan = cloud.look(bound(IN_WEST, 3, waiting=3))
    assert plan.create == []
    assert plan.models[0].places[0].target > 0


def test_a_class_of_gpu_decides_the_kind() -> None:
    for where, kind, regions in (
        (Binding((), ("h200",)), H200, (EAST, WEST)),
        (Binding((EAST, WEST), ("b300",)), B300, (EAST,)),
        (Binding((WEST,), ("b300", "h200")), H200, (WEST,)),
    ):
        [row] = Cloud(model()).look(bound(where, 0, waiting=1)).create
        assert (row.kind, row.regions) == (kind, regions)
    assert Cloud(model()).look(bound(Binding((WEST,), ("b300",)), 0, waiting=1)).create == []


def test_the_order_of_the_kinds_holds_in_a_region_and_a_failing_one_is_left_alone_there() -> None:
    cloud = Cloud(model())
    assert [row.kind for row in cloud.look(bound(IN_EAST, 0, waiting=1)).create] == [B300]
    cloud.failures = [CreationFailures(B300, 2, 10.0, "no capacity", EAST)]
    [row] = cloud.look(bound(IN_EAST, 0, waiting=1)).create
    assert (row.kind, row.regions) == (H200, (EAST,))
    assert "gpu-b300 in nyc2 failed 2 times (no capacity), next attempt in 50 s" in row.reason
    cloud.failures = [CreationFailures(H200, 2, 10.0, "no capacity", EAST)]
    assert [row.kind for row in cloud.look(bound(IN_EAST, 0, waiting=1)).create] == [B300]
    cloud.failures.append(CreationFailures(B300, 1, 40.0, "no capacity", EAST))
    [row] = cloud.look(bound(IN_EAST, 40, waiting=40)).create
    assert (row.kind, row.count) == (B300, 1), "one at a time after a failure"
    assert [row.kind for row in cloud.look(demand("m", 0, waiting=1)).create][:1] == [B300]


def test_the_region_that_fails_is_left_out_of_several() -> None:
    cloud = Cloud(model())
    cloud.failures = [CreationFailures(H200, 1, 0.0, "no capacity", WEST)]
    [row] = cloud.look(bound(Binding((EAST, WEST), ("h200",)), 0, waiting=1)).create
    assert row.regions == (EAST,)


def test_the_last_replica_that_bound_requests_need_stays() -> None:
    cloud = Cloud(model())
    for _ in range(3):
        cloud.add(EAST)
    west = cloud.add(WEST)
    for number in range(60):
        cloud.act(cloud.look(bound(IN_WEST, int(number % 10 == 0))))
    assert cloud.awake() == [WEST]
    assert cloud.replicas[west].rung is Rung.AWAKE
    for _ in range(400):
        cloud.act(cloud.look())
    assert cloud.awake() == [], "without demand it goes, too"


def test_one_that_serves_stays_until_the_one_that_a_region_needs_serves() -> None:
    cloud = Cloud(model(low=1, high=2))
    east = cloud.add(EAST)
    for number in range(40):
        cloud.act(cloud.look(bound(IN_WEST, int(number % 10 == 0))), joins=False)
    assert len(cloud.creating) == 1
    assert cloud.replicas[east].rung is Rung.AWAKE
    cloud.creating.clear()
    cloud.add(WEST)
    for number in range(40):
        cloud.act(cloud.look(bound(IN_WEST, int(number % 10 == 0))))
    assert cloud.awake() == [WEST]


def test_a_maximum_and_a_budget_hold_for_bound_demand_and_the_plan_says_so() -> None:
    cloud = Cloud(model(low=1, high=1))
    cloud.add(EAST)
    for _ in range(30):
        plan = cloud.look(demand("m", 1), bound(IN_WEST, 1, waiting=1))
        assert (plan.create, cloud.awake()) == ([], [EAST])
        cloud.act(plan)
    assert plan.models[0].reason.endswith("at most 1 may be awake")
    poor = Cloud(model(budget=64.0))
    poor.add(EAST, B300)
    assert poor.look(demand("m", 1), bound(IN_WEST, 0, waiting=1)).create == []
    poor = Cloud(model(budget=104.0))
    poor.add(EAST, B300)
    assert len(poor.look(demand("m", 1), bound(IN_WEST, 0, waiting=1)).create) == 1


def test_a_lower_maximum_takes_the_replicas_that_no_region_needs() -> None:
    cloud = Cloud(model())
    west = cloud.add(WEST)
    for _ in range(3):
        cloud.add(EAST)
    cloud.look(demand("m", 2), bound(IN_WEST, 1))
    cloud.scaler.add(model(high=1))
    plan = cloud.look(demand("m", 2), bound(IN_WEST, 1))
    assert [row.replica_id for row in plan.replicas if row.rung is Rung.AWAKE] == [west]


def test_places_of_hosts_change_no_plan_without_bound_demand() -> None:
    """What the results of the simulated days rest on."""

    def play(seed: int, *, placed: bool) -> list[bytes]:
        rng, found = random.Random(seed), []
        specs = {"m": model(1, 6), "b": spec("b", low=0, usd=3.0)}
        scaler = Autoscaler(specs, QUICK)
        seen = hosts(6)
        replicas = pool("m", [rng.choice([Rung.AWAKE, Rung.SLEEP_1]) for _ in seen])
        replicas += pool("b", [rng.choice([Rung.SLEEP_1, Rung.STOPPED]) for _ in seen])
        for number in range(40):
            rows = [demand("m", rng.randrange(40), rng.randrange(3)), demand("b", rng.randrange(20))]
            shown = [
                msgspec.structs.replace(row, region=rng.choice([EAST, WEST]), gpu="b300") for row in replicas
            ]
            scaler.observe(Observation(2.0 * number, seen, shown if placed else replicas, rows))
            plan = scaler.plan()
            bare = [msgspec.structs.replace(row, region="") for row in plan.replicas]
            found.append(msgspec.json.encode(msgspec.structs.replace(plan, replicas=bare)))
            replicas = applied(plan, replicas)
        return found

    for seed in range(8):
        assert play(seed, placed=True) == play(seed, placed=False)


def test_a_host_that_comes_for_a_region_is_asked_for_once_while_others_serve_elsewhere() -> None:
    cloud = Cloud(model(high=16))
    cloud.add(EAST)
    for number in range(60):
        some = int(number % 30 == 0)
        cloud.act(cloud.look(demand("m", 1), bound(IN_WEST, some, waiting=1)), joins=False)
    assert len(cloud.creating) == 1


def unmet(plan_for: str) -> Cloud:
    """A cloud in which nothing can be created in the west: no kind may be, or the only one fails."""
    if plan_for == "no kind":
        return Cloud(model(h200=(EAST,)))
    cloud = Cloud(model())
    cloud.failures = [CreationFailures(H200, 6, 1.0, "no capacity", WEST)]
    return cloud


@pytest.mark.parametrize("why", ["no kind", "fails"])
def test_a_region_in_which_nothing_can_be_created_holds_up_no_creation_elsewhere(why: str) -> None:
    played = []
    for west in (0, 1, 20):
        cloud = unmet(why)
        cloud.add(EAST)
        for _ in range(20):
            plan = cloud.look(demand("m", 40), bound(IN_WEST, west))
            cloud.act(plan)
        played.append(cloud.awake())
    assert played == [played[0]] * 3
    assert len(played[0]) > 1
    assert plan.models[0].places[0].target > 0, "the plan shows what is needed"


@pytest.mark.parametrize("why", ["no kind", "fails"])
def test_a_region_in_which_nothing_can_be_created_keeps_no_replica_elsewhere(why: str) -> None:
    cloud = unmet(why)
    for _ in range(6):
        cloud.add(EAST)
    for number in range(100):
        cloud.act(cloud.look(demand("m", int(number % 3 == 0)), bound(IN_WEST, int(number % 5 == 0))))
    assert cloud.awake() == [EAST]


def test_one_host_may_serve_sets_of_regions_that_overlap() -> None:
    regions = ("a", "b", "c", "d", "e", "f")
    kinds = (HostOption(H200, 40.0, 1, regions, "H200"),)
    cloud = Cloud(msgspec.structs.replace(model(high=64), kinds=kinds))
    pairs = [Binding(pair) for pair in itertools.combinations(regions, 2)]
    hosts_by_plan = []
    for _ in range(10):
        plan = cloud.look(*(bound(pair, 0, waiting=1) for pair in pairs))
        hosts_by_plan.append(sum(row.count for row in plan.create))
        cloud.act(plan, joins=False)
    assert hosts_by_plan[0] == 3
    assert sum(hosts_by_plan) == 5, "no fewer have one in each pair"


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from([IN_EAST, IN_WEST, Binding((EAST, WEST)), Binding((), ("b300",)), Binding((WEST,), ("h200",))]),
        st.tuples(st.integers(0, 4), st.integers(0, 2)),
        max_size=4,
    ),
    st.tuples(st.integers(0, 6), st.integers(0, 2)),
    st.lists(st.sampled_from([EAST, WEST]), max_size=3),
    st.booleans(),
)  # fmt: skip
def test_creations_end_under_steady_demand_and_are_no_more_than_it_needs(
    by_place: dict[Binding, tuple[int, int]], anywhere: tuple[int, int], first: list[str], fails: bool
) -> None:
    """Creations join those under way, and none of them ends."""
    cloud = Cloud(model(high=64))
    if fails:
        cloud.failures = [CreationFailures(H200, 6, 1.0, "no capacity", WEST)]
    for region in first:
        cloud.add(region)
    rows = [demand("m", *anywhere)] if any(anywhere) else []
    rows += [bound(where, came, held) for where, (came, held) in by_place.items()]
    most = len(first)
    for number in range(90):
        plan = cloud.look(*rows)
        floors = cloud.scaler._floors["m"]
        whole = cloud.scaler._models["m"].need
        apart_needs = sum(more for _, more in shortfalls(floors, []))
        most = max(most, whole + apart_needs + len(floors))
        assert len(cloud.creating) + sum(row.count for row in plan.create) <= most
        if number > 60:
            assert plan.create == []
        cloud.act(plan, joins=False)


BINDINGS = [
    IN_EAST,
    IN_WEST,
    Binding((EAST, WEST)),
    Binding((), ("b300",)),
    Binding((WEST,), ("h200",)),
    Binding((WEST,), ("b300",)),
]
looks = st.lists(
    st.tuples(
        st.integers(0, 20),
        st.dictionaries(
            st.sampled_from(BINDINGS), st.tuples(st.integers(0, 10), st.integers(0, 3)), max_size=3
        ),
        st.booleans(),
    ),
    min_size=4,
    max_size=40,
)


@settings(deadline=None, max_examples=120)
@given(
    looks,
    st.lists(
        st.tuples(st.sampled_from([EAST, WEST]), st.sampled_from([Rung.AWAKE, Rung.SLEEP_1])), max_size=4
    ),
    st.tuples(st.integers(0, 2), st.integers(0, 5), st.sampled_from([0.0, 130.0, 1e9])),
)
def test_whatever_is_bound_where_limits_hold_and_nothing_is_planned_elsewhere(
    load: list[tuple[int, dict[Binding, tuple[int, int]], bool]],
    first: list[tuple[str, Rung]],
    limit: tuple[int, int, float],
) -> None:
    low, more, budget = limit
    cloud = Cloud(model(low, max(1, low + more), budget))
    for region, rung in first:
        cloud.add(region, rung=rung)
    for arrivals, by_place, joins in load:
        before = {row.replica_id: row for row in cloud.replicas.values()}
        anywhere = [demand("m", arrivals)] if arrivals else []
        rows = [bound(where, came, held) for where, (came, held) in by_place.items()]
        plan = cloud.look(*anywhere, *rows)
        [row] = plan.models
        awake = [before[each.replica_id] for each in plan.replicas if each.rung is Rung.AWAKE]
        coming = len(cloud.creating)
        assert len(awake) <= cloud.spec.max_awake
        assert len(awake) + coming + sum(each.count for each in plan.create) <= max(
            cloud.spec.max_awake, len(awake) + coming
        )
        floors = cloud.scaler._floors["m"]
        for each in plan.create:
            option = next(one for one in cloud.spec.kinds if one.kind == each.kind)
            assert set(each.regions) <= set(option.regions)
            if each.regions:
                assert any(
                    all(floor.where.allows(region, option.gpu) for region in each.regions) for floor in floors
                )
        # No more than is wanted, counting what is on its way. Where floors overlap in part, one replica may meet two of
        # them, or not: which is seen once it is there.
        meet = sum(
            any(one != other and one.where.overlaps(other.where) for other in floors) for one in floors
        )
        if more_hosts := sum(one.count for one in plan.create):
            assert len(awake) + coming + more_hosts <= row.target + max(0, meet - 1)
        # A replica that moves down leaves no floor below what it kept, but for a limit.
        down = [before[each.replica_id] for each in plan.replicas if each.rung is not Rung.AWAKE]
        down = [each for each in down if each.rung is Rung.AWAKE]
        if down and "may be" not in row.reason:
            for floor in floors:
                if any(floor.has(each) for each in down):
                    assert sum(floor.has(each) for each in awake) >= floor.kept
        cloud.act(plan, joins)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), min_size=3, max_size=30), st.booleans())
def test_demand_that_is_bound_to_one_region_moves_nothing_elsewhere(
    load: list[tuple[int, int]], resting: bool
) -> None:
    cloud = Cloud(model())
    east = cloud.add(EAST, rung=Rung.SLEEP_1) if resting else ""
    for arrivals, waiting in load:
        plan = cloud.look(bound(IN_WEST, arrivals, waiting))
        assert all(row.regions == (WEST,) for row in plan.create)
        assert all(row.rung is not Rung.AWAKE for row in plan.replicas if row.replica_id == east)
        cloud.act(plan)


def test_another_model_never_gets_the_last_replica_of_a_region_for_its_second() -> None:
    rich = msgspec.structs.replace(spec("rich", low=0, usd=1_000.0), ladder=LADDER)
    plain = msgspec.structs.replace(spec("m", low=0), ladder=LADDER)
    scaler = Autoscaler({"rich": rich, "m": plain}, QUICK)
    seen = [HostObservation(name, 8, 900.0, False, 64.0, "k", region) for name, region in
            (("e0", EAST), ("e1", EAST), ("w0", WEST))]  # fmt: skip
    replicas = [
        ReplicaObservation(f"{host.host_id}/{name}", name, host.host_id, rung, 900.0, region=host.region, gpu="b300")
        for host in seen
        for name, rung in (
            ("m", Rung.SLEEP_1 if host.host_id == "e0" else Rung.AWAKE),
            ("rich", Rung.AWAKE if host.host_id == "e0" else Rung.SLEEP_1),
        )
    ]  # fmt: skip
    for number in range(20):
        rows = [demand("rich", 60), demand("m", 6), bound(IN_WEST, 1)]
        scaler.observe(Observation(2.0 * number, seen, replicas, rows))
        plan = scaler.plan()
        replicas = [msgspec.structs.replace(row, since_s=900.0) for row in applied(plan, replicas)]
    awake = {row.replica_id for row in plan.replicas if row.rung is Rung.AWAKE}
    assert "w0/m" in awake
    assert "e1/rich" in awake


def test_a_model_that_needs_nothing_and_rests_is_no_obstacle_to_another_ones_claim() -> None:
    """Its claim to nothing was divided by the number of replicas that it needs."""
    specs = {name: msgspec.structs.replace(spec(name, low=0), ladder=LADDER) for name in ("a", "b", "idle")}
    scaler = Autoscaler(specs, QUICK)
    replicas = [
        ReplicaObservation(f"h/{name}", name, "h", rung, 900.0)
        for name, rung in (("a", Rung.AWAKE), ("b", Rung.SLEEP_1), ("idle", Rung.SLEEP_1))
    ]
    scaler.observe(Observation(0.0, hosts(1), replicas, []))
    host = HostObservation("h", 8, 900.0, False, 64.0)
    scaler.observe(Observation(2.0, [host], replicas, [demand("b", 4, 1)]))
    assert [row.replica_id for row in scaler.plan().replicas if row.rung is Rung.AWAKE] == ["h/b"]


@pytest.mark.parametrize(
    ("part", "whole", "within"),
    [
        (IN_EAST, Binding((EAST, WEST)), True),
        (Binding((EAST, WEST)), IN_EAST, False),
        (IN_EAST, UNBOUND, True),
        (UNBOUND, IN_EAST, False),
        (Binding((EAST,), ("b300",)), IN_EAST, True),
        (IN_EAST, Binding((EAST,), ("b300",)), False),
    ],
)
def test_bindings_that_are_parts_of_others(part: Binding, whole: Binding, within: bool) -> None:
    assert part.within(whole) is within


def test_one_replica_counts_for_every_floor_that_has_its_place() -> None:
    floors = in_order([Floor(Binding((EAST, WEST)), 2), Floor(IN_EAST, 1)])
    assert [floor.where for floor in floors] == [IN_EAST, Binding((EAST, WEST))]
    assert [more for _, more in shortfalls(floors, [])] == [1, 1]
    there = ReplicaObservation("r", "m", "h", Rung.AWAKE, region="NYC2", gpu="B300")
    assert [(floor.where, more) for floor, more in shortfalls(floors, [there])] == [
        (Binding((EAST, WEST)), 1)
    ]
