"""One model's queue with its admission: which requests may wait, which is placed next, which are refused.

The queue reads the fleet and changes no load: `serve` yields decisions, and the scheduler state applies each before
it asks for the next.
"""

from collections.abc import Iterator

from scheduler.core import refusals
from scheduler.core.admission import Admission
from scheduler.core.decisions import Assignment, Rejection
from scheduler.core.fair_queue import FairQueue
from scheduler.core.fleet import Fleet
from scheduler.core.flow import QueuedRequest, QueueOutcome
from scheduler.core.hold import Hold
from scheduler.core.hopeless import MAX_REFUSED, HopelessReview
from scheduler.core.policy import Choice, Rng
from scheduler.core.rules import SchedulerConfig
from scheduler.core.serving import ServingPass
from scheduler.core.waits import WaitPredictor
from scheduler.core.warm import WarmPool
from scheduler.core.where import Tries, Where, where_of
from scheduler.messages import PlaceRefused
from scheduler.wire import PlaceRequest

MAX_EXPIRED = 64
"""Requests expired in one dispatch, about a millisecond's work; thousands of deadlines may pass at once."""


class ModelQueue:
    """A model's queue with its admission. Times are monotonic seconds."""

    def __init__(self, model: str, fleet: Fleet, config: SchedulerConfig) -> None:
        self.model = model
        self.queue = FairQueue(config.queue)
        self.admission = Admission(config.admission)
        self.pool = WarmPool(model, fleet, config.policy.heartbeat_stale_s)
        self.waits = WaitPredictor(self.queue, self.admission, self.pool)
        self.hold = Hold(config.queue)
        self.unfinished = False
        """Whether the last dispatch has left work to the next, which should follow at once."""
        self._fleet = fleet
        self._places = fleet.places_of(model)
        """Where the model's replicas are."""
        self._looked: dict[Where, float] = {}
        """When requests for places without room were tried last."""
        self._rules = config.queue
        self._review = HopelessReview(model, self.queue, fleet, self.admission, self.waits, self.pool)

    @property
    def disposable(self) -> bool:
        """Whether nothing of this queue needs to be kept."""
        return self.queue.disposable

    def on_pool_change(self) -> None:
        """Drop what was derived from the pool: replicas came, went or changed state."""
        self.pool.on_change()
        self._review.on_pool_change()
        places = self._fleet.places_of(self.model)
        if places != self._places:
            self._places, self._looked = places, {}
            self._review.on_places_change(self.queue.move(places))

    # Admission

    def submit(self, queued: QueuedRequest, now: float) -> PlaceRefused | None:
        """Queue a request. Returns its refusal when it may not wait."""
        request = queued.request
        queued.where = where_of(request, self._places)
        if refusal := self._over_capacity(request, now):
            self.queue.band(request.tier).on_refused_arrival(now)
            return refusal
        pool, allowed_s = self.pool.at(now), queued.deadline_at - now
        coming = self.pool.coming(request, now)
        free = pool.slots - self.queue.running
        # One that nothing there will serve waits for no turn: the review says so, or it is held for what comes.
        turns = queued.where != frozenset() and (
            len(self.queue) >= free or not self._fleet.has_room(self.model, now)
        )
        if coming.is_cold or turns:
            predicted_s = coming.ready_in_s if coming.is_cold else self.waits.arriving(request, now)
            # The first request to wait is always admitted: the drain rate is measured only while requests wait. If it
            # were refused, a rate learnt while the pool stood still would never be corrected. The time of a wake is
            # learnt by the agents.
            judged = (len(self.queue) or coming.is_cold) and not queued.admitted
            if judged and self.admission.too_long(predicted_s, allowed_s):
                self.queue.band(request.tier).on_refused_arrival(now)
                standing = self.waits.standing(request, None, now)
                return self.waits.too_late(request, standing, predicted_s, allowed_s, now)
            self.waits.record(queued, None if coming.is_cold else predicted_s, now, late=False)
            queued.hit_tokens, queued.hit_at = self._fleet.best_hit(request), now
        self.queue.add(queued, now)
        self._review.on_queued(queued)
        return None

    def _over_capacity(self, request: PlaceRequest, now: float) -> PlaceRefused | None:
        waiting, limit = len(self.queue), self._rules.max_waiting
        if waiting >= limit:
            return refusals.queue_full(request, self.waits.standing(request, None, now), waiting)
        mine = self.queue.waiting_count(request.tier, request.tenant_id)
        if mine >= limit * self._rules.max_waiting_share and self.queue.others_waiting(request.tenant_id):
            return refusals.tenant_fills_queue(request, self.waits.standing(request, None, now), mine)
        return None

    # Service

    def expire(self, now: float) -> list[Rejection]:
        """Refuse requests whose deadline has passed, the most overdue first; at most MAX_EXPIRED of them."""
        expired: list[Rejection] = []
        while (queued := self.queue.overdue(now)) is not None and len(expired) < MAX_EXPIRED:
            request = queued.request
            standing = self.waits.standing(request, queued, now)
            over_share = self.queue.others_waiting(request.tenant_id) and self.queue.over_share(
                request.tier, request.tenant_id
            )
            self.queue.remove(queued.key, QueueOutcome.DEADLINE)
            self.waits.observe(queued, now)
            waited_s = queued.deadline_at - queued.enqueued_at
            if self.pool.coming(request, now).awaited:
                refusal = refusals.not_woken(request, waited_s, standing, self.pool.trouble(request))
            else:
                refusal = refusals.overdue(request, waited_s, standing, over_share)
            expired.append(Rejection(queued.client, self.model, refusal))
        self.unfinished = queued is not None
        return expired

    def serve(self, now: float, rng: Rng, *, grace: bool) -> Iterator[Assignment | Rejection]:
        """Place what can be placed, in fair order, and refuse what cannot be served.

        The caller applies each decision before it asks for the next, which depends on the load of the replicas. With
        `grace`, no request is refused for want of replicas.
        """
        pool = self.pool.at(now)
        if not grace:
            yield from self._review.refusals(now, rng)
            self.unfinished |= self._review.unfinished
        if not len(self.queue):  # as after most releases
            self.admission.drain.advance(now, pool.slots, False)
            return
        late_before = self.waits.late_before(now)
        tries = self._tries(now)
        current = ServingPass(self.model, self.queue, self._fleet, self.hold, pool, late_before, tries, now)
        while (queued := current.next_candidate()) is not None:
            verdict = self._fleet.place(queued.request, now, rng)
            if isinstance(verdict, Choice):
                yield self._assign(queued, verdict, current, now)
            elif current.refused >= MAX_REFUSED:
                self.unfinished = True
                break
            elif (refusal := self._review.impossible(queued, verdict.reason, pool, grace=grace)) is not None:
                current.refused += 1
                yield refusal
            elif not current.skip(queued, verdict.reason):
                break
        current.end()
        self.admission.drain.advance(now, pool.slots, len(self.queue) > 0)

    def _tries(self, now: float) -> Tries:
        """What a pass need not try of the requests for some places; the bands learn which places are full."""
        open_places = self._fleet.open_places(self.model, now) if self.queue.bound else frozenset()
        full = bool(open_places) and open_places != self._places
        for band in self.queue.bands:
            band.open_places = open_places if full else None
        return Tries(open_places, self._looked, self._rules.max_skips, now)

    def _assign(self, queued: QueuedRequest, choice: Choice, current: ServingPass, now: float) -> Assignment:
        self.queue.record_pick(queued, current.late_before)
        self.waits.observe(queued, now)
        current.record_placed(queued)
        self.admission.drain.on_place(queued.work)
        return Assignment(queued, choice)
