"""llm-d's routers: the 3/2/2/2 blend of scorers, and sticky until saturated, alone and with flow control."""

import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from sim.pool.baselines.base import Arrival, Endpoint, RoutedRequest, Router
from sim.pool.baselines.exact import EventIndexed
from sim.pool.contract import SimRequest

SPECULATIVE_S = 2.0
"""Seconds for which a routed prompt counts as cached without KV events."""
PREFIX_WEIGHT = 3.0
"""Weight of the prefix-cache-scorer."""
QUEUE_WEIGHT = 2.0
"""Weight of the queue-scorer."""
KV_WEIGHT = 2.0
"""Weight of the kv-cache-utilization-scorer."""
NO_HIT_LRU_WEIGHT = 2.0
"""Weight of the no-hit-lru-scorer."""
AFFINITY_THRESHOLD = 0.8
"""Cached share of the prompt (0 to 1) from which on a replica holds it."""
MAX_TTFT_PENALTY_S = 18.0
"""Seconds of prefill by which a replica that holds the prompt may lag behind."""
QUEUE_THRESHOLD_TOKENS = 4_194_304
"""Uncached tokens in flight at which the token load is clamped."""

SATURATED_QUEUE = 5
"""Requests waiting in an engine at which it counts as saturated (utilization-detector)."""
SATURATED_KV = 0.8
"""Used share of an engine's KV cache (0 to 1) at which it counts as saturated."""
QUEUE_TTL_S = 60.0
"""Seconds after which a request that flow control holds is refused."""


class Blend(EventIndexed):
    """llm-d `guides/optimized-baseline` (spring 2026, before sticky until saturated) with precise prefix
    knowledge: the weighted sum of
    prefix-cache-scorer 3, queue-scorer 2, kv-cache-utilization-scorer 2 and no-hit-lru-scorer 2, highest wins.

    Prefix: matched / all blocks. Queue: waiting requests of the last scrape, the longest 0 and the shortest 1, all 1
    when equal. KV: 1 - usage of the last scrape. No hit: 0.5 for all when anyone has a block of the prompt, else
    from 1 (longest without a cold request, or never any) down to 0. KV events with speculative indexing (2 s).
    Ties at random, as in `max-score-picker`.
    """

    name = "llmd_blend"
    speculative_s = SPECULATIVE_S

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._cold: OrderedDict[str, None] = OrderedDict()
        self._cold_request = -1

    def choose(
        self, request: SimRequest, candidates: Sequence[Endpoint], router: Router, now: float
    ) -> Endpoint:
        """Return the replica with the highest weighted sum."""
        del router
        matched = self.matches(request, now)
        cold = not any(endpoint.replica_id in matched for endpoint in candidates)
        self._cold_request = request.key if cold else -1
        queues = queue_scores([endpoint.view.waiting for endpoint in candidates])
        fresh = self._no_hit_scores(candidates) if cold else [0.5] * len(candidates)
        blocks = max(1, len(request.blocks))
        scores = [
            PREFIX_WEIGHT * matched.get(endpoint.replica_id, 0) / blocks
            + QUEUE_WEIGHT * queue
            + KV_WEIGHT * (1.0 - endpoint.view.kv_usage)
            + NO_HIT_LRU_WEIGHT * lru
            for endpoint, queue, lru in zip(candidates, queues, fresh, strict=True)
        ]
        best = max(scores)
        return self.rng.choice(
            [endpoint for endpoint, score in zip(candidates, scores, strict=True) if score == best]
        )

    def routed(self, entry: RoutedRequest, router: Router, now: float) -> None:
        """Move the replica of a cold request to the end of the order for the next cold one."""
        super().routed(entry, router, now)
        if entry.request.key == self._cold_request:
            self._cold[entry.replica_id] = None
            self._cold.move_to_end(entry.replica_id)

    def _no_hit_scores(self, candidates: Sequence[Endpoint]) -> list[float]:
        if len(candidates) == 1:
            return [1.0]
        places = {replica_id: place for place, replica_id in enumerate(self._cold)}
        never = [endpoint.replica_id for endpoint in candidates if endpoint.replica_id not in places]
        ranks = {replica_id: place for place, replica_id in enumerate(never)}
        ranks |= {replica_id: len(never) + place for replica_id, place in places.items()}
        last = len(candidates) - 1
        return [max(0.0, 1.0 - ranks[endpoint.replica_id] / last) for endpoint in candidates]


class Sticky(EventIndexed):
    """llm-d/llm-d-router v0.10 `prefix-cache-affinity-filter` and `token-load-scorer` (August 2026), shipped defaults:
    the recommended composition for prefill-bound work, "sticky until saturated".

    Replicas holding at least 0.8 of the prompt's blocks, unless the best of them lags behind the best other one by
    more than 18 s of uncached tokens in flight / peak prefill throughput. Of what is left: the fewest uncached tokens
    in flight plus this prompt's own uncached ones, clamped at 4,194,304, ties at random. Tokens leave at the first
    token. KV events with speculative indexing (2 s). Peak throughput is the replica's own figure, as calibrated.
    """

    name = "llmd_sticky"
    speculative_s = SPECULATIVE_S

    def choose(
        self, request: SimRequest, candidates: Sequence[Endpoint], router: Router, now: float
    ) -> Endpoint:
        """Apply the affinity filter, then return the replica with the lowest token load."""
        del router
        matched = self.matches(request, now)
        pool = sticky_pool(request, candidates, matched)

        def load(endpoint: Endpoint) -> int:
            hit = matched.get(endpoint.replica_id, 0) * request.block_tokens
            return min(QUEUE_THRESHOLD_TOKENS, endpoint.prefill_tokens + max(0, request.prompt_tokens - hit))

        lowest = min(map(load, pool))
        return self.rng.choice([endpoint for endpoint in pool if load(endpoint) == lowest])


class FlowControl(Sticky):
    """The same behind llm-d's flow control (`featureGates: [flowControl]`, v0.10, all policies as by default).

    `utilization-detector`: an engine's saturation is the larger of waiting requests / 5 and used KV cache / 0.8 by the
    last scrape, and the pool's is the mean over its engines. At 1 nothing is dispatched. Priority bands are strict;
    within a band the oldest request goes first, whoever sent it. After 60 s a request is refused.
    """

    name = "llmd_flow"

    def holds(self, request: SimRequest, candidates: Sequence[Endpoint], now: float) -> bool:
        """Return whether the pool is saturated."""
        del request, now
        return sum(map(saturation, candidates)) >= len(candidates)

    def expired(self, arrival: Arrival, now: float) -> bool:
        """Return whether the request has waited longer than its TTL."""
        return now - arrival.at > QUEUE_TTL_S


def saturation(endpoint: Endpoint) -> float:
    """Return how saturated an engine was at the last scrape; 1 = just saturated."""
    return max(endpoint.view.waiting / SATURATED_QUEUE, endpoint.view.kv_usage / SATURATED_KV)


def sticky_pool(
    request: SimRequest, candidates: Sequence[Endpoint], matched: Mapping[str, int]
) -> Sequence[Endpoint]:
    """Return the replicas that hold the prompt, or all when there are none or they lag too far behind."""
    blocks = max(1, len(request.blocks))
    held = [matched.get(endpoint.replica_id, 0) / blocks >= AFFINITY_THRESHOLD for endpoint in candidates]
    warm = [endpoint for endpoint, holds in zip(candidates, held, strict=True) if holds]
    cold = [endpoint for endpoint, holds in zip(candidates, held, strict=True) if not holds]
    if not warm:
        return candidates
    if cold and min(map(_backlog_s, warm)) - min(map(_backlog_s, cold)) > MAX_TTFT_PENALTY_S:
        return candidates
    return warm


def queue_scores(waiting: Sequence[int]) -> list[float]:
    """Return scores from the queue lengths: 1 for the shortest, 0 for the longest; all 1 when equal."""
    shortest, longest = min(waiting), max(waiting)
    if shortest == longest:
        return [1.0] * len(waiting)
    return [(longest - each) / (longest - shortest) for each in waiting]


def _backlog_s(endpoint: Endpoint) -> float:
    return endpoint.prefill_tokens / max(1.0, endpoint.view.capacity.prefill_tokens_per_s)
