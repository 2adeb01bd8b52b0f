"""Rollouts between PostgreSQL and agents: commands, refusals, acts, and new hosts, with the store's reads given."""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from prometheus_client import REGISTRY

import scheduler.rollouts
from admin.rollouts import ANSWER_BOUNDS
from core.db import Database
from scheduler.core.rollout import Decision, Situation
from scheduler.core.state import SchedulerState
from scheduler.rollout_store import RolloutStore
from scheduler.rollouts import SETTLE_S, TOO_OLD, RolloutRunner
from tests.support.clock import ManualClock
from tests.support.scheduling import MODEL, beat, replica
from workers.acting.plan import PoolAct
from workers.engine_spec import EngineSpec
from workers.rollouts import Progress, Rollout, RolloutState, RolloutUpdate, Strategy
from workers.wire import CommandResult, ReplicaCommand, ReplicaState, ReplicaStatus

NEW = EngineSpec(engine_version="0.33.0")
NOW = datetime(2026, 11, 28, tzinfo=UTC)


class Counted(dict[str, object]):
    """A fleet that counts how often all of it is read."""

    reads = 0

    def values(self) -> Any:
        self.reads += 1
        return super().values()


class World:
    """A pool, the store's content, and what is sent."""

    def __init__(self, **strategy: object) -> None:
        self.clock = ManualClock()
        self.store = RolloutStore(Database("postgresql://penstock@127.0.0.1:1/none"), 1)
        self.acts: list[PoolAct] = []
        self.commands: list[ReplicaCommand] = []
        self.condemned: set[str] = set()
        self.state = SchedulerState("epoch", 0.0)
        self.runner = RolloutRunner(self.store, self.acts.append, self.clock.monotonic)
        self.runner.connect(
            lambda runner, command: self.commands.append(command),
            self.condemned.__contains__,
            lambda agent_id: f"host-of-{agent_id}",
        )
        quick: dict[str, Any] = {"min_ready_s": 0.0, "bake_s": 0.0, **ANSWER_BOUNDS} | strategy
        self.rollout = Rollout(
            uuid4(), MODEL, EngineSpec(), NEW, Strategy(**quick), RolloutState.PROGRESSING, "faster", NOW, NOW, None,
            Progress(),
        )  # fmt: skip
        self.store.active = {MODEL: self.rollout}
        self.clock.advance(2 * SETTLE_S)

    def look(self, *rows: ReplicaStatus) -> list[ReplicaCommand]:
        """The commands that follow when the replicas are `rows`."""
        self.clock.advance(1.0)
        self.state.heartbeat(beat(*rows), self.clock.monotonic())
        before = len(self.commands)
        self.runner.run(self.state)
        return self.commands[before:]

    @property
    def update(self) -> RolloutUpdate:
        return self.store._updates[MODEL]

    def answer(
        self, command: ReplicaCommand, ok: bool = True, message: str = "", refused: bool = True
    ) -> None:
        self.runner.send(CommandResult(command.command_id, ok, message, refused and not ok))


def row(
    name: str, version: str = "", state: ReplicaState = ReplicaState.READY, **facts: object
) -> ReplicaStatus:
    phase = {ReplicaState.READY: "ready"}.get(state, "")
    status = replica(name, version=version, state=state, deploys=True, phase=phase, phase_s=60.0)
    return msgspec.structs.replace(status, **facts)


def test_replicas_are_replaced_one_after_the_other() -> None:
    world = World()
    [first] = world.look(row("a"), row("b"))
    assert (first.action, first.replica_id, first.same_answer, first.deadline_s) == (
        "deploy",
        "a",
        True,
        600.0,
    )
    assert msgspec.json.decode(first.spec, type=EngineSpec) == NEW
    assert (first.min_agreement, first.max_logprob_distance) == (0.25, 1.0)
    assert world.look(row("a"), row("b")) == []
    world.answer(first)
    assert world.look(row("a", NEW.version, ReplicaState.LOADING), row("b")) == []
    [second] = world.look(row("a", NEW.version), row("b"))
    assert second.replica_id == "b"
    world.answer(second)
    assert world.look(row("a", NEW.version), row("b", NEW.version)) == []
    assert (world.update.state, world.update.progress.wanted) == (RolloutState.PROMOTED, 2)
    assert world.look(row("a", NEW.version), row("b", NEW.version)) == []  # until it is stored
    assert [(act.target, act.act, act.result) for act in world.acts] == [
        ("a", "deploy", "done"), ("b", "deploy", "done"), (f"version {NEW.version}", "promoted", "done")
    ]  # fmt: skip
    assert world.runner.is_rolling(MODEL)


def test_a_refusal_is_tried_again_after_a_pause_and_then_ends_the_rollout() -> None:
    world = World()
    [first] = world.look(row("a"), row("b"))
    world.answer(first, False, "this host has no engine 0.33.0")
    assert world.look(row("a"), row("b")) == []
    world.clock.advance(10.0)
    [again] = world.look(row("a"), row("b"))
    world.answer(again, False, "this host has no engine 0.33.0")
    world.look(row("a"), row("b"))
    assert world.update.state is RolloutState.ROLLING_BACK
    assert world.update.reason == "a cannot get the version: this host has no engine 0.33.0"


def test_a_roll_back_asks_for_no_stored_answer() -> None:
    world = World()
    world.rollout = msgspec.structs.replace(world.rollout, state=RolloutState.ROLLING_BACK)
    world.store.active = {MODEL: world.rollout}
    [back] = world.look(row("a", NEW.version, ReplicaState.FAILED, phase="unfit"), row("b"))
    assert (back.replica_id, back.same_answer, back.spec) == ("a", False, b"{}")
    assert (back.min_agreement, back.max_logprob_distance) == (0.0, None)
    world.answer(back)
    world.look(row("a"), row("b"))
    assert (world.update.state, world.update.reason) == (RolloutState.ROLLED_BACK, "faster")


def test_answers_are_compared_with_those_of_the_version_before_alone() -> None:
    world = World(max_unavailable=2, max_surge=0)
    world.rollout = msgspec.structs.replace(world.rollout, before=EngineSpec(engine_version="0.32.1"))
    world.store.active = {MODEL: world.rollout}
    new_host, promoted = world.look(row("a"), row("b", world.rollout.before.version))
    assert (new_host.replica_id, new_host.same_answer) == ("a", False)
    assert (new_host.min_agreement, new_host.max_logprob_distance) == (0.0, None)
    assert (promoted.replica_id, promoted.same_answer) == ("b", True)
    assert (promoted.min_agreement, promoted.max_logprob_distance) == (0.25, 1.0)


def test_a_rollout_of_before_the_bounds_asks_for_no_answer() -> None:
    world = World()
    stored = msgspec.convert({"same_answer": False, "min_ready_s": 0.0, "bake_s": 0.0}, Strategy)
    world.store.active = {MODEL: msgspec.structs.replace(world.rollout, strategy=stored)}
    [command] = world.look(row("a"), row("b"))
    assert (command.same_answer, command.min_agreement, command.max_logprob_distance) == (False, 0.0, None)


def test_an_agent_that_knows_no_rollouts_ends_it() -> None:
    world = World()
    assert world.look(row("a", deploys=False), row("b")) == []
    assert world.update.reason == f"a cannot get the version: {TOO_OLD}"


def test_a_host_that_is_being_destroyed_is_left_alone() -> None:
    world = World()
    world.condemned.add("agent-1")
    assert world.look(row("a"), row("b")) == []


def test_nothing_is_decided_before_agents_have_reconnected() -> None:
    world = World()
    world.runner._begins_at = world.clock.monotonic() + 2.0
    assert world.look(row("a"), row("b")) == []
    assert len(world.look(row("a"), row("b"))) == 1


@pytest.mark.parametrize("state", [ReplicaState.LOADING, ReplicaState.READY])
def test_a_replica_of_a_new_host_gets_the_promoted_version(state: ReplicaState) -> None:
    world = World()
    world.store.active, world.store.deployed = {}, {MODEL: NEW}
    [command] = world.look(row("a", NEW.version), row("b", state=state))
    assert (command.action, command.replica_id, command.same_answer) == ("deploy", "b", False)
    world.answer(command, False, "no")
    assert world.look(row("a", NEW.version), row("b", state=state)) == []
    assert not world.runner.is_rolling(MODEL)
    assert World().look(row("a", deploys=False)) == []


def test_the_fleet_is_read_once_in_a_look_and_models_that_are_up_to_date_not_at_all() -> None:
    world = World(max_surge=1)
    names = [f"m{n}" for n in range(5)]
    world.store.active = {
        name: msgspec.structs.replace(world.rollout, rollout_id=uuid4(), model=name) for name in names
    }
    world.store.deployed = {"kept": NEW}
    rows = [row(f"{name}/{n}", model=name, gpu_ids=[f"{name}-{n}"]) for name in names for n in range(2)]
    rows += [
        row(f"{name}/s", state=ReplicaState.STOPPED, model=name, gpu_ids=[f"{name}-s"]) for name in names
    ]
    rows.append(row("kept/0", NEW.version, model="kept"))
    world.state.heartbeat(beat(*rows), world.clock.monotonic())
    fleet = Counted(world.state.fleet.replicas)
    world.state.fleet.replicas = fleet  # type: ignore[assignment]
    world.runner.run(world.state)
    assert fleet.reads == 1
    assert [command.replica_id for command in world.commands] == [f"{name}/s" for name in names]


def test_a_canary_counts_the_replicas_that_wake_meanwhile() -> None:
    world = World(canary_percent=10, max_surge=0)
    canary = msgspec.structs.replace(world.rollout, state=RolloutState.CANARY, progress=Progress(wanted=2))
    world.store.active = {MODEL: canary}
    rows = [row(f"r{n}") for n in range(10)]
    world.look(*rows)
    assert world.update.progress.wanted == 10
    going_on = msgspec.structs.replace(canary, state=RolloutState.PROGRESSING, progress=world.update.progress)
    world.store.active = {MODEL: going_on}
    world.look(*rows[:4])
    assert world.update.progress.wanted == 10


def test_the_usual_number_is_not_stored_while_agents_still_reconnect() -> None:
    world = World()
    world.runner._begins_at = world.clock.monotonic()
    world.look(row("a"))
    assert world.update.progress.wanted == -1
    world.look(row("a"), row("b"))
    world.clock.advance(SETTLE_S)
    world.look(row("a"), row("b"))
    assert world.update.progress.wanted == 2


def test_a_replica_that_comes_and_goes_is_no_progress() -> None:
    world = World(progress_deadline_s=30.0)
    for second in range(40):
        flapping = ReplicaState.READY if second % 2 else ReplicaState.FAILED
        world.look(
            row("a", held=True, deploys=True, state=flapping, version=NEW.version),
            row("b", state=ReplicaState.LOADING),
        )
    assert world.update.reason == "no progress for 30 s"


def test_a_canary_that_is_rolled_back_keeps_its_share_of_the_traffic() -> None:
    world = World(canary_percent=10)
    seen: list[set[str]] = []
    world.state.set_canaries = lambda canaries, now: seen.append(set(canaries))  # type: ignore[method-assign]
    for updated in (1, 2):
        progress = Progress(wanted=10, replicas=10, updated=updated)
        world.store.active = {
            MODEL: msgspec.structs.replace(world.rollout, state=RolloutState.ROLLING_BACK, progress=progress)
        }
        world.look(row("a", NEW.version), row("b"))
    assert seen == [{MODEL}, set()]


def test_commands_that_are_lost_are_repeated_and_do_not_end_the_rollout() -> None:
    world = World()
    for _ in range(4):
        [command] = world.look(row("a"), row("b"))
        world.answer(command, False, "the agent's connection was lost", refused=False)
        assert world.look(row("a"), row("b")) == []
        world.clock.advance(60.0)
    assert world.update.state is RolloutState.PROGRESSING


def test_a_scheduler_that_takes_over_stops_what_the_one_before_has_started_beside() -> None:
    world = World()
    world.store.active = {
        MODEL: msgspec.structs.replace(
            world.rollout,
            progress=Progress(wanted=1, replicas=2, surged=("b",)),
            state=RolloutState.ROLLING_BACK,
        )
    }
    [command] = world.look(row("a"), row("b"))
    assert (command.action, command.replica_id) == ("stop", "b")
    assert world.update.progress.surged == ("b",)


def test_a_mistake_in_one_rollout_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.store.active = {
        name: msgspec.structs.replace(world.rollout, rollout_id=uuid4(), model=name) for name in ("a", "b")
    }
    decides = scheduler.rollouts.decide

    def wrong(situation: Situation) -> Decision:
        if situation.members[0].name == "a/0":
            raise ZeroDivisionError
        return decides(situation)

    monkeypatch.setattr(scheduler.rollouts, "decide", wrong)
    rows = [row(f"{name}/{n}", model=name) for name in ("a", "b") for n in range(2)]
    assert [command.replica_id for command in world.look(*rows)] == ["b/0"]
    failed = REGISTRY.get_sample_value("penstock_scheduler_rollout_failures_total", {"model": "a"})
    assert failed == 1.0


def test_the_plan_is_told_what_a_rollout_moves() -> None:
    world = World()
    [command] = world.look(row("a"), row("b"))
    told = world.runner
    assert (told.is_replacing("a"), told.is_replacing("b"), told.is_canary(MODEL)) == (True, False, False)
    world.answer(command)
    assert not told.is_replacing("a")
    world.store.active = {MODEL: msgspec.structs.replace(world.rollout, state=RolloutState.CANARY)}
    assert told.is_canary(MODEL)
