"""One model's queue: three strict bands, fair inside each, with deadlines; and what every tenant is charged.

A counter holds the estimate of a request from the moment it is placed; the estimate grows with the tokens that come
beyond it and is replaced by the exact figures at the end. What failed because of the replica is refunded whole.
"""

import heapq
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from scheduler.core.band import Band, HitTokens
from scheduler.core.flow import Flow, QueuedRequest, QueueOutcome, RequestKey
from scheduler.core.placement import ActivePlacement
from scheduler.core.rules import BANDS, NEW_TENANT, QueueRules
from scheduler.messages import TenantCounter
from scheduler.wire import Released


@dataclass(frozen=True, slots=True)
class Backlog:
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
        self._waiting: dict[RequestKey, QueuedRequest] = {}
        self._deadlines: list[tuple[float, int, RequestKey]] = []
        self._arrivals: list[tuple[float, int, RequestKey]] = []
        """Arrivals of those that are not late yet, and of some that have left."""
        self._changed: set[tuple[int, str]] = set()
        """Bands and lines whose counters have moved since they were last told."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[QueuedRequest]:
        """In order of coming, for tests and rare walks."""
        return iter(self._waiting.values())

    def __contains__(self, key: object) -> bool:
        return key in self._waiting

    @property
    def idle(self) -> bool:
        """Whether nobody waits or runs."""
        return not self._waiting and not self.running

    @property
    def disposable(self) -> bool:
        """Whether nothing of it is worth keeping: nobody waits, runs, or has been served."""
        return not self._waiting and not any(band.flows or band.floor for band in self.bands)

    def band(self, tier: str) -> Band:
        """The band of a tier; an unknown tier is standard."""
        return self.bands[band_index(tier)]

    # Standing in line

    def add(self, queued: QueuedRequest) -> None:
        """Queue a ticket at the place of its age. Raises ValueError when its key already waits."""
        if queued.key in self._waiting:
            raise ValueError(f"request {queued.request.request_id} already waits")
        queued.work = self.rules.work(queued.request)
        self._waiting[queued.key] = queued
        self.band(queued.request.tier).add(queued)
        heapq.heappush(self._deadlines, (queued.deadline_at, queued.seq, queued.key))
        heapq.heappush(self._arrivals, (queued.enqueued_at, queued.seq, queued.key))

    def remove(self, key: RequestKey, outcome: QueueOutcome) -> QueuedRequest | None:
        """Take a ticket out with its outcome; None when it does not wait (any more)."""
        queued = self._waiting.pop(key, None)
        if queued is None:
            return None
        queued.outcome = outcome
        self.band(queued.request.tier).remove(queued)
        if len(self._deadlines) > 64 and len(self._deadlines) > 2 * len(self._waiting):
            self._deadlines = [entry for entry in self._deadlines if entry[2] in self._waiting]
            heapq.heapify(self._deadlines)
        if len(self._arrivals) > 64 and len(self._arrivals) > 2 * len(self._waiting):
            self._arrivals = [entry for entry in self._arrivals if entry[2] in self._waiting]
            heapq.heapify(self._arrivals)
        return queued

    def remove_client(self, client: str) -> list[QueuedRequest]:
        """Take out everything of a client whose connection is gone."""
        keys = [key for key in self._waiting if key[0] == client]
        removed = [self.remove(key, QueueOutcome.CLIENT_GONE) for key in keys]
        return [queued for queued in removed if queued is not None]

    def next_deadline(self) -> float | None:
        """The earliest deadline of those that wait."""
        while self._deadlines:
            deadline_at, seq, key = self._deadlines[0]
            queued = self._waiting.get(key)
            if queued is not None and queued.seq == seq:
                return deadline_at
            heapq.heappop(self._deadlines)
        return None

    def overdue(self, now: float) -> QueuedRequest | None:
        """One whose deadline has passed, the most overdue first; it still waits until it is removed."""
        deadline_at = self.next_deadline()
        if deadline_at is None or deadline_at > now:
            return None
        return self._waiting[self._deadlines[0][2]]

    # Who goes next

    def pick(
        self,
        late_before: float,
        kv_tokens: int,
        hits: HitTokens,
        skipped: Container[QueuedRequest],
        strict: bool,
    ) -> QueuedRequest | None:
        """The next of the highest band in which somebody waits; see Band.pick."""
        for band in self.bands:
            queued = band.pick(late_before, kv_tokens, hits, skipped, strict)
            if queued is not None:
                return queued
            if strict and band.order:
                return None
        return None

    def record_pick(self, queued: QueuedRequest, late_before: float) -> None:
        """The pick was placed."""
        self.band(queued.request.tier).record_pick(queued, late_before)
        self.remove(queued.key, QueueOutcome.PLACED)

    def backlog_before(self, tier: str, tenant_id: str, own: Backlog, sample: int) -> Backlog:
        """What is served before a request if the counters decide, once `own` of its tenant stands before it.

        Fluid fair sharing: until the tenant's counter has grown by its own work, others are served up to that counter.
        Of more than `sample` tenants an even sample is looked at and scaled up.
        """
        index = band_index(tier)
        band = self.bands[index]
        flow = band.flows.get(self.rules.flow_of(tenant_id))
        begin = max(flow.counter, band.floor) if flow is not None else band.floor
        until = begin + own.work / (flow.weight if flow is not None else 1.0)
        step = max(1, len(band.order) // sample)
        work, requests = 0.0, 0.0
        for counter, name in band.order[::step]:
            if counter > until:
                break
            other = band.flows[name]
            if other is not flow:
                theirs, waiting = other.work, len(other.waiting)
                share = min(theirs, (until - counter) * other.weight + theirs / waiting)
                work += share
                requests += waiting * share / theirs if theirs else waiting
        higher = self.bands[:index]
        return Backlog(
            own.work + work * step + sum(each.work for each in higher),
            own.requests + round(requests * step) + sum(each.waiting for each in higher),
        )

    def tenant_backlog(self, tier: str, tenant_id: str, late_before: float) -> tuple[Backlog, Backlog]:
        """What of its own tenant stands before a request that comes now: all, and only those not late yet."""
        flow = self.band(tier).flows.get(self.rules.flow_of(tenant_id))
        if flow is None or not flow.waiting:
            return Backlog(0.0, 0), Backlog(0.0, 0)
        timely = len(flow) - flow.late_count(late_before)
        return Backlog(flow.work, len(flow)), Backlog(flow.work * timely / len(flow), timely)

    def older_backlog(self, queued: QueuedRequest) -> Backlog:
        """What of its own tenant is older than a waiting ticket."""
        flow = self.band(queued.request.tier).flow(queued.request.tenant_id)
        rank = flow.rank(queued)
        return Backlog(flow.work * rank / len(flow), rank)

    def newly_late(self, late_before: float, most: int) -> list[QueuedRequest]:
        """Those that have become late since the last call, oldest first; at most so many, the next call goes on."""
        late: list[QueuedRequest] = []
        while self._arrivals and self._arrivals[0][0] < late_before and len(late) < most:
            _, seq, key = heapq.heappop(self._arrivals)
            queued = self._waiting.get(key)
            if queued is not None and queued.seq == seq:
                late.append(queued)
        return late

    def others_waiting(self, tenant_id: str) -> bool:
        """Whether any other tenant waits for this model."""
        name = self.rules.flow_of(tenant_id)
        return any(len(band.order) > (name in band.flows and bool(band.flows[name])) for band in self.bands)

    def over_share(self, tier: str, tenant_id: str) -> bool:
        """Whether a tenant runs more than an even share of what its band runs, counting those that only wait."""
        band = self.band(tier)
        mine = band.flows.get(self.rules.flow_of(tenant_id))
        return mine is not None and mine.running * band.active_flows > band.running

    def waiting_count(self, tier: str, tenant_id: str) -> int:
        """Requests of one tenant that wait in one band."""
        flow = self.band(tier).flows.get(self.rules.flow_of(tenant_id))
        return len(flow) if flow is not None else 0

    # What tenants are charged

    def on_open(self, entry: ActivePlacement, *, counted: bool = False) -> float:
        """A placement begins; its tenant's counter afterwards. `counted`: an earlier scheduler has charged it.

        What `entry.charged` says is in the counter already, of a placement that goes on, is not charged again.
        """
        band, flow = self._flow_of(entry)
        already, entry.charged = entry.charged, self._estimate(entry)
        entry.reserved = _reserved(entry)
        if not counted:
            self._charge(entry, entry.charged - already)
        band.on_open(flow, entry.reserved)
        self.running += 1
        return flow.counter

    def on_progress(self, entry: ActivePlacement) -> None:
        """More tokens came: what goes beyond the estimate is charged now, and counts against the tenant's cap."""
        if entry.produced > entry.output_tokens:
            band, flow = self._flow_of(entry)
            band.on_growth(flow, _reserved(entry) - entry.reserved)
            entry.reserved = _reserved(entry)
        self._recharge(entry, self._estimate(entry))

    def on_close(self, entry: ActivePlacement, released: Released | None) -> None:
        """A placement is over: charge what it really took. None: its client died, what was seen of it counts."""
        self._recharge(entry, self._actual(entry, released))
        band, flow = self._flow_of(entry)
        band.on_close(flow, entry.reserved)
        self.running -= 1

    def _estimate(self, entry: ActivePlacement) -> float:
        return self.rules.charge(entry.uncached, max(entry.output_tokens, entry.produced), entry.weight)

    def _actual(self, entry: ActivePlacement, released: Released | None) -> float:
        if released is not None and released.failed:
            return 0.0
        began = entry.prefilled or entry.produced > 0
        uncached, output = entry.uncached if began else 0, entry.produced
        if released is not None and released.input_tokens > 0:
            uncached = max(0, released.input_tokens - max(0, released.cached_input_tokens))
        if released is not None:
            output = max(output, released.output_tokens)
        return self.rules.charge(uncached, output, entry.weight)

    def _recharge(self, entry: ActivePlacement, charge: float) -> None:
        if charge != entry.charged:
            self._charge(entry, charge - entry.charged)
            entry.charged = charge

    def _charge(self, entry: ActivePlacement, amount: float) -> None:
        band, flow = self._flow_of(entry)
        band.charge(flow, amount)
        self._changed.add((band_index(entry.tier), flow.name))

    def _flow_of(self, entry: ActivePlacement) -> tuple[Band, Flow]:
        band = self.band(entry.tier)
        return band, band.flow(entry.tenant_id)

    # Counters across a restart

    def restore(self, counter: TenantCounter) -> None:
        """What a client heard of an earlier scheduler's counters; the largest wins."""
        band = self.band(counter.tier)
        if counter.tenant_id == NEW_TENANT:
            band.restore_floor(counter.service)
        else:
            band.restore(counter.tenant_id, counter.service)
        self._changed.add((band_index(counter.tier), self.rules.flow_of(counter.tenant_id)))

    def take_changed(self, model: str) -> list[TenantCounter]:
        """The counters that moved since the last call, and what newcomers of those bands begin with."""
        moved, self._changed = self._changed, set()
        return self._messages(model, moved)

    def counters(self, model: str) -> list[TenantCounter]:
        """All of them."""
        return self._messages(model, {(i, name) for i, band in enumerate(self.bands) for name in band.flows})

    def _messages(self, model: str, flows: set[tuple[int, str]]) -> list[TenantCounter]:
        told = [
            TenantCounter(name, model, flow.counter, BANDS[index])
            for index, name in sorted(flows)
            if name != NEW_TENANT and (flow := self.bands[index].flows.get(name)) is not None
        ]
        bands = sorted({index for index, _ in flows})
        return told + [TenantCounter(NEW_TENANT, model, self.bands[i].floor, BANDS[i]) for i in bands]


def band_index(tier: str) -> int:
    """Which band a tier belongs to, 0 = first served; an unknown tier is standard."""
    return _INDEX.get(tier, _STANDARD)


def _reserved(entry: ActivePlacement) -> int:
    """KV tokens that a placement plans with: its cached prefix is shared, its answer at least as long as estimated."""
    return entry.uncached + max(entry.output_tokens, entry.produced)


def largest_flows(flows: Iterable[Flow], count: int) -> list[Flow]:
    """The `count` lines with most waiting, then most running."""
    return heapq.nlargest(count, flows, key=lambda flow: (len(flow), flow.running, flow.name))


_INDEX = {tier: index for index, tier in enumerate(BANDS)}
_STANDARD = _INDEX["standard"]
