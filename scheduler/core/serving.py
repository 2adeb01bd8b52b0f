"""One pass over a model's queue: the candidates in fair order, and why some of them are skipped."""

import sys
from collections.abc import Sequence
from enum import Enum, auto

from scheduler.core.fair_queue import FairQueue
from scheduler.core.fleet import Fleet
from scheduler.core.flow import QueuedRequest
from scheduler.core.reservation import Reservations, need_of
from scheduler.core.warm import WarmCapacity

MAX_UNCOUNTED_SKIPS = 32
"""Requests that one pass may skip for a reason that lets all others go on; see `SkipReason.lets_others_pass`."""
HIT_FRESH_S = 0.2
"""Seconds for which a waiting request's cached prefix is used for ordering before it is looked up again."""
MAX_LOOKUPS = 1
"""Stale cached prefixes looked up in one pick; other candidates count with their last known value. A lookup is the most
expensive part of a decision, because a request that waited long has left the processor's caches."""


class SkipReason(Enum):
    """Why a candidate is skipped for the rest of the pass."""

    RESERVED = auto()
    """A replica is reserved for it, and it does not fit there yet."""
    NOT_SMALLER = auto()
    """It needs at least as much as a request that goes before it and does not fit."""
    EXCLUDED_REPLICAS = auto()
    """It has failed on the replicas that have room."""
    DEFERRED = auto()
    """It fits nowhere, and no replica may be reserved for it now."""
    NO_ROOM = auto()
    """It fits nowhere. At most `max_skips` candidates are skipped for this reason, and only tenants within Q go
    before it."""

    @property
    def lets_others_pass(self) -> bool:
        """Whether all tenants may still be served; the skip then does not count against `max_skips`."""
        return self is not SkipReason.NO_ROOM


class ServingPass:
    """Yields the candidates of one pass and keeps what the pass has skipped and refused."""

    def __init__(
        self,
        model: str,
        queue: FairQueue,
        fleet: Fleet,
        reservations: Reservations,
        pool: WarmCapacity,
        late_before: Sequence[float],
        now: float,
    ) -> None:
        self.refused = 0
        """Requests refused in this pass."""
        self.blocked = False
        """Whether the pass ended because skipped requests block those behind them."""
        self.skipped: dict[QueuedRequest, None] = {}
        """Skipped requests, in the order in which they were skipped."""
        self.late_before = late_before
        self._uncounted = 0
        self._deferred_need = sys.maxsize
        """The smallest need of the requests skipped as DEFERRED, in tokens of KV cache."""
        self._model = model
        self._queue = queue
        self._fleet = fleet
        self._reservations = reservations
        self._pool = pool
        self._now = now

    @property
    def strict(self) -> bool:
        """Whether only tenants within Q may go before the skipped requests."""
        return len(self.skipped) > self._uncounted

    def next_candidate(self) -> QueuedRequest | None:
        """The next request in fair order; None when none may go or no replica has room.

        Without a ready replica the pass goes on, so that requests are refused.
        """
        queue, strict = self._queue, self.strict
        if not len(queue) or (self._pool.ready and not self._fleet.has_room(self._model, self._now)):
            return None
        hits = HitLookup(self._fleet, self._now)
        queued = queue.pick(self.late_before, self._pool.kv_tokens, hits, self.skipped, strict)
        if queued is None:
            self.blocked = strict and len(queue) > len(self.skipped)
        return queued

    def skip_untried(self, queued: QueuedRequest) -> bool:
        """Skip a candidate without trying it, when a request that needs no more did not fit. Returns whether it was
        skipped."""
        if self._uncounted >= MAX_UNCOUNTED_SKIPS or not self._reservations.is_blocked(
            queued, self._deferred_need, self._now
        ):
            return False
        self.skip(queued, SkipReason.NOT_SMALLER)
        return True

    def reason_to_skip(self, queued: QueuedRequest) -> SkipReason | None:
        """Why a candidate that fits nowhere is skipped; None when no other may go before it."""
        if self._uncounted < MAX_UNCOUNTED_SKIPS:
            if queued.request.exclude:
                return SkipReason.EXCLUDED_REPLICAS
            if self._reservations.is_deferred(queued, self._now):
                return SkipReason.DEFERRED
        if len(self.skipped) - self._uncounted < self._queue.rules.max_skips:
            return SkipReason.NO_ROOM
        return None

    def skip(self, queued: QueuedRequest, reason: SkipReason) -> None:
        """Leave a candidate out of the rest of the pass."""
        self.skipped[queued] = None
        if reason.lets_others_pass:
            self._uncounted += 1
        if reason is SkipReason.DEFERRED:
            self._deferred_need = min(self._deferred_need, need_of(queued))


class HitLookup:
    """Prompt tokens of a queued request that are cached on some replica, stored on the request for HIT_FRESH_S
    seconds."""

    def __init__(self, fleet: Fleet, now: float) -> None:
        self._fleet = fleet
        self._now = now
        self._lookups = 0

    def __call__(self, queued: QueuedRequest) -> int:
        """Prompt tokens of `queued` that are cached on some replica."""
        if self._now - queued.hit_at > HIT_FRESH_S and self._lookups < MAX_LOOKUPS:
            self._lookups += 1
            queued.hit_tokens = self._fleet.best_hit(queued.request)
            queued.hit_at = self._now
        return queued.hit_tokens
