"""One model's desk: who may wait, whose turn it is, who is told to come back later.

It reads the fleet and moves no load: whoever answers a placement (the board) opens it before the next is looked for.
"""

import sys
from collections import deque
from dataclasses import replace
from typing import Protocol

from scheduler.core import refusals
from scheduler.core.admission import Admission, Warm
from scheduler.core.fair_queue import Ahead, FairQueue, band_index
from scheduler.core.fleet import Fleet
from scheduler.core.policy import Choice, Reason, Rng
from scheduler.core.queue import QueueOutcome, Ticket
from scheduler.core.refusals import Standing
from scheduler.core.reservation import Reservations, need_of, usable
from scheduler.core.rules import BoardConfig
from scheduler.core.walk import Walk
from scheduler.messages import PlaceRefused
from scheduler.wire import PlaceRequest

MAX_BYPASSES = 32
"""Tickets looked at behind those that only their own excluded replicas hold back, or that hold nobody up because of
reservations."""
WARM_FRESH_S = 0.2
"""How long the sums over a model's replicas may be used; a heartbeat with news ends it sooner."""
HIT_FRESH_S = 0.2
"""How long a waiting request's cached prefix is used for ordering before it is looked up again ..."""
MAX_LOOKUPS = 1
"""... where so many in one pick are: the others count with what was last known of them, first when they came. What has
waited long has left the processor's caches, and looking it up is what a decision costs most."""
SHRUNK = 0.8
"""When a pool falls below this share of its slots, waits are predicted again."""
MAX_REVIEWED = 64
"""Requests whose waits are predicted again in one dispatch; the next goes on."""
MAX_EXPIRED = 64
"""Deadlines told in one dispatch, about a millisecond's work: thousands may pass at once. The next goes on."""
MAX_REFUSED = 64
"""Likewise those that wait in vain."""
MAX_LATE_REVIEWED = 2
"""Requests that have just become late looked at in one dispatch: a burst is spread over the decisions that follow."""


class Answers(Protocol):
    """What a desk's verdicts are told to; the board."""

    def place_ticket(self, ticket: Ticket, choice: Choice, now: float) -> None:
        """Open the placement at once: the next verdict depends on it."""

    def refuse(self, client: str, model: str, refusal: PlaceRefused) -> None:
        """Tell the client."""


class Desk:
    """A model's queue with its admission."""

    def __init__(self, model: str, fleet: Fleet, config: BoardConfig) -> None:
        self.model = model
        self.queue = FairQueue(config.queue)
        self.admission = Admission(config.admission)
        self._fleet = fleet
        self._rules = config.queue
        self._warm = Warm(0, 0, 0, 0.0)
        self._warm_until = float("-inf")
        self._stale_s = config.policy.heartbeat_stale_s
        self._reviewed_slots = 0
        self._review: Walk | None = None
        self._retries: deque[Ticket] = deque()
        """Those that have failed somewhere and have not been looked at since the pool changed."""
        self._changed = False
        self.reservations = Reservations(model, self.queue, fleet, self._stale_s)
        self.unfinished = False
        """The last dispatch has left work to the next: it should come soon."""

    @property
    def idle(self) -> bool:
        """Whether forgetting it would lose nothing."""
        return self.queue.forgettable

    def warm(self, now: float) -> Warm:
        """What the model's warm replicas can hold together."""
        if now >= self._warm_until:
            known = self._fleet.of(self.model)
            ready = [replica for replica in known if usable(replica, now, self._stale_s)]
            self._warm = Warm(
                len(ready),
                sum(replica.slots for replica in ready),
                sum(replica.kv_capacity for replica in ready),
                max((replica.status.targets.ttft_s for replica in known), default=0.0),
                max((replica.kv_capacity for replica in known), default=0),
            )
            self._warm_until = now + WARM_FRESH_S
        return self._warm

    def pool_changed(self) -> None:
        """Replicas came, went or changed state."""
        self._warm_until = float("-inf")
        self._changed = True

    # Admission

    def submit(self, ticket: Ticket, now: float) -> PlaceRefused | None:
        """Queue a ticket, or say why not."""
        request = ticket.request
        if refusal := self._crowded(request, now):
            return refusal
        free = self.warm(now).slots - self.queue.running
        if len(self.queue) >= free or not self._fleet.has_room(self.model, now):
            predicted_s = self._predict(request, now)
            # The first to wait is let in: only while somebody waits is it measured how fast the pool drains. Were it
            # refused, what was learnt while the pool stood still would be believed for ever.
            if (
                len(self.queue)
                and not ticket.admitted
                and self.admission.too_long(predicted_s, request.deadline_s)
            ):
                standing = self._standing(request, None, now)
                return self._too_late(request, standing, predicted_s, request.deadline_s, now)
            self._note(ticket, predicted_s, now, late=False)
            ticket.hit_tokens, ticket.hit_at = self._fleet.best_hit(request), now
        self.queue.add(ticket)
        if request.exclude:
            self._retries.append(ticket)
        return None

    def _crowded(self, request: PlaceRequest, now: float) -> PlaceRefused | None:
        waiting, most = len(self.queue), self._rules.max_waiting
        if waiting >= most:
            return refusals.queue_full(request, self._standing(request, None, now), waiting)
        mine = self.queue.waiting_of(request.tier, request.tenant_id)
        if mine >= most * self._rules.max_waiting_share and self.queue.others_wait(request.tenant_id):
            return refusals.tenant_fills_queue(request, self._standing(request, None, now), mine)
        return None

    def _predict(self, request: PlaceRequest, now: float) -> float | None:
        """The wait of a request that comes now; None where there is nothing to predict from.

        If the timely requests of its tenant before it let it be timely itself, only they count. Otherwise it will be
        late, behind all of them.
        """
        warm, rules = self.warm(now), self._rules
        everything, timely = self.queue.own_ahead(request.tier, request.tenant_id, self._late_before(now))
        every = max(1, rules.late_every)
        if every > 1:
            turns = every / (every - 1) if everything != timely else 1.0
            wait_s = self._wait_s(request, timely, warm, turns)
            if wait_s is None or wait_s <= rules.patience * warm.ttft_target_s:
                return wait_s
        return self._wait_s(request, everything, warm, 1.0, late=every > 1)

    def _late_wait_s(self, ticket: Ticket, now: float) -> float | None:
        """The wait of one that is late: behind every older one of its tenant, and behind the timely ones that take the
        other turns meanwhile. Only those that wait now count: were those still to come foreseen at their worst, the
        end of a burst would be refused though the pool then idles. What they cost is left to the residual.
        """
        request = ticket.request
        own = self.queue.own_before(ticket)
        _, timely = self.queue.own_ahead(request.tier, request.tenant_id, self._late_before(now))
        passing = min(timely.work, (self._rules.late_every - 1) * own.work)
        return self._wait_s(request, Ahead(own.work + passing, own.requests), self.warm(now), 1.0, late=True)

    def _wait_s(
        self, request: PlaceRequest, own: Ahead, warm: Warm, turns: float, *, late: bool = False
    ) -> float | None:
        """The wait behind `own` of its tenant, each of which takes so many of the tenant's turns."""
        sample, mine = self.admission.rules.sampled_lines, self._rules.work(request)
        scaled = Ahead(own.work * turns, own.requests)
        ahead = self.queue.ahead(request.tier, request.tenant_id, scaled, sample)
        return self.admission.predict(ahead.work + mine, warm, band_index(request.tier), late=late)

    def _too_late(
        self, request: PlaceRequest, standing: Standing, wait_s: float | None, allowed_s: float, now: float
    ) -> PlaceRefused:
        """The refusal of one whose wait is too long; its tenant's own doing if without its requests it were not."""
        alone_s = self._wait_s(request, Ahead(0.0, 0), self.warm(now), 1.0)
        in_time = alone_s is not None and alone_s <= allowed_s
        own_fault = in_time and self.queue.others_wait(request.tenant_id)
        return refusals.too_late(request, replace(standing, wait_s=wait_s), allowed_s, own_fault)

    def _standing(self, request: PlaceRequest, ticket: Ticket | None, now: float) -> Standing:
        """Where a request stands in fair order, were its tenant's line first come first served."""
        warm = self.warm(now)
        if ticket is not None:
            own = self.queue.own_before(ticket)
        else:
            own, _ = self.queue.own_ahead(request.tier, request.tenant_id, self._late_before(now))
        ahead = self.queue.ahead(request.tier, request.tenant_id, own, self.admission.rules.sampled_lines)
        return Standing(ahead.requests + 1, warm.ready, self._wait_s(request, own, warm, 1.0))

    def _late_before(self, now: float) -> float:
        return now - self._rules.patience * self.warm(now).ttft_target_s

    # Service

    def expire(self, now: float, answers: Answers) -> None:
        """Refuse those whose deadline has passed, the most overdue first; at most MAX_EXPIRED of them."""
        self.unfinished = False
        for _ in range(MAX_EXPIRED):
            ticket = self.queue.overdue(now)
            if ticket is None:
                return
            request = ticket.request
            standing = self._standing(request, ticket, now)
            over_share = self.queue.others_wait(request.tenant_id) and self.queue.over_share(
                request.tier, request.tenant_id
            )
            self._leave(ticket, QueueOutcome.DEADLINE, now)
            waited_s = ticket.deadline_at - ticket.enqueued_at
            answers.refuse(
                ticket.client, self.model, refusals.overdue(request, waited_s, standing, over_share)
            )
        self.unfinished = self.queue.overdue(now) is not None

    def serve(self, now: float, rng: Rng, answers: Answers, *, grace: bool) -> None:
        """Place what can be placed, in fair order; refuse what waits in vain, except during `grace`."""
        warm = self.warm(now)
        if not grace:
            self._refuse_retries(now, rng, answers)
            self._review_all(warm, now, answers)
            self._review_late(self._late_before(now), now, answers)
        late_before, look_past = self._late_before(now), self._rules.look_past
        passed: dict[Ticket, None] = {}
        bypassed, refused, strict, held_up, aside = 0, 0, False, False, sys.maxsize
        if self.reservations.held is not None:
            bypassed = self._serve_reserved(passed, late_before, now, rng, answers)
        while len(self.queue) and (self._fleet.has_room(self.model, now) or not warm.ready):
            ticket = self.queue.pick(late_before, warm.kv_tokens, self._hits(now), passed, strict)
            if ticket is None:
                held_up = strict and len(self.queue) > len(passed)
                break
            if bypassed < MAX_BYPASSES and self.reservations.goes_around(ticket, aside, now):
                bypassed += 1
                passed[ticket] = None
                continue
            verdict = self.reservations.place(ticket, now, rng)
            if isinstance(verdict, Choice):
                self._place(ticket, verdict, late_before, now, answers)
                if passed:
                    self.reservations.overtook(passed, now)
            elif refused >= MAX_REFUSED:
                self.unfinished = True
                break
            elif not verdict.reason.worth_waiting and not grace:
                refused += 1
                self._refuse_hopeless(ticket, verdict.reason, now, answers)
            elif 0 < warm.largest_kv_tokens < need_of(ticket):
                refused += 1
                self._refuse_too_large(ticket, warm, answers)
            elif ticket.request.exclude and bypassed < MAX_BYPASSES:
                bypassed += 1
                passed[ticket] = None
            elif bypassed < MAX_BYPASSES and self.reservations.waits_aside(ticket, now):
                bypassed, aside = bypassed + 1, min(aside, need_of(ticket))
                passed[ticket] = None
            elif len(passed) - bypassed < look_past:
                strict = True
                passed[ticket] = None
            else:
                held_up = look_past > 0
                break
        if held_up:
            self.reservations.overtook([next(iter(passed))], now)
        self.admission.drain.advance(now, warm.slots, len(self.queue) > 0)

    def _place(
        self, ticket: Ticket, choice: Choice, late_before: float, now: float, answers: Answers
    ) -> None:
        self.queue.took(ticket, late_before)
        self._left(ticket, now)
        where = choice.replica.status.replica_id
        self.reservations.placed(ticket, where, self.warm(now).largest_kv_tokens, now)
        self.admission.drain.placed(ticket.work)
        answers.place_ticket(ticket, choice, now)

    # Those that fit nowhere

    def _serve_reserved(
        self, passed: dict[Ticket, None], late_before: float, now: float, rng: Rng, answers: Answers
    ) -> int:
        """Place the one that a replica is kept free for, or pass it over; how many were passed over.

        While somebody waits in a higher band it has no turn.
        """
        held = self.reservations.renewed(now)
        if held is None or any(band.waiting for band in self.queue.bands[: held.band]):
            return 0
        if self._fleet.has_room(self.model, now):
            verdict = self._fleet.place(held.ticket.request, now, rng)
            if isinstance(verdict, Choice):
                self._place(held.ticket, verdict, late_before, now, answers)
                return 0
        passed[held.ticket] = None
        return 1

    def _refuse_too_large(self, ticket: Ticket, warm: Warm, answers: Answers) -> None:
        self.queue.remove(ticket.key, QueueOutcome.HOPELESS)
        refusal = refusals.too_large(
            ticket.request, Standing(0, warm.ready, None), need_of(ticket), warm.largest_kv_tokens
        )
        answers.refuse(ticket.client, self.model, refusal)

    def _refuse_retries(self, now: float, rng: Rng, answers: Answers) -> None:
        """One that has failed on every replica there is need not wait for room to be told so.

        Each is looked at when it comes, and again whenever the pool has changed; at most MAX_REFUSED in one dispatch.
        """
        if self._changed:
            self._changed = False
            self._retries = deque(ticket for ticket in self.queue if ticket.request.exclude)
        for _ in range(min(len(self._retries), MAX_REFUSED)):
            ticket = self._retries.popleft()
            if ticket.outcome is None:
                verdict = self._fleet.place(ticket.request, now, rng)
                if not isinstance(verdict, Choice) and not verdict.reason.worth_waiting:
                    self._refuse_hopeless(ticket, verdict.reason, now, answers)
        self.unfinished |= bool(self._retries)

    def _refuse_hopeless(self, ticket: Ticket, reason: Reason, now: float, answers: Answers) -> None:
        self._leave(ticket, QueueOutcome.HOPELESS, now)
        standing = Standing(0, self.warm(now).ready, None)
        answers.refuse(ticket.client, self.model, refusals.hopeless(ticket.request, reason, standing))

    def _review_late(self, late_before: float, now: float, answers: Answers) -> None:
        """Who has just become late is served only every so many-th turn: enough to be in time for the deadline?"""
        if self._rules.late_every <= 1:
            return
        for ticket in self.queue.turned_late(late_before, MAX_LATE_REVIEWED):
            wait_s = self._late_wait_s(ticket, now)
            if not ticket.admitted and self.admission.too_long(wait_s, ticket.deadline_at - now):
                self._give_up(ticket, wait_s, now, answers)
            elif wait_s is not None:
                self._note(ticket, wait_s, now, late=True)

    def _review_all(self, warm: Warm, now: float, answers: Answers) -> None:
        """The pool has shrunk: those at the ends of their lines who can no longer be served in time go."""
        if warm.slots < SHRUNK * self._reviewed_slots:
            self._review, self._reviewed_slots = Walk(self.queue.bands), warm.slots
        elif self._review is None:
            self._reviewed_slots = max(warm.slots, self._reviewed_slots)
            return
        for _ in range(MAX_REVIEWED):
            ticket = self._review.next()
            if ticket is None:
                self._review = None
                return
            if ticket.admitted:
                continue
            wait_s = self._wait_s(ticket.request, self.queue.own_before(ticket), warm, 1.0)
            if self.admission.too_long(wait_s, ticket.deadline_at - now):
                self._give_up(ticket, wait_s, now, answers)
            else:
                self._review.skip_line()
        self.unfinished = True

    def _give_up(self, ticket: Ticket, wait_s: float | None, now: float, answers: Answers) -> None:
        standing = self._standing(ticket.request, ticket, now)
        self.queue.remove(ticket.key, QueueOutcome.HOPELESS)
        refusal = self._too_late(ticket.request, standing, wait_s, ticket.deadline_at - now, now)
        answers.refuse(ticket.client, self.model, refusal)

    def _leave(self, ticket: Ticket, outcome: QueueOutcome, now: float) -> None:
        self.queue.remove(ticket.key, outcome)
        if outcome is QueueOutcome.DEADLINE:
            self._left(ticket, now)

    def _left(self, ticket: Ticket, now: float) -> None:
        band = band_index(ticket.request.tier)
        waited_s = now - ticket.predicted_at
        self.admission.waited(ticket.predicted_wait_s, waited_s, ticket.residual, band, late=ticket.late)

    def _note(self, ticket: Ticket, wait_s: float | None, now: float, *, late: bool) -> None:
        ticket.predicted_wait_s, ticket.predicted_at, ticket.late = wait_s, now, late
        ticket.residual = self.admission.residual(band_index(ticket.request.tier), late=late)

    def _hits(self, now: float) -> "_Hits":
        return _Hits(self._fleet, now)


class _Hits:
    """Looks up how much of a waiting request's prompt is cached, remembering the answer for a moment."""

    def __init__(self, fleet: Fleet, now: float) -> None:
        self._fleet = fleet
        self._now = now
        self._lookups = 0

    def __call__(self, ticket: Ticket) -> int:
        if self._now - ticket.hit_at > HIT_FRESH_S and self._lookups < MAX_LOOKUPS:
            self._lookups += 1
            ticket.hit_tokens = self._fleet.best_hit(ticket.request)
            ticket.hit_at = self._now
        return ticket.hit_tokens
