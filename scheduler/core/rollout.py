"""What a rollout does next: which replicas get the new version now, and whether it ends. Pure.

    canary -> progressing -> promoted
    canary | progressing -> rolling_back -> rolled_back

Every move keeps two bounds, in every state. No serving replica is taken while fewer than `wanted - max_unavailable`
would be left available, and no resting one is started beyond `wanted + max_surge` awake ones.
"""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from workers.replica_states import Phase
from workers.rollouts import RolloutState, Strategy
from workers.wire import ReplicaState

MAX_FAILURES = 2
"""Failures in a row of an engine of the new version, or of commands to a replica, after which a rollout is aborted."""
NO_ROOM_S = 20.0
"""Seconds without room for a canary after which it is given up: replicas may be starting, or silent for a moment."""
RESTING = frozenset({ReplicaState.STOPPED, ReplicaState.ASLEEP})


class Member(msgspec.Struct, frozen=True):
    """One replica of the model, as last reported."""

    name: str
    version: str
    state: ReplicaState
    phase: str = ""
    ready_s: float = 0.0
    """Seconds for which it serves, of one that does."""
    failures: int = 0
    """Failures of its engine in a row."""
    changing: bool = False
    """Whether a command of this rollout is under way."""
    startable: bool = False
    """Whether it rests and may be started now: its GPUs are free, and nobody has stopped it."""
    surged: bool = False
    """Whether this rollout started it beside the usual number."""
    silent: bool = False
    """Whether its agent is not heard; no command reaches it."""
    refusals: int = 0
    """Commands of this rollout in a row that it has refused."""
    detail: str = ""
    """Why it failed or refused, in its own words."""

    @property
    def rests(self) -> bool:
        """Whether it does not serve, and is not on its way to."""
        return self.state in RESTING and not self.changing

    @property
    def serves(self) -> bool:
        """Whether it takes requests."""
        return self.state is ReplicaState.READY and not self.changing and not self.silent


class Move(msgspec.Struct, frozen=True):
    """A command for a replica."""

    name: str
    action: Literal["deploy", "start", "stop"]
    reason: str


class Verdict(msgspec.Struct, frozen=True):
    """What the comparison of both versions says."""

    regression: str = ""
    """What is worse, as a clause; empty = nothing."""
    enough: bool = False
    """Whether both had enough requests to tell."""


class Situation(msgspec.Struct, frozen=True):
    """All that a decision depends on."""

    state: RolloutState
    strategy: Strategy
    before: str
    after: str
    """Versions."""
    wanted: int
    """Replicas that were awake when the rollout began."""
    members: Sequence[Member]
    verdict: Verdict = Verdict()
    stalled_s: float = 0.0
    """Seconds since the counts of replicas last changed."""
    state_s: float = 0.0
    """Seconds since the state last changed."""

    @property
    def target(self) -> str:
        """The version that replicas are to get."""
        return self.before if self.state is RolloutState.ROLLING_BACK else self.after

    @property
    def canaries(self) -> int:
        """Replicas that get the new version while it is a canary: at least one, and not all."""
        share = math.ceil(self.wanted * self.strategy.canary_percent / 100)
        return max(1, min(share, self.wanted - 1))

    def is_available(self, member: Member) -> bool:
        """Whether a replica serves, one of the target long enough."""
        settled = member.version != self.target or member.ready_s >= self.strategy.min_ready_s
        return member.serves and settled


class Decision(msgspec.Struct, frozen=True):
    """The state from now on, why, and the commands."""

    state: RolloutState
    reason: str
    moves: tuple[Move, ...] = ()


def decide(now: Situation) -> Decision:
    """What happens next."""
    match now.state:
        case RolloutState.CANARY | RolloutState.PROGRESSING:
            if why := _failure(now):
                return Decision(RolloutState.ROLLING_BACK, why)
            return _canary(now) if now.state is RolloutState.CANARY else _progress(now)
        case RolloutState.ROLLING_BACK:
            return _roll_back(now)
        case ended:
            return Decision(ended, "")


def steady_moves(members: Sequence[Member], version: str) -> tuple[Move, ...]:
    """The moves that bring replicas to the promoted version of their model, such as those of new hosts."""
    awake = sum(not member.rests for member in members)
    strategy = Strategy(max_surge=0, min_ready_s=0.0)
    there = Situation(RolloutState.ROLLING_BACK, strategy, version, version, awake, members)
    return _replace(there, math.inf) or _resting(there)


def _failure(now: Situation) -> str:
    """Why the rollout must not go on; empty = it may."""
    for member in now.members:
        new = member.version == now.after
        if new and member.phase == Phase.UNFIT:
            return f"{member.name} is not fit to serve: {member.detail}"
        if new and member.failures >= MAX_FAILURES:
            return f"{member.name} failed {member.failures} times: {member.detail}"
        if member.refusals >= MAX_FAILURES:
            return f"{member.name} cannot get the version: {member.detail}"
    if now.verdict.regression:
        return f"the new version is worse: {now.verdict.regression}"
    settled = now.state is RolloutState.CANARY and _served(now) >= now.canaries
    if not settled and now.stalled_s > now.strategy.progress_deadline_s:
        return f"no progress for {now.strategy.progress_deadline_s:.0f} s"
    if now.state is RolloutState.CANARY and now.state_s > now.strategy.canary_deadline_s:
        return f"the canary was not promoted within {now.strategy.canary_deadline_s:.0f} s"
    return ""


def _served(now: Situation) -> int:
    """Available replicas of the new version."""
    return sum(member.version == now.after and now.is_available(member) for member in now.members)


def _canary(now: Situation) -> Decision:
    served, strategy = _served(now), now.strategy
    moves = _replace(now, now.canaries)
    begun = any(member.changing or member.version == now.after for member in now.members if not member.rests)
    if not moves and not begun and now.stalled_s > NO_ROOM_S:
        return Decision(
            RolloutState.ROLLING_BACK,
            "a canary needs two replicas: two that serve, or one that may be started beside",
        )
    if served >= now.canaries and 0 < strategy.promote_after_s <= now.state_s and now.verdict.enough:
        return Decision(
            RolloutState.PROGRESSING,
            f"promoted by rule: no regression within {strategy.promote_after_s:.0f} s",
        )
    return Decision(now.state, "", moves)


def _progress(now: Situation) -> Decision:
    if moves := _replace(now, math.inf):
        return Decision(now.state, "", moves)
    awake = [member for member in now.members if not member.rests]
    if any(
        member.version != now.target
        or not (now.is_available(member) or (member.state is ReplicaState.DRAINING and not member.changing))
        for member in awake
    ):
        return Decision(now.state, "")
    if moves := _resting(now):
        return Decision(now.state, "", moves)
    if any(member.version != now.target for member in now.members):
        return Decision(now.state, "")
    if moves := _end_surge(now):
        return Decision(now.state, "", moves)
    return Decision(RolloutState.PROMOTED, f"all {len(now.members)} replicas have the new version")


def _roll_back(now: Situation) -> Decision:
    left = [
        member
        for member in now.members
        if member.version != now.target or member.changing or member.state is ReplicaState.LOADING
    ]
    if not left:
        moves = _end_surge(now)
        return Decision(now.state if moves else RolloutState.ROLLED_BACK, "", moves)
    if now.stalled_s > now.strategy.progress_deadline_s:
        names = ", ".join(member.name for member in left)
        return Decision(RolloutState.ROLLED_BACK, f"{names} could not be brought back in time")
    return Decision(now.state, "", _replace(now, math.inf) or _resting(now))


def _replace(now: Situation, most: float) -> tuple[Move, ...]:
    """Moves of replicas that are awake, and of resting ones that serve meanwhile. At most `most` get the target."""
    awake = [member for member in now.members if not member.rests]
    stale = [member for member in awake if member.version != now.target and not member.changing]
    stale = [member for member in stale if not member.silent and member.state is not ReplicaState.DRAINING]
    room = most - sum(member.version == now.target or member.changing for member in awake)
    back = now.state is RolloutState.ROLLING_BACK
    moves = []
    for member in stale:
        idle = member.state is ReplicaState.FAILED or (back and member.state is ReplicaState.LOADING)
        if idle and room > 0:
            moves.append(_deploy(now, member))
            room -= 1
    serving = [member for member in stale if member.serves]
    if now.state is RolloutState.CANARY:
        serving = serving[:-1]  # the other traffic needs one
    surge = _surge(now, len(awake), room) if any(member.serves for member in stale) else ()
    moves += surge
    room -= len(surge)
    occupied = sum(member.changing or member.state is not ReplicaState.DRAINING for member in awake)
    available = sum(map(now.is_available, now.members))
    # Where more than the usual number are awake, none needs to be missing.
    surging = bool(surge) or occupied > now.wanted
    floor = now.wanted if surging else now.wanted - now.strategy.max_unavailable
    for member in serving:
        if room <= 0 or available - 1 < floor:
            break
        moves.append(_deploy(now, member))
        available, room = available - 1, room - 1
    return tuple(moves)


def _surge(now: Situation, awake: int, room: float) -> tuple[Move, ...]:
    """Starts of resting replicas: they get the version first, then they are started."""
    free = min(now.wanted + now.strategy.max_surge - awake, room)
    if now.state is RolloutState.ROLLING_BACK:
        return ()
    moves: list[Move] = []
    for member in now.members:
        if len(moves) < free and member.rests and member.startable and not member.silent:
            if member.version == now.target:
                moves.append(Move(member.name, "start", "it serves while others are replaced"))
            else:
                moves.append(_deploy(now, member))
    return tuple(moves)


def _end_surge(now: Situation) -> tuple[Move, ...]:
    """The stop of a replica that was started beside the usual number and is not needed any more."""
    available = sum(map(now.is_available, now.members))
    surged = [member for member in now.members if member.surged and member.serves]
    if not surged or available <= now.wanted:
        return ()
    return (Move(surged[-1].name, "stop", "the rollout needs it no more"),)


def _resting(now: Situation) -> tuple[Move, ...]:
    """Moves of resting replicas, which serve nothing and stay at rest."""
    return tuple(
        _deploy(now, member)
        for member in now.members
        if member.rests and member.version != now.target and not member.silent
    )


def _deploy(now: Situation, member: Member) -> Move:
    return Move(member.name, "deploy", f"version {member.version or 'base'} -> {now.target or 'base'}")
