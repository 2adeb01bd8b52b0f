"""NVIDIA Dynamo's KV router, and the product score of LMetric."""

import random
from collections import Counter
from collections.abc import Sequence

from sim.pool.baselines.base import Endpoint, RoutedRequest, Router
from sim.pool.baselines.exact import EventIndexed
from sim.pool.contract import SimRequest

PREFILL_LOAD_SCALE = 1.0
"""Weight of prefill blocks against decode blocks in the cost."""
OVERLAP_SCORE_CREDIT = 1.0
"""Tokens subtracted from the prefill per cached token."""

QUEUE_THRESHOLD = 4.0
"""Prefill on every worker beyond which requests wait, in batches of tokens."""


class Dynamo(EventIndexed):
    """ai-dynamo/dynamo `lib/kv-router/src/scheduling/selector/default.rs` (v1.6, autumn 2026), shipped defaults.

    `cost = prefill_scale * max(0, active prefill + prompt - credit * overlap) + decode blocks`, in blocks; scale and
    credit 1, overlap decay 0, temperature 0: the lowest cost, ties at random. Decode blocks are the distinct blocks
    of the requests on the worker, this one's included; output is not counted (`router_track_output_blocks` off).
    The router's own queue is off by default since v1.4, so requests are dispatched at once (`QueuedDynamo` has it on).

    Chosen here: one router for all API processes, which the original reaches by replica synchronisation.
    """

    name = "dynamo"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._active: dict[str, Counter[int]] = {}

    def choose(
        self, request: SimRequest, candidates: Sequence[Endpoint], router: Router, now: float
    ) -> Endpoint:
        """Return the replica with the lowest cost."""
        del router
        costs = [self.cost(request, endpoint, now) for endpoint in candidates]
        lowest = min(costs)
        return self.rng.choice(
            [endpoint for endpoint, cost in zip(candidates, costs, strict=True) if cost == lowest]
        )

    def cost(self, request: SimRequest, endpoint: Endpoint, now: float) -> float:
        """Return the worker's cost in blocks."""
        overlap = self.cached_tokens(request, endpoint, now)
        prefill = max(0.0, endpoint.prefill_tokens + request.prompt_tokens - OVERLAP_SCORE_CREDIT * overlap)
        active = self._active.get(endpoint.replica_id, Counter())
        new = sum(1 for block in _active_blocks(request) if block not in active)
        return PREFILL_LOAD_SCALE * prefill / request.block_tokens + len(active) + new

    def routed(self, entry: RoutedRequest, router: Router, now: float) -> None:
        """Count the request's blocks as active on the worker."""
        super().routed(entry, router, now)
        self._active.setdefault(entry.replica_id, Counter()).update(_active_blocks(entry.request))

    def ended(self, entry: RoutedRequest, router: Router) -> None:
        """Stop counting the request's blocks as active, unless another request has them."""
        del router
        active = self._active[entry.replica_id]
        for block in _active_blocks(entry.request):
            active[block] -= 1
            if active[block] <= 0:
                del active[block]


class QueuedDynamo(Dynamo):
    """The same with the router's queue on (`scheduling/queue.rs`, policy fcfs): a request waits while every worker has
    more uncached tokens in prefill than `--router-queue-threshold` times its batch of tokens, and behind others that
    wait; priority classes are strict.

    The threshold has no default any more; 4 is the last documented one that an operator meets in practice (16, the
    later one, is 131,072 tokens of prefill on every worker). The batch is the engine's `max_num_batched_tokens`.
    """

    name = "dynamo_queue"

    def holds(self, request: SimRequest, candidates: Sequence[Endpoint], now: float) -> bool:
        """Return whether every worker's prefill exceeds the threshold."""
        del request, now
        return all(
            each.prefill_tokens > QUEUE_THRESHOLD * each.view.capacity.max_batched_tokens
            for each in candidates
        )


class LMetric(EventIndexed):
    """LMetric, arXiv 2603.15202 (March 2026): `score = prefill tokens * (batch size + 1)`, lowest wins.

    Prefill tokens are those queued on the instance plus this prompt's uncached ones; batch size counts the requests
    on the instance. The 1 keeps an idle instance from scoring 0 whatever it would have to prefill (Dynamo's variant).

    Chosen here: exact prefix knowledge, one router for all API processes, ties at random.
    """

    name = "lmetric"

    def choose(
        self, request: SimRequest, candidates: Sequence[Endpoint], router: Router, now: float
    ) -> Endpoint:
        """Return the replica with the smallest product."""
        del router
        matched = self.matches(request, now)

        def score(endpoint: Endpoint) -> int:
            hit = matched.get(endpoint.replica_id, 0) * request.block_tokens
            return (endpoint.prefill_tokens + max(0, request.prompt_tokens - hit)) * (endpoint.requests + 1)

        lowest = min(map(score, candidates))
        return self.rng.choice([endpoint for endpoint in candidates if score(endpoint) == lowest])


def _active_blocks(request: SimRequest) -> Sequence[int]:
    """Return the blocks it occupies: the prompt's, and one private block for an incomplete last one."""
    if request.prompt_tokens > len(request.blocks) * request.block_tokens:
        return (*request.blocks, -1 - request.key)
    return request.blocks
