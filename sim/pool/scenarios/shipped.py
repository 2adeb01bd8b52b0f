"""Routers with a published fault, each reduced to that fault; a scenario must distinguish them from correct
routers.

The policies under `baselines/` are current versions, in which most of these faults are fixed.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence

from core.errors import InvalidRequest
from sim.pool.baselines.base import Baseline, Endpoint, RoutedRequest, Router
from sim.pool.baselines.prefix_index import BlockIndex
from sim.pool.contract import SimRequest
from sim.pool.penstock_routing import PenstockOptions, PenstockRouting
from sim.pool.registry import NAMES, OURS, Policy, Variant
from sim.pool.registry import policy as registered
from sim.pool.settings import RoutingSetup


class FirstOfEquals(Baseline):
    """Fewest outstanding requests; ties go to the first in the list (dynamo #7836)."""

    name = "first_of_equals"
    central = True

    def choose(
        self, request: SimRequest, candidates: Sequence[Endpoint], router: Router, now: float
    ) -> Endpoint:
        """Return the first of the least loaded replicas."""
        del request, router, now
        return min(candidates, key=lambda endpoint: endpoint.requests)


class ByScrape(Baseline):
    """Fewest requests by the last scrape plus what this instance has routed since; requests that other
    instances routed are not counted (dynamo #589).
    """

    name = "by_scrape"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._since: Counter[tuple[Router, str, float]] = Counter()
        """Requests that an instance has routed to a replica since the scrape of that time."""

    def choose(
        self, request: SimRequest, candidates: Sequence[Endpoint], router: Router, now: float
    ) -> Endpoint:
        """Return the replica with the lowest load that the instance knows of; ties are broken at random."""
        del request, now

        def load(endpoint: Endpoint) -> int:
            view = endpoint.view
            return view.running + view.waiting + self._since[router, endpoint.replica_id, view.scraped_at]

        return min(candidates, key=lambda endpoint: (load(endpoint), self.rng.random()))

    def routed(self, entry: RoutedRequest, router: Router, now: float) -> None:
        """Count the request until the next scrape."""
        del now
        view = router.endpoints[entry.replica_id].view
        self._since[router, entry.replica_id, view.scraped_at] += 1


class CountsAnswers(Baseline):
    """Counts load from the first token on and ignores prefill; ties go to the first in the list (sglang #27547)."""

    name = "counts_answers"
    central = True

    def choose(
        self, request: SimRequest, candidates: Sequence[Endpoint], router: Router, now: float
    ) -> Endpoint:
        """Return the first of the replicas with the fewest answers in progress."""
        del request, now
        answering = {endpoint.replica_id: 0 for endpoint in candidates}
        for entry in router.in_flight.values():
            if entry.prefilled and entry.replica_id in answering:
                answering[entry.replica_id] += 1
        return min(candidates, key=lambda endpoint: answering[endpoint.replica_id])


class LongestMatch(Baseline):
    """The longest match wins regardless of load; without a match, the fewest outstanding requests (dynamo #737)."""

    name = "longest_match"
    central = True

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.owners = BlockIndex()

    def choose(
        self, request: SimRequest, candidates: Sequence[Endpoint], router: Router, now: float
    ) -> Endpoint:
        """Return the replica with the longest match, then the lowest load."""
        del router, now
        matched = self.owners.match(request.blocks)
        return max(candidates, key=lambda each: (matched.get(each.replica_id, 0), -each.requests))

    def routed(self, entry: RoutedRequest, router: Router, now: float) -> None:
        """Record the prompt on its replica without ever evicting it."""
        del router, now
        self.owners.add(entry.replica_id, entry.request.blocks)

    def prefix_entries(self) -> int:
        """Return the number of prefix blocks held."""
        return len(self.owners)


class ForgetsOnRestart(PenstockRouting):
    """Penstock's scheduler without the clients' announcements after a restart."""

    def restart(self, now: float) -> None:
        """Discard all state."""
        self._held.clear()
        self._counters.clear()
        super().restart(now)


class KeepsDeadRouters(PenstockRouting):
    """Penstock's scheduler, keeping the placements of a dead API process."""

    def router_lost(self, router: int, now: float) -> None:
        """Ignore the dead process: its placements stay."""


NEWEST_FIRST = "newest_first"
"""Name of the policy that routes as Penstock does but retires the newest replica, as a Kubernetes deployment does."""
SHIPPED: Mapping[str, str] = {
    FirstOfEquals.name: "fewest requests, ties to the first in the list",
    ByScrape.name: "fewest requests by the last scrape and its own count since, one count an API process",
    CountsAnswers.name: "load counts from the first token on",
    LongestMatch.name: "longest match whatever the load, nothing forgotten",
    "amnesiac": "ours, but clients announce nothing to a new scheduler",
    "keeps_the_dead": "ours, but a dead API process keeps its placements",
    NEWEST_FIRST: "ours, but the newest replica goes first",
}
"""Description of each router's fault, by the router's name."""
_ROUTERS = {each.name: each for each in (FirstOfEquals, ByScrape, CountsAnswers, LongestMatch)}
_FAULTY_PENSTOCK = {"amnesiac": ForgetsOnRestart, "keeps_the_dead": KeepsDeadRouters}


def policy_of(name: str, variant: Variant) -> Policy:
    """Return a policy of the comparison or one with a published fault. Raises InvalidRequest for any other name."""
    if name in _ROUTERS:
        kind = _ROUTERS[name]
        return Policy(name, lambda setup: kind(setup.rng))
    if name in _FAULTY_PENSTOCK:
        spoilt, options = _FAULTY_PENSTOCK[name], PenstockOptions(name=name)

        def make(setup: RoutingSetup) -> PenstockRouting:
            return spoilt(setup, options)

        return Policy(name, make)
    if name == NEWEST_FIRST:
        return Policy(name, registered(OURS, variant).make)
    if name not in NAMES:
        raise InvalidRequest(
            f"no policy is called {name!r}; policies: {', '.join((*NAMES, *SHIPPED))}", param="policy"
        )
    return registered(name, variant)
