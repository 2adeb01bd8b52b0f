"""The actor between planner, PostgreSQL and agents, with the store's last read given."""

from datetime import timedelta

import msgspec
import pytest

from core.db import Database
from scheduler.arriving_hosts import ArrivingHosts
from scheduler.core.autoscale.state import HostOption
from scheduler.core.state import SchedulerState
from scheduler.core.waking import Creatable, Waker
from scheduler.plan_actor import LEAST_DRAIN_S, SETTLE_S, START_SEEN_S, PlanActor, stored_plan
from scheduler.plan_executor import PlanExecutor
from scheduler.plan_store import PlanStore
from scheduler.provider_hosts import RECLAIM_DRAIN, ProviderHosts
from scheduler.wire import (
    HostCreationView,
    HostRemovalView,
    HostView,
    ModelPlanView,
    PlanChangeView,
    PlanView,
)
from tests.support.clock import ManualClock
from tests.support.scheduling import beat, replica
from tests.unit.workers.test_acting import KIND, NOW, NYC, PLACES, host, written
from workers.acting.plan import Mode, PlannedCreation, PlannedModel, PlannedRemoval, StoredPlan
from workers.providers.intents import Intent
from workers.scaling import ScalingLimits
from workers.wire import CommandResult, LifeTimes, ReplicaCommand, ReplicaState, StageTime

HOSTS = [HostView("sim-host-1", "agent-1", KIND, "here", 1, 0.0)]
IDLE = PlanView(destroy=[HostRemovalView("sim-host-1", KIND, "it is idle")])
WAKE = PlanView(changes=[PlanChangeView("r", "stopped", "awake", "more load")])


class World:
    """A store whose rounds a test does, a replica on a provider's host, and the commands that are sent."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = PlanStore(Database("postgresql://penstock@127.0.0.1:1/none"), 1)
        self.store.hosts = ProviderHosts(NOW, (host(1), host(2, msgspec.structs.replace(NYC, region="x"))))
        self.store.mode, self.store.stored = Mode.ON, True
        self.state = SchedulerState("epoch", 0.0)
        self.commands: list[ReplicaCommand] = []
        self.executors: list[PlanExecutor] = []
        self.actor = PlanActor(self.store, PLACES, lambda: {"m": ScalingLimits()}, self.clock)
        self.actor.connect(self.forward)
        self.clock.advance(SETTLE_S)

    def forward(self, executor: PlanExecutor, command: ReplicaCommand) -> None:
        self.executors.append(executor)
        self.commands.append(command)

    def act(self, plan: PlanView, state: ReplicaState | None = ReplicaState.READY) -> list[str]:
        """The actions that are sent for a plan; `state` is that of the replica, None = its agent reports none."""
        rows = [] if state is None else [msgspec.structs.replace(replica("r", model="m"), state=state)]
        self.state.heartbeat(beat(*rows), self.clock.monotonic())
        before = len(self.commands)
        self.actor.act(plan, HOSTS, self.state, self.clock.monotonic())
        return [command.action for command in self.commands[before:]]

    @property
    def stored(self) -> StoredPlan:
        assert self.store._plan is not None
        return self.store._plan[0]


def test_a_host_to_destroy_is_drained_and_then_named_as_such() -> None:
    world = World()
    assert world.act(IDLE) == ["stop"]
    assert world.stored.destroy == (PlannedRemoval("host-1", "it is idle", drained=False),)
    assert world.stored.known == ("host-1", "host-2")
    assert world.act(IDLE) == []  # it is under way
    world.executors[0].send(CommandResult(world.commands[0].command_id, True))
    assert world.act(IDLE, ReplicaState.STOPPED) == []
    assert world.stored.destroy == (PlannedRemoval("host-1", "it is idle", drained=True),)


def test_a_host_whose_agent_reports_no_replicas_is_drained_only_when_the_agent_knows_them_all() -> None:
    """An agent that starts again reports none at first, while its engines go on serving."""
    world = World()
    world.act(IDLE, None)
    assert [row.drained for row in world.stored.destroy] == [False]
    complete = [msgspec.structs.replace(HOSTS[0], complete=True)]
    world.actor.act(IDLE, complete, world.state, world.clock.monotonic())
    assert [row.drained for row in world.stored.destroy] == [True]


def test_nothing_is_started_on_a_condemned_host() -> None:
    world = World()
    world.store._condemned = frozenset({"host-1"})
    assert world.act(WAKE, ReplicaState.STOPPED) == []
    world.store._condemned = frozenset()
    assert world.act(WAKE, ReplicaState.STOPPED) == ["resume"]


class Rolling:
    """A rollout of every model."""

    def __init__(self, canary: bool) -> None:
        self.canary = canary

    def is_rolling(self, model: str) -> bool:
        return True

    def is_canary(self, model: str) -> bool:
        return self.canary

    def is_replacing(self, replica_id: str) -> bool:
        return replica_id == "replaced"


@pytest.mark.parametrize("canary", [True, False])
def test_the_plan_adds_replicas_to_a_canary_and_leaves_other_rollouts_alone(canary: bool) -> None:
    world = World()
    world.actor._rollouts = Rolling(canary)
    assert world.act(WAKE, ReplicaState.STOPPED) == (["resume"] if canary else [])
    assert world.act(IDLE) == []


def test_a_replica_that_drains_for_a_rollout_is_not_held_by_a_person() -> None:
    world = World()
    world.actor._rollouts = Rolling(canary=False)
    assert world.actor.drained_by_person("r")
    assert not world.actor.drained_by_person("replaced")


def test_a_host_on_which_an_engine_was_just_started_is_not_drained() -> None:
    """Whoever asked for it: its heartbeat may not show it yet."""
    world = World()
    assert world.actor.start_on("sim-host-1")
    world.act(IDLE, ReplicaState.STOPPED)
    assert [row.drained for row in world.stored.destroy] == [False]
    world.clock.advance(START_SEEN_S)
    world.act(IDLE, ReplicaState.STOPPED)
    assert [row.drained for row in world.stored.destroy] == [True]
    assert not world.actor.start_on("sim-host-1")  # from now on it may be destroyed
    assert world.actor.start_on("sim-host-2")


def test_hosts_of_persons_and_those_that_joined_by_themselves_are_not_destroyed() -> None:
    world = World()
    world.store.hosts = ProviderHosts(NOW, (host(1),), frozenset({NYC}))
    assert world.act(IDLE) == []
    assert world.stored.destroy == ()
    world.store.hosts = ProviderHosts(NOW)
    assert world.act(IDLE) == []
    assert world.stored == StoredPlan()


def test_the_plan_is_stored_whatever_the_switch_says_and_nothing_is_sent_when_it_is_off() -> None:
    plan = PlanView(
        models=[ModelPlanView("m", 1, 0, 2, 1.0, "why")], create=[HostCreationView(KIND, "m", 1, "why")]
    )
    world = World()
    world.store.mode = Mode.OFF
    assert world.act(IDLE) == []
    world.act(plan)
    assert world.stored.models == (PlannedModel("m", 1),)
    assert world.stored.create == (PlannedCreation(KIND, "m", 1, "why"),)


def test_nothing_is_done_before_agents_had_time_to_return_or_hosts_are_known() -> None:
    world = World()
    world.clock = ManualClock()
    world.actor = PlanActor(world.store, PLACES, dict, world.clock)
    world.actor.connect(world.forward)
    assert world.act(IDLE) == []
    assert world.store._plan is None
    world.clock.advance(SETTLE_S)
    world.store.hosts = None
    assert world.act(IDLE) == []
    assert world.store._plan is None
    assert world.actor.creating(HOSTS) == []
    assert world.actor.failures() == []
    assert world.actor.staying(HOSTS) == HOSTS


def test_no_command_before_a_plan_of_this_scheduler_is_stored() -> None:
    world = World()
    world.store.stored = False
    assert world.act(IDLE) == []
    assert world.stored.destroy != ()


def test_a_host_that_is_being_destroyed_is_not_planned_with() -> None:
    world = World()
    world.store.hosts = ProviderHosts(NOW, (host(1, wanted=False),))
    assert world.actor.staying(HOSTS) == []


class Leaving(World):
    """Two hosts with a replica of the model each; acting is off."""

    def __init__(self) -> None:
        super().__init__()
        self.store.mode = Mode.OFF
        self.times = LifeTimes()

    def leave(
        self, *intents: Intent, first: ReplicaState = ReplicaState.READY, second: ReplicaState = ReplicaState.READY,
        held: bool = False,
    ) -> list[str]:  # fmt: skip
        """The actions that are sent, with these hosts of the provider and states of the replicas."""
        self.store.hosts = ProviderHosts(NOW, intents)
        now = self.clock.monotonic()
        for number, state in ((1, first), (2, second)):
            row = msgspec.structs.replace(
                replica(f"r{number}", model="m"), state=state, held=held, times=self.times
            )
            self.state.heartbeat(beat(row, agent=f"agent-{number}"), now)
        before = len(self.commands)
        hosts = [HostView(f"sim-host-{n}", f"agent-{n}", KIND, "here", 1, 0.0, complete=True) for n in (1, 2)]
        self.actor.leave(hosts, self.state, now)
        self.actor.act(PlanView(), self.actor.staying(hosts), self.state, now)
        return [f"{command.action} {command.replica_id}" for command in self.commands[before:]]

    def answer(self) -> None:
        """Every command succeeds."""
        for command, executor in zip(self.commands, self.executors, strict=True):
            executor.send(CommandResult(command.command_id, True))


def notice(seconds: float) -> Intent:
    """The first host, which its provider takes back in so many seconds."""
    return host(1, reclaim_at=NOW + timedelta(seconds=seconds))


SOON = RECLAIM_DRAIN.total_seconds()


def test_replicas_on_a_host_that_is_taken_back_soon_are_stopped_whatever_the_switch_says() -> None:
    world = Leaving()
    assert world.leave(notice(SOON + 1), host(2)) == []
    assert world.actor.start_on("sim-host-1")
    assert world.leave(notice(SOON), host(2)) == ["stop r1"]
    assert world.stored.known == ("host-2",)
    assert not world.actor.start_on("sim-host-1")


def test_a_replica_that_a_notice_stopped_starts_again_when_the_notice_is_cancelled() -> None:
    world = Leaving()
    assert world.leave(notice(SOON), host(2)) == ["stop r1"]
    world.answer()
    stopped = ReplicaState.STOPPED
    assert world.leave(notice(SOON - 1), host(2), first=stopped) == []
    assert world.leave(host(1), host(2), first=stopped) == ["resume r1"]
    world.answer()
    assert world.leave(host(1), host(2), first=ReplicaState.LOADING) == []
    assert world.leave(host(1), host(2), first=stopped) == []  # whoever has stopped it since then


def test_the_next_scheduler_starts_it_again_by_what_is_stored_with_the_plan() -> None:
    world, after = Leaving(), Leaving()
    assert world.leave(notice(SOON), host(2)) == ["stop r1"]
    assert world.stored.left == {"r1": "sim-host-1"}
    assert after.leave(notice(SOON - 1), host(2), first=ReplicaState.STOPPED) == []  # nothing was read yet
    after.store.left = world.stored.left
    assert after.leave(host(1), host(2), first=ReplicaState.STOPPED) == ["resume r1"]
    after.answer()
    assert after.leave(host(1), host(2), first=ReplicaState.LOADING) == []
    assert after.stored.left == {}


def test_a_replica_that_a_person_stopped_meanwhile_or_that_the_plan_decides_on_does_not_start() -> None:
    for held, mode in ((True, Mode.OFF), (False, Mode.ON)):
        world = Leaving()
        assert world.leave(notice(SOON), host(2)) == ["stop r1"]
        world.answer()
        world.store.mode = mode
        assert world.leave(host(1), host(2), first=ReplicaState.STOPPED, held=held) == []


def test_a_notice_leaves_a_replica_alone_that_a_person_drains() -> None:
    assert Leaving().leave(notice(SOON), host(2), first=ReplicaState.DRAINING) == []


def test_the_last_serving_replica_stops_when_another_serves_or_the_instant_is_near() -> None:
    world = Leaving()
    loading = ReplicaState.LOADING
    assert world.leave(notice(LEAST_DRAIN_S + 1), host(2), second=loading) == []
    assert world.leave(notice(LEAST_DRAIN_S + 1), host(2)) == ["stop r1"]
    assert Leaving().leave(notice(LEAST_DRAIN_S), host(2), second=loading) == ["stop r1"]
    slow = Leaving()
    slow.times = LifeTimes(drain=StageTime(count=4, mean_s=100.0))
    assert slow.leave(notice(201), host(2), second=loading) == []
    assert slow.leave(notice(200), host(2), second=loading) == ["stop r1"]


def test_a_host_that_is_too_many_is_drained_and_then_said_to_be_empty() -> None:
    world = Leaving()
    surplus = host(1, wanted=False, why="not desired any more", drain_until=NOW + timedelta(minutes=15))
    assert world.leave(surplus, host(2), second=ReplicaState.LOADING) == []  # it is the last that serves
    assert world.leave(surplus, host(2)) == ["stop r1"]
    assert world.stored.emptied == ()
    world.answer()
    assert world.leave(surplus, host(2), first=ReplicaState.STOPPED) == []
    assert world.stored.emptied == ("host-1",)
    # Where no host is wanted any more, none waits for another.
    alone = Leaving()
    assert alone.leave(surplus, second=ReplicaState.STOPPED) == ["stop r1"]


def test_a_dry_run_stops_nothing_for_a_notice() -> None:
    world = Leaving()
    world.actor = PlanActor(world.store, PLACES, dict, world.clock, settle_s=0.0, hosts_dry_run=True)
    world.actor.connect(world.forward)
    assert world.leave(notice(1), host(2)) == []
    assert world.actor.start_on("sim-host-1")


def test_no_engine_stops_for_a_host_that_a_dry_run_does_not_destroy() -> None:
    world = World()
    world.actor = PlanActor(
        world.store, PLACES, lambda: {"m": ScalingLimits()}, world.clock, settle_s=0.0, hosts_dry_run=True
    )
    world.actor.connect(world.forward)
    for state in (ReplicaState.READY, ReplicaState.STOPPED):
        assert world.act(IDLE, state) == []
        assert world.stored.destroy == (PlannedRemoval("host-1", "it is idle", drained=False),)


def test_the_waker_leaves_the_gpus_to_the_model_to_which_the_plan_gives_them() -> None:
    world = World()
    world.state = SchedulerState("epoch", 0.0, waker=Waker(lambda model, rung: 5.0, lambda model: True, 2.0))
    waker = world.state.fleet.waker
    assert waker is not None
    rows = [
        replica("r", model="m", state=ReplicaState.STOPPED, gpu_ids=["0"]),
        replica("s", model="n", state=ReplicaState.DRAINING, phase="settling", gpu_ids=["0"]),
    ]
    world.state.heartbeat(beat(*rows), world.clock.monotonic())
    [agent] = {each.agent_id for each in world.state.fleet.replicas.values()}

    def act(plan: PlanView) -> None:
        rows = world.state.fleet.replicas.values()
        world.actor.expect(waker, HOSTS, rows, lambda model: (), world.clock.monotonic())
        assert waker.reserved == {}
        world.actor.act(plan, HOSTS, world.state, world.clock.monotonic())

    act(WAKE)
    assert world.commands == []  # the other one still settles
    assert waker.reserved == {(agent, "0"): "m"}
    world.store.mode = Mode.DRY_RUN
    act(WAKE)
    assert waker.reserved == {}
    world.store.mode = Mode.ON
    world.state.heartbeat(beat(rows[0]), world.clock.monotonic())
    act(WAKE)
    assert [command.action for command in world.commands] == ["resume"]
    world.executors[0].send(CommandResult(world.commands[0].command_id, False, "no"))
    act(WAKE)
    assert waker.reserved == {}  # while it cannot start, others may


def test_the_waker_learns_when_the_turn_of_a_model_comes_where_the_plan_acts() -> None:
    world = World()
    world.state = SchedulerState("epoch", 0.0, waker=Waker(lambda model, rung: 5.0, lambda model: True, 2.0))
    waker = world.state.fleet.waker
    assert waker is not None
    waits = msgspec.structs.replace(
        IDLE,
        models=[
            ModelPlanView("m", 0, 0, 1, 1.0, "why", turn_in_s=40.0),
            ModelPlanView("n", 1, 0, 1, 1.0, ""),
        ],
    )
    now = world.clock.monotonic()
    for mode, turns in ((Mode.ON, {"m": now + 40.0}), (Mode.DRY_RUN, {})):
        world.store.mode = mode
        world.actor.expect(waker, HOSTS, [], lambda model: (), now)
        world.actor.act(waits, HOSTS, world.state, now)
        assert waker.turns == turns
        assert waker.gives_gpus("m") is (mode is Mode.ON)


def test_the_waker_learns_of_hosts_in_creation_and_of_models_that_may_get_one() -> None:
    world = World()
    arriving = ArrivingHosts(lambda model, rung: 98.0, 300.0, lambda kind: "H100")
    limits = {
        "m": ScalingLimits(host_kinds=("unpriced", KIND)),
        "off": ScalingLimits(host_kinds=(KIND,), acting=Mode.OFF),
        "none": ScalingLimits(host_kinds=("unpriced",)),
        "retired": ScalingLimits(max_awake=0, host_kinds=(KIND,)),
    }
    actor = PlanActor(world.store, PLACES, lambda: limits, world.clock, arriving=arriving)

    def kinds(model: str) -> list[HostOption]:
        priced = [kind for kind in limits[model].host_kinds if kind != "unpriced"]  # as the plan does
        return [HostOption(kind, 1.0, 1, ("nyc2",), "H100") for kind in priced]

    waker = Waker(lambda model, rung: None, lambda model: True, 2.0)
    now = world.clock.monotonic()
    world.store.hosts, world.store.read_at = ProviderHosts(NOW, (written(1),)), now
    actor.expect(waker, [], [], kinds, now)
    [arrival] = waker.arrivals["m"]
    assert (arrival.at - now, arrival.region, arrival.gpu) == (338.0, "nyc2", "H100")  # it is 60 s old
    assert waker.creatable == {"m": (Creatable(("nyc2",), "H100", 398.0),)}
    actor.expect(waker, [], [], kinds, now + 100.0)  # PostgreSQL is away
    assert waker.arrivals["m"][0].at == arrival.at
    world.state.heartbeat(
        msgspec.structs.replace(beat(replica("sim-host-1/r0", model="m")), agent_id="agent-1"), now
    )
    actor.expect(waker, HOSTS, world.state.fleet.replicas.values(), kinds, now)
    assert waker.arrivals == {}


def test_jobs_that_do_not_know_regions_find_no_creation_for_one() -> None:
    """They ignored the regions, and created a host elsewhere with each plan."""
    plan = PlanView(
        create=[HostCreationView(KIND, "m", 1, "in tor1", ("tor1",)), HostCreationView(KIND, "m", 2, "load")]
    )
    stored = msgspec.json.encode(stored_plan(plan, [], []))
    assert [row["reason"] for row in msgspec.json.decode(stored)["create"]] == ["load"]
    read = msgspec.json.decode(stored, type=StoredPlan)
    assert {(row.count, row.regions) for row in read.creations} == {(1, ("tor1",)), (2, ())}
