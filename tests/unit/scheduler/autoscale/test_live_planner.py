"""The live scheduler's seam: what heartbeats and requests become in an observation, and the view that comes out."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest

from core.db import Database
from core.money import PICO_PER_USD
from scheduler.autoscaling import LivePlanner
from scheduler.core.autoscale.state import CreatingHost, CreationFailures, Rung
from scheduler.core.fleet import Fleet
from scheduler.wire import HostView, PlanView, QueueView
from tests.support.scheduling import beat, replica
from tests.unit.workers.test_model_definition import made
from workers.acting.contracts import Contracts, HostContract, RunningHost
from workers.acting.places import parse_places
from workers.catalog import load_catalog
from workers.scaling import KindReplicas, ScalingDirectory, ScalingLimits
from workers.wire import Heartbeat, LifeTimes, ReplicaState, ReplicaStatus, StageTime, Targets

CATALOG = load_catalog()
SPOT = "gpu-h200x8-1128gb"
SIGNED = datetime(2026, 11, 1, tzinfo=UTC)


def _fleet(states: list[ReplicaState], model: str = "deepseek-v3.2") -> Fleet:
    capacity = CATALOG.models["deepseek-v3.2"].profile().capacity
    fleet = Fleet()
    for number, state in enumerate(states):
        status = ReplicaStatus(
            f"h{number}/{model}-0", model, "http://x", "vllm", f"b{number}", state, capacity,
            targets=Targets(2.0, 0.03), sleep_level=1 if state is ReplicaState.ASLEEP else 0,
        )  # fmt: skip
        kind = "gpu-b300x8-2304gb-contracted"
        fleet.heartbeat(Heartbeat(f"a{number}", f"h{number}", "boot", 1, "nyc", kind, 8, [status], {}), 0.0)
    return fleet


def _hosts(count: int) -> list[HostView]:
    kind = "gpu-b300x8-2304gb-contracted"
    return [HostView(f"h{number}", f"a{number}", kind, "nyc", 8, 0.1) for number in range(count)]


def test_a_growing_load_is_seen_and_sleeping_replicas_are_named() -> None:
    planner = LivePlanner(CATALOG)
    fleet = _fleet([ReplicaState.READY, ReplicaState.ASLEEP, ReplicaState.ASLEEP])
    plan: PlanView | None = None
    for number in range(60):
        for _ in range(6):
            planner.count_arrival("deepseek-v3.2", 10_000, 400)
            planner.count_release("deepseek-v3.2", "h0/deepseek-v3.2-0", 10_000, 2_000)
        plan = planner.plan(fleet.replicas, _hosts(3), [QueueView("deepseek-v3.2", 2)], 2.0 * number)
    assert plan is not None
    row = plan.models[0]
    assert (row.model, row.awake, row.pending) == ("deepseek-v3.2", 1, 0)
    assert row.target > 1
    assert {change.before for change in plan.changes} == {"sleep_1"}
    assert {change.after for change in plan.changes} == {"awake"}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=PlanView) == plan


def test_an_engine_that_comes_back_slower_is_planned_for_as_it_is_now() -> None:
    def target(slower_from: int) -> int:
        planner, plan = LivePlanner(CATALOG), None
        fleet = _fleet([ReplicaState.READY] + [ReplicaState.ASLEEP] * 5)
        for number in range(40):
            if number == slower_from:
                for replica in fleet.replicas.values():
                    capacity = replica.status.capacity
                    slower = msgspec.structs.replace(capacity, prefill_tokens_per_s=3_000.0)
                    replica.status = msgspec.structs.replace(replica.status, capacity=slower)
                    replica.capacity = slower
            for _ in range(3):
                planner.count_arrival("deepseek-v3.2", 4_000, 400)
                planner.count_release("deepseek-v3.2", "h0/deepseek-v3.2-0", 4_000, 0)
            plan = planner.plan(fleet.replicas, _hosts(6), [], 2.0 * number)
        assert plan is not None
        return plan.models[0].target

    assert target(20) == target(0) > target(99)


def test_the_noise_of_what_is_learnt_changes_no_plan_and_a_real_change_does() -> None:
    planner, fleet = LivePlanner(CATALOG), _fleet([ReplicaState.READY])
    (only,) = fleet.replicas.values()
    known, planned = only.capacity, []
    for factor in (1.0, 1.1, 0.9, 0.5, 0.52):
        only.capacity = msgspec.structs.replace(
            known, prefill_tokens_per_s=known.prefill_tokens_per_s * factor
        )
        planner.plan(fleet.replicas, _hosts(1), [], 2.0 * len(planned))
        planned.append(
            planner._specs["deepseek-v3.2"].capacity.prefill_tokens_per_s / known.prefill_tokens_per_s
        )
    assert planned == pytest.approx([1.0, 1.0, 1.0, 0.5, 0.5])


def test_the_figures_of_one_that_serves_stand_for_a_mixed_fleet() -> None:
    fleet = _fleet([ReplicaState.ASLEEP, ReplicaState.READY])
    rows = list(fleet.replicas.values())
    slow = msgspec.structs.replace(rows[0].status.capacity, prefill_tokens_per_s=10.0)
    rows[0].capacity = slow
    planner = LivePlanner(CATALOG)
    for number in range(20):
        planner.count_arrival("deepseek-v3.2", 1_000, 40)
        planner.count_release("deepseek-v3.2", "h1/deepseek-v3.2-0", 1_000, 0)
        plan = planner.plan(fleet.replicas, _hosts(2), [], 2.0 * number)
    assert plan is not None
    assert plan.models[0].target == 1, "at ten tokens a second nobody could serve this"


def test_every_state_a_heartbeat_can_name_is_understood() -> None:
    planner = LivePlanner(CATALOG)
    fleet = _fleet(list(ReplicaState))
    for number in range(5):
        assert planner.plan(fleet.replicas, _hosts(6), [], 2.0 * number) is not None
    assert planner.plan({}, [], [], 12.0) is not None, (
        "a model that lost its last replica is still planned for"
    )


def test_models_outside_the_catalog_are_left_alone() -> None:
    planner = LivePlanner(CATALOG)
    fleet = _fleet([ReplicaState.READY], model="not-in-the-catalog")
    planner.count_arrival("not-in-the-catalog", 10, 10)
    assert planner.plan(fleet.replicas, _hosts(1), [], 0.0) is None


@pytest.mark.parametrize("drafts", [False, True])
def test_a_model_is_scaled_down_whether_or_not_its_engine_drafts(drafts: bool) -> None:
    planner, fleet = LivePlanner(CATALOG), _fleet([ReplicaState.READY] * 3)
    paid = [msgspec.structs.replace(host, host_kind=SPOT) for host in _hosts(3)]
    for number in range(200):
        for each in fleet.replicas.values():
            accepted = 2.0 + 0.01 * (number % 7) if drafts else 1.0
            each.capacity = msgspec.structs.replace(each.capacity, accept_per_step=accepted)
        plan = planner.plan(fleet.replicas, paid, [], 2.0 * number)
    assert plan is not None
    assert plan.models[0].target < 3


def test_what_caches_save_is_known_between_answers() -> None:
    planner, fleet = LivePlanner(CATALOG), _fleet([ReplicaState.READY])
    for number in range(400):
        planner.count_arrival("deepseek-v3.2", 9_000, 300)
        if number % 5 == 0:
            planner.count_release("deepseek-v3.2", "h0/deepseek-v3.2-0", 9_000, 8_100)
        planner.plan(fleet.replicas, _hosts(1), [], 2.0 * number)
    load = planner._autoscaler._models["deepseek-v3.2"].load
    assert load.uncached < 1_100.0, "without an answer in the interval, the whole prompt would count"


class Allowed(ScalingDirectory):
    """Limits and prices without a database."""

    def __init__(self, limits: dict[str, ScalingLimits], prices: dict[str, int] | None = None) -> None:
        super().__init__(Database("postgresql://nowhere/none"))
        self.limits, self._prices = limits, prices or {}


def test_a_model_with_limits_is_planned_for_before_any_replica_serves_it() -> None:
    planner = LivePlanner(
        CATALOG, Allowed({"deepseek-v3.2": ScalingLimits(min_awake=2, host_kinds=(SPOT, "gb200-nvl4"))})
    )
    plan = planner.plan({}, [], [], 2.0)
    assert plan is not None
    assert [(row.kind, row.model, row.count) for row in plan.create] == [(SPOT, "deepseek-v3.2", 2)]
    assert [row.kind for row in plan.kinds] == [SPOT], "a host without a known price is not created"
    assert [option.kind for option in planner.kinds("deepseek-v3.2")] == [SPOT]
    creating = [CreatingHost(f"new-{n}", SPOT, "deepseek-v3.2", 10.0, 35.76) for n in range(2)]
    plan = planner.plan({}, [], [], 4.0, creating=creating)
    assert plan is not None
    assert (plan.create, plan.models[0].pending) == ([], 2)
    failed = [CreationFailures(SPOT, 1, 5.0, "no capacity")]
    plan = planner.plan({}, [], [], 6.0, failures=failed)
    assert plan is not None
    assert plan.create == []
    assert (plan.kinds[0].failures, plan.kinds[0].retry_in_s) == (1, 25.0)


def test_limits_that_are_reset_create_nothing_more() -> None:
    allowed = Allowed({"deepseek-v3.2": ScalingLimits(min_awake=2, host_kinds=(SPOT,))})
    planner = LivePlanner(CATALOG, allowed)
    plan = planner.plan({}, [], [], 2.0)
    assert plan is not None
    assert plan.create
    allowed.limits = {}
    plan = planner.plan({}, [], [], 4.0)
    assert plan is not None
    assert (plan.create, plan.models[0].target) == ([], 0)


def test_the_budget_is_held_at_the_prices_of_the_books() -> None:
    def created(usd_per_hour: int) -> int:
        limits = ScalingLimits(0, 8, 100 * 10**12, (SPOT,))
        planner = LivePlanner(CATALOG, Allowed({"deepseek-v3.2": limits}, {SPOT: usd_per_hour * 10**12}))
        plan: PlanView | None = None
        for number in range(20):
            for _ in range(20):
                planner.count_arrival("deepseek-v3.2", 10_000, 400)
            plan = planner.plan({}, [], [], 2.0 * number)
        assert plan is not None
        return sum(row.count for row in plan.create)

    assert created(40) == 2
    assert created(25) == 4
    assert created(101) == 0


def test_changed_limits_apply_to_the_running_planner() -> None:
    allowed = Allowed({})
    planner = LivePlanner(CATALOG, allowed)
    fleet = _fleet([ReplicaState.READY] * 3)
    plan = planner.plan(fleet.replicas, _hosts(3), [], 2.0)
    assert plan is not None
    assert plan.changes == []
    allowed.limits = {"deepseek-v3.2": ScalingLimits(max_awake=1)}
    plan = planner.plan(fleet.replicas, _hosts(3), [], 4.0)
    assert plan is not None
    assert [change.after for change in plan.changes] == ["sleep_1"] * 2


def contract(kind: str, count: int = 1, region: str = "") -> HostContract:
    """One that runs, without an end."""
    return HostContract(UUID(int=7), kind, region, count, SIGNED, None, PICO_PER_USD, "17")


def running(name: str, kind: str, days: int = 0) -> RunningHost:
    return RunningHost(name, kind, "nyc", SIGNED + timedelta(days=days))


def test_hosts_that_are_paid_for_in_any_case_are_never_destroyed() -> None:
    """The operator's own and those of unknown kinds; of others those that a contract covers, with the reason."""
    for kind, covered, kept in (
        ("local-cpu", False, True),
        ("not-in-the-catalog", False, True),
        (SPOT, False, False),
        ("gpu-b300x8-2304gb-contracted", False, False),
        (SPOT, True, True),
    ):
        allowed = Allowed({})
        if covered:
            allowed.contracts = Contracts(
                (contract(kind),), (running("empty", kind), running("late", kind, 1))
            )
        planner = LivePlanner(CATALOG, allowed)
        fleet = _fleet([ReplicaState.READY])
        empty = HostView("empty", "a9", kind, "nyc", 8, 0.1)
        late = HostView("late", "a8", SPOT, "nyc", 8, 0.1)
        for number in range(30):
            plan = planner.plan(fleet.replicas, [*_hosts(1), empty, late], [], 20.0 * number)
        assert plan is not None
        assert ("empty" not in [row.host_id for row in plan.destroy]) is kept
        assert "late" in [row.host_id for row in plan.destroy], "no contract covers it"
        assert [(row.host_id, row.reason) for row in plan.kept] == [
            ("empty", f"nothing is awake on it, and it is paid for by contract {UUID(int=7)} without an end")
        ] * covered


def test_a_host_whose_contract_has_ended_is_an_ordinary_one() -> None:
    allowed = Allowed({})
    planner, fleet = LivePlanner(CATALOG, allowed), _fleet([ReplicaState.READY])
    empty = HostView("empty", "a9", SPOT, "nyc", 8, 0.1)
    allowed.contracts = Contracts((contract(SPOT),), (running("empty", SPOT),))
    for number in range(60):
        if number == 30:
            allowed.contracts = Contracts()
        plan = planner.plan(fleet.replicas, [*_hosts(1), empty], [], 20.0 * number)
        assert plan is not None
        assert number >= 30 or plan.destroy == []
    assert [row.host_id for row in plan.destroy] == ["empty"]


def test_a_host_under_a_contract_counts_for_no_budget_per_hour() -> None:
    allowed = Allowed({"deepseek-v3.2": ScalingLimits(0, 4, 0)})
    kind = "gpu-b300x8-2304gb-contracted"
    allowed.contracts = Contracts((contract(kind),), (running("h0", kind), running("h1", kind, 1)))
    plan = LivePlanner(CATALOG, allowed).plan(_fleet([ReplicaState.READY] * 2).replicas, _hosts(2), [], 0.0)
    assert plan is not None
    assert [(row.replica_id, row.after) for row in plan.changes] == [("h1/deepseek-v3.2-0", "sleep_1")]


def test_hosts_under_a_contract_are_created_first() -> None:
    """As many as the contract has room for, in its region; the rest by the order of the kinds."""
    places = parse_places("*=digitalocean/nyc2,digitalocean/tor1")
    limits = ScalingLimits(3, 4, 0, (SPOT, "gpu-b300x8-2304gb-spot"))

    def created(
        count: int, region: str = "", hosts: tuple[RunningHost, ...] = ()
    ) -> list[tuple[str, int, tuple[str, ...]]]:
        allowed = Allowed({"deepseek-v3.2": limits})
        allowed.contracts = Contracts((contract("gpu-b300x8-2304gb-spot", count, region),), hosts)
        plan = LivePlanner(CATALOG, allowed, places=places).plan({}, [], [], 2.0)
        assert plan is not None
        return [(row.kind, row.count, row.regions) for row in plan.create]

    b300, both = "gpu-b300x8-2304gb-spot", ("nyc2", "tor1")
    assert created(2, "tor1") == [(b300, 2, ("tor1",)), (b300, 1, ())]
    assert created(4) == [(b300, 3, both)]
    assert created(2, hosts=(running("x", b300),)) == [(b300, 1, both), (b300, 2, ())]
    assert created(2, "elsewhere") == [(b300, 3, ())]


def test_two_models_share_the_room_of_a_contract() -> None:
    b300 = "gpu-b300x8-2304gb-spot"
    limits = ScalingLimits(2, 4, None, (b300,))
    allowed = Allowed({name: limits for name in ("deepseek-v3.2", "qwen3.5-397b")})
    allowed.contracts = Contracts((contract(b300, 3),))
    plan = LivePlanner(CATALOG, allowed, places=parse_places("*=digitalocean/nyc2")).plan({}, [], [], 2.0)
    assert plan is not None
    covered = [row.count for row in plan.create if row.regions]
    assert sum(covered) == 3
    assert {row.model for row in plan.create} == {"deepseek-v3.2", "qwen3.5-397b"}


def test_measured_times_to_wake_replace_the_catalogs_and_noise_does_not() -> None:
    planner = LivePlanner(CATALOG)
    ladders = []
    for number, seconds in enumerate((0.0, 20.0, 21.0, 30.0)):
        times = LifeTimes(
            load=StageTime(seconds, seconds, int(seconds > 0.0)),
            wake_2=StageTime(seconds / 2, seconds / 2, int(seconds > 0.0)),
        )
        fleet = Fleet()
        fleet.heartbeat(beat(replica(model="deepseek-v3.2", times=times)), 2.0 * number)
        planner.plan(fleet.replicas, [], [], 2.0 * number)
        ladders.append(planner._specs["deepseek-v3.2"].ladder)
    wakes = [
        [ladder[rung].wake_s for rung in (Rung.SLEEP_1, Rung.SLEEP_2, Rung.STOPPED)] for ladder in ladders
    ]
    assert wakes == [[5.5, 45.0, 98.0], [5.5, 10.0, 20.0], [5.5, 10.0, 20.0], [5.5, 15.0, 30.0]]
    assert [ladder[Rung.DESTROYED].wake_s for ladder in ladders] == [398.0, 320.0, 320.0, 330.0]


def test_contracts_are_tried_first_then_spot_then_the_others() -> None:
    """Whatever the order of the list, which decides among kinds of one sort."""
    dear, covered, spot = "gpu-h200x8-1128gb", "gpu-b300x8-2304gb-contracted", "gpu-b300x8-2304gb-spot"
    model = CATALOG.models["deepseek-v3.2"]
    scaling = Allowed({model.name: ScalingLimits(1, 4, None, (dear, spot, covered))})
    scaling.contracts = Contracts((contract(covered),))

    def kind_after(*failed: str) -> str:
        failures = [CreationFailures(kind, 1, 0.0) for kind in failed]
        plan = LivePlanner(CATALOG, scaling).plan({}, [], [], 2.0, failures=failures)
        assert plan is not None
        return plan.create[0].kind

    assert kind_after() == covered
    assert kind_after(covered) == spot
    assert kind_after(covered, spot) == dear


def test_hosts_are_counted_with_the_replicas_of_the_profile_that_they_will_run() -> None:
    spot, one = "gpu-b300x8-2304gb-spot", "gpu-h100x8-640gb"

    def specs(model: str, limits: ScalingLimits) -> tuple[int, int, int]:
        planner = LivePlanner(CATALOG, Allowed({model: limits}))
        planner.plan({}, [], [], 2.0)
        spec = planner._specs[model]
        return spec.kinds[0].per_host, spec.capacity.gpus, spec.capacity.dp_ranks

    assert specs("deepseek-v3.2", ScalingLimits(host_kinds=(spot,))) == (1, 8, 1)
    changed = Allowed({"deepseek-v3.2": ScalingLimits(host_kinds=(spot,))})
    planner = LivePlanner(CATALOG, changed)
    planner.plan({}, [], [], 2.0)
    changed.limits = {"deepseek-v3.2": ScalingLimits(host_kinds=(spot,), profile="dp8")}
    planner.plan({}, [], [], 4.0)
    assert planner._specs["deepseek-v3.2"].capacity.dp_ranks == 8, "no replica has shown another capacity"
    assert specs("deepseek-v3.2", ScalingLimits(host_kinds=(spot,), profile="dp8")) == (1, 8, 8)
    assert specs("llama-3.3-70b", ScalingLimits(host_kinds=(one,))) == (4, 2, 1)


def test_a_host_that_models_share_is_counted_by_the_replicas_that_its_agent_will_start() -> None:
    kind, shares = "gpu-h100x8-640gb", "llama-3.3-70b[4-7],acme/model"
    added, _ = made(gpus=4)
    limits = ScalingLimits(host_kinds=(kind, SPOT), shares=shares)
    allowed = Allowed({"llama-3.3-70b": msgspec.structs.replace(limits, min_awake=1), "acme/model": limits})
    planner = LivePlanner(CATALOG, allowed, added=lambda: {added.name: added})
    plan = planner.plan({}, [], [], 2.0)
    assert plan is not None
    assert [(row.kind, row.model, row.count, row.shares) for row in plan.create] == [
        (kind, "llama-3.3-70b", 1, shares)
    ]
    per_host = {name: [(each.kind, each.per_host) for each in planner.kinds(name)] for name in allowed.limits}
    assert per_host == {"llama-3.3-70b": [(kind, 2)], "acme/model": [(kind, 2)]}, (
        "not all of them run elsewhere"
    )
    plan = planner.plan({}, [], [], 4.0, creating=[CreatingHost("new", kind, shares, 10.0)])
    assert plan is not None
    assert (plan.create, {row.model: row.pending for row in plan.models}) == (
        [],
        {"acme/model": 0, "llama-3.3-70b": 1},
    )


def test_a_maximum_of_a_kind_counts_the_replicas_on_its_hosts() -> None:
    contracted = "gpu-b300x8-2304gb-contracted"
    limits = ScalingLimits(max_awake=8, kinds=(KindReplicas(contracted, 0, 2),))
    planner, fleet = (
        LivePlanner(CATALOG, Allowed({"deepseek-v3.2": limits})),
        _fleet([ReplicaState.READY] * 4),
    )
    plan = planner.plan(fleet.replicas, _hosts(4), [], 0.0)
    assert plan is not None
    assert [change.after for change in plan.changes] == ["sleep_1", "sleep_1"]
    assert f"at most 2 may be awake on hosts of kind {contracted}" in plan.models[0].reason
    assert plan.models[0].most == {contracted: 2}
