"""Chooses the replica of a request: filter, score, pick.

Deterministic given its arguments: no clock, no random source, no I/O. Vectors run over the rows of the model's pool;
when few replicas are open, `scalar_policy` computes the same in plain numbers. The formulas are in `cost`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from scheduler.core import scalar_policy
from scheduler.core.cost import (
    Vector,
    cost_s,
    own_prefill_s,
    sticky_limit_s,
    sticky_threshold,
    tokens_per_block,
    ttft_s,
)
from scheduler.core.pool import Pool
from scheduler.core.predict import MIN_TTFT_S
from scheduler.core.replica import Replica
from scheduler.core.rules import band_index
from scheduler.core.waking import rests
from scheduler.wire import PlaceRequest
from workers.wire import ReplicaState

Flags = NDArray[np.bool_]
Rows = NDArray[np.intp]
ADAPTER_LOAD_S = 1.0
"""Seconds by which a first token is later where the engine has to load the request's adapter first. An engine takes
milliseconds for a small one from its disk, and seconds for a large one that its host has to fetch (ADR 62)."""
SCALAR_MAX_REPLICAS = 10
"""Open replicas up to which the scalar policy is used; above, vectors are cheaper."""


class Rng(Protocol):
    """The part of random.Random that `pick` needs."""

    def randrange(self, stop: int, /) -> int:
        """A random integer from 0 to `stop` - 1."""


class Reason(StrEnum):
    """Why a replica cannot take a request now; when several apply, the first of them counts."""

    BUSY = "replicas_busy"
    KV_FULL = "kv_cache_full"
    SILENT = "replicas_silent"
    STARTING = "replicas_starting"
    ASLEEP = "replicas_asleep"
    NOT_WARM = "no_warm_replica"
    EXCLUDED = "no_other_replica"
    ELSEWHERE = "no_replica_in_region"
    UNKNOWN_MODEL = "no_replica"

    @property
    def transient(self) -> bool:
        """Whether the obstacle may pass with time, so that waiting is useful."""
        return self in _TRANSIENT


_TRANSIENT = frozenset({Reason.BUSY, Reason.KV_FULL, Reason.SILENT, Reason.STARTING, Reason.ASLEEP})
_PRECEDENCE = {reason: rank for rank, reason in enumerate(Reason)}


class Choice(NamedTuple):
    """The chosen replica with the predictions for it."""

    replica: Replica
    hit_tokens: int
    ttft_s: float
    """Predicted seconds to the first token."""
    itl_s: float = 0.0
    """Predicted seconds per output token."""
    cost_s: float = 0.0
    """J: the cost of the placement for this request and for those that it delays, in seconds."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """No replica can take the request now."""

    reason: Reason


Chooser = Callable[[PlaceRequest, Pool, float, Rng], Choice | Blocked]
"""Chooses a replica of the pool for a request at a monotonic time, as `place` does."""


class Scores(NamedTuple):
    """The scores of one request on every row of the pool."""

    hits: Vector | None
    """Prompt tokens believed to be cached; None = nowhere any."""
    backlog_s: Vector
    """Seconds of prefill that are ahead of the request."""
    ttft_s: Vector
    cost_s: Vector


def place(request: PlaceRequest, pool: Pool, now: float, rng: Rng) -> Choice | Blocked:
    """Choose a replica of `pool` for `request` at monotonic time `now`, or return why none can take it.

    Changes nothing: the caller updates the load counters before the next call.
    """
    rows = pool.open_rows(now)
    if len(rows) > SCALAR_MAX_REPLICAS or request.adapter:
        return place_vectorised(request, pool, now, rng)
    able = scalar_policy.candidates(request, pool, rows, now) if rows else []
    if not able:
        return blocked(request, pool, now)
    near = scalar_policy.near_best(request, pool, able)
    row, hits, ttft, cost = near[rng.randrange(len(near))]
    return choice_of(request, pool, row, hits, ttft, cost)


def place_vectorised(request: PlaceRequest, pool: Pool, now: float, rng: Rng) -> Choice | Blocked:
    """`place` with vector operations over all rows."""
    scores = score(request, pool, now)
    able = filter_(request, pool, scores, now)
    cost_s = np.where(able, scores.cost_s, np.inf)
    best_s = float(cost_s[cost_s.argmin()])
    if best_s == np.inf:
        return blocked(request, pool, now)
    row = pick(request, pool, scores, cost_s, best_s, rng)
    hits = float(scores.hits[row]) if scores.hits is not None else 0.0
    return choice_of(request, pool, row, hits, float(scores.ttft_s[row]), float(cost_s[row]))


def choice_of(request: PlaceRequest, pool: Pool, row: int, hits: float, ttft: float, cost: float) -> Choice:
    """The choice of a row, with its cached tokens, TTFT and cost in seconds."""
    inputs = pool.inputs[row]
    itl_s = inputs.itl + request.prompt_tokens * inputs.itl_per_kv
    return Choice(pool.replica(row), int(hits), max(MIN_TTFT_S, ttft), itl_s, cost)


def score(request: PlaceRequest, pool: Pool, now: float) -> Scores:
    """The cost of every row, whether or not it can take the request."""
    prompt, output, columns = float(request.prompt_tokens), float(request.output_tokens), pool.columns
    hits = cached_tokens(request, pool)
    uncached = np.full(pool.size, prompt) if hits is None else prompt - hits
    backlog = np.maximum(columns.prefill_done_at - now, columns.min_backlog_s)
    prefill = own_prefill_s(prompt, uncached, columns)
    if request.adapter:
        prefill = prefill.copy()
        prefill[pool.without_adapter(request.adapter)] += ADAPTER_LOAD_S
    return Scores(
        hits,
        backlog,
        ttft_s(prefill, backlog, columns),
        cost_s(prompt, output, prefill, backlog, columns),
    )


def cached_tokens(request: PlaceRequest, pool: Pool) -> Vector | None:
    """Prompt tokens believed to be cached, per row; None when no replica holds any."""
    matches = pool.match(request.blocks)
    if not matches:
        return None
    return pool.hits(matches, tokens_per_block(request), request.prompt_tokens)


def filter_(request: PlaceRequest, pool: Pool, scores: Scores, now: float) -> Flags:
    """The rows that may take the request: enough room for what is not cached, a batch within its target per token, a
    short prefill backlog.

    Other requests wait in the scheduler's queue, where they can be reordered. A row that holds the prompt has wider
    limits, because elsewhere the prompt would be prefilled again and evict what others need. Otherwise pools collapse
    under load, when every cache holds a bit of everything.
    """
    config, columns, need = pool.config, pool.columns, request.prompt_tokens + request.output_tokens
    gate = pool.gate_columns(band_index(request.tier))
    able: Flags = gate.open_until >= now
    able &= gate.room >= need
    able &= scores.backlog_s <= config.backlog_cold_s
    if scores.hits is not None:
        warm = scores.hits >= sticky_threshold(request, config)
        warm &= gate.warm_until >= now
        warm &= scores.backlog_s <= config.backlog_warm_s
        able |= warm
    able &= columns.kv_room >= (need if scores.hits is None else need - scores.hits)
    if request.narrowed:
        able[pool.closed_to(request)] = False
    return able


def pick(request: PlaceRequest, pool: Pool, scores: Scores, cost_s: Vector, best_s: float, rng: Rng) -> int:
    """Choose evenly among near-ties in cost: of the rows that hold most of the prompt, unless they lag too far, else
    of all."""
    if scores.hits is not None:
        warm = sticky(request, pool, scores.hits, scores.ttft_s, cost_s, best_s)
        if warm.size:
            costs = cost_s[warm]
            best_s = float(costs[costs.argmin()])
            near = warm[costs <= best_s + pool.config.near_tie * abs(best_s)]
            return int(near[rng.randrange(near.size)])
    near = (cost_s <= best_s + pool.config.near_tie * abs(best_s)).nonzero()[0]
    return int(near[rng.randrange(near.size)])


def sticky(
    request: PlaceRequest, pool: Pool, hits: Vector, ttft_s: Vector, cost_s: Vector, best_s: float
) -> Rows:
    """The rows whose cached prefix is worth its cost; `cost_s` is infinite where the request cannot go.

    Both the first token and the cost may lag by T_max. A short prompt with a long shared prefix needs little prefill
    wherever it is cached, and the decode batch of those replicas fills up.
    """
    rows: Rows = (hits >= sticky_threshold(request, pool.config)).nonzero()[0]
    if not rows.size:
        return rows
    limit_s = sticky_limit_s(request, pool.prefill_rate, pool.config)
    reachable = np.where(cost_s < np.inf, ttft_s, np.inf)
    soonest = reachable[reachable.argmin()]
    kept: Rows = rows[(cost_s[rows] <= best_s + limit_s) & (ttft_s[rows] <= soonest + limit_s)]
    return kept


def blocked(request: PlaceRequest, pool: Pool, now: float) -> Blocked:
    """Why no row can take the request: the most transient of the replicas' reasons."""
    excluded, closed = set(request.exclude), pool.closed_to(request)
    awake = pool.columns.awake_until >= now
    awake[closed] = False
    if awake.any():
        fits = awake & (pool.columns.kv_room >= request.prompt_tokens + request.output_tokens)
        return Blocked(Reason.BUSY if fits.any() else Reason.KV_FULL)
    reasons = {
        replica.engine.replica_id: Reason.ELSEWHERE
        if replica.row in closed
        else blocked_reason(replica, pool, now)
        for replica in pool
    }
    reasons |= {replica_id: Reason.EXCLUDED for replica_id in excluded & reasons.keys()}
    return Blocked(min(reasons.values(), key=_PRECEDENCE.__getitem__))


def blocked_reason(replica: Replica, pool: Pool, now: float) -> Reason:
    """Why a replica that is not open takes no request."""
    if now - replica.last_seen_at > pool.config.heartbeat_stale_s:
        return Reason.SILENT
    if replica.state in (ReplicaState.LOADING, ReplicaState.FAILED):
        return Reason.STARTING
    if rests(replica):
        return Reason.ASLEEP
    return Reason.BUSY if replica.state is ReplicaState.READY else Reason.NOT_WARM
