"""Hosts that are created for several models: counted once, woken before another is created, and shared by claims."""

import math
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.autoscale.autoscaler import Autoscaler
from scheduler.core.autoscale.coming import Need, share_out
from scheduler.core.autoscale.plan import Plan
from scheduler.core.autoscale.spending import Spending
from scheduler.core.autoscale.state import (
    Binding,
    CreatingHost,
    DemandObservation,
    HostObservation,
    HostOption,
    ModelSpec,
    Observation,
    PlaceLimits,
    ReplicaObservation,
    Rung,
    RungFigures,
    RunSlot,
)
from tests.unit.scheduler.autoscale.test_autoscaler import applied, demand, spec
from tests.unit.scheduler.autoscale.test_hosts import LADDER
from tests.unit.scheduler.autoscale.test_laws import NODE

KIND, SHARES, PRICE = "gpu", "a,b", 64.0
ALL, LOW, HIGH = tuple("01234567"), tuple("0123"), tuple("4567")
WHOLE = (RunSlot("a", ALL), RunSlot("b", ALL))
"""Each model takes all GPUs of a host."""
HALVES = (RunSlot("a", LOW), RunSlot("a", HIGH), RunSlot("b", LOW), RunSlot("b", HIGH))


def sharing(
    model: str, low: int = 0, slots: tuple[RunSlot, ...] = WHOLE, budget: float = math.inf
) -> ModelSpec:
    own = [slot for slot in slots if slot.model == model]
    return msgspec.structs.replace(
        spec(model, low=low),
        capacity=msgspec.structs.replace(NODE, gpus=len(own[0].gpu_ids)),
        ladder=LADDER,
        budget_usd_per_hour=budget,
        kinds=(HostOption(KIND, PRICE, len(own), ("nyc2",), shares=SHARES),),
    )


@dataclass
class Cloud:
    """A provider that makes what plans ask for; `join` lets the agents of new hosts report their replicas."""

    specs: list[ModelSpec]
    slots: tuple[RunSlot, ...] = WHOLE
    now: float = 0.0
    hosts: list[HostObservation] = field(default_factory=list)
    replicas: list[ReplicaObservation] = field(default_factory=list)
    creating: list[CreatingHost] = field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        self.scaler = Autoscaler({each.model: each for each in self.specs})

    def look(self, *rows: DemandObservation) -> Plan:
        """Observe, and do what the plan says."""
        seen = Observation(self.now, self.hosts, self.replicas, list(rows), self.creating)
        self.scaler.observe(seen)
        plan = self.scaler.plan()
        self.replicas = [
            msgspec.structs.replace(row, since_s=row.since_s + 2.0) for row in applied(plan, self.replicas)
        ]
        for row in plan.create:
            for _ in range(row.count):
                assert row.shares == SHARES
                self.made += 1
                self.creating.append(
                    CreatingHost(f"host-{self.made}", row.kind, SHARES, 0.0, PRICE, "nyc2", slots=self.slots)
                )
        self.now += 2.0
        return plan

    def join(self) -> None:
        for host in self.creating:
            self.hosts.append(HostObservation(host.host_id, 8, 3_700.0, False, PRICE, KIND, "nyc2"))
            self.replicas += [
                ReplicaObservation(
                    f"{host.host_id}/{slot.model}-{number}",
                    slot.model,
                    host.host_id,
                    Rung.STOPPED,
                    gpu_ids=slot.gpu_ids,
                    region="nyc2",
                    kind=KIND,
                )
                for number, slot in enumerate(self.slots)
            ]
        self.creating = []

    def awake(self) -> list[str]:
        return sorted(row.model for row in self.replicas if row.rung is Rung.AWAKE)


def held(model: str, waiting: int = 2) -> DemandObservation:
    """Requests of a model wait, and no more come."""
    return demand(model, 0, waiting)


@pytest.mark.parametrize(("create_s", "hosts"), [(3_600.0, 1), (60.0, 2)])
def test_two_models_take_turns_on_one_host_unless_a_second_one_serves_sooner(
    create_s: float, hosts: int
) -> None:
    """The same before the first host serves as after."""
    ladder = LADDER | {Rung.DESTROYED: RungFigures(create_s)}
    cloud = Cloud([msgspec.structs.replace(sharing(name), ladder=ladder) for name in "ab"])
    for _ in range(20):
        cloud.look(held("a"), held("b"))
    assert cloud.made == hosts
    cloud.join()
    for _ in range(5):
        cloud.look(held("a"), held("b"))
    assert (cloud.made, len(cloud.awake())) == (hosts, hosts)


def test_a_model_that_rests_on_a_shared_host_wakes_before_a_host_is_created() -> None:
    cloud = Cloud([sharing("a"), sharing("b")])
    cloud.look(held("a"))
    cloud.join()
    cloud.look(held("a"))
    assert cloud.awake() == ["a"]
    for _ in range(400):  # its demand ends
        cloud.look()
    assert cloud.awake() == []
    plan = cloud.look(held("b"))
    assert (cloud.awake(), plan.create, cloud.made) == (["b"], [], 1)


@pytest.mark.parametrize(("slots", "hosts"), [(WHOLE, 2), (HALVES, 1)])
def test_minima_are_met_by_as_many_shared_hosts_as_their_gpus_need(
    slots: tuple[RunSlot, ...], hosts: int
) -> None:
    cloud = Cloud([sharing("a", 1, slots), sharing("b", 1, slots)], slots)
    assert [(row.model, row.count) for row in cloud.look().create] == [("a", 1)]
    for _ in range(10):
        cloud.look()
    assert cloud.made == hosts
    cloud.join()
    for _ in range(3):
        cloud.look()
    assert (cloud.awake(), cloud.made) == (["a", "b"], hosts)


def test_the_minimum_of_one_model_and_requests_for_the_other_need_two_hosts() -> None:
    cloud = Cloud([sharing("a", 1), sharing("b")])
    for _ in range(10):
        cloud.look(held("b"))
    assert cloud.made == 2
    cloud.join()
    for _ in range(3):
        cloud.look(held("b"))
    assert (cloud.awake(), cloud.made) == (["a", "b"], 2)


def test_a_minimum_of_a_region_is_met_by_a_shared_host_there() -> None:
    low = PlaceLimits(Binding(("nyc2",)), 1)
    cloud = Cloud([sharing("a"), msgspec.structs.replace(sharing("b"), places=(low,))])
    for _ in range(5):
        cloud.look()
    assert cloud.made == 1
    cloud.join()
    for _ in range(3):
        cloud.look()
    assert (cloud.awake(), cloud.made) == (["b"], 1)


def test_more_demand_of_one_model_creates_more_hosts() -> None:
    cloud = Cloud([sharing("a", 3), sharing("b")])
    for _ in range(5):
        cloud.look(held("b"))
    assert cloud.made == 4
    assert sum(slot.model == "a" for host in cloud.scaler._last.creating for slot in host.runs) == 3  # type: ignore[union-attr]


def test_a_host_in_creation_costs_the_models_for_which_it_counts() -> None:
    specs = {each.model: each for each in (sharing("a", slots=HALVES), sharing("b", slots=HALVES))}
    bare = CreatingHost("h", KIND, SHARES, 0.0, PRICE, "nyc2", slots=HALVES)

    def costs(*runs: RunSlot) -> tuple[float, float]:
        spending = Spending(specs, [], [], [msgspec.structs.replace(bare, runs=runs)])
        return spending.awake("a"), spending.awake("b")

    assert costs(HALVES[0]) == (PRICE, 0.0)
    assert costs(HALVES[0], HALVES[3]) == (PRICE / 2, PRICE / 2)
    assert costs() == (0.0, 0.0)


def test_a_model_without_budget_for_a_shared_host_leaves_it_to_the_other() -> None:
    cloud = Cloud([sharing("a", budget=10.0), sharing("b")])
    plan = cloud.look(held("a"), held("b"))
    assert [(row.model, row.count) for row in plan.create] == [("b", 1)]


_ADDED = st.integers(0, 5)


@given(
    st.lists(st.sampled_from([WHOLE, HALVES]), max_size=4),
    st.tuples(_ADDED, _ADDED),
    st.tuples(_ADDED, _ADDED),
    st.tuples(_ADDED, _ADDED),
)
def test_hosts_count_for_no_more_than_their_gpus_and_for_all_that_is_needed(
    slots: list[tuple[RunSlot, ...]], minima: tuple[int, int], needs: tuple[int, int], later: tuple[int, int]
) -> None:
    hosts = [CreatingHost(f"h{n}", KIND, SHARES, float(n), slots=each) for n, each in enumerate(slots)]

    def shared(
        hosts: list[CreatingHost], wanted: tuple[int, int]
    ) -> tuple[list[CreatingHost], dict[str, Need]]:
        models = {
            name: Need(sharing(name, low), max(low, need), [], 0, [])
            for name, low, need in zip("ab", minima, wanted, strict=True)
        }
        return share_out(hosts, models), models

    for wanted in (needs, later):
        hosts, models = shared(hosts, wanted)
        again, _ = shared(hosts, wanted)
        assert [host.runs for host in again] == [host.runs for host in hosts]
        for host in hosts:
            used = [gpu for slot in host.runs for gpu in slot.gpu_ids]
            assert len(used) == len(set(used)) <= 8
            assert {(slot.model, slot.gpu_ids) for slot in host.runs} <= {
                (slot.model, slot.gpu_ids) for slot in host.slots
            }
        idle = [host for host in hosts if sum(len(slot.gpu_ids) for slot in host.runs) < 8]
        lacking = [name for name, each in models.items() if len(each.awake) < each.need]
        assert not (idle and lacking), "GPUs are left while a model lacks replicas"
        least = sum(max(0, each.spec.min_awake - len(each.awake)) for each in models.values())
        if least:
            assert all(slot.least for host in hosts for slot in host.runs), "minima come first"
