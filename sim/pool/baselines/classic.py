"""Policies without knowledge of prompts: random, round robin, least request, power of two, session hash."""

import hashlib
import random
from bisect import bisect_left
from collections.abc import Sequence

from sim.pool.baselines.base import Baseline, Endpoint, Router
from sim.pool.contract import SimRequest


class Random(Baseline):
    """Uniform choice (sgl-router `random.rs`)."""

    name = "random"

    def choose(
        self, request: SimRequest, candidates: Sequence[Endpoint], router: Router, now: float
    ) -> Endpoint:
        """Return a random replica."""
        del request, router, now
        return self.rng.choice(candidates)


class RoundRobin(Baseline):
    """Each router instance goes round by itself, from a place of its own (vllm-project/production-stack
    `routing_logic.py`, a Kubernetes service in front of several gateways).
    """

    name = "round_robin"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._turns: dict[tuple[Router, str], int] = {}

    def choose(
        self, request: SimRequest, candidates: Sequence[Endpoint], router: Router, now: float
    ) -> Endpoint:
        """Return the next replica in the order of names."""
        del now
        whose = router, request.model
        turn = self._turns.get(whose)
        if turn is None:
            turn = self.rng.randrange(len(candidates))
        self._turns[whose] = turn + 1
        return candidates[turn % len(candidates)]


class LeastRequest(Baseline):
    """Fewest outstanding requests by the instance's own count, ties at random (Envoy `LEAST_REQUEST` with full
    scan; nginx `least_conn`).
    """

    name = "least_request"

    def choose(
        self, request: SimRequest, candidates: Sequence[Endpoint], router: Router, now: float
    ) -> Endpoint:
        """Return the replica with the fewest outstanding requests."""
        del request, router, now
        fewest = min(endpoint.requests for endpoint in candidates)
        return self.rng.choice([endpoint for endpoint in candidates if endpoint.requests == fewest])


class PowerOfTwo(Baseline):
    """Two at random, the one with fewer outstanding requests of the instance's own (Mitzenmacher 2001; sgl-router
    `power_of_two.rs`).
    """

    name = "power_of_two"

    def choose(
        self, request: SimRequest, candidates: Sequence[Endpoint], router: Router, now: float
    ) -> Endpoint:
        """Return the one of two random replicas with fewer outstanding requests."""
        del request, router, now
        if len(candidates) == 1:
            return candidates[0]
        first, second = self.rng.sample(candidates, 2)
        return second if second.requests < first.requests else first


RING_POINTS = 160
"""Virtual nodes per replica, as in ketama."""


class SessionHash(Baseline):
    """Consistent hashing of the session id on a ring (production-stack `SessionRouter`, sgl-router
    `consistent_hashing`). Requests without a session go to the replica with the fewest outstanding, where
    production-stack takes the lowest request rate.
    """

    name = "session_hash"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._rings: dict[tuple[str, ...], tuple[list[int], list[str]]] = {}

    def choose(
        self, request: SimRequest, candidates: Sequence[Endpoint], router: Router, now: float
    ) -> Endpoint:
        """Return the session's replica."""
        del router, now
        if not request.session:
            return min(candidates, key=lambda endpoint: (endpoint.requests, self.rng.random()))
        return on_ring(request.session, candidates, self._rings)


def on_ring(
    session: str, candidates: Sequence[Endpoint], rings: dict[tuple[str, ...], tuple[list[int], list[str]]]
) -> Endpoint:
    """Return the candidate that owns the session's position on a hash ring; `rings` caches rings."""
    names = tuple(endpoint.replica_id for endpoint in candidates)
    if names not in rings:
        points = sorted((_point(f"{name}#{copy}"), name) for name in names for copy in range(RING_POINTS))
        rings[names] = [point for point, _ in points], [name for _, name in points]
    points_of, owners = rings[names]
    owner = owners[bisect_left(points_of, _point(session)) % len(owners)]
    return next(endpoint for endpoint in candidates if endpoint.replica_id == owner)


def _point(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
