"""One model's queue: three strict bands, each fair among tenants, with deadlines; and what tenants are charged.

A counter holds the estimated charge of a request from its placement on. Tokens beyond the estimate are added when
they are reported, and the exact figures replace the estimate at the end. A request that its replica failed is
refunded whole.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from scheduler.core.band import Band, HitTokens, Skips
from scheduler.core.flow import Flow, QueuedRequest, QueueOutcome, RequestKey
from scheduler.core.placement import ActivePlacement
from scheduler.core.rules import BANDS, NEW_TENANT, QueueRules, band_index
from scheduler.core.where import Place, where_of
from scheduler.messages import TenantCounter
from scheduler.wire import BoundTo, PlaceRequest, Released


@dataclass(frozen=True, slots=True)
class Backlog:
    """Work ahead of a request, in weighted tokens and in requests, including its own tenant's."""

    work: float
    requests: int


class FairQueue:
    """All queued requests of one model. Each gets exactly one outcome; the next is found without a scan."""

    def __init__(self, rules: QueueRules) -> None:
        self.rules = rules
        self.bands = tuple(Band(rules) for _ in BANDS)
        self.running = 0
        """Number of active placements."""
        self.bound = 0
        """Queued requests that may run in some places alone."""
        self.waiting_at: Counter[BoundTo] = Counter()
        """Queued requests that are bound to regions or classes of GPU, by what they name."""
        self._waiting: dict[RequestKey, QueuedRequest] = {}
        self._deadlines: list[tuple[float, int, RequestKey]] = []
        self._arrivals: tuple[list[tuple[float, int, RequestKey]], ...] = tuple([] for _ in BANDS)
        """By band, a heap of the arrivals of requests that are not late yet; may contain requests that have left."""
        self._changed: set[tuple[int, str]] = set()
        """Band index and flow name of every counter that changed since `take_changed`."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[QueuedRequest]:
        """Queued requests in order of insertion."""
        return iter(self._waiting.values())

    def __contains__(self, key: object) -> bool:
        return key in self._waiting

    @property
    def idle(self) -> bool:
        """Whether no request is queued or running."""
        return not self._waiting and not self.running

    @property
    def disposable(self) -> bool:
        """Whether the queue holds nothing worth keeping: no queued or running request, and no counter."""
        return not self._waiting and not any(band.flows or band.floor for band in self.bands)

    def band(self, tier: str) -> Band:
        """The band of a tier. An unknown tier is standard."""
        return self.bands[band_index(tier)]

    # Queueing

    def add(self, queued: QueuedRequest, now: float) -> None:
        """Queue a request at the position of its age. Raises ValueError when its key is queued already."""
        if queued.key in self._waiting:
            raise ValueError(f"request {queued.request.request_id} already waits")
        queued.work = self.rules.work(queued.request)
        self._waiting[queued.key] = queued
        self.bound += queued.request.bound
        self._count_places(queued.request, 1)
        self.band(queued.request.tier).add(queued, now)
        heapq.heappush(self._deadlines, (queued.deadline_at, queued.seq, queued.key))
        arrivals = self._arrivals[band_index(queued.request.tier)]
        heapq.heappush(arrivals, (queued.enqueued_at, queued.seq, queued.key))

    def remove(self, key: RequestKey, outcome: QueueOutcome) -> QueuedRequest | None:
        """Remove a request with its outcome; None when the key is not queued."""
        queued = self._waiting.pop(key, None)
        if queued is None:
            return None
        queued.outcome = outcome
        self.bound -= queued.request.bound
        self._count_places(queued.request, -1)
        band = self.band(queued.request.tier)
        band.remove(queued)
        band.refused += outcome in (QueueOutcome.DEADLINE, QueueOutcome.HOPELESS)
        if len(self._deadlines) > 64 and len(self._deadlines) > 2 * len(self._waiting):
            self._deadlines = [entry for entry in self._deadlines if entry[2] in self._waiting]
            heapq.heapify(self._deadlines)
        arrivals = self._arrivals[band_index(queued.request.tier)]
        if len(arrivals) > 64 and len(arrivals) > 2 * len(self._waiting):
            arrivals[:] = [entry for entry in arrivals if entry[2] in self._waiting]
            heapq.heapify(arrivals)
        return queued

    def _count_places(self, request: PlaceRequest, more: int) -> None:
        if request.regions or request.gpus:
            self.waiting_at[request.bound_to] += more
            if not self.waiting_at[request.bound_to]:
                del self.waiting_at[request.bound_to]

    def move(self, known: frozenset[Place]) -> list[QueuedRequest]:
        """Note the places that the model's replicas are in now; returns the requests that may run in none of them."""
        nowhere = []
        for queued in self._waiting.values() if self.bound else ():
            if queued.request.bound:
                where = where_of(queued.request, known)
                if where != queued.where:
                    self.band(queued.request.tier).flow(queued.request.tenant_id).move(queued, where)
                if where == frozenset():
                    nowhere.append(queued)
        return nowhere

    def remove_client(self, client: str) -> list[QueuedRequest]:
        """Remove all requests of a client whose connection is lost."""
        keys = [key for key in self._waiting if key[0] == client]
        removed = [self.remove(key, QueueOutcome.CLIENT_GONE) for key in keys]
        return [queued for queued in removed if queued is not None]

    def next_deadline(self) -> float | None:
        """The earliest deadline of all queued requests; None when none is queued."""
        while self._deadlines:
            deadline_at, seq, key = self._deadlines[0]
            queued = self._waiting.get(key)
            if queued is not None and queued.seq == seq:
                return deadline_at
            heapq.heappop(self._deadlines)
        return None

    def overdue(self, now: float) -> QueuedRequest | None:
        """The request whose deadline passed first, or None. It stays queued until it is removed."""
        deadline_at = self.next_deadline()
        if deadline_at is None or deadline_at > now:
            return None
        return self._waiting[self._deadlines[0][2]]

    # Order

    def pick(
        self,
        late_before: Sequence[float],
        kv_tokens: int,
        hits: HitTokens,
        skipped: Skips,
        strict: bool,
    ) -> QueuedRequest | None:
        """The next request of the highest band with queued requests; see `Band.pick`. `late_before` is by band."""
        for band, before in zip(self.bands, late_before, strict=True):
            queued = band.pick(before, kv_tokens, hits, skipped, strict)
            if queued is not None:
                return queued
            if strict and band.least() is not None:
                return None
        return None

    def record_pick(self, queued: QueuedRequest, late_before: Sequence[float]) -> None:
        """Remove a request that is placed. `late_before` is by band."""
        index = band_index(queued.request.tier)
        self.bands[index].record_pick(queued, late_before[index])
        self.remove(queued.key, QueueOutcome.PLACED)

    def backlog_before(self, tier: str, tenant_id: str, own: Backlog, sample: int) -> Backlog:
        """Work that is served before a request, when `own` of its tenant's work is ahead of it.

        Fluid fair sharing: until the tenant's counter has grown by its own work, other tenants are served up to that
        counter. Of more than `sample` tenants, an even sample is evaluated and scaled up.
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
        """Queued work of a tenant ahead of a request that arrives now: all of it, and the part that is not late yet."""
        flow = self.band(tier).flows.get(self.rules.flow_of(tenant_id))
        if flow is None or not flow.waiting:
            return Backlog(0.0, 0), Backlog(0.0, 0)
        timely = len(flow) - flow.late_count(late_before)
        return Backlog(flow.work, len(flow)), Backlog(flow.work * timely / len(flow), timely)

    def older_backlog(self, queued: QueuedRequest) -> Backlog:
        """Work of the same tenant that is older than a queued request."""
        flow = self.band(queued.request.tier).flow(queued.request.tenant_id)
        rank = flow.rank(queued)
        return Backlog(flow.work * rank / len(flow), rank)

    def newly_late(self, late_before: Sequence[float], limit: int) -> list[QueuedRequest]:
        """Requests that became late since the last call, oldest first in each band, at most `limit`; the next call
        continues. `late_before` is by band."""
        late: list[QueuedRequest] = []
        for arrivals, before in zip(self._arrivals, late_before, strict=True):
            while arrivals and arrivals[0][0] < before and len(late) < limit:
                _, seq, key = heapq.heappop(arrivals)
                queued = self._waiting.get(key)
                if queued is not None and queued.seq == seq:
                    late.append(queued)
        return late

    def others_waiting(self, tenant_id: str) -> bool:
        """Whether any other tenant waits for this model."""
        name = self.rules.flow_of(tenant_id)
        return any(len(band.order) > (name in band.flows and bool(band.flows[name])) for band in self.bands)

    def over_share(self, tier: str, tenant_id: str) -> bool:
        """Whether a tenant runs more than an even share of what its band runs; tenants that only wait have a share
        too."""
        band = self.band(tier)
        mine = band.flows.get(self.rules.flow_of(tenant_id))
        return mine is not None and mine.running * band.active_flows > band.running

    def waiting_count(self, tier: str, tenant_id: str) -> int:
        """Number of queued requests of one tenant in one band."""
        flow = self.band(tier).flows.get(self.rules.flow_of(tenant_id))
        return len(flow) if flow is not None else 0

    # Charges

    def on_open(self, entry: ActivePlacement, *, counted: bool = False, retried: bool = False) -> float:
        """Charge the estimate of a placement that starts; returns the tenant's counter.

        With `counted`, an earlier scheduler has charged it already; with `retried`, the input was charged with an
        attempt that failed. The amount in `entry.charged` is not charged again.
        """
        band, flow = self._flow_of(entry)
        if retried and not entry.charged:
            entry.charged = self.rules.charge(entry.uncached, 0, entry.weight)
        already, entry.charged = entry.charged, self._estimate(entry)
        entry.reserved = _reserved(entry)
        if not counted:
            self._charge(entry, entry.charged - already)
        band.on_open(flow, entry.reserved)
        self.running += 1
        return flow.counter

    def on_progress(self, entry: ActivePlacement) -> None:
        """Charge output tokens beyond the estimate and reserve KV cache for them."""
        if entry.produced > entry.output_tokens:
            band, flow = self._flow_of(entry)
            band.on_growth(flow, _reserved(entry) - entry.reserved)
            entry.reserved = _reserved(entry)
        self._recharge(entry, self._estimate(entry))

    def on_close(self, entry: ActivePlacement, released: Released | None) -> None:
        """Replace the estimate by the actual usage. Without `released` (the client is lost) the reported progress
        counts."""
        self._recharge(entry, self._actual(entry, released))
        band, flow = self._flow_of(entry)
        band.on_close(flow, entry.reserved)
        self.running -= 1

    def _estimate(self, entry: ActivePlacement) -> float:
        return self.rules.charge(entry.uncached, max(entry.output_tokens, entry.produced), entry.weight)

    def _actual(self, entry: ActivePlacement, released: Released | None) -> float:
        """The charge of an ended placement: its input in any case once it was dispatched, since the engine may have
        worked on it when the client left; no output of a failed replica."""
        uncached, output = entry.uncached, entry.produced
        if released is None:
            return self.rules.charge(uncached, output, entry.weight)
        if not released.dispatched:
            return 0.0
        if released.input_tokens > 0:
            uncached = max(0, released.input_tokens - max(0, released.cached_input_tokens))
        if released.output_tokens > 0:
            output = released.output_tokens  # what was produced may have been predicted
        return self.rules.charge(uncached, 0 if released.failed else output, entry.weight)

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
        """Restore a counter of an earlier scheduler, as a client reported it. The largest value wins."""
        band = self.band(counter.tier)
        if counter.tenant_id == NEW_TENANT:
            band.restore_floor(counter.service)
        else:
            band.restore(counter.tenant_id, counter.service)
        self._changed.add((band_index(counter.tier), self.rules.flow_of(counter.tenant_id)))

    def take_changed(self, model: str) -> list[TenantCounter]:
        """The counters that changed since the last call, and the floor of each band concerned."""
        moved, self._changed = self._changed, set()
        return self._messages(model, moved)

    def counters(self, model: str) -> list[TenantCounter]:
        """All counters, and the floor of each band."""
        return self._messages(model, {(i, name) for i, band in enumerate(self.bands) for name in band.flows})

    def _messages(self, model: str, flows: set[tuple[int, str]]) -> list[TenantCounter]:
        counters_of_flows = [
            TenantCounter(name, model, flow.counter, BANDS[index])
            for index, name in sorted(flows)
            if name != NEW_TENANT and (flow := self.bands[index].flows.get(name)) is not None
        ]
        bands = sorted({index for index, _ in flows})
        return counters_of_flows + [
            TenantCounter(NEW_TENANT, model, self.bands[i].floor, BANDS[i]) for i in bands
        ]


def _reserved(entry: ActivePlacement) -> int:
    """Tokens of KV cache that a placement reserves: its uncached prompt and its answer, at least as long as
    estimated."""
    return entry.uncached + max(entry.output_tokens, entry.produced)


def largest_flows(flows: Iterable[Flow], count: int) -> list[Flow]:
    """The `count` flows with most queued requests, then most running ones."""
    return heapq.nlargest(count, flows, key=lambda flow: (len(flow), flow.running, flow.name))
