"""What the plan says about replicas becomes commands: one at a time, again after a failure, never on a lost host."""

import itertools
from collections.abc import Set

import msgspec
import pytest

from scheduler.core.autoscale.state import Rung
from scheduler.plan_executor import (
    DRAIN_S,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    PlanExecutor,
    Step,
    gpus_taken,
    next_action,
    steps,
)
from scheduler.wire import PlanChangeView, PlanView
from tests.support.scheduling import replica
from workers.acting.plan import Mode, PoolAct
from workers.wire import CommandResult, ReplicaCommand, ReplicaState, ReplicaStatus

S = ReplicaState


def status(name: str = "r", state: ReplicaState = S.READY, engine: str = "vllm") -> ReplicaStatus:
    return msgspec.structs.replace(replica(name), state=state, engine=engine)


def plan(name: str, before: Rung, after: Rung) -> PlanView:
    return PlanView(changes=[PlanChangeView(name, before.value, after.value, "less load")], changes_total=1)


class Agent:
    """Takes commands, and the executor's records."""

    def __init__(self) -> None:
        self.now = 0.0
        self.commands: list[ReplicaCommand] = []
        self.acts: list[PoolAct] = []
        self.executor = PlanExecutor(self.commands.append, self.acts.append, lambda: self.now)

    def run(self, *wanted: Step, mode: Mode = Mode.ON) -> list[str]:
        """The actions that are sent now."""
        before = len(self.commands)
        self.executor.run(wanted, lambda model: mode)
        return [command.action for command in self.commands[before:]]

    def answer(self, ok: bool = True, which: int = -1) -> None:
        self.executor.send(CommandResult(self.commands[which].command_id, ok, "" if ok else "broken"))


STEP = Step("r", "m", "sleep", "less load")


@pytest.mark.parametrize(
    ("state", "after", "action"),
    [
        (S.READY, Rung.SLEEP_1, "sleep"),
        (S.READY, Rung.SLEEP_2, "sleep"),
        (S.READY, Rung.STOPPED, "stop"),
        (S.ASLEEP, Rung.AWAKE, "wake"),
        (S.ASLEEP, Rung.STOPPED, "stop"),
        (S.FAILED, Rung.STOPPED, "stop"),
        (S.LOADING, Rung.STOPPED, "stop"),
        (S.STOPPED, Rung.AWAKE, "resume"),
        (S.STOPPED, Rung.STOPPED, ""),
        (S.READY, Rung.AWAKE, ""),
        (S.LOADING, Rung.AWAKE, ""),
        (S.FAILED, Rung.AWAKE, ""),  # its agent starts it again
        (S.LOADING, Rung.SLEEP_1, ""),
    ],
)
def test_the_command_that_a_state_needs(state: ReplicaState, after: Rung, action: str) -> None:
    assert next_action(state, after, drained_by_plan=False) == action


def test_a_replica_that_a_person_drains_is_not_resumed() -> None:
    assert next_action(S.DRAINING, Rung.AWAKE, drained_by_plan=False) == ""
    assert next_action(S.DRAINING, Rung.AWAKE, drained_by_plan=True) == "resume"


@pytest.mark.parametrize(("state", "after"), list(itertools.product(S, Rung)))
def test_every_state_and_rung_has_a_command_that_agents_know(state: ReplicaState, after: Rung) -> None:
    found = {next_action(state, after, drained_by_plan=drained) for drained in (True, False)}
    assert found <= {"", "sleep", "stop", "wake", "resume"}


def found(view: PlanView, row: ReplicaStatus, doomed: str = "", *, condemned: bool = False) -> list[str]:
    reasons = {row.replica_id: doomed} if doomed else {}
    wanted = steps(view, {row.replica_id: row}, reasons, lambda name: condemned, lambda name: False)
    return [step.action for step in wanted]


def test_engines_on_a_host_to_destroy_are_stopped_and_not_started_again() -> None:
    wake = plan("r", Rung.STOPPED, Rung.AWAKE)
    assert found(wake, status(state=S.STOPPED)) == ["resume"]
    assert found(wake, status(state=S.STOPPED), condemned=True) == []
    assert found(wake, status(state=S.ASLEEP), "it is idle") == ["stop"]
    assert found(PlanView(), status(state=S.STOPPED), "it is idle") == []


def test_a_sleeping_replica_sleeps_deeper_where_its_agent_can() -> None:
    deeper = plan("r", Rung.SLEEP_1, Rung.SLEEP_2)
    asleep = msgspec.structs.replace(status(state=S.ASLEEP), sleep_level=1)
    assert found(deeper, msgspec.structs.replace(asleep, phase="asleep_1")) == ["sleep"]
    assert found(deeper, asleep) == []  # its agent sends no phase, and knows one level
    assert found(deeper, msgspec.structs.replace(asleep, sleep_level=2, phase="asleep_2")) == []


def test_external_engines_and_unknown_replicas_get_no_commands() -> None:
    down = plan("r", Rung.AWAKE, Rung.STOPPED)
    assert found(down, status(engine="external")) == []
    assert found(down, status("other")) == []


def test_one_command_at_a_time_with_time_to_drain() -> None:
    agent = Agent()
    assert agent.run(STEP) == ["sleep"]
    assert agent.commands[0].deadline_s == DRAIN_S
    assert agent.run(STEP) == []
    agent.answer()
    assert [(act.act, act.result, act.reason) for act in agent.acts] == [("sleep", "done", "less load")]
    assert agent.run(msgspec.structs.replace(STEP, action="wake")) == ["wake"]


def test_a_failure_is_tried_again_after_a_pause_that_doubles() -> None:
    agent = Agent()
    pauses = []
    for _ in range(9):
        assert agent.run(STEP) == ["sleep"]
        agent.answer(ok=False)
        failed_at = agent.now
        while not (sent := agent.run(STEP)):
            agent.now += 1.0
        assert sent == ["sleep"]
        pauses.append(agent.now - failed_at)
        agent.answer(ok=False)
        agent.now += LONGEST_PAUSE_S
    assert pauses[0] == FIRST_PAUSE_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_S
    assert agent.acts[0].detail == "broken"
    assert agent.run(STEP) == ["sleep"]
    agent.answer()
    assert agent.run(STEP) == ["sleep"]  # a success ends the pauses


def test_the_opposite_of_a_command_calls_it_off() -> None:
    agent = Agent()
    stop, resume = (msgspec.structs.replace(STEP, action=action) for action in ("stop", "resume"))
    assert agent.run(stop) == ["stop"]
    assert agent.run(resume) == ["resume"]
    assert agent.run(resume) == []
    agent.answer(ok=False, which=0)  # the drain was called off: no reason for a pause
    assert agent.acts[0].detail == "called off: broken"
    agent.answer()
    assert agent.run(stop) == ["stop"]


def test_a_sleep_that_another_has_called_off_is_no_reason_for_a_pause() -> None:
    agent = Agent()
    agent.run(STEP)
    command = agent.commands[0].command_id
    agent.executor.send(CommandResult(command, False, "it serves again", called_off=True))
    assert [(act.result, act.detail) for act in agent.acts] == [("failed", "called off: it serves again")]
    assert not agent.executor.leaves_alone("r")
    assert agent.run(STEP) == ["sleep"]


def test_a_replica_is_not_started_on_gpus_that_another_one_holds() -> None:
    def row(name: str, state: ReplicaState, *gpus: str) -> ReplicaStatus:
        return msgspec.structs.replace(status(name, state), gpu_ids=list(gpus))

    def taken(
        other: ReplicaStatus, *starting: str, agent: str = "a", gpus: tuple[str, ...] = ("0", "1")
    ) -> bool:
        rows = {"r": row("r", S.ASLEEP, *gpus), "other": other}
        return gpus_taken("r", {"r": "a", "other": agent}, rows, set(starting))

    for state in S:
        assert taken(row("other", state, "1", "2")) is (state in (S.READY, S.LOADING, S.DRAINING))
    assert taken(row("other", S.ASLEEP, "1"), "other")
    assert not taken(row("other", S.READY, "2", "3"))
    assert not taken(row("other", S.READY, "1"), agent="b")
    assert not taken(row("other", S.READY))  # not known
    assert not taken(row("other", S.READY, "1"), gpus=())
    assert not taken(row("other", S.ASLEEP, "1"), "r")


def test_of_two_replicas_on_the_same_gpus_one_starts_when_the_last_one_rests() -> None:
    agent = Agent()
    wakes = [Step(name, "m", "wake", "more load") for name in ("a", "b")]
    free = False

    def taken(name: str, starting: Set[str]) -> bool:
        return not free or bool(starting - {name})

    agent.executor.run(wakes, lambda model: Mode.ON, taken)
    assert agent.commands == []
    free = True
    agent.executor.run(wakes, lambda model: Mode.ON, taken)
    assert [command.replica_id for command in agent.commands] == ["a"]


def test_a_sleeper_goes_deeper_only_while_its_gpus_are_free() -> None:
    agent = Agent()
    rows = {
        name: msgspec.structs.replace(status(name, S.ASLEEP), sleep_level=1, phase="asleep_1", gpu_ids=["0"])
        for name in ("r", "s")
    }
    deeper = steps(plan("r", Rung.SLEEP_1, Rung.SLEEP_2), rows, {}, lambda name: False, lambda name: False)

    def run(other: ReplicaState) -> list[tuple[str, str]]:
        rows["s"] = msgspec.structs.replace(rows["s"], state=other)
        before = len(agent.commands)
        agent.executor.run(
            [*deeper, Step("s", "n", "wake", "more load")],
            lambda model: Mode.ON,
            lambda name, starting: gpus_taken(name, {"r": "a", "s": "a"}, rows, starting),
        )
        return [(each.replica_id, each.action) for each in agent.commands[before:]]

    assert run(S.READY) == [("s", "wake")]  # its own engine does not stand in its way
    agent.answer()
    assert run(S.ASLEEP) == [("r", "sleep")]
    assert agent.commands[-1].level == 2
    assert run(S.ASLEEP) == []  # the other one waits until it sleeps again


def test_modes_of_commands() -> None:
    agent = Agent()
    assert agent.run(STEP, mode=Mode.OFF) == []
    assert agent.acts == []
    assert agent.run(STEP, mode=Mode.DRY_RUN) == []
    assert agent.run(STEP, mode=Mode.DRY_RUN) == []
    assert [(act.act, act.result) for act in agent.acts] == [("sleep", "dry-run")]
    agent.now += 3_600.0
    agent.run(STEP, mode=Mode.DRY_RUN)
    assert len(agent.acts) == 2


def test_what_the_plan_has_drained_is_known_until_it_is_awake_or_gone() -> None:
    agent = Agent()
    agent.run(STEP)
    assert agent.executor.has_drained("r")
    agent.answer(ok=False)
    agent.now += FIRST_PAUSE_S
    assert agent.run(msgspec.structs.replace(STEP, action="resume")) == ["resume"]
    agent.answer()
    assert not agent.executor.has_drained("r")
    agent.run(STEP)
    agent.executor.forget([])
    assert not agent.executor.has_drained("r")


@pytest.mark.parametrize(("rung", "level"), [(Rung.SLEEP_1, 1), (Rung.SLEEP_2, 2)])
def test_a_replica_sleeps_as_deeply_as_the_plan_says(rung: Rung, level: int) -> None:
    agent = Agent()
    view = plan("r", Rung.AWAKE, rung)
    agent.run(*steps(view, {"r": status()}, {}, lambda name: False, lambda name: False))
    assert [(command.action, command.level) for command in agent.commands] == [("sleep", level)]
