"""Carries rollouts out: shows the pool to scheduler/core/rollout.py, sends its commands, stores its decisions."""

import logging
from collections.abc import Callable, Mapping, Sequence, Set

import msgspec

from core.ids import uuid7
from scheduler import metrics
from scheduler.core.config import HEARTBEAT_STALE_S
from scheduler.core.replica import Replica
from scheduler.core.rollout import (
    MAX_FAILURES,
    RESTING,
    Decision,
    Member,
    Move,
    Situation,
    decide,
    steady_moves,
)
from scheduler.core.state import SchedulerState
from scheduler.image_rollouts import ImageRollouts
from scheduler.plan_executor import gpu_users
from scheduler.rollout_canaries import canary_of, has_canary
from scheduler.rollout_clock import RolloutClock
from scheduler.rollout_store import RolloutStore
from scheduler.version_figures import VersionComparison, verdict
from workers.acting.plan import Mode, PoolAct
from workers.backoff import pause_after
from workers.engine_spec import EngineSpec
from workers.replica_states import Phase
from workers.rollouts import Progress, Rollout, RolloutState, RolloutUpdate, Strategy
from workers.wire import CommandResult, ReplicaCommand, ReplicaState, ReplicaStatus

log = logging.getLogger(__name__)

SETTLE_S = 10.0
"""Seconds after the start in which agents reconnect, and nothing is decided."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 120.0
"""Seconds without a command to a replica after it has refused one, doubled with each further refusal."""
TOO_OLD = "its agent is of a version that knows no rollouts; update it"
_SERVE_SOON = frozenset({ReplicaState.READY, ReplicaState.LOADING})


class _Failures(msgspec.Struct, frozen=True):
    """The commands to a replica that failed in a row."""

    count: int = 0
    refused: int = 0
    """Those that its agent cannot carry out; others, such as those of a lost connection, say nothing of the version."""
    why: str = ""
    next_at: float = float("-inf")
    """When the next command may be sent."""


_NO_FAILURE = _Failures()


class _Open(msgspec.Struct, frozen=True):
    """A command under way."""

    model: str
    move: Move
    version: str


class RolloutRunner:
    """The rollouts of one scheduler incarnation. What replicas report says how far each is, so little is kept here."""

    name = "rollout"

    def __init__(
        self,
        store: RolloutStore,
        record: Callable[[PoolAct], None],
        now: Callable[[], float],
        *,
        settle_s: float = SETTLE_S,
    ) -> None:
        """`record` takes acts for the timeline; `now` returns monotonic seconds."""
        self._store, self._record, self._now = store, record, now
        self.comparison = VersionComparison()
        self._images = ImageRollouts(self.comparison, now)
        self._settle_s = settle_s
        self._begins_at = now() + settle_s
        self._forward: Callable[[ReplicaCommand], None] = lambda command: None
        self._condemned: Callable[[str], bool] = lambda agent_id: False
        self._open: dict[str, _Open] = {}
        self._changing: dict[str, str] = {}
        """By replica: the command under way."""
        self._refused: dict[str, _Failures] = {}
        """By replica."""
        self._surged: set[str] = set()
        self._logged: set[str] = set()
        self._clocks: dict[str, RolloutClock] = {}
        self._wanted: dict[str, int] = {}
        self._gpu_users: dict[tuple[str, str], set[str]] | None = None
        """The replicas on each GPU in this look, once they are asked for."""

    def connect(
        self,
        forward: Callable[["RolloutRunner", ReplicaCommand], None],
        condemned: Callable[[str], bool],
        host_of: Callable[[str], str],
    ) -> None:
        """Send commands by `forward`, which takes this object for their results.

        `condemned` tells whether the host of an agent may be destroyed at any moment, `host_of` returns its id.
        """
        self._forward = lambda command: forward(self, command)
        self._condemned, self._images.host_of = condemned, host_of

    def is_rolling(self, model: str) -> bool:
        """Whether a model's replicas are being replaced, so that the autoscaler moves none of them."""
        return model in self._store.active

    def is_canary(self, model: str) -> bool:
        """Whether a model's replicas are left as they are, so that more may wake: until a canary is promoted, or while
        its hosts are replaced."""
        rollout = self._store.active.get(model)
        return rollout is not None and (rollout.state is RolloutState.CANARY or rollout.image is not None)

    def is_replacing(self, replica_id: str) -> bool:
        """Whether a command to a replica is under way."""
        return replica_id in self._changing

    def run(self, state: SchedulerState) -> None:
        """Look at the models that are rolled out, or have a promoted version, and move what has to move."""
        now, active = self._now(), self._store.active
        self._gpu_users = None
        by_host = self._images.look(active, self._store.image_hosts)
        self.comparison.watch({name: each.versions for name, each in active.items()}, by_host)
        self._forget(active)
        canaries = {
            name: canary_of(each, self._images.agents(each, state))
            for name, each in active.items()
            if has_canary(each)
        }
        state.set_canaries(canaries, now)
        if now < self._begins_at:
            return
        for model, rollout in sorted(active.items()):
            self._begin(rollout, state, now)
            if not self._store.is_deciding(model):
                self._step_alone(rollout, state, now)
        for model, spec in sorted(self._store.deployed.items()):
            replaced = model in active and active[model].image is None
            if replaced or all(
                replica.engine.version == spec.version for replica in state.fleet.replicas_of(model)
            ):
                continue
            members = self._members(model, state, now)
            self._move(model, spec, steady_moves(members, spec.version), Strategy(), now)

    def _step_alone(self, rollout: Rollout, state: SchedulerState, now: float) -> None:
        """Decide on one rollout. A mistake in that stops neither other rollouts nor the scheduler, which would fail on
        the same row again after its restart; it is counted each time and logged the first time."""
        try:
            if rollout.image is not None:
                self._step_image(rollout, state, now)
            else:
                self._step(rollout, self._members(rollout.model, state, now, to_start=True), now)
        except Exception as error:
            metrics.ROLLOUT_FAILURES.labels(rollout.model).inc()
            if (key := f"{rollout.rollout_id} {type(error).__name__}") not in self._logged:
                self._logged.add(key)
                log.exception("the rollout of %s is not decided on", rollout.model)

    def _step(self, rollout: Rollout, members: Sequence[Member], now: float) -> None:
        """Decide on one rollout."""
        before, after = rollout.before.version, rollout.after.version
        members = [each for each in members if each.phase != Phase.UNFIT or each.version == after]
        wanted = self._wanted_of(rollout, members)
        old, new = self.comparison.compare(rollout.model, before, after, now)
        known = max(
            len(members), rollout.progress.replicas if rollout.state is not RolloutState.CANARY else 0
        )
        settled = now >= self._begins_at + self._settle_s
        progress = Progress(
            wanted if settled else rollout.progress.wanted,
            known,
            sum(each.version == after for each in members),
            sum(each.serves for each in members),
            tuple(each.name for each in members if each.surged),
            old,
            new,
        )
        clock = self._clocks[str(rollout.rollout_id)]
        situation = Situation(
            rollout.state,
            rollout.strategy,
            before,
            after,
            wanted,
            members,
            verdict(rollout.strategy, old, new),
            state_s=max(now - clock.state_since, rollout.state_age_s),
            known=known,
            requests=new.requests,
        )
        done = situation.done
        clock.note(done, len(members) - done, now, settled=situation.is_settled)
        found = decide(msgspec.structs.replace(situation, stalled_s=now - clock.since))
        self._keep(rollout, found, progress)
        compared = {each.name for each in members if each.version == before}
        self._move(rollout.model, rollout.target, found.moves, rollout.strategy, now, compared)

    def _step_image(self, rollout: Rollout, state: SchedulerState, now: float) -> None:
        """Decide on one rollout of an image, whose hosts `jobs` replaces."""
        if not self._images.is_read(rollout.model):
            return
        for command in self._images.questions(rollout, state):
            self._forward(command)
        members, clock = self._members(rollout.model, state, now), self._clocks[str(rollout.rollout_id)]
        found, progress = self._images.decide(rollout, members, state, clock, now)
        self._keep(rollout, found, progress)

    def _keep(self, rollout: Rollout, found: Decision, progress: Progress) -> None:
        """Store a decision that changes something, and say so where it changes the state."""
        reason = _reason(rollout, found)
        if (found.state, reason, progress) != (rollout.state, rollout.reason, rollout.progress):
            update = RolloutUpdate(rollout.rollout_id, rollout.state, found.state, reason, progress)
            self._store.put(rollout, update)
        if found.state is not rollout.state:
            self._say(rollout, found)

    def _wanted_of(self, rollout: Rollout, members: Sequence[Member]) -> int:
        """The most replicas that were awake before the rollout left its canary, beside those that it has started.

        Until it is stored, which takes a few looks after a takeover, it is counted anew.
        """
        stored, key = rollout.progress.wanted, str(rollout.rollout_id)
        if stored < 0 or rollout.state is RolloutState.CANARY:
            awake = sum(each.state in _SERVE_SOON and not each.surged for each in members)
            self._wanted[key] = max(self._wanted.get(key, 0), awake)
        return max(stored, self._wanted.get(key, 0))

    def _begin(self, rollout: Rollout, state: SchedulerState, now: float) -> None:
        """Forget what replicas have refused before this state."""
        clock = self._clocks.get(str(rollout.rollout_id))
        if clock is None:
            self._surged.update(rollout.progress.surged)  # by the scheduler of before
        if clock is None or clock.state is not rollout.state:
            self._clocks[str(rollout.rollout_id)] = RolloutClock(rollout.state, now, now)
            for replica in state.fleet.replicas_of(rollout.model):
                self._refused.pop(replica.engine.replica_id, None)

    def _say(self, rollout: Rollout, found: Decision) -> None:
        """Write a change of state to the timeline."""
        failed = found.state in (RolloutState.ROLLING_BACK, RolloutState.ROLLED_BACK)
        reason = _reason(rollout, found)
        version = rollout.versions[1]
        self._record(
            PoolAct(
                rollout.model,
                version if rollout.image is not None else f"version {version or 'base'}",
                found.state.value,
                reason,
                Mode.ON,
                "failed" if failed else "done",
            )
        )

    def _members(
        self, model: str, state: SchedulerState, now: float, *, to_start: bool = False
    ) -> list[Member]:
        """The replicas of a model whose engines belong to agents. `to_start`: tell which may be started."""
        engines = {
            replica.engine.replica_id: replica
            for replica in state.fleet.replicas_of(model)
            if replica.engine.engine != "external" and not self._condemned(replica.agent_id)
        }
        return [
            self._member(
                replica,
                now,
                startable=to_start and replica.engine.state in RESTING and self._startable(replica, state),
            )
            for _, replica in sorted(engines.items())
        ]

    def _startable(self, replica: Replica, state: SchedulerState) -> bool:
        """Whether a resting replica's GPUs are free, and no person has stopped it."""
        if self._gpu_users is None:
            starting = {open_.move.name for open_ in self._open.values() if open_.move.action == "start"}
            self._gpu_users = gpu_users(state.fleet.replicas.values(), starting)
        users = self._gpu_users
        own = {replica.engine.replica_id}
        return not replica.engine.held and all(
            users.get((replica.agent_id, gpu), own) <= own for gpu in replica.engine.gpu_ids
        )

    def _member(self, replica: Replica, now: float, *, startable: bool) -> Member:
        status: ReplicaStatus = replica.engine
        name = status.replica_id
        failures = self._refused.get(name, _NO_FAILURE)
        refusals, why = failures.refused, failures.why
        if not status.deploys:
            refusals, why = MAX_FAILURES, TOO_OLD
        waits = not self._may_try(name, now)
        return Member(
            name,
            status.version,
            replica.expected_state or status.state,
            phase=status.phase,
            ready_s=status.phase_s if status.phase == Phase.READY else 0.0,
            failures=status.failures,
            changing=name in self._changing,
            startable=startable,
            surged=name in self._surged,
            silent=now - replica.last_seen_at > HEARTBEAT_STALE_S or waits or not status.deploys,
            refusals=refusals,
            detail=why or status.detail,
        )

    def _may_try(self, name: str, now: float) -> bool:
        return now >= self._refused.get(name, _NO_FAILURE).next_at

    def _move(
        self, model: str, spec: EngineSpec, moves: Sequence[Move], strategy: Strategy, now: float,
        compared: Set[str] = frozenset(),
    ) -> None:  # fmt: skip
        """Send the commands of moves. The answers of all replicas but `compared` may be any: they are beside those of
        another version than the one that is replaced."""
        for move in moves:
            if move.name in self._changing or not self._may_try(move.name, now):
                continue
            command = ReplicaCommand(
                str(uuid7()), move.name, "resume" if move.action == "start" else move.action, strategy.drain_s
            )
            if move.action == "deploy":
                command.spec = msgspec.json.encode(spec)
                if move.name in compared:
                    command.same_answer = strategy.same_answer
                    command.min_agreement = strategy.min_agreement or 0.0
                    command.max_logprob_distance = strategy.max_logprob_distance
            if move.action == "start":
                self._surged.add(move.name)
            self._open[command.command_id] = _Open(model, move, spec.version)
            self._changing[move.name] = command.command_id
            self._forward(command)

    def send(self, message: msgspec.Struct) -> None:
        """Take the result of a command."""
        if not isinstance(message, CommandResult) or self._images.take(message):
            return
        if (known := self._open.pop(message.command_id, None)) is None:
            return
        move, why = known.move, "" if message.ok else message.message
        if self._changing.get(move.name) == message.command_id:
            del self._changing[move.name]
        if message.ok:
            self._refused.pop(move.name, None)
            if move.action == "stop":
                self._surged.discard(move.name)
        else:
            last = self._refused.get(move.name, _NO_FAILURE)
            count, refused = last.count + 1, last.refused + message.refused
            pause_s = pause_after(count, FIRST_PAUSE_S, LONGEST_PAUSE_S)
            self._refused[move.name] = _Failures(count, refused, why, self._now() + pause_s)
        self._record(
            PoolAct(
                known.model,
                move.name,
                move.action,
                move.reason,
                Mode.ON,
                "done" if message.ok else "failed",
                why,
            )
        )

    def _forget(self, active: Mapping[str, Rollout]) -> None:
        """Keep what is known of these rollouts only."""
        keys = {str(each.rollout_id) for each in active.values()}
        self._clocks = {key: clock for key, clock in self._clocks.items() if key in keys}
        self._wanted = {key: wanted for key, wanted in self._wanted.items() if key in keys}
        if not active:
            self._surged.clear()


def _reason(rollout: Rollout, found: Decision) -> str:
    """The reason to store: a rollout that is rolled back keeps the one for which it is."""
    if found.state is RolloutState.ROLLED_BACK and found.reason:
        return f"{rollout.reason}; {found.reason}"
    return found.reason or rollout.reason
