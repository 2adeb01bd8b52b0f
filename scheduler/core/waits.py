"""Predicted waits of one model's queue, for admission, for review and for refusals."""

from dataclasses import replace

from scheduler.core import refusals
from scheduler.core.admission import Admission
from scheduler.core.fair_queue import Backlog, FairQueue
from scheduler.core.flow import QueuedRequest
from scheduler.core.refusals import Standing
from scheduler.core.rules import band_index
from scheduler.core.warm import WarmPool
from scheduler.messages import PlaceRefused
from scheduler.wire import PlaceRequest


class WaitPredictor:
    """Converts the work ahead of a request into seconds. Times are monotonic seconds; waits are seconds."""

    def __init__(self, queue: FairQueue, admission: Admission, pool: WarmPool) -> None:
        self._queue = queue
        self._admission = admission
        self._rules = queue.rules
        self._pool = pool

    def late_before(self, now: float) -> tuple[float, ...]:
        """By band: requests that arrived before this time are late, because they can hardly meet the TTFT target."""
        share = self._rules.late_ttft_share
        return tuple(now - share * target_s for target_s in self._pool.at(now).ttft_targets_s)

    def arriving(self, request: PlaceRequest, now: float) -> float | None:
        """The wait of a request that arrives now; None when there is nothing to predict from.

        It waits behind all requests of its tenant. In a growing queue only the timely ones count, if it can be served
        in time behind these.
        """
        rules, late_before = self._rules, self.late_before(now)[band_index(request.tier)]
        everything, timely = self._queue.tenant_backlog(request.tier, request.tenant_id, late_before)
        every = max(1, rules.oldest_every)
        if every > 1:
            own, turns = everything, 1.0
            if self._queue.band(request.tier).growth.sustained and everything != timely:
                own, turns = timely, every / (every - 1)
            wait_s = self.behind(request, own, now, turns=turns)
            if wait_s is None or wait_s <= now - late_before:
                return wait_s
        return self.behind(request, everything, now, late=every > 1)

    def newly_late(self, queued: QueuedRequest, now: float) -> float | None:
        """The wait of a request that has become late.

        It waits behind every older request of its tenant, and in a growing queue behind the timely ones that take the
        other turns meanwhile. Only requests that are queued now count: to include the worst case of future arrivals
        would refuse the end of a burst although the pool then idles. Their effect is left to the residual.
        """
        request = queued.request
        own = self._queue.older_backlog(queued)
        passing = 0.0
        if self._queue.band(request.tier).growth.sustained:
            late_before = self.late_before(now)[band_index(request.tier)]
            _, timely = self._queue.tenant_backlog(request.tier, request.tenant_id, late_before)
            passing = min(timely.work, (self._rules.oldest_every - 1) * own.work)
        return self.behind(request, Backlog(own.work + passing, own.requests), now, late=True)

    def waiting(self, queued: QueuedRequest, now: float) -> float | None:
        """The wait of a queued request behind the older requests of its tenant."""
        return self.behind(queued.request, self._queue.older_backlog(queued), now)

    def behind(
        self, request: PlaceRequest, own: Backlog, now: float, *, turns: float = 1.0, late: bool = False
    ) -> float | None:
        """The wait behind `own` of the request's tenant, scaled by the turns that each of them takes."""
        scaled = Backlog(own.work * turns, own.requests) if turns != 1.0 else own
        return self._predict(request, self._ahead(request, scaled), now, late=late)

    def _ahead(self, request: PlaceRequest, own: Backlog) -> Backlog:
        """What is served before a request that waits behind `own` of its tenant."""
        sample = self._admission.rules.sampled_flows
        return self._queue.backlog_before(request.tier, request.tenant_id, own, sample)

    def _predict(
        self, request: PlaceRequest, ahead: Backlog, now: float, *, late: bool = False
    ) -> float | None:
        work = ahead.work + self._rules.work(request)
        return self._admission.predict(work, self._pool.at(now), band_index(request.tier), late=late)

    def standing(self, request: PlaceRequest, queued: QueuedRequest | None, now: float) -> Standing:
        """Position, warm replicas and predicted wait of a request, as if its tenant were served first come first
        served.

        `queued` is its entry in the queue; None for a request that has just arrived.
        """
        if queued is not None:
            own = self._queue.older_backlog(queued)
        else:
            late_before = self.late_before(now)[band_index(request.tier)]
            own, _ = self._queue.tenant_backlog(request.tier, request.tenant_id, late_before)
        ahead = self._ahead(request, own)
        return Standing(ahead.requests + 1, self._pool.at(now).ready, self._predict(request, ahead, now))

    def too_late(
        self, request: PlaceRequest, standing: Standing, wait_s: float | None, allowed_s: float, now: float
    ) -> PlaceRefused:
        """The refusal of a request that would wait `wait_s` but may wait only `allowed_s`.

        The tenant is the cause when the request would be served in time without the tenant's other requests, and
        others wait.
        """
        if self._pool.coming(request, now).is_cold:
            trouble = self._pool.trouble(request)
            return refusals.waking(request, replace(standing, wait_s=wait_s), allowed_s, trouble)
        alone_s = self.behind(request, Backlog(0.0, 0), now)
        in_time = alone_s is not None and alone_s <= allowed_s
        caused_by_tenant = in_time and self._queue.others_waiting(request.tenant_id)
        return refusals.too_late(request, replace(standing, wait_s=wait_s), allowed_s, caused_by_tenant)

    def record(self, queued: QueuedRequest, wait_s: float | None, now: float, *, late: bool) -> None:
        """Store a prediction on its request for `observe`. That of a wake says nothing of the queue's speed."""
        if self._pool.at(now).is_cold:
            wait_s = None
        queued.predicted_wait_s, queued.predicted_at, queued.late = wait_s, now, late
        queued.residual = self._admission.residual(band_index(queued.request.tier), late=late)

    def observe(self, queued: QueuedRequest, now: float) -> None:
        """Learn from the wait of a request that was placed or reached its deadline."""
        band, waited_s = band_index(queued.request.tier), now - queued.predicted_at
        self._admission.observe(queued.predicted_wait_s, waited_s, queued.residual, band, late=queued.late)
