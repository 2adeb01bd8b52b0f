"""The common base of the published policies: they dispatch at once, and count what they have routed themselves.

A policy implements `choose`, which selects a replica, and `holds` where it has a queue of its own. The base class
handles the rest: metrics that arrive late, requests that arrive while no replica is ready, and counters that change in
the same step as the decision.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.core.rules import band_index
from sim.pool.contract import Decision, Dispatch, Refuse, ReplicaView, SimRequest
from workers.wire import KvDelta, ReplicaState


@dataclass(slots=True, eq=False)
class Endpoint:
    """One replica as one router instance knows it: the last scrape, and what this instance has routed there."""

    view: ReplicaView
    requests: int = 0
    """Number of unfinished requests that this router dispatched."""
    prefill_tokens: int = 0
    """Number of prompt tokens believed uncached, of requests that have not received their first token."""

    @property
    def replica_id(self) -> str:
        """Id of the replica."""
        return self.view.replica_id


@dataclass(slots=True, eq=False)
class RoutedRequest:
    """A request that a router has dispatched and that has not ended."""

    request: SimRequest
    source: int
    """Number of the API process that received the request."""
    replica_id: str
    uncached_tokens: int
    """Number of prompt tokens believed uncached on the replica at dispatch."""
    prefilled: bool = False


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that waits in a router."""

    request: SimRequest
    source: int
    """Number of the API process that received the request."""
    at: float
    """Time at which the router received it, in seconds."""


@dataclass(slots=True, eq=False)
class Router:
    """The state of one router instance."""

    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    in_flight: dict[int, RoutedRequest] = field(default_factory=dict)
    waiting: dict[tuple[str, int], deque[Arrival]] = field(default_factory=dict)
    """By model and band, in order of arrival: requests that the policy holds, that have no ready replica, or that
    arrived since the last decision.
    """
    failed_on: dict[int, set[str]] = field(default_factory=dict)
    """Replicas on which each request has failed; retries avoid them."""

    def candidates(self, request: SimRequest) -> list[Endpoint]:
        """Return the replicas of the request's model that were ready at the last scrape, sorted by name."""
        avoid = self.failed_on.get(request.key, ())
        ready = [
            endpoint
            for endpoint in self.endpoints.values()
            if endpoint.view.model == request.model and endpoint.view.state is ReplicaState.READY
        ]
        return [endpoint for endpoint in ready if endpoint.replica_id not in avoid] or ready


class Baseline:
    """A published policy; subclasses implement `choose`.

    `central` policies run as one process that serves all API processes. Of the others, every API process has
    its own instance, which learns of the others' traffic only through scraped metrics.
    """

    name = "baseline"
    central = False
    wants_kv_events = False

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.routers: dict[int, Router] = {}
        self._views: dict[str, ReplicaView] = {}

    # Overridden by policies

    def choose(
        self, request: SimRequest, candidates: Sequence[Endpoint], router: Router, now: float
    ) -> Endpoint:
        """Choose one of the replicas, of which there is at least one, without changing any counter."""
        raise NotImplementedError

    def holds(self, request: SimRequest, candidates: Sequence[Endpoint], now: float) -> bool:
        """Return whether the request, the first of its model and band, stays in the router's queue; those behind it and
        in lower bands then wait, too. Policies without a queue hold none.
        """
        del request, candidates, now
        return False

    def expired(self, arrival: Arrival, now: float) -> bool:
        """Return whether a request has waited too long in the router's queue and is refused."""
        del arrival, now
        return False

    def cached_tokens(self, request: SimRequest, endpoint: Endpoint, now: float) -> int:
        """Return the prompt tokens that the policy believes to be cached on the replica; 0 without such knowledge."""
        del request, endpoint, now
        return 0

    def load(self, request: SimRequest, router: int) -> float:
        """Return the policy's measure of load: outstanding requests of the replica that has the fewest."""
        candidates = self.router(router).candidates(request)
        return min((endpoint.requests for endpoint in candidates), default=0)

    def routed(self, entry: RoutedRequest, router: Router, now: float) -> None:
        """Update the policy's own state after a dispatch."""

    def ended(self, entry: RoutedRequest, router: Router) -> None:
        """Update the policy's own state after the end of a request."""

    def lost(self, replica_id: str) -> None:
        """Update the policy's own state after a replica left or restarted with an empty cache."""

    # The contract of routing systems

    def arrive(self, request: SimRequest, router: int, now: float) -> None:
        """Queue the request until `decide`, which the cluster calls next."""
        place = request.model, band_index(request.tier)
        self.router(router).waiting.setdefault(place, deque()).append(Arrival(request, router, now))

    def decide(self, now: float) -> list[Decision]:
        """Dispatch every request that has a ready replica and is not held: higher bands first, each in order of
        arrival.
        """
        decisions: list[Decision] = []
        for router in self.routers.values():
            held: set[str] = set()
            for place in sorted(router.waiting):
                queue = router.waiting[place]
                while queue:
                    arrival = queue[0]
                    candidates = router.candidates(arrival.request)
                    if self.expired(arrival, now):
                        decisions.append(Refuse(arrival.request.key, "queue_ttl"))
                    elif place[0] in held or not candidates or self.holds(arrival.request, candidates, now):
                        held.add(place[0])
                        break
                    else:
                        decisions.append(self._dispatch(arrival, candidates, router, now))
                    queue.popleft()
        return decisions

    def first_token(self, key: int, replica_id: str, now: float) -> None:
        """Stop counting the request's prompt as waiting for prefill."""
        del now
        for router in self.routers.values():
            entry = router.in_flight.get(key)
            if entry is not None and entry.replica_id == replica_id:
                _prefilled(entry, router)

    def progress(self, key: int, replica_id: str, produced: int, now: float) -> None:
        """Ignore the progress, which no published policy here uses."""

    def finished(
        self,
        key: int,
        replica_id: str,
        *,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: int,
        failed: bool,
        now: float,
    ) -> None:
        """Release the request's counters; after a failure, later attempts avoid the replica."""
        del prompt_tokens, cached_tokens, output_tokens, now
        for router in self.routers.values():
            entry = router.in_flight.get(key)
            if entry is None or entry.replica_id != replica_id:
                continue
            self._end(entry, router)
            if failed:
                router.failed_on.setdefault(key, set()).add(replica_id)
            else:
                router.failed_on.pop(key, None)

    def router_lost(self, router: int, now: float) -> None:
        """Remove a dead API process's requests, queued and running, and its router instance."""
        del now
        for each in self.routers.values():
            for place, queue in each.waiting.items():
                each.waiting[place] = deque(arrival for arrival in queue if arrival.source != router)
            for entry in [entry for entry in each.in_flight.values() if entry.source == router]:
                self._end(entry, each)
        if not self.central:
            self.routers.pop(router, None)

    def metrics(self, views: Sequence[ReplicaView], now: float) -> None:
        """Store a scrape of the whole pool for all instances."""
        del now
        latest = {view.replica_id: view for view in views}
        for replica_id, old in self._views.items():
            new = latest.get(replica_id)
            if new is None or new.boot_id != old.boot_id:
                self.lost(replica_id)
        self._views = latest
        for router in self.routers.values():
            self._scraped(router)

    def kv_events(self, delta: KvDelta, now: float) -> None:
        """Ignore the KV events; overridden by policies that use them."""

    def next_wake(self, now: float) -> float | None:
        """Return None: no published policy here decides by time."""
        del now
        return None

    def _scraped(self, router: Router) -> None:
        """Apply the latest views; a replica that left is removed with its counters and its requests."""
        for replica_id in [name for name in router.endpoints if name not in self._views]:
            for entry in [each for each in router.in_flight.values() if each.replica_id == replica_id]:
                del router.in_flight[entry.request.key]
                self.ended(entry, router)
            del router.endpoints[replica_id]
        for replica_id, view in sorted(self._views.items()):
            if endpoint := router.endpoints.get(replica_id):
                endpoint.view = view
            else:
                router.endpoints[replica_id] = Endpoint(view)

    def book(self, request: SimRequest, source: int, endpoint: Endpoint, router: Router, now: float) -> int:
        """Count a dispatch to the endpoint, and return the prompt tokens believed cached there. An earlier dispatch of
        the same request, which was not carried out, is no longer counted.
        """
        if earlier := router.in_flight.get(request.key):
            self._end(earlier, router)
        cached = min(request.prompt_tokens, self.cached_tokens(request, endpoint, now))
        entry = RoutedRequest(request, source, endpoint.replica_id, request.prompt_tokens - cached)
        router.in_flight[request.key] = entry
        endpoint.requests += 1
        endpoint.prefill_tokens += entry.uncached_tokens
        self.routed(entry, router, now)
        return cached

    def router(self, number: int) -> Router:
        """Return the instance of an API process, or the only one of a central policy."""
        number = 0 if self.central else number
        if number not in self.routers:
            self.routers[number] = Router()
            self._scraped(self.routers[number])
        return self.routers[number]

    def _dispatch(
        self, arrival: Arrival, candidates: Sequence[Endpoint], router: Router, now: float
    ) -> Dispatch:
        request = arrival.request
        endpoint = self.choose(request, candidates, router, now)
        cached = self.book(request, arrival.source, endpoint, router, now)
        return Dispatch(request.key, endpoint.replica_id, cached if self.wants_kv_events else -1)

    def _end(self, entry: RoutedRequest, router: Router) -> None:
        del router.in_flight[entry.request.key]
        _prefilled(entry, router)
        if endpoint := router.endpoints.get(entry.replica_id):
            endpoint.requests -= 1
        self.ended(entry, router)


def _prefilled(entry: RoutedRequest, router: Router) -> None:
    endpoint = router.endpoints.get(entry.replica_id)
    if not entry.prefilled and endpoint is not None:
        endpoint.prefill_tokens -= entry.uncached_tokens
    entry.prefilled = True
