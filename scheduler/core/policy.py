"""Where should this request run? Filter, score, pick: three small steps behind one pure call (DESIGN §6).

Deterministic given its arguments: no clock, no random source, no I/O of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from scheduler.core.replica import Replica
from scheduler.wire import PlaceRequest
from workers.wire import ReplicaState

HEARTBEAT_STALE_S = 2.0
"""A replica not heard of for longer is not routed to."""
KV_FILL = 0.9
"""Share of the KV cache that placements may plan with; the rest is for outputs longer than estimated."""
MAX_ENGINE_WAITING = 4
"""The queue is ours: a replica whose own queue is longer takes nothing new."""
STICKY_HIT_FRACTION = 0.8
STICKY_HIT_TOKENS = 4096
STICKY_MAX_EXTRA_TTFT_S = 2.0
"""T_max: how much later a first token may come for the sake of a cached prefix."""
STICKY_MAX_EXTRA_OCCUPANCY = 0.25
"""A shared system prompt must not send everybody to one replica: beyond this lead in occupied slots, spread."""
NEAR_TIE = 1.03
"""Scores within 3 % are equal; choosing among them at random keeps replicas from starving."""


class Rng(Protocol):
    """The part of random.Random that picking needs."""

    def randrange(self, stop: int, /) -> int:
        """A whole number from 0 to stop - 1."""


class Reason(StrEnum):
    """Why a replica cannot take a request now, from the most to the least hopeful."""

    BUSY = "replicas_busy"
    KV_FULL = "kv_cache_full"
    SILENT = "replicas_silent"
    STARTING = "replicas_starting"
    NOT_WARM = "no_warm_replica"
    EXCLUDED = "no_other_replica"
    UNKNOWN_MODEL = "no_replica"

    @property
    def worth_waiting(self) -> bool:
        """Whether time alone can cure it."""
        return self in _CURABLE


_CURABLE = frozenset({Reason.BUSY, Reason.KV_FULL, Reason.SILENT, Reason.STARTING})
_HOPE = {reason: rank for rank, reason in enumerate(Reason)}


@dataclass(frozen=True)
class Choice:
    """Run it here."""

    replica: Replica
    hit_tokens: int
    ttft_s: float
    """Predicted seconds to the first token."""


@dataclass(frozen=True)
class Blocked:
    """Nowhere now."""

    reason: Reason


@dataclass(frozen=True)
class Scored:
    """A replica that could take the request, with what is predicted for it there."""

    replica: Replica
    hit_tokens: int
    hit_fraction: float
    ttft_s: float
    cost_s: float
    """J: predicted seconds of the whole answer."""


def place(request: PlaceRequest, snapshot: Sequence[Replica], now: float, rng: Rng) -> Choice | Blocked:
    """Choose a replica of `snapshot` for `request` at monotonic time `now`, or say why none can take it.

    Reads load counters and changes nothing: the caller moves them in the same step.
    """
    obstacles = [(replica, obstacle(request, replica, now)) for replica in snapshot]
    open_to_it = [score(request, replica) for replica, reason in obstacles if reason is None]
    if not open_to_it:
        reasons = [reason for _, reason in obstacles if reason is not None]
        return Blocked(min(reasons, key=_HOPE.__getitem__, default=Reason.UNKNOWN_MODEL))
    chosen = pick(open_to_it, rng)
    return Choice(chosen.replica, chosen.hit_tokens, chosen.ttft_s)


def obstacle(request: PlaceRequest, replica: Replica, now: float) -> Reason | None:
    """Filter: the first reason why `replica` cannot take `request` now; None when it can."""
    state = replica.hold or replica.status.state
    if replica.status.model != request.model:
        return Reason.UNKNOWN_MODEL
    if replica.status.replica_id in request.exclude:
        return Reason.EXCLUDED
    if now - replica.heard_at > HEARTBEAT_STALE_S:
        return Reason.SILENT
    if state in (ReplicaState.LOADING, ReplicaState.FAILED):
        return Reason.STARTING
    if state is not ReplicaState.READY:
        return Reason.NOT_WARM
    if replica.running >= replica.slots or replica.status.waiting > MAX_ENGINE_WAITING:
        return Reason.BUSY
    needed = replica.kv_tokens + request.prompt_tokens + request.output_tokens
    if replica.running > 0 and needed > KV_FILL * replica.kv_capacity:
        return Reason.KV_FULL  # an idle replica takes even what does not fit the plan: waiting would not help
    return None


def score(request: PlaceRequest, replica: Replica) -> Scored:
    """Predict TTFT = (P + u) / R, ITL = (alpha + beta*(D+1) + gamma*(K+n)) / accept and J = TTFT + o*ITL.

    n prompt tokens of which u are not cached on the replica; units as in workers.wire.Capacity.
    """
    capacity = replica.status.capacity
    hit_fraction = replica.prefix.match(request.blocks) / len(request.blocks) if request.blocks else 0.0
    hit_tokens = int(request.prompt_tokens * hit_fraction)
    uncached = request.prompt_tokens - hit_tokens
    ttft_s = (replica.load.unprefilled + uncached) / max(1.0, capacity.prefill_tokens_per_s)
    itl_s = step_time_s(replica, replica.running + 1, replica.kv_tokens + request.prompt_tokens)
    return Scored(replica, hit_tokens, hit_fraction, ttft_s, ttft_s + request.output_tokens * itl_s)


def step_time_s(replica: Replica, sequences: int, kv_tokens: int) -> float:
    """Predicted seconds per output token with `sequences` running over `kv_tokens` of KV cache."""
    capacity = replica.status.capacity
    step_s = (
        capacity.step_base_s + capacity.step_per_seq_s * sequences + capacity.step_per_kv_token_s * kv_tokens
    )
    return step_s / max(1.0, capacity.accept_per_step)


def pick(candidates: Sequence[Scored], rng: Rng) -> Scored:
    """Replicas that hold most of the prompt first, unless they lag too far; then evenly among near-ties."""
    pool = sticky(candidates) or candidates
    limit = min(candidate.cost_s for candidate in pool) * NEAR_TIE
    near = [candidate for candidate in pool if candidate.cost_s <= limit]
    return near[rng.randrange(len(near))]


def sticky(candidates: Sequence[Scored]) -> list[Scored]:
    """The candidates whose cached prefix is worth going to; may be none."""
    best_ttft_s = min(candidate.ttft_s for candidate in candidates)
    least_occupied = min(occupancy(candidate.replica) for candidate in candidates)
    return [
        candidate
        for candidate in candidates
        if (candidate.hit_fraction >= STICKY_HIT_FRACTION or candidate.hit_tokens >= STICKY_HIT_TOKENS)
        and candidate.ttft_s - best_ttft_s <= STICKY_MAX_EXTRA_TTFT_S
        and occupancy(candidate.replica) - least_occupied <= STICKY_MAX_EXTRA_OCCUPANCY
    ]


def occupancy(replica: Replica) -> float:
    """Share of the replica's sequence slots in use."""
    return replica.running / replica.slots
