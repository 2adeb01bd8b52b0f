"""Carries out what the plan says about replicas: which command each needs, one at a time, again after a failure.

A replica's own state says what was done already, so a scheduler that takes over goes on where the last one was.
"""

from collections.abc import Callable, Iterable, Mapping, Set

import msgspec

from core.ids import uuid7
from scheduler.core.autoscale.state import Rung
from scheduler.core.replica import Replica
from scheduler.wire import PlanView
from workers.acting.plan import Mode, PoolAct
from workers.backoff import pause_after
from workers.wire import CommandResult, ReplicaCommand, ReplicaState, ReplicaStatus

DRAIN_S = 600.0
"""Seconds that running requests get before an engine sleeps or stops."""
FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 600.0
"""Seconds without a command to a replica after one has failed, doubled with each further failure."""
SAID_S = 3600.0
"""Seconds until a dry run says the same of a replica again."""
_SLEEPS_FROM = (ReplicaState.READY, ReplicaState.DRAINING)
_STOPS_FROM = frozenset(ReplicaState) - {ReplicaState.STOPPED}
STARTS = ("wake", "resume")
"""The commands that bring a replica into service."""
_RESTS = ("sleep", "stop")
_ON_GPUS = frozenset({ReplicaState.READY, ReplicaState.LOADING, ReplicaState.DRAINING})
"""States of a replica that holds its GPUs."""


class Step(msgspec.Struct, frozen=True):
    """A command that a replica needs, and why."""

    replica_id: str
    model: str
    action: str
    reason: str
    level: int = 1
    """Of a sleep."""
    deepens: bool = False
    """Whether it is a sleep from level 1 to 2, for which the engine wakes on its GPUs."""

    @property
    def uses_gpus(self) -> bool:
        """Whether it needs the GPUs of the replica to be free."""
        return self.action in STARTS or self.deepens

    def opposes(self, other: "Step") -> bool:
        """Whether one of the two starts a replica and the other puts it to rest."""
        return (self.action in STARTS and other.action in _RESTS) or (
            self.action in _RESTS and other.action in STARTS
        )


class _Tries(msgspec.Struct):
    """The failures of a replica's last commands."""

    count: int
    next_at: float


def next_action(state: ReplicaState, after: Rung, *, drained_by_plan: bool) -> str:
    """The command that brings a replica to a rung; empty = none: it is there, on its way, or a person holds it."""
    if after is Rung.AWAKE:
        if state is ReplicaState.DRAINING:
            return "resume" if drained_by_plan else ""
        return {ReplicaState.ASLEEP: "wake", ReplicaState.STOPPED: "resume"}.get(state, "")
    if after is Rung.STOPPED or after is Rung.DESTROYED:
        return "stop" if state in _STOPS_FROM else ""
    return "sleep" if state in _SLEEPS_FROM else ""


def steps(
    plan: PlanView,
    statuses: Mapping[str, ReplicaStatus],
    doomed: Mapping[str, str],
    condemned: Callable[[str], bool],
    drained_by_plan: Callable[[str], bool],
) -> list[Step]:
    """The commands that the plan needs now. `doomed` gives replicas on hosts to destroy the reason of that.

    `condemned` tells of a replica whether its host may be destroyed at any moment: it is not started again.
    """
    wanted = {
        change.replica_id: (
            Rung(change.after),
            f"in {change.region}: {change.reason}" if change.region else change.reason,
        )
        for change in plan.changes
        if not (Rung(change.after) is Rung.AWAKE and condemned(change.replica_id))
    }
    wanted |= {name: (Rung.STOPPED, reason) for name, reason in doomed.items()}
    found = []
    for name, (rung, reason) in wanted.items():
        status = statuses.get(name)
        if status is None or status.engine == "external":
            continue
        action = next_action(status.state, rung, drained_by_plan=drained_by_plan(name))
        deepens = rung is Rung.SLEEP_2 and status.state is ReplicaState.ASLEEP and status.sleep_level == 1
        if deepens:
            action = "sleep" if status.phase else ""  # an agent that sends no phase knows one level only
        if action:
            found.append(Step(name, status.model, action, reason, 2 if rung is Rung.SLEEP_2 else 1, deepens))
    return found


def gpus_taken(
    replica_id: str, agents: Mapping[str, str], reported: Mapping[str, ReplicaStatus], starting: Set[str]
) -> bool:
    """Whether another replica of the same agent holds GPUs of a replica, or is `starting` on them.

    `agents` gives the agent of each replica, and `reported` what it reports of it. False where an agent does not say
    which GPUs its replicas use.
    """
    own = reported.get(replica_id)
    if own is None:
        return False
    return any(
        not set(own.gpu_ids).isdisjoint(other.gpu_ids)
        and (other.state in _ON_GPUS or name in starting)
        and agents.get(name) == agents.get(replica_id)
        for name, other in reported.items()
        if name != replica_id
    )


def gpu_users(replicas: Iterable[Replica], starting: Set[str]) -> dict[tuple[str, str], set[str]]:
    """By agent and GPU: the replicas that hold the GPU, or are `starting` on it."""
    users: dict[tuple[str, str], set[str]] = {}
    for replica in replicas:
        engine = replica.engine
        if engine.state in _ON_GPUS or engine.replica_id in starting:
            for gpu in engine.gpu_ids:
                users.setdefault((replica.agent_id, gpu), set()).add(engine.replica_id)
    return users


class PlanExecutor:
    """The commands under way, and the pauses after failures. It sends commands and takes their results."""

    name = "autoscaler"

    def __init__(
        self,
        forward: Callable[[ReplicaCommand], None],
        record: Callable[[PoolAct], None],
        now: Callable[[], float],
    ) -> None:
        """`forward` sends a command, whose one result comes to `send`; `now` returns monotonic seconds."""
        self._forward, self._record, self._now = forward, record, now
        self._open: dict[str, Step] = {}
        """By id of the command."""
        self._latest: dict[str, str] = {}
        """By replica: the id of its last command, whose result counts."""
        self._tries: dict[str, _Tries] = {}
        self._said: dict[tuple[str, str], float] = {}
        """When a dry run last said what it would do, by replica and action."""
        self._drained: set[str] = set()
        """Replicas that this executor has told to sleep or stop."""

    def has_drained(self, replica_id: str) -> bool:
        """Whether a replica drains because of the plan, and not because of a person."""
        return replica_id in self._drained

    def run(
        self,
        wanted: Iterable[Step],
        mode_of: Callable[[str], Mode],
        gpus_taken: Callable[[str, Set[str]], bool] = lambda name, starting: False,
    ) -> None:
        """Send the commands of `wanted` whose replica is not left alone after a failure.

        Where one is under way, only its opposite is sent, which calls it off. `gpus_taken` tells whether a replica
        cannot be started yet because others hold its GPUs or, of those given, are starting there.
        """
        now = self._now()
        for step in wanted:
            under_way = self._open.get(self._latest.get(step.replica_id, ""))
            mode = mode_of(step.model)
            if mode is Mode.DRY_RUN:
                self._say(step, now)
            if mode is not Mode.ON or self.leaves_alone(step.replica_id):
                continue
            if under_way is not None and not step.opposes(under_way):
                continue
            if step.uses_gpus and gpus_taken(step.replica_id, self._starting):
                continue
            if step.action in _RESTS:
                self._drained.add(step.replica_id)
            command = ReplicaCommand(str(uuid7()), step.replica_id, step.action, DRAIN_S, step.level)
            self._open[command.command_id] = step
            self._latest[step.replica_id] = command.command_id
            self._forward(command)

    @property
    def _starting(self) -> Set[str]:
        """The replicas that were told to use their GPUs and have not answered."""
        return {step.replica_id for step in self._open.values() if step.uses_gpus}

    def _say(self, step: Step, now: float) -> None:
        """Record what a dry run would do, once in SAID_S."""
        key = (step.replica_id, step.action)
        if now - self._said.get(key, -SAID_S) >= SAID_S:
            self._said[key] = now
            self._record(
                PoolAct(step.model, step.replica_id, step.action, step.reason, Mode.DRY_RUN, "dry-run")
            )

    def send(self, message: msgspec.Struct) -> None:
        """Take the result of a command."""
        if not isinstance(message, CommandResult):
            return
        step = self._open.pop(message.command_id, None)
        if step is None:
            return
        name, why = step.replica_id, "" if message.ok else message.message
        if message.called_off or self._latest.get(name) != message.command_id:
            why = why and f"called off: {why}"
        elif message.ok:
            self._tries.pop(name, None)
            if step.action in STARTS:
                self._drained.discard(name)
        else:
            count = self._tries[name].count + 1 if name in self._tries else 1
            pause_s = pause_after(count, FIRST_PAUSE_S, LONGEST_PAUSE_S)
            self._tries[name] = _Tries(count, self._now() + pause_s)
        self._record(
            PoolAct(
                step.model,
                name,
                step.action,
                step.reason,
                Mode.ON,
                "done" if message.ok else "failed",
                why,
            )
        )

    def leaves_alone(self, replica_id: str) -> bool:
        """Whether a replica gets no command for now, because the last one has failed."""
        tries = self._tries.get(replica_id)
        return tries is not None and self._now() < tries.next_at

    def forget(self, known: Iterable[str]) -> None:
        """Keep what is known of these replicas only."""
        keep = set(known)
        self._tries = {name: tries for name, tries in self._tries.items() if name in keep}
        self._said = {key: at for key, at in self._said.items() if key[0] in keep}
        self._drained &= keep
        self._latest = {name: last for name, last in self._latest.items() if name in keep}
