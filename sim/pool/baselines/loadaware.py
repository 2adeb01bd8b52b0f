"""production-stack's load-aware router: the cached share of the prompt, minus relative load."""

import random
from collections.abc import Sequence

from sim.pool.baselines.base import Endpoint, Router
from sim.pool.baselines.classic import on_ring
from sim.pool.baselines.exact import EventIndexed
from sim.pool.contract import SimRequest

BETA = 1.0
"""Weight of the relative load against the cached share."""


class LoadAware(EventIndexed):
    """vllm-project/production-stack `routing_logic.py`, `LoadAwareRouter` (pull request 1035, August 2026).

    `score = matched / prompt - beta * (load - mean) / max(1, mean)`, load = requests in prefill or decode by the
    router's own count, beta = 1, ties by name. Nothing cached anywhere: session hash, or the lowest request rate
    where there is no session (here: the fewest outstanding, ties at random).

    Chosen here: matches by KV events instead of LMCache's controller, which knows as much.
    """

    name = "loadaware"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._rings: dict[tuple[str, ...], tuple[list[int], list[str]]] = {}

    def choose(
        self, request: SimRequest, candidates: Sequence[Endpoint], router: Router, now: float
    ) -> Endpoint:
        """Return the replica with the highest score."""
        del router
        matched = self.matches(request, now)
        if not any(endpoint.replica_id in matched for endpoint in candidates):
            if request.session:
                return on_ring(request.session, candidates, self._rings)
            return min(candidates, key=lambda endpoint: (endpoint.requests, self.rng.random()))
        mean = sum(endpoint.requests for endpoint in candidates) / len(candidates)

        def score(endpoint: Endpoint) -> float:
            cached = matched.get(endpoint.replica_id, 0) * request.block_tokens
            benefit = min(cached, request.prompt_tokens) / max(1, request.prompt_tokens)
            return benefit - BETA * (endpoint.requests - mean) / max(1.0, mean)

        return max(candidates, key=score)
