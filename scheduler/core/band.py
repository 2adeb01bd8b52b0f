"""One band of one model's queue: tenants in the order of their counters (Virtual Token Counter).

Sheng et al., Fairness in Serving Large Language Models, OSDI'24: the tenant with the smallest counter of weighted
tokens is served next. A tenant that begins to wait is lifted to the smallest counter of the waiting tenants, or, when
none waits, to the counter of the tenant that left last, so that idle time earns no credit. Among the requests of the
tenant whose turn it is the longest cached prefix goes first, at no cost to other tenants. Apart from that a tenant's
requests leave in order of arrival, unless the band's queue keeps growing (`Flow.next_request`).
"""

import bisect
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

from scheduler.core.flow import Flow, QueuedRequest, SortKey
from scheduler.core.growth import Growth
from scheduler.core.rules import QueueRules
from scheduler.core.where import Place

HitTokens = Callable[[QueuedRequest], int]

"""Returns how many prompt tokens of a queued request are cached on some replica."""
MAX_SKIPPED_PER_FLOW = 16
"""When this many requests at the head of a flow are skipped, the pass goes on with the next flow."""
MAX_SKIPPED_PER_PLACE = 4
"""The same of those of its requests that may run in the same places alone; more than one pass tries."""
MAX_CLOSED = 64
"""Tenants that wait for full places alone and are passed over to find the smallest counter of the others."""


class Skips(Protocol):
    """Requests that a pass leaves out: those that it has skipped, and of the ones that are bound to places some others.

    Empty, it holds no request that may go anywhere.
    """

    def __contains__(self, queued: object, /) -> bool:
        """Whether the pass leaves a request out."""

    def __len__(self) -> int:
        """How many were skipped."""


class Band:
    """The flows of one band. Every method takes at most a few microseconds, whatever the number of tenants."""

    def __init__(self, rules: QueueRules) -> None:
        self.rules = rules
        self.flows: dict[str, Flow] = {}
        self.order: list[tuple[float, str]] = []
        """Counter and name of every flow with queued requests, smallest first."""
        self.open_places: frozenset[Place] | None = None
        """Places with room, where some have none and requests for them wait, as of the last pass; None = all have."""
        self.waiting = 0
        self.refused = 0
        """Requests that ended without a placement because they would have waited, or had waited, too long."""
        self.growth = Growth()
        """Of the requests that were not served: those that wait and those that were refused. Refusals keep a queue
        short, but it would have grown."""
        self.work = 0.0
        self.weight = 0.0
        """Sum of the weights of the flows in `order`."""
        self.running = 0
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._last_active: Flow | None = None
        self._restored_floor = 0.0
        """The counter of new tenants until a request has waited here, as restored from an earlier scheduler."""

    def __iter__(self) -> Iterator[Flow]:
        """The flows with queued requests, smallest counter first."""
        return (self.flows[name] for _, name in self.order)

    def least(self) -> float | None:
        """The smallest counter of the tenants that wait, but not for full places alone: those get nothing meanwhile,
        and others must not be measured by them. None when none waits."""
        open_places = self.open_places
        if open_places is None:
            return self.order[0][0] if self.order else None
        for counter, name in self.order[:MAX_CLOSED]:
            if any(where is None or not where.isdisjoint(open_places) for where in self.flows[name].parts):
                return counter
        return None

    @property
    def floor(self) -> float:
        """The counter that a new tenant is lifted to."""
        if (least := self.least()) is not None:
            return least
        return (
            max(self._restored_floor, self._last_active.counter)
            if self._last_active is not None
            else self._restored_floor
        )

    @property
    def active_flows(self) -> int:
        """Number of tenants with queued or running requests."""
        last = self._last_active
        resting = last is not None and not last.waiting and not last.running
        return len(self.flows) - len(self._idle) - resting

    # Queueing

    def add(self, queued: QueuedRequest, now: float) -> None:
        """Add a request to its tenant's flow.

        It counts as an arrival at `now`, however long it has waited before: requests that are announced after a
        restart come at once, and do not make the queue grow for as long as they have waited.
        """
        self.growth.observe(now, self.waiting + self.refused)
        flow = self.flow(queued.request.tenant_id)
        if flow.waiting:
            flow.add(queued)
        else:
            flow.counter = max(flow.counter, self.floor)
            flow.add(queued)
            flow.weight = queued.request.weight
            self.weight += flow.weight
            self._idle.pop(flow.name, None)
            bisect.insort(self.order, (flow.counter, flow.name))
        self.waiting += 1
        self.work += queued.work

    def remove(self, queued: QueuedRequest) -> None:
        """Remove a queued request."""
        flow = self.flows[self.rules.flow_of(queued.request.tenant_id)]
        flow.remove(queued)
        self.waiting -= 1
        self.work = self.work - queued.work if self.waiting else 0.0
        if not flow.waiting:
            del self.order[bisect.bisect_left(self.order, (flow.counter, flow.name))]
            self.weight = self.weight - flow.weight if self.order else 0.0
            previous, self._last_active = self._last_active, flow
            self._evict(flow)
            if previous is not None:
                self._evict(previous)

    def on_refused_arrival(self, at: float) -> None:
        """Count a request that arrived at monotonic time `at` and was refused at once."""
        self.refused += 1
        self.growth.observe(at, self.waiting + self.refused)

    def oldest_at(self) -> float | None:
        """Arrival of the oldest queued request; None when none is queued. Looks at every flow once."""
        return min((flow.waiting[0][0] for flow in self), default=None)

    # Order

    def pick(
        self,
        late_before: float,
        kv_tokens: int,
        hits: HitTokens,
        skipped: Skips,
        strict: bool,
    ) -> QueuedRequest | None:
        """The next request in fair order that is not in `skipped`; None when there is none.

        `kv_tokens` is the KV cache of the pool in tokens, for the cap on one tenant's share while others wait; 0 = no
        cap. With `strict`, only tenants within Q of the smallest counter are considered.
        """
        least = self.least() if strict else None
        limit = None if least is None else least + self.rules.slack
        capped: tuple[Flow, QueuedRequest] | None = None
        for counter, name in self.order:
            if limit is not None and counter > limit:
                break
            flow = self.flows[name]
            queued = _next(flow, late_before, self.rules.oldest_every, self.growth.sustained, skipped)
            if queued is None:
                continue
            if not self._over_cap(flow, kv_tokens):
                return self._by_prefix(flow, queued, hits, skipped)
            capped = capped or (flow, queued)
        return self._by_prefix(*capped, hits, skipped) if capped is not None else None

    def _by_prefix(self, flow: Flow, first: QueuedRequest, hits: HitTokens, skipped: Skips) -> QueuedRequest:
        """The request with the longest cached prefix among `first`, if that is mostly uncached, and those that may
        overtake it. None overtakes in the turn of the oldest request of a growing queue."""
        rules = self.rules
        if rules.reorder_window <= 1 or 2 * hits(first) >= first.request.prompt_tokens:
            return first
        if self.growth.sustained and flow.is_turn_of_oldest(rules.oldest_every):
            return first
        best, most, skips = (
            first,
            hits(first),
            len(skipped) > 0,
        )  # without any, none that may go anywhere is in them
        for other in flow.reorder_candidates(first, rules.reorder_window, rules.max_overtaken):
            if (skips or other.where is not None) and other in skipped:
                continue
            if (tokens := hits(other)) > most:
                best, most = other, tokens
        return best

    def record_pick(self, queued: QueuedRequest, late_before: float) -> None:
        """Count the turn of a request that is placed. Call it before `remove`."""
        flow = self.flows[self.rules.flow_of(queued.request.tenant_id)]
        flow.record_turn(queued, late_before, self.rules.reorder_window)

    def _over_cap(self, flow: Flow, kv_tokens: int) -> bool:
        """Whether a tenant holds so much KV cache that others are served first; never while it is the only one that
        waits."""
        if len(self.order) == 1 or kv_tokens <= 0:
            return False
        share = max(self.rules.kv_share, flow.weight / self.weight)
        return flow.kv_tokens > share * kv_tokens

    # Counters

    def flow(self, tenant_id: str) -> Flow:
        """A tenant's flow; the flow of a new tenant starts at the floor."""
        name = self.rules.flow_of(tenant_id)
        flow = self.flows.get(name)
        if flow is None:
            flow = self.flows[name] = Flow(name, self.floor)
        return flow

    def charge(self, flow: Flow, amount: float) -> None:
        """Add weighted tokens to a tenant's counter. A negative `amount` is a refund."""
        flow.charged_here += amount
        self._set_counter(flow, flow.counter + amount)

    def on_open(self, flow: Flow, kv_tokens: int) -> None:
        """Count a running request, with `kv_tokens` of KV cache reserved for it."""
        self.running += 1
        flow.running += 1
        flow.kv_tokens += kv_tokens
        self._idle.pop(flow.name, None)

    def on_growth(self, flow: Flow, kv_tokens: int) -> None:
        """Reserve `kv_tokens` more for a running request."""
        flow.kv_tokens += kv_tokens

    def on_close(self, flow: Flow, kv_tokens: int) -> None:
        """End a running request that had `kv_tokens` reserved. The flow is removed when nothing depends on it."""
        self.running -= 1
        flow.running -= 1
        flow.kv_tokens -= kv_tokens
        self._evict(flow)

    def restore(self, tenant_id: str, service: float) -> None:
        """Restore the counter that an earlier scheduler reported; charges made here since are added. The largest
        value wins."""
        flow = self.flow(tenant_id)
        if service > flow.counter - flow.charged_here:
            self._set_counter(flow, service + flow.charged_here)
        self._evict(flow)

    def restore_floor(self, service: float) -> None:
        """Restore the counter of new tenants that an earlier scheduler reported, and lift all flows to it."""
        if service > self._restored_floor:
            self._restored_floor = service
            for name in list(self.flows):
                flow = self.flows[name]
                if service > flow.counter - flow.charged_here:
                    self._set_counter(flow, service + flow.charged_here)

    def _set_counter(self, flow: Flow, counter: float) -> None:
        if flow.waiting and counter != flow.counter:
            del self.order[bisect.bisect_left(self.order, (flow.counter, flow.name))]
            bisect.insort(self.order, (counter, flow.name))
        flow.counter = counter

    def _evict(self, flow: Flow) -> None:
        """Remove an idle tenant once a new tenant would start at its counter. The number of idle tenants is bounded
        too."""
        if flow.waiting or flow.running or flow is self._last_active:
            return
        if flow.counter <= self.floor:
            self.flows.pop(flow.name, None)
            self._idle.pop(flow.name, None)
            return
        self._idle[flow.name] = None
        self._idle.move_to_end(flow.name)
        if len(self._idle) > self.rules.max_idle_flows:
            self.flows.pop(self._idle.popitem(last=False)[0], None)


def _next(
    flow: Flow, late_before: float, oldest_every: int, growing: bool, skipped: Skips
) -> QueuedRequest | None:
    """The next request of a flow that is not in `skipped`; None when all that are looked at are.

    When the first is skipped, the oldest goes of those that may run elsewhere. Of each set of places a few are looked
    at: after as many tries the others are skipped, too.
    """
    queued = flow.next_request(late_before, oldest_every, growing)
    if queued not in skipped:
        return queued
    found: SortKey | None = None
    for where, part in flow.parts.items():
        limit = MAX_SKIPPED_PER_FLOW if where is None else MAX_SKIPPED_PER_PLACE
        place = next((each for each in part[:limit] if each[2] not in skipped), None)
        if place is not None and (found is None or place < found):
            found = place
    return None if found is None else found[2]
