"""SGLang's cache-aware router: longest match in a tree of routed prompts, or the shortest queue when unbalanced."""

import random
from collections.abc import Sequence

from sim.pool.baselines.base import Baseline, Endpoint, RoutedRequest, Router
from sim.pool.baselines.prefix_index import ApproximateIndex
from sim.pool.contract import SimRequest

CACHE_THRESHOLD = 0.3
"""Matched share of the prompt (0 to 1) above which a match counts."""
BALANCE_ABS = 64
"""Difference of requests in flight above which load may count as unbalanced."""
BALANCE_REL = 1.5
"""Ratio of requests in flight above which load may count as unbalanced."""
EVICTION_INTERVAL_S = 120.0
"""Seconds between two evictions from the tree."""
MAX_TREE_CHARS = 2**26
"""Size in characters to which an eviction reduces the tree."""
CHARS_PER_TOKEN = 4
"""Average characters per token: the shipped tree counts characters, this one tokens."""


class CacheAware(Baseline):
    """sgl-project/sglang `sgl-router/src/policies/cache_aware.rs` and `tree.rs` (February 2026), with the defaults
    of `sglang_router` launch arguments.

    Unbalanced (max - min > 64 and max > 1.5 * min in-flight requests): the shortest queue. Else, when more than
    0.3 of the prompt matches: any replica at the deepest match; a miss goes to the replica with the smallest tree.
    The tree is fed in all three cases and evicted every 120 s down to 2^26 characters, which no KV cache holds:
    that it believes in evicted prefixes is part of the policy.

    Chosen here: blocks for characters, what follows the last whole block as a leaf of its own; one router for all
    API processes; ties, which the original leaves to the order of a hash map, at random.
    """

    name = "cache_aware"
    central = True

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._trees: dict[str, ApproximateIndex] = {}
        self._evicted_at = 0.0

    def choose(
        self, request: SimRequest, candidates: Sequence[Endpoint], router: Router, now: float
    ) -> Endpoint:
        """Return the replica with the shortest queue, the longest match or the smallest tree."""
        del router
        self._evict(now)
        loads = [endpoint.requests for endpoint in candidates]
        if max(loads) - min(loads) > BALANCE_ABS and max(loads) > BALANCE_REL * min(loads):
            return next(endpoint for endpoint in candidates if endpoint.requests == min(loads))
        tree = self._tree(request.model)
        matched = tree.owners.match(request.blocks)
        deepest = max(matched.values(), default=0)
        if deepest * request.block_tokens > CACHE_THRESHOLD * request.prompt_tokens:
            owners = [each for each in candidates if matched.get(each.replica_id, 0) == deepest]
            if owners:
                return self.rng.choice(owners)
        smallest = min(tree.tokens(endpoint.replica_id) for endpoint in candidates)
        return self.rng.choice([each for each in candidates if tree.tokens(each.replica_id) == smallest])

    def routed(self, entry: RoutedRequest, router: Router, now: float) -> None:
        """Add the prompt to the replica's tree."""
        del router, now
        request = entry.request
        blocks, tokens = list(request.blocks), [request.block_tokens] * len(request.blocks)
        rest = request.prompt_tokens - sum(tokens)
        if rest > 0:
            blocks.append(-1 - request.key)
            tokens.append(rest)
        self._tree(request.model).insert(entry.replica_id, blocks, tokens)

    def lost(self, replica_id: str) -> None:
        """Remove a worker that left from its trees."""
        for tree in self._trees.values():
            tree.forget(replica_id)

    def _tree(self, model: str) -> ApproximateIndex:
        return self._trees.setdefault(model, ApproximateIndex())

    def _evict(self, now: float) -> None:
        if now - self._evicted_at >= EVICTION_INTERVAL_S:
            self._evicted_at = now
            for tree in self._trees.values():
                tree.evict(MAX_TREE_CHARS // CHARS_PER_TOKEN)
