"""One pass over a model's queue: the candidates in fair order, and which of those that fit nowhere may be passed."""

import sys
from collections.abc import Container, Sequence

from scheduler.core.fair_queue import FairQueue
from scheduler.core.fleet import Fleet
from scheduler.core.flow import QueuedRequest
from scheduler.core.hold import Hold
from scheduler.core.policy import Reason
from scheduler.core.warm import WarmCapacity
from scheduler.core.where import Tries

MAX_UNCOUNTED_SKIPS = 32
"""Requests that may run anywhere and that one pass may skip beside `max_skips`: retries, whose own history keeps them
from the replicas with room, and requests that need no less KV cache than one that was skipped for want of it."""
HIT_FRESH_S = 0.2
"""Seconds for which a waiting request's cached prefix is used for ordering before it is looked up again."""
MAX_LOOKUPS = 1
"""Stale cached prefixes looked up in one pick; other candidates count with their last known value. A lookup is the most
expensive part of a decision, because a request that waited long has left the processor's caches."""


class ServingPass:
    """Yields the candidates of one pass and keeps what the pass has skipped and refused."""

    def __init__(
        self,
        model: str,
        queue: FairQueue,
        fleet: Fleet,
        hold: Hold,
        pool: WarmCapacity,
        late_before: Sequence[float],
        tries: Tries,
        now: float,
    ) -> None:
        self.refused = 0
        """Requests refused in this pass."""
        self.late_before = late_before
        self._model = model
        self._queue = queue
        self._fleet = fleet
        self._hold = hold
        self._pool = pool
        self._now = now
        self._skipped = Skipped(tries)
        self._uncounted = 0
        self._least_need = sys.maxsize
        """The smallest need of the requests that were skipped for want of KV cache, in tokens."""
        self._blocker: QueuedRequest | None = None
        self._full = False

    @property
    def _strict(self) -> bool:
        """Whether only tenants within Q may pass the skipped requests."""
        return self._skipped.anywhere > self._uncounted

    def next_candidate(self) -> QueuedRequest | None:
        """The next request in fair order; None when none may go or no replica has room.

        Without a ready replica the pass goes on, so that requests are refused.
        """
        queue = self._queue
        self._full = self._pool.ready > 0 and not self._fleet.has_room(self._model, self._now)
        if self._full or self._blocker is not None or not len(queue):
            return None
        hits = HitLookup(self._fleet, self._now)
        queued = queue.pick(self.late_before, self._pool.kv_tokens, hits, self._skipped, self._strict)
        if queued is None and self._strict and len(queue) > len(self._skipped):
            self._blocker = self._skipped.first
        return queued

    def skip(self, queued: QueuedRequest, reason: Reason) -> bool:
        """Leave a candidate that fits nowhere out of the rest of the pass; False when no other may pass it."""
        if queued.where is not None:  # the others may run elsewhere
            self._skipped.add(queued)
            return True
        if self._hold.due(queued, self._now):
            self._blocker = queued
            return False
        needs_no_less = reason is Reason.KV_FULL and queued.need >= self._least_need
        others_go_on = queued.request.exclude or needs_no_less or self._hold.resting(self._now)
        if others_go_on and self._uncounted < MAX_UNCOUNTED_SKIPS:
            self._uncounted += 1
        elif self._skipped.anywhere - self._uncounted >= self._queue.rules.max_skips:
            self._blocker = self._skipped.first or queued
            return False
        if reason is Reason.KV_FULL:
            self._least_need = min(self._least_need, queued.need)
        self._skipped.add(queued)
        return True

    def record_placed(self, queued: QueuedRequest) -> None:
        """Count that `queued` has passed the first of the skipped requests, whose turn it was."""
        if first := self._skipped.first:
            first.passed += 1
            first.passed_work += queued.work
            if self._hold.due(first, self._now):
                self._blocker = first

    def end(self) -> None:
        """Note which request the others have to wait for; a full pool does not tell."""
        if not self._full:
            self._hold.record(self._blocker, self._now)


class Skipped(Container[QueuedRequest]):
    """Requests that a pass has skipped, or need not try, in the order in which it did."""

    def __init__(self, tries: Tries) -> None:
        self.tries = tries
        """Of requests that may run in some places alone."""
        self.anywhere = 0
        """Skipped requests that may run anywhere."""
        self.first: QueuedRequest | None = None
        """The first of them; for the others none is held back."""
        self._requests: set[QueuedRequest] = set()

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, queued: object) -> bool:
        return isinstance(queued, QueuedRequest) and (
            queued in self._requests or (queued.where is not None and self.tries.over(queued.where))
        )

    def add(self, queued: QueuedRequest) -> None:
        """Note a request that fits nowhere."""
        self._requests.add(queued)
        if queued.where is not None:
            self.tries.add(queued.where)
            return
        self.anywhere += 1
        self.first = self.first or queued


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
