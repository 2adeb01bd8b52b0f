"""Predicted waits of one model's queue: of requests that arrive, of requests that wait, and for refusals."""

from dataclasses import replace

from scheduler.core import refusals
from scheduler.core.admission import Admission
from scheduler.core.fair_queue import Ahead, FairQueue, band_index
from scheduler.core.queue import Ticket
from scheduler.core.refusals import Standing
from scheduler.core.warm import WarmPool
from scheduler.messages import PlaceRefused
from scheduler.wire import PlaceRequest


class WaitPredictor:
    """Turns the work ahead of a request into seconds. Times are monotonic seconds, waits are seconds."""

    def __init__(self, queue: FairQueue, admission: Admission, pool: WarmPool) -> None:
        self._queue = queue
        self._admission = admission
        self._rules = queue.rules
        self._pool = pool

    def late_before(self, now: float) -> float:
        """Requests that arrived before this time are late: they can hardly meet the TTFT target any more."""
        return now - self._rules.patience * self._pool.at(now).ttft_target_s

    def arriving(self, request: PlaceRequest, now: float) -> float | None:
        """The wait of a request that arrives now; None where there is nothing to predict from.

        If the request can be served in time behind the timely requests of its tenant, only those count. Otherwise it
        becomes late and waits behind all of them.
        """
        pool, rules = self._pool.at(now), self._rules
        everything, timely = self._queue.own_ahead(request.tier, request.tenant_id, self.late_before(now))
        every = max(1, rules.late_every)
        if every > 1:
            turns = every / (every - 1) if everything != timely else 1.0
            wait_s = self.behind(request, timely, now, turns=turns)
            if wait_s is None or wait_s <= rules.patience * pool.ttft_target_s:
                return wait_s
        return self.behind(request, everything, now, late=every > 1)

    def turned_late(self, ticket: Ticket, now: float) -> float | None:
        """The wait of a request that has become late.

        It waits behind every older request of its tenant, and behind the timely ones that take the other turns
        meanwhile. Only requests that wait now count. To foresee those still to come at their worst would refuse the
        end of a burst although the pool then idles; their cost is left to the residual.
        """
        request = ticket.request
        own = self._queue.own_before(ticket)
        _, timely = self._queue.own_ahead(request.tier, request.tenant_id, self.late_before(now))
        passing = min(timely.work, (self._rules.late_every - 1) * own.work)
        return self.behind(request, Ahead(own.work + passing, own.requests), now, late=True)

    def waiting(self, ticket: Ticket, now: float) -> float | None:
        """The wait of a queued request behind the older requests of its tenant."""
        return self.behind(ticket.request, self._queue.own_before(ticket), now)

    def behind(
        self, request: PlaceRequest, own: Ahead, now: float, *, turns: float = 1.0, late: bool = False
    ) -> float | None:
        """The wait behind `own` of the request's tenant, each of which takes `turns` of the tenant's turns."""
        scaled = Ahead(own.work * turns, own.requests) if turns != 1.0 else own
        sample = self._admission.rules.sampled_lines
        ahead = self._queue.ahead(request.tier, request.tenant_id, scaled, sample)
        work = ahead.work + self._rules.work(request)
        return self._admission.predict(work, self._pool.at(now), band_index(request.tier), late=late)

    def standing(self, request: PlaceRequest, ticket: Ticket | None, now: float) -> Standing:
        """Where a request stands in fair order, as if its tenant's requests were served first come first served.

        `ticket` is its entry in the queue; None for a request that has just arrived.
        """
        if ticket is not None:
            own = self._queue.own_before(ticket)
        else:
            own, _ = self._queue.own_ahead(request.tier, request.tenant_id, self.late_before(now))
        sample = self._admission.rules.sampled_lines
        ahead = self._queue.ahead(request.tier, request.tenant_id, own, sample)
        return Standing(ahead.requests + 1, self._pool.at(now).ready, self.behind(request, own, now))

    def too_late(
        self, request: PlaceRequest, standing: Standing, wait_s: float | None, allowed_s: float, now: float
    ) -> PlaceRefused:
        """The refusal of a request that would wait `wait_s` but may wait only `allowed_s`.

        Its own tenant is the cause when the request would be served in time without the tenant's other requests.
        """
        alone_s = self.behind(request, Ahead(0.0, 0), now)
        in_time = alone_s is not None and alone_s <= allowed_s
        own_fault = in_time and self._queue.others_wait(request.tenant_id)
        return refusals.too_late(request, replace(standing, wait_s=wait_s), allowed_s, own_fault)

    def note(self, ticket: Ticket, wait_s: float | None, now: float, *, late: bool) -> None:
        """Store a prediction on its request, for `observe` to learn from."""
        ticket.predicted_wait_s, ticket.predicted_at, ticket.late = wait_s, now, late
        ticket.residual = self._admission.residual(band_index(ticket.request.tier), late=late)

    def observe(self, ticket: Ticket, now: float) -> None:
        """Learn from the wait of a request that left the queue: it was placed or reached its deadline."""
        band, waited_s = band_index(ticket.request.tier), now - ticket.predicted_at
        self._admission.waited(ticket.predicted_wait_s, waited_s, ticket.residual, band, late=ticket.late)
