"""One model's queue with its admission: who may wait, whose turn it is, who is refused.

It reads the fleet and moves no load: `serve` yields decisions, and the board applies each before the next is made.
"""

from collections.abc import Iterator

from scheduler.core import refusals
from scheduler.core.admission import Admission
from scheduler.core.decisions import Assigned, Turned
from scheduler.core.fair_queue import FairQueue
from scheduler.core.fleet import Fleet
from scheduler.core.hopeless import MAX_REFUSED, HopelessReview
from scheduler.core.policy import Choice, Rng
from scheduler.core.queue import QueueOutcome, Ticket
from scheduler.core.reservation import Reservations
from scheduler.core.rules import BoardConfig
from scheduler.core.serving import ServingPass, SkipReason
from scheduler.core.waits import WaitPredictor
from scheduler.core.warm import WarmPool
from scheduler.messages import PlaceRefused
from scheduler.wire import PlaceRequest

MAX_EXPIRED = 64
"""Requests expired in one dispatch, about a millisecond's work; thousands of deadlines may pass at once."""


class Desk:
    """A model's queue with its admission. Times are monotonic seconds."""

    def __init__(self, model: str, fleet: Fleet, config: BoardConfig) -> None:
        self.model = model
        self.queue = FairQueue(config.queue)
        self.admission = Admission(config.admission)
        self.pool = WarmPool(model, fleet, config.policy.heartbeat_stale_s)
        self.waits = WaitPredictor(self.queue, self.admission, self.pool)
        self.reservations = Reservations(model, self.queue, fleet, config.policy.heartbeat_stale_s)
        self.unfinished = False
        """The last dispatch has left work to the next, which should come soon."""
        self._fleet = fleet
        self._rules = config.queue
        self._review = HopelessReview(model, self.queue, fleet, self.admission, self.waits, self.pool)

    @property
    def idle(self) -> bool:
        """Whether nothing of it needs to be kept."""
        return self.queue.forgettable

    def pool_changed(self) -> None:
        """Replicas came, went or changed state."""
        self.pool.changed()
        self._review.pool_changed()

    # Admission

    def submit(self, ticket: Ticket, now: float) -> PlaceRefused | None:
        """Queue a request; its refusal when it may not wait."""
        request = ticket.request
        if refusal := self._crowded(request, now):
            return refusal
        free = self.pool.at(now).slots - self.queue.running
        if len(self.queue) >= free or not self._fleet.has_room(self.model, now):
            predicted_s = self.waits.arriving(request, now)
            # The first request to wait is always admitted: the drain rate is measured only while requests wait. If it
            # were refused, a rate learnt while the pool stood still would be believed for ever.
            if (
                len(self.queue)
                and not ticket.admitted
                and self.admission.too_long(predicted_s, request.deadline_s)
            ):
                standing = self.waits.standing(request, None, now)
                return self.waits.too_late(request, standing, predicted_s, request.deadline_s, now)
            self.waits.note(ticket, predicted_s, now, late=False)
            ticket.hit_tokens, ticket.hit_at = self._fleet.best_hit(request), now
        self.queue.add(ticket)
        self._review.queued(ticket)
        return None

    def _crowded(self, request: PlaceRequest, now: float) -> PlaceRefused | None:
        waiting, most = len(self.queue), self._rules.max_waiting
        if waiting >= most:
            return refusals.queue_full(request, self.waits.standing(request, None, now), waiting)
        mine = self.queue.waiting_of(request.tier, request.tenant_id)
        if mine >= most * self._rules.max_waiting_share and self.queue.others_wait(request.tenant_id):
            return refusals.tenant_fills_queue(request, self.waits.standing(request, None, now), mine)
        return None

    # Service

    def expire(self, now: float) -> list[Turned]:
        """Refuse requests whose deadline has passed, the most overdue first; at most MAX_EXPIRED of them."""
        expired: list[Turned] = []
        while (ticket := self.queue.overdue(now)) is not None and len(expired) < MAX_EXPIRED:
            request = ticket.request
            standing = self.waits.standing(request, ticket, now)
            over_share = self.queue.others_wait(request.tenant_id) and self.queue.over_share(
                request.tier, request.tenant_id
            )
            self.queue.remove(ticket.key, QueueOutcome.DEADLINE)
            self.waits.observe(ticket, now)
            waited_s = ticket.deadline_at - ticket.enqueued_at
            refusal = refusals.overdue(request, waited_s, standing, over_share)
            expired.append(Turned(ticket.client, self.model, refusal))
        self.unfinished = ticket is not None
        return expired

    def serve(self, now: float, rng: Rng, *, grace: bool) -> Iterator[Assigned | Turned]:
        """Place what can be placed, in fair order; refuse what waits in vain, except for want of replicas in `grace`.

        The caller applies each decision before it asks for the next, which depends on the load of the replicas.
        """
        pool = self.pool.at(now)
        if not grace:
            yield from self._review.refusals(now, rng)
            self.unfinished |= self._review.unfinished
        late_before = self.waits.late_before(now)
        current = ServingPass(self.model, self.queue, self._fleet, self.reservations, pool, late_before, now)
        if self.reservations.held is not None:
            yield from self._serve_reserved(current, now, rng)
        while (ticket := current.next_candidate()) is not None:
            if current.skip_untried(ticket):
                continue
            verdict = self.reservations.place(ticket, now, rng)
            if isinstance(verdict, Choice):
                yield self._assign(ticket, verdict, current, now)
                if current.skipped:
                    self.reservations.overtook(current.skipped, now)
            elif current.refused >= MAX_REFUSED:
                self.unfinished = True
                break
            elif (refusal := self._review.impossible(ticket, verdict.reason, pool, grace=grace)) is not None:
                current.refused += 1
                yield refusal
            elif (reason := current.reason_to_skip(ticket)) is not None:
                current.skip(ticket, reason)
            else:
                current.blocked = current.strict
                break
        if current.blocked:
            self.reservations.overtook([next(iter(current.skipped))], now)
        self.admission.drain.advance(now, pool.slots, len(self.queue) > 0)

    def _serve_reserved(self, current: ServingPass, now: float, rng: Rng) -> Iterator[Assigned]:
        """Place the request that a replica is reserved for, or skip it.

        It has no turn while requests of a higher band wait.
        """
        held = self.reservations.renewed(now)
        if held is None or any(band.waiting for band in self.queue.bands[: held.band]):
            return
        if self._fleet.has_room(self.model, now):
            verdict = self._fleet.place(held.ticket.request, now, rng)
            if isinstance(verdict, Choice):
                yield self._assign(held.ticket, verdict, current, now)
                return
        current.skip(held.ticket, SkipReason.RESERVED)

    def _assign(self, ticket: Ticket, choice: Choice, current: ServingPass, now: float) -> Assigned:
        self.queue.took(ticket, current.late_before)
        self.waits.observe(ticket, now)
        replica_id = choice.replica.status.replica_id
        self.reservations.placed(ticket, replica_id, self.pool.at(now).largest_kv_tokens, now)
        self.admission.drain.placed(ticket.work)
        return Assigned(ticket, choice)
