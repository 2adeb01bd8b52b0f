"""Hosts of the plan: minimum, maximum and budget hold, creations are not repeated, and failures are backed off from."""

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.autoscale.autoscaler import Autoscaler
from scheduler.core.autoscale.creation import LONGEST_PAUSE_S, pause_s
from scheduler.core.autoscale.model_planner import AutoscalerSettings
from scheduler.core.autoscale.plan import Plan, changes, view
from scheduler.core.autoscale.state import (
    CreatingHost,
    CreationFailures,
    DemandObservation,
    HostObservation,
    HostOption,
    ModelSpec,
    Observation,
    ReplicaObservation,
    Rung,
    RungFigures,
)
from tests.unit.scheduler.autoscale.test_autoscaler import applied, demand, hosts, pool, spec
from tests.unit.scheduler.autoscale.test_laws import NODE

DEAR, CHEAP = "gpu-dear", "gpu-cheap"
PRICES = {DEAR: 64.0, CHEAP: 40.0}
LADDER = {
    Rung.SLEEP_1: RungFigures(5.5, 430.0),
    Rung.STOPPED: RungFigures(98.0),
    Rung.DESTROYED: RungFigures(398.0),
}


def elastic(
    low: int, high: int, budget: float, *, per_host: int = 1, kinds: tuple[str, ...] = (DEAR, CHEAP)
) -> ModelSpec:
    """A model whose hosts are all created for it, with `per_host` replicas of equal size on each."""
    capacity = msgspec.structs.replace(NODE, gpus=8 // per_host)
    options = tuple(HostOption(kind, PRICES[kind], per_host) for kind in kinds)
    return msgspec.structs.replace(
        spec(low=low, high=high), capacity=capacity, ladder=LADDER, budget_usd_per_hour=budget, kinds=options
    )


@dataclass
class Cloud:
    """A provider that acts on plans: each creation ends as `fates` says, after some looks, in a host or a failure."""

    model: ModelSpec
    fates: list[tuple[bool, int]]
    now: float = 0.0
    hosts: dict[str, HostObservation] = field(default_factory=dict)
    replicas: dict[str, ReplicaObservation] = field(default_factory=dict)
    creating: dict[str, tuple[CreatingHost, bool, int]] = field(default_factory=dict)
    failures: dict[str, CreationFailures] = field(default_factory=dict)
    made: int = 0

    def observation(self, arrivals: int) -> Observation:
        return Observation(
            self.now,
            list(self.hosts.values()),
            list(self.replicas.values()),
            [demand(self.model.model, arrivals)],
            [host for host, _, _ in self.creating.values()],
            list(self.failures.values()),
        )

    def act(self, plan: Plan, step_s: float = 2.0) -> None:
        """Do what the plan says, and let `step_s` seconds pass."""
        self.replicas = {row.replica_id: row for row in applied(plan, list(self.replicas.values()))}
        for removal in plan.destroy:
            del self.hosts[removal.host_id]
            self.replicas = {
                name: row for name, row in self.replicas.items() if row.host_id != removal.host_id
            }
        for row in plan.create:
            for _ in range(row.count):
                fate = self.fates[self.made % len(self.fates)]
                self.made += 1
                host = CreatingHost(f"host-{self.made}", row.kind, row.model, 0.0, PRICES[row.kind])
                self.creating[host.host_id] = (host, *fate)
        self._pass_time(step_s)

    def _pass_time(self, step_s: float) -> None:
        self.now += step_s
        self.failures = {
            kind: msgspec.structs.replace(row, since_s=row.since_s + step_s)
            for kind, row in self.failures.items()
        }
        self.replicas = {
            name: msgspec.structs.replace(
                row, since_s=row.since_s + step_s, ready_in_s=max(0.0, row.ready_in_s - step_s)
            )
            for name, row in self.replicas.items()
        }
        for name, (host, works, looks) in list(self.creating.items()):
            if looks > 0:
                older = msgspec.structs.replace(host, since_s=host.since_s + step_s)
                self.creating[name] = (older, works, looks - 1)
                continue
            del self.creating[name]
            if works:
                self.failures.pop(host.kind, None)
                self._join(host)
            else:
                before = self.failures.get(host.kind)
                count = before.count + 1 if before is not None else 1
                self.failures[host.kind] = CreationFailures(host.kind, count, 0.0, "no capacity")

    def _join(self, host: CreatingHost) -> None:
        self.hosts[host.host_id] = HostObservation(
            host.host_id, 8, 3_700.0, contracted=False, usd_per_hour=PRICES[host.kind], kind=host.kind
        )
        per_host = next(option.per_host for option in self.model.kinds if option.kind == host.kind)
        for place in range(per_host):
            name = f"{host.host_id}/{place}"
            self.replicas[name] = ReplicaObservation(
                name, host.model, host.host_id, Rung.AWAKE, ready_in_s=98.0
            )


def check(plan: Plan, cloud: Cloud, before: Observation) -> None:
    """What holds for every plan, given the observation that it was made from."""
    model, [row] = cloud.model, plan.models
    per_host = {option.kind: option.per_host for option in model.kinds}
    awake = sum(one.rung is Rung.AWAKE for one in plan.replicas)
    coming = sum(per_host[host.kind] for host in before.creating)
    more = sum(per_host[one.kind] * one.count for one in plan.create)
    assert awake <= model.max_awake
    assert row.target <= max(model.max_awake, awake + coming)
    # Counting what is on its way, no more is asked for than is wanted, but for the last host's other replicas.
    if plan.create:
        assert awake + coming + more < row.target + max(per_host.values())
    failing = {one.kind: one for one in before.failures}
    if awake + coming + more < model.min_awake:
        assert all(option.kind in failing for option in model.kinds), (
            "only failing kinds may leave the minimum unmet"
        )
    gone = {one.host_id for one in plan.destroy}
    bill = sum(host.usd_per_hour for host in before.hosts if host.host_id not in gone)
    bill += sum(host.usd_per_hour for host in before.creating)
    bill += sum(PRICES[one.kind] * one.count for one in plan.create)
    floor = sum(sorted((PRICES[option.kind] for option in model.kinds), reverse=True)[:1]) * (
        -(-model.min_awake // min(per_host.values()))
    )
    if plan.create:
        assert bill <= max(model.budget_usd_per_hour, floor) + 1e-6
    for one in plan.create:
        if (failed := failing.get(one.kind)) is not None:
            assert pause_s(failed) == 0.0
            on_their_way = sum(host.kind == one.kind for host in before.creating)
            assert on_their_way + one.count <= 1
    for kind in plan.kinds:
        created = sum(one.count for one in plan.create if one.kind == kind.kind)
        destroyed = sum(one.kind == kind.kind for one in plan.destroy)
        assert kind.desired == kind.present + kind.creating + created - destroyed
    assert {one.kind for one in plan.create} <= {kind.kind for kind in plan.kinds}


loads = st.lists(st.integers(0, 30), min_size=5, max_size=60)
fates = st.lists(st.tuples(st.booleans(), st.integers(0, 12)), min_size=1, max_size=12)
limits = st.tuples(st.integers(0, 3), st.integers(0, 5), st.sampled_from([0.0, 50.0, 130.0, 400.0, 1e9]))


@settings(deadline=None)
@given(loads, fates, limits, st.sampled_from([1, 2, 4]))
def test_limits_hold_whatever_the_load_and_the_provider_do(
    load: list[int],
    ends: list[tuple[bool, int]],
    limit: tuple[int, int, float],
    per_host: int,
) -> None:
    low, more, budget = limit
    model = elastic(low, max(1, low + more), budget, per_host=per_host)
    scaler = Autoscaler({"m": model}, AutoscalerSettings(stabilization_s=20.0, swap_stabilization_s=10.0))
    cloud = Cloud(model, ends)
    for arrivals in load:
        seen = cloud.observation(arrivals)
        scaler.observe(seen)
        plan = scaler.plan()
        check(plan, cloud, seen)
        cloud.act(plan)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 40), st.integers(0, 4), st.sampled_from([1, 2, 4]), st.sampled_from([130.0, 1e9]))
def test_a_creation_is_not_repeated_while_it_is_on_its_way(
    arrivals: int, low: int, per_host: int, budget: float
) -> None:
    model = elastic(low, 8, budget, per_host=per_host)
    scaler, cloud = Autoscaler({"m": model}), Cloud(model, [(True, 1_000)])
    created = 0
    for _ in range(60):
        scaler.observe(cloud.observation(arrivals))
        plan = scaler.plan()
        created += sum(row.count for row in plan.create)
        cloud.act(plan)
    assert created == len(cloud.creating)
    assert created * per_host < max(low, plan.models[0].target) + per_host
    # Joined, but its engines have not reported: it still counts, and it is not destroyed.
    for host, _, _ in cloud.creating.values():
        cloud.hosts[host.host_id] = HostObservation(host.host_id, 8, 0.0, False, 64.0, host.kind)
    for _ in range(30):
        scaler.observe(cloud.observation(arrivals))
        plan = scaler.plan()
        assert (plan.create, plan.destroy) == ([], [])
        cloud.now += 20.0


def test_a_failing_kind_is_paused_twice_as_long_each_time_and_the_next_one_is_tried() -> None:
    model = elastic(3, 8, 1e9)
    scaler, cloud = Autoscaler({"m": model}), Cloud(model, [(True, 10_000)])
    asked = []
    for _ in range(700):
        scaler.observe(cloud.observation(0))
        plan = scaler.plan()
        assert all(row.kind == DEAR or cloud.failures for row in plan.create)
        asked += [cloud.now] * sum(row.count for row in plan.create if row.kind == DEAR)
        cloud.act(plan)
        for name, (host, _, _) in list(cloud.creating.items()):
            if host.kind == DEAR:
                cloud.creating[name] = (host, False, 0)
    assert sum(host.kind == CHEAP for host, _, _ in cloud.creating.values()) == 3
    assert len(asked) == 3, "the other kind serves the whole minimum"
    only = Cloud(elastic(3, 8, 1e9, kinds=(DEAR,)), [(False, 0)])
    scaler, asked = Autoscaler({"m": only.model}), []
    for _ in range(1_500):
        scaler.observe(only.observation(0))
        plan = scaler.plan()
        asked += [only.now] * sum(row.count for row in plan.create)
        only.act(plan)
    first, rest = asked[:3], asked[3:]
    assert first == [0.0] * 3
    gaps = [later - earlier for earlier, later in zip([0.0, *rest], rest, strict=False)]
    assert gaps == sorted(gaps)
    assert gaps[0] >= 120.0, "three failures at once"
    assert gaps[1] == pytest.approx(2 * gaps[0], rel=0.05)
    assert "failed" in plan.models[0].reason or plan.kinds[0].failures > 3
    assert pause_s(CreationFailures(DEAR, 99, 0.0)) == LONGEST_PAUSE_S


def test_after_a_success_a_kind_is_created_freely_again() -> None:
    model = elastic(4, 8, 1e9, kinds=(DEAR,))
    scaler, cloud = Autoscaler({"m": model}), Cloud(model, [(False, 0), (True, 0)])
    cloud.failures[DEAR] = CreationFailures(DEAR, 2, 1_000.0, "no capacity")
    scaler.observe(cloud.observation(0))
    assert [row.count for row in scaler.plan().create] == [1], "one at a time while it may fail again"
    cloud.failures.clear()
    scaler.observe(cloud.observation(0))
    assert [row.count for row in scaler.plan().create] == [4]


def test_a_lower_budget_or_maximum_frees_hosts_at_once_and_destroys_them() -> None:
    model = elastic(1, 8, 1e9)
    cloud = Cloud(model, [(True, 0)])
    for _ in range(4):
        cloud.made += 1
        cloud._join(CreatingHost(f"host-{cloud.made}", DEAR, "m", 0.0, 64.0))
    for changed, left in ((elastic(1, 2, 1e9), 2), (elastic(1, 8, 130.0), 2), (elastic(1, 8, 0.0), 1)):
        scaler, pool_now = Autoscaler({"m": model}), Cloud(changed, [(True, 0)])
        pool_now.hosts, pool_now.replicas = dict(cloud.hosts), dict(cloud.replicas)
        scaler.observe(pool_now.observation(20))
        scaler.add(changed)
        scaler.observe(pool_now.observation(20))
        plan = scaler.plan()
        awake = [row for row in plan.replicas if row.rung is Rung.AWAKE]
        assert len(awake) == left
        assert "at most" in next(row.reason for row in plan.replicas if row.rung is not Rung.AWAKE)
        pool_now.act(plan)
        for _ in range(3):
            scaler.observe(pool_now.observation(20))
            plan = scaler.plan()
            assert plan.create == []
            pool_now.act(plan)
        if changed.max_awake == 8:
            assert len(pool_now.hosts) == left, (
                "what the budget does not pay for is destroyed without a dwell"
            )


def test_several_replicas_share_a_host_and_its_price() -> None:
    model = elastic(0, 8, 64.0, per_host=4, kinds=(DEAR,))
    scaler, cloud = Autoscaler({"m": model}), Cloud(model, [(True, 0)])
    for _ in range(10):
        scaler.observe(cloud.observation(60))
        cloud.act(scaler.plan())
    assert len(cloud.hosts) == 1, "four replicas cost one host; a second host is beyond the budget"
    assert sum(row.rung is Rung.AWAKE for row in cloud.replicas.values()) == 4


def test_an_idle_host_is_kept_for_what_a_new_one_costs_at_its_price() -> None:
    def destroyed_after(price: float, kinds: tuple[str, ...]) -> float:
        model = elastic(0, 8, 1e9, kinds=kinds)
        scaler = Autoscaler({"m": model}, AutoscalerSettings(stabilization_s=10.0))
        seen = [HostObservation("h0", 8, 3_700.0, False, price, "k")]
        for now in range(0, 900, 4):
            scaler.observe(Observation(now, seen, pool("m", [Rung.STOPPED]), []))
            if scaler.plan().destroy:
                return now
        return float("inf")

    assert destroyed_after(64.0, (DEAR,)) == 300.0, "398 s of a new one, less 98 s of waking this one"
    assert destroyed_after(64.0, (DEAR, CHEAP)) == 152.0, "398 s at 40 of 64 dollars, less 98 s"
    assert destroyed_after(32.0, (DEAR,)) == 700.0, "398 s at twice this price, less 98 s"


def test_a_replica_moves_to_free_gpus_that_are_paid_for() -> None:
    scaler = Autoscaler({"m": spec()}, AutoscalerSettings(stabilization_s=20.0, swap_stabilization_s=10.0))
    seen = [*hosts(1), HostObservation("h1", 8, 3_700.0, True, 64.0)]
    replicas = pool("m", [Rung.AWAKE, Rung.SLEEP_1])
    for number in range(60):
        now = 2.0 * number
        scaler.observe(Observation(now, seen, replicas, [demand("m", number % 2)]))
        plan = scaler.plan()
        for change in changes(plan, replicas):
            if change.after is Rung.AWAKE:
                assert "paid for" in change.reason
        replicas = applied(plan, replicas)
        replicas = [msgspec.structs.replace(row, since_s=row.since_s + 2, ready_in_s=0.0) for row in replicas]
    assert [row.rung is Rung.AWAKE for row in replicas] == [False, True]


def test_views_show_kinds_creations_and_failures() -> None:
    model = elastic(2, 8, 1e9)
    scaler, cloud = Autoscaler({"m": model}), Cloud(model, [(True, 100)])
    cloud.failures[DEAR] = CreationFailures(DEAR, 3, 20.0, "no capacity")
    scaler.observe(cloud.observation(0))
    shown = view(scaler.plan(), [])
    assert [(row.kind, row.desired, row.failures, row.retry_in_s) for row in shown.kinds] == [
        (CHEAP, 2, 0, 0.0), (DEAR, 0, 3, 100.0),
    ]  # fmt: skip
    assert [(row.kind, row.model, row.count) for row in shown.create] == [(CHEAP, "m", 2)]
    assert "gpu-dear failed 3 times (no capacity), next attempt in 100 s" in shown.create[0].reason


def test_a_model_without_kinds_gets_no_hosts() -> None:
    scaler = Autoscaler({"m": spec(low=2)})
    scaler.observe(Observation(0.0, [], [], [DemandObservation("m", 50, 8_000, 8_000, 6.4e7, 400, 1.6e5)]))
    assert scaler.plan().create == []
