"""One model's queue: three strict bands, fair inside each, with deadlines; and what every tenant is charged.

A counter holds the estimate of a request from the moment it is placed; the estimate grows with the tokens that come
beyond it and is replaced by the exact figures at the end. What failed because of the replica is refunded whole.
"""

import heapq
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from scheduler.core.band import Band, Hits
from scheduler.core.placements import Open
from scheduler.core.queue import Key, Line, QueueOutcome, Ticket
from scheduler.core.rules import BANDS, NEWCOMER, QueueRules
from scheduler.messages import TenantCounter
from scheduler.wire import Released


@dataclass(frozen=True, slots=True)
class Ahead:
    """What would be served before a request: weighted tokens and requests, those of its own tenant included."""

    work: float
    requests: int


class FairQueue:
    """Every ticket gets exactly one outcome; the next is found without looking at the others."""

    def __init__(self, rules: QueueRules) -> None:
        self.rules = rules
        self.bands = tuple(Band(rules) for _ in BANDS)
        self.running = 0
        """Open placements."""
        self._tickets: dict[Key, Ticket] = {}
        self._deadlines: list[tuple[float, int, Key]] = []
        self._ages: list[tuple[float, int, Key]] = []
        """Arrivals of those that are not late yet, and of some that have left."""
        self._changed: set[tuple[int, str]] = set()
        """Bands and lines whose counters have moved since they were last told."""

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        """In order of coming, for tests and rare walks."""
        return iter(self._tickets.values())

    def __contains__(self, key: object) -> bool:
        return key in self._tickets

    @property
    def resting(self) -> bool:
        """Whether nobody waits or runs."""
        return not self._tickets and not self.running

    @property
    def forgettable(self) -> bool:
        """Whether nothing of it is worth keeping: nobody waits, runs, or has been served."""
        return not self._tickets and not any(band.lines or band.floor for band in self.bands)

    def band(self, tier: str) -> Band:
        """The band of a tier; an unknown tier is standard."""
        return self.bands[band_index(tier)]

    # Standing in line

    def add(self, ticket: Ticket) -> None:
        """Queue a ticket at the place of its age. Raises ValueError when its key already waits."""
        if ticket.key in self._tickets:
            raise ValueError(f"request {ticket.request.request_id} already waits")
        ticket.work = self.rules.work(ticket.request)
        self._tickets[ticket.key] = ticket
        self.band(ticket.request.tier).add(ticket)
        heapq.heappush(self._deadlines, (ticket.deadline_at, ticket.seq, ticket.key))
        heapq.heappush(self._ages, (ticket.enqueued_at, ticket.seq, ticket.key))

    def remove(self, key: Key, outcome: QueueOutcome) -> Ticket | None:
        """Take a ticket out with its outcome; None when it does not wait (any more)."""
        ticket = self._tickets.pop(key, None)
        if ticket is None:
            return None
        ticket.outcome = outcome
        self.band(ticket.request.tier).remove(ticket)
        if len(self._deadlines) > 64 and len(self._deadlines) > 2 * len(self._tickets):
            self._deadlines = [entry for entry in self._deadlines if entry[2] in self._tickets]
            heapq.heapify(self._deadlines)
        if len(self._ages) > 64 and len(self._ages) > 2 * len(self._tickets):
            self._ages = [entry for entry in self._ages if entry[2] in self._tickets]
            heapq.heapify(self._ages)
        return ticket

    def remove_client(self, client: str) -> list[Ticket]:
        """Take out everything of a client whose connection is gone."""
        keys = [key for key in self._tickets if key[0] == client]
        removed = [self.remove(key, QueueOutcome.CLIENT_GONE) for key in keys]
        return [ticket for ticket in removed if ticket is not None]

    def next_deadline(self) -> float | None:
        """The earliest deadline of those that wait."""
        while self._deadlines:
            deadline_at, seq, key = self._deadlines[0]
            ticket = self._tickets.get(key)
            if ticket is not None and ticket.seq == seq:
                return deadline_at
            heapq.heappop(self._deadlines)
        return None

    def overdue(self, now: float) -> Ticket | None:
        """One whose deadline has passed, the most overdue first; it still waits until it is removed."""
        deadline_at = self.next_deadline()
        if deadline_at is None or deadline_at > now:
            return None
        return self._tickets[self._deadlines[0][2]]

    # Who goes next

    def pick(
        self, late_before: float, kv_tokens: int, hits: Hits, passed: Container[Ticket], strict: bool
    ) -> Ticket | None:
        """The next of the highest band in which somebody waits; see Band.pick."""
        for band in self.bands:
            ticket = band.pick(late_before, kv_tokens, hits, passed, strict)
            if ticket is not None:
                return ticket
            if strict and band.order:
                return None
        return None

    def took(self, ticket: Ticket, late_before: float) -> None:
        """The pick was placed."""
        self.band(ticket.request.tier).took(ticket, late_before)
        self.remove(ticket.key, QueueOutcome.PLACED)

    def ahead(self, tier: str, tenant_id: str, own: Ahead, sample: int) -> Ahead:
        """What is served before a request if the counters decide, once `own` of its tenant stands before it.

        Fluid fair sharing: until the tenant's counter has grown by its own work, others are served up to that counter.
        Of more than `sample` tenants an even sample is looked at and scaled up.
        """
        index = band_index(tier)
        band = self.bands[index]
        line = band.lines.get(self.rules.line_of(tenant_id))
        begin = max(line.counter, band.floor) if line is not None else band.floor
        until = begin + own.work / (line.weight if line is not None else 1.0)
        step = max(1, len(band.order) // sample)
        work, requests = 0.0, 0.0
        for counter, name in band.order[::step]:
            if counter > until:
                break
            other = band.lines[name]
            if other is not line:
                theirs, waiting = other.work, len(other.waiting)
                share = min(theirs, (until - counter) * other.weight + theirs / waiting)
                work += share
                requests += waiting * share / theirs if theirs else waiting
        higher = self.bands[:index]
        return Ahead(
            own.work + work * step + sum(each.work for each in higher),
            own.requests + round(requests * step) + sum(each.waiting for each in higher),
        )

    def own_ahead(self, tier: str, tenant_id: str, late_before: float) -> tuple[Ahead, Ahead]:
        """What of its own tenant stands before a request that comes now: all, and only those not late yet."""
        line = self.band(tier).lines.get(self.rules.line_of(tenant_id))
        if line is None or not line.waiting:
            return Ahead(0.0, 0), Ahead(0.0, 0)
        timely = len(line) - line.late(late_before)
        return Ahead(line.work, len(line)), Ahead(line.work * timely / len(line), timely)

    def own_before(self, ticket: Ticket) -> Ahead:
        """What of its own tenant is older than a waiting ticket."""
        line = self.band(ticket.request.tier).line(ticket.request.tenant_id)
        rank = line.rank(ticket)
        return Ahead(line.work * rank / len(line), rank)

    def turned_late(self, late_before: float, most: int) -> list[Ticket]:
        """Those that have become late since the last call, oldest first; at most so many, the next call goes on."""
        turned: list[Ticket] = []
        while self._ages and self._ages[0][0] < late_before and len(turned) < most:
            _, seq, key = heapq.heappop(self._ages)
            ticket = self._tickets.get(key)
            if ticket is not None and ticket.seq == seq:
                turned.append(ticket)
        return turned

    def others_wait(self, tenant_id: str) -> bool:
        """Whether any other tenant waits for this model."""
        name = self.rules.line_of(tenant_id)
        return any(len(band.order) > (name in band.lines and bool(band.lines[name])) for band in self.bands)

    def over_share(self, tier: str, tenant_id: str) -> bool:
        """Whether a tenant runs more than an even share of what its band runs, counting those that only wait."""
        band = self.band(tier)
        mine = band.lines.get(self.rules.line_of(tenant_id))
        return mine is not None and mine.running * band.active > band.running

    def waiting_of(self, tier: str, tenant_id: str) -> int:
        """Requests of one tenant that wait in one band."""
        line = self.band(tier).lines.get(self.rules.line_of(tenant_id))
        return len(line) if line is not None else 0

    # What tenants are charged

    def opened(self, entry: Open, *, counted: bool = False) -> float:
        """A placement begins; its tenant's counter afterwards. `counted`: an earlier scheduler has charged it.

        What `entry.charged` says is in the counter already, of a placement that goes on, is not charged again.
        """
        band, line = self._line_of(entry)
        already, entry.charged = entry.charged, self._estimate(entry)
        entry.reserved = _reserved(entry)
        if not counted:
            self._charge(entry, entry.charged - already)
        band.started(line, entry.reserved)
        self.running += 1
        return line.counter

    def progressed(self, entry: Open) -> None:
        """More tokens came: what goes beyond the estimate is charged now, and counts against the tenant's cap."""
        if entry.produced > entry.output_tokens:
            band, line = self._line_of(entry)
            band.grew(line, _reserved(entry) - entry.reserved)
            entry.reserved = _reserved(entry)
        self._correct(entry, self._estimate(entry))

    def closed(self, entry: Open, released: Released | None) -> None:
        """A placement is over: charge what it really took. None: its client died, what was seen of it counts."""
        self._correct(entry, self._actual(entry, released))
        band, line = self._line_of(entry)
        band.ended(line, entry.reserved)
        self.running -= 1

    def _estimate(self, entry: Open) -> float:
        return self.rules.charge(entry.uncached, max(entry.output_tokens, entry.produced), entry.weight)

    def _actual(self, entry: Open, released: Released | None) -> float:
        if released is not None and released.failed:
            return 0.0
        began = entry.prefilled or entry.produced > 0
        uncached, output = entry.uncached if began else 0, entry.produced
        if released is not None and released.input_tokens > 0:
            uncached = max(0, released.input_tokens - max(0, released.cached_input_tokens))
        if released is not None:
            output = max(output, released.output_tokens)
        return self.rules.charge(uncached, output, entry.weight)

    def _correct(self, entry: Open, charge: float) -> None:
        if charge != entry.charged:
            self._charge(entry, charge - entry.charged)
            entry.charged = charge

    def _charge(self, entry: Open, amount: float) -> None:
        band, line = self._line_of(entry)
        band.charge(line, amount)
        self._changed.add((band_index(entry.tier), line.name))

    def _line_of(self, entry: Open) -> tuple[Band, Line]:
        band = self.band(entry.tier)
        return band, band.line(entry.tenant_id)

    # Counters across a restart

    def adopt(self, counter: TenantCounter) -> None:
        """What a client heard of an earlier scheduler's counters; the largest wins."""
        band = self.band(counter.tier)
        if counter.tenant_id == NEWCOMER:
            band.adopt_floor(counter.service)
        else:
            band.adopt(counter.tenant_id, counter.service)
        self._changed.add((band_index(counter.tier), self.rules.line_of(counter.tenant_id)))

    def changed(self, model: str) -> list[TenantCounter]:
        """The counters that moved since the last call, and what newcomers of those bands begin with."""
        moved, self._changed = self._changed, set()
        return self._told(model, moved)

    def counters(self, model: str) -> list[TenantCounter]:
        """All of them."""
        return self._told(model, {(i, name) for i, band in enumerate(self.bands) for name in band.lines})

    def _told(self, model: str, lines: set[tuple[int, str]]) -> list[TenantCounter]:
        told = [
            TenantCounter(name, model, line.counter, BANDS[index])
            for index, name in sorted(lines)
            if name != NEWCOMER and (line := self.bands[index].lines.get(name)) is not None
        ]
        bands = sorted({index for index, _ in lines})
        return told + [TenantCounter(NEWCOMER, model, self.bands[i].floor, BANDS[i]) for i in bands]


def band_index(tier: str) -> int:
    """Which band a tier belongs to, 0 = first served; an unknown tier is standard."""
    return _INDEX.get(tier, _STANDARD)


def _reserved(entry: Open) -> int:
    """KV tokens that a placement plans with: its cached prefix is shared, its answer at least as long as estimated."""
    return entry.uncached + max(entry.output_tokens, entry.produced)


def heaviest(lines: Iterable[Line], count: int) -> list[Line]:
    """The `count` lines with most waiting, then most running."""
    return heapq.nlargest(count, lines, key=lambda line: (len(line), line.running, line.name))


_INDEX = {tier: index for index, tier in enumerate(BANDS)}
_STANDARD = _INDEX["standard"]
