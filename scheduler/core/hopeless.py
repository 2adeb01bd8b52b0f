"""Refuses requests that no replica will serve, or none in time."""

from collections import deque

from scheduler.core import refusals
from scheduler.core.admission import Admission
from scheduler.core.cursor import QueueCursor
from scheduler.core.decisions import Rejection
from scheduler.core.fair_queue import FairQueue
from scheduler.core.fleet import Fleet
from scheduler.core.flow import QueuedRequest, QueueOutcome
from scheduler.core.policy import Choice, Reason, Rng
from scheduler.core.refusals import Standing
from scheduler.core.waits import WaitPredictor
from scheduler.core.warm import WarmCapacity, WarmPool
from scheduler.messages import PlaceRefused

SHRINK_RATIO = 0.8
"""Waits are predicted again when a pool falls below this share of its slots."""
MAX_REVIEWED = 64
"""Requests whose waits are predicted again in one dispatch."""
MAX_REFUSED = 64
"""Requests refused as hopeless in one dispatch."""
MAX_LATE_REVIEWED = 2
"""Requests that have just become late and are reviewed in one dispatch: a burst is spread over several."""


class HopelessReview:
    """Reviews queued requests of one model whose prospects may have changed."""

    def __init__(
        self,
        model: str,
        queue: FairQueue,
        fleet: Fleet,
        admission: Admission,
        waits: WaitPredictor,
        pool: WarmPool,
    ) -> None:
        self._model = model
        self._queue = queue
        self._fleet = fleet
        self._admission = admission
        self._waits = waits
        self._pool = pool
        self._pool_changed = False
        self._retries: deque[QueuedRequest] = deque()
        """Requests that have failed on a replica and have not been reviewed since the pool changed."""
        self._nowhere: deque[QueuedRequest] = deque()
        """Requests that were in none of the model's places when it was last seen where its replicas are."""
        self._cursor: QueueCursor | None = None
        self._reviewed_slots = 0

    @property
    def unfinished(self) -> bool:
        """Whether the last `refusals` left requests for the next."""
        return bool(self._retries) or bool(self._nowhere) or self._cursor is not None

    def on_pool_change(self) -> None:
        """Review retries again: replicas came, went or changed state."""
        self._pool_changed = True

    def on_places_change(self, nowhere: list[QueuedRequest]) -> None:
        """Have these refused: the model's replicas are where none of them may run."""
        self._nowhere = deque(nowhere)

    def on_queued(self, queued: QueuedRequest) -> None:
        """Have a request reviewed in the next dispatch that has failed on a replica, or that may run nowhere."""
        if queued.where == frozenset():
            self._nowhere.append(queued)
        elif queued.request.exclude:
            self._retries.append(queued)

    def refusals(self, now: float, rng: Rng) -> list[Rejection]:
        """Refuse requests that can no longer be served in time. The work is bounded; see `unfinished`."""
        refused: list[Rejection] = []
        if self._pool_changed and (self._queue.waiting_at or self._pool.at(now).is_cold):
            refused += self._not_woken_in_time(now)
        if self._pool_changed or self._retries:
            refused += self._retries_without_replica(now, rng)
        refused += self._in_no_place(now, rng)
        refused += self._after_shrinking(now)
        if self._queue.rules.oldest_every > 1:
            refused += self._newly_late(now)
        return refused

    def impossible(
        self, queued: QueuedRequest, reason: Reason, pool: WarmCapacity, *, grace: bool
    ) -> Rejection | None:
        """The refusal of a request that fits nowhere and that waiting cannot help; None when it may wait.

        With `grace`, a request is not refused for want of replicas.
        """
        if not reason.transient and not grace:
            return self._no_replica(queued, reason, pool)
        largest = pool.largest_kv_tokens
        if queued.where is not None:
            largest = self._fleet.largest_kv_tokens(self._model, queued.where)
        if 0 < largest < queued.need:
            standing = Standing(0, pool.ready, None)
            return self._refuse(queued, refusals.too_large(queued.request, standing, queued.need, largest))
        return None

    def _retries_without_replica(self, now: float, rng: Rng) -> list[Rejection]:
        """Refuse requests that have failed on every replica of the model, at most MAX_REFUSED in one dispatch.

        Each is reviewed when it arrives and whenever the pool has changed.
        """
        if self._pool_changed:
            self._pool_changed = False
            self._retries = deque(queued for queued in self._queue if queued.request.exclude)
        refused = []
        for _ in range(min(len(self._retries), MAX_REFUSED)):
            queued = self._retries.popleft()
            if queued.outcome is None:
                verdict = self._fleet.place(queued.request, now, rng)
                if not isinstance(verdict, Choice) and not verdict.reason.transient:
                    refused.append(self._no_replica(queued, verdict.reason, self._pool.at(now)))
        return refused

    def _in_no_place(self, now: float, rng: Rng) -> list[Rejection]:
        """Refuse requests that have to run where the model has no replica, at most MAX_REFUSED in one dispatch."""
        refused = []
        for _ in range(min(len(self._nowhere), MAX_REFUSED)):
            queued = self._nowhere.popleft()
            if queued.outcome is None and queued.where == frozenset():
                verdict = self._fleet.place(queued.request, now, rng)
                if not isinstance(verdict, Choice) and not verdict.reason.transient:
                    refused.append(self._no_replica(queued, verdict.reason, self._pool.at(now)))
        return refused

    def _not_woken_in_time(self, now: float) -> list[Rejection]:
        """Refuse requests whose deadline comes before the first replica serves where they may run, as after a wake that
        failed; at most MAX_REFUSED, the others at their deadlines."""
        late = []
        for queued in self._queue:
            wait_s = self._pool.coming(queued.request, now).ready_in_s
            if not queued.admitted and self._admission.too_long(wait_s, queued.deadline_at - now):
                late.append((queued, wait_s))
        return [self._too_late(queued, wait_s, now) for queued, wait_s in late[:MAX_REFUSED]]

    def _after_shrinking(self, now: float) -> list[Rejection]:
        """After the pool has shrunk, refuse the youngest requests of each tenant that can no longer be served in
        time."""
        slots = self._pool.at(now).slots
        if slots < SHRINK_RATIO * self._reviewed_slots:
            self._cursor, self._reviewed_slots = QueueCursor(self._queue.bands), slots
        elif self._cursor is None:
            self._reviewed_slots = max(slots, self._reviewed_slots)
            return []
        refused = []
        for _ in range(MAX_REVIEWED):
            queued = self._cursor.next()
            if queued is None:
                self._cursor = None
                break
            if queued.admitted or self._pool.coming(queued.request, now).awaited:
                continue
            wait_s = self._waits.waiting(queued, now)
            if self._admission.too_long(wait_s, queued.deadline_at - now):
                refused.append(self._too_late(queued, wait_s, now))
            else:
                self._cursor.skip_flow()
        return refused

    def _newly_late(self, now: float) -> list[Rejection]:
        """Predict the waits of requests that have become late, and refuse those that would miss their deadline.

        In a growing queue a late request is served only at every `oldest_every`-th turn of its tenant.
        """
        refused = []
        for queued in self._queue.newly_late(self._waits.late_before(now), MAX_LATE_REVIEWED):
            if self._pool.coming(queued.request, now).awaited:
                continue  # it waits for a replica to come, not for its turn
            wait_s = self._waits.newly_late(queued, now)
            if not queued.admitted and self._admission.too_long(wait_s, queued.deadline_at - now):
                refused.append(self._too_late(queued, wait_s, now))
            elif wait_s is not None:
                self._waits.record(queued, wait_s, now, late=True)
        return refused

    def _no_replica(self, queued: QueuedRequest, reason: Reason, pool: WarmCapacity) -> Rejection:
        waker, request = self._fleet.waker, queued.request
        created_s = waker.created_in_s(request) if waker is not None else None
        creates = waker is not None and waker.creates_for(request)
        standing = Standing(0, pool.ready, created_s)
        lacks_gpus = waker is not None and waker.lacks_gpus(self._fleet.replicas_of(self._model))
        refusal = refusals.hopeless(request, reason, standing, lacks_gpus=lacks_gpus, creates=creates)
        return self._refuse(queued, refusal)

    def _too_late(self, queued: QueuedRequest, wait_s: float | None, now: float) -> Rejection:
        standing = self._waits.standing(queued.request, queued, now)
        self._queue.remove(queued.key, QueueOutcome.HOPELESS)
        allowed_s = queued.deadline_at - now
        refusal = self._waits.too_late(queued.request, standing, wait_s, allowed_s, now)
        return Rejection(queued.client, self._model, refusal)

    def _refuse(self, queued: QueuedRequest, refusal: PlaceRefused) -> Rejection:
        self._queue.remove(queued.key, QueueOutcome.HOPELESS)
        return Rejection(queued.client, self._model, refusal)
