"""What a rollout does next: which replicas get the new version now, and whether it ends. Pure.

    canary -> progressing -> promoted
    canary | progressing -> rolling_back -> rolled_back

Every move keeps three bounds, in every state. At most `max_surge + max_unavailable` replicas are changing or not
available because of the rollout. No serving replica is taken while more than `max_unavailable` of the usual would
be missing, and no resting one is started beyond `wanted + max_surge` awake ones. A roll-back that finds no move within
these bounds takes one replica at a time.
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
"""Seconds without a move after which a canary is given up, and a roll-back goes on beyond its bounds: replicas may be
starting, or silent for a moment."""
MISSING_S = 300.0
"""Seconds without progress after which replicas that are no longer reported count as gone."""
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
    """Whether it rests and may be started now: its GPUs are free, and no admin has stopped it."""
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
    def failed(self) -> bool:
        """Whether its engine has failed, and is not replaced now."""
        return self.state is ReplicaState.FAILED and not self.changing

    @property
    def drained(self) -> bool:
        """Whether it finishes its requests without a command of this rollout."""
        return self.state is ReplicaState.DRAINING and not self.changing

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
    """Replicas that were awake when the rollout began, or at some time of its canary."""
    members: Sequence[Member]
    verdict: Verdict = Verdict()
    stalled_s: float = 0.0
    """Seconds since the last progress."""
    state_s: float = 0.0
    """Seconds since the state last changed."""
    known: int = 0
    """Replicas that were reported in this state so far."""
    requests: int = 0
    """Requests that the new version has ended."""

    @property
    def target(self) -> str:
        """The version that replicas are to get."""
        return self.before if self.state is RolloutState.ROLLING_BACK else self.after

    @property
    def canaries(self) -> int:
        """Replicas that get the new version while it is a canary: at least one, and not all."""
        usual = min(self.wanted, len(self.awake))
        share = math.ceil(usual * self.strategy.canary_percent / 100)
        return max(1, min(share, usual - 1))

    @property
    def awake(self) -> list[Member]:
        """The replicas that do not rest, and that no person drains."""
        return [member for member in self.members if not member.rests and not member.drained]

    @property
    def is_settled(self) -> bool:
        """Whether it is a canary whose replicas serve, so that no further progress is due."""
        return self.state is RolloutState.CANARY and _served(self) >= self.canaries

    @property
    def is_baked(self) -> bool:
        """Whether the new version has served enough to go on without the old one."""
        return self.requests >= self.strategy.min_requests or any(
            member.version == self.after and member.serves and member.ready_s >= self.strategy.bake_s
            for member in self.members
        )

    @property
    def done(self) -> int:
        """Replicas that have the target, and rest or are available."""
        return sum(
            member.version == self.target and (member.rests or self.is_available(member))
            for member in self.members
        )

    @property
    def misses_some(self) -> bool:
        """Whether replicas that were reported before are not, and may come back."""
        return len(self.members) < self.known and self.stalled_s < min(
            MISSING_S, self.strategy.progress_deadline_s / 2
        )

    def is_available(self, member: Member) -> bool:
        """Whether a replica serves, one of the target long enough."""
        settled = member.version != self.target or member.ready_s >= self.strategy.min_ready_s
        return member.serves and settled

    def is_in_flight(self, member: Member) -> bool:
        """Whether a replica is changing, or not available because of this rollout."""
        if member.changing:
            return True
        ours = member.version == self.target or self.state is RolloutState.ROLLING_BACK
        return ours and not (member.rests or member.drained or member.silent or self.is_available(member))


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
    reached = [
        member
        for member in members
        if not (member.silent or member.drained or (member.failed and member.version == version))
    ]
    awake = sum(not member.rests for member in reached)
    strategy = Strategy(max_surge=0, min_ready_s=0.0)
    there = Situation(RolloutState.ROLLING_BACK, strategy, version, version, awake, reached)
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
    if not now.is_settled and now.stalled_s > now.strategy.progress_deadline_s:
        held = [member for member in now.members if member.version != now.after and member.detail]
        why = f": {held[0].name}: {held[0].detail}" if held else ""
        return f"no progress for {now.strategy.progress_deadline_s:.0f} s{why}"
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
    if any(member.version != now.target or not now.is_available(member) for member in now.awake):
        return Decision(now.state, "")
    if moves := _resting(now):
        return Decision(now.state, "", moves)
    updated = sum(member.version == now.target for member in now.members)
    left = [member for member in now.members if member.version != now.target and not member.drained]
    if left or now.misses_some or _served(now) == 0:
        return Decision(now.state, "")
    moves = _end_surge(now)
    if moves and _served(now) > 1:
        return Decision(now.state, "", moves)
    count = f"all {updated}" if updated == len(now.members) else f"{updated} of {len(now.members)}"
    return Decision(RolloutState.PROMOTED, f"{count} replicas have the new version", moves)


def _roll_back(now: Situation) -> Decision:
    left = [
        member
        for member in now.members
        if not member.drained
        and (member.version != now.target or member.changing or member.state is ReplicaState.LOADING)
    ]
    if not left and not now.misses_some:
        moves = _end_surge(now)
        return Decision(now.state if moves else RolloutState.ROLLED_BACK, "", moves)
    if now.stalled_s > now.strategy.progress_deadline_s:
        names = ", ".join(member.name for member in left)
        return Decision(RolloutState.ROLLED_BACK, f"{names} could not be brought back in time")
    return Decision(now.state, "", _replace(now, math.inf) or _resting(now))


def _replace(now: Situation, most: float) -> tuple[Move, ...]:
    """Moves of replicas that are awake, and of resting ones that serve meanwhile. At most `most` get the target."""
    back, strategy = now.state is RolloutState.ROLLING_BACK, now.strategy
    stale = [member for member in now.awake if member.version != now.target and not member.changing]
    stale = [member for member in stale if not member.silent]
    room = most - sum(member.version == now.target or member.changing for member in now.awake)
    in_flight = sum(map(now.is_in_flight, now.members))
    budget = strategy.max_surge + strategy.max_unavailable - in_flight
    moves: list[Move] = []
    for member in stale:
        if not (member.failed or (back and member.state is ReplicaState.LOADING)):
            continue
        costs = not now.is_in_flight(member)
        if room > 0 and budget >= costs:
            moves.append(_deploy(now, member))
            room, budget = room - 1, budget - costs
    serving = [member for member in stale if member.serves]
    needs_more = serving or (now.wanted == 0 and not now.awake)
    if now.state is RolloutState.CANARY:
        needs_more = serving
        serving = serving[:-1]  # the other traffic needs one
    elif not back and not now.is_baked and any(member.version == now.target for member in now.awake):
        serving = serving[:-1]  # the new version is compared with it
    surge = _surge(now, min(room, budget)) if needs_more else ()
    moves += surge
    room, budget = room - len(surge), budget - len(surge)
    live, available = len(now.awake) + len(surge), sum(map(now.is_available, now.members))
    # Where more than the usual number are awake, none of that needs to be missing.
    least = live - strategy.max_unavailable
    if live > now.wanted:
        least = max(now.wanted, least - strategy.max_surge)
    spare = min(budget, available - least, room)
    if back and not moves and spare <= 0 and now.stalled_s > NO_ROOM_S and not _moving(now):
        spare = 1
    moves += [_deploy(now, member) for member in serving[: max(0, int(min(spare, len(serving))))]]
    return tuple(moves)


def _moving(now: Situation) -> bool:
    """Whether a replica is on its way, and not broken."""
    return any(now.is_in_flight(member) and not member.failed for member in now.members)


def _surge(now: Situation, room: float) -> tuple[Move, ...]:
    """Starts of resting replicas: they get the version first, then they are started. One where none is awake."""
    if now.state is RolloutState.ROLLING_BACK:
        return ()
    awake = sum(not member.rests for member in now.members)
    free = min(max(1, now.wanted + now.strategy.max_surge) - awake, room)
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
