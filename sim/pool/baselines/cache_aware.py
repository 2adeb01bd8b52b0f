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
    """sgl-project/sglang `sgl-model-gateway/src/policies/cache_aware.rs` and `tree.rs`, as since pull request 14650
    (December 2025), with the defaults of its launch arguments.

    Unbalanced (max - min > 64 and max > 1.5 * min in-flight requests): the shortest queue. Else, when more than
    0.3 of the prompt matches: any replica at the deepest match; a miss goes to the shortest queue as well.
    The tree is fed in all three cases and evicted every 120 s down to 2^26 characters, which no KV cache holds:
    that it believes in evicted prefixes is part of the policy.

    Chosen here: blocks for characters, what follows the last whole block as a leaf of its own; one router for all
    API processes; ties, which the original leaves to the order of the workers, at random.
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
        """Return the replica with the shortest queue or the longest match."""
        del router
        self._evict(now)
        if unbalanced(candidates):
            return self._shortest(candidates)
        matched = self._tree(request.model).owners.match(request.blocks)
        deepest = max(matched.values(), default=0)
        if deepest * request.block_tokens > CACHE_THRESHOLD * request.prompt_tokens:
            owners = [each for each in candidates if matched.get(each.replica_id, 0) == deepest]
            if owners:
                return self.rng.choice(owners)
        return self.on_miss(request, candidates)

    def on_miss(self, request: SimRequest, candidates: Sequence[Endpoint]) -> Endpoint:
        """Return the replica for a prompt of which no replica has enough: the one with the shortest queue."""
        del request
        return self._shortest(candidates)

    def _shortest(self, candidates: Sequence[Endpoint]) -> Endpoint:
        fewest = min(endpoint.requests for endpoint in candidates)
        return self.rng.choice([endpoint for endpoint in candidates if endpoint.requests == fewest])

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


class SmallestTree(CacheAware):
    """The same before pull request 14650: a miss goes to the replica with the smallest tree, whatever its load."""

    name = "cache_aware_2025"

    def on_miss(self, request: SimRequest, candidates: Sequence[Endpoint]) -> Endpoint:
        """Return the replica with the smallest tree; ties at random."""
        tree = self._tree(request.model)
        smallest = min(tree.tokens(endpoint.replica_id) for endpoint in candidates)
        return self.rng.choice([each for each in candidates if tree.tokens(each.replica_id) == smallest])


class VllmRouter(CacheAware):
    """vllm-project/router `src/policies/cache_aware.rs` (autumn 2026): SGLang's policy with the same defaults, and
    before it a table from session to replica, which wins in a balanced pool whatever matches.

    Its clients have to send the session's id in a header, which no client does by default. Here every request of a
    workload with sessions carries it. Sessions that were not used for an hour are forgotten there; no run is as long.
    """

    name = "vllm_router"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._sessions: dict[tuple[str, str], str] = {}

    def choose(
        self, request: SimRequest, candidates: Sequence[Endpoint], router: Router, now: float
    ) -> Endpoint:
        """Return the session's replica, unless the pool is unbalanced; else as SGLang's policy."""
        owner = self._sessions.get((request.model, request.session)) if request.session else None
        if owner is not None and not unbalanced(candidates):
            for endpoint in candidates:
                if endpoint.replica_id == owner:
                    return endpoint
        return super().choose(request, candidates, router, now)

    def routed(self, entry: RoutedRequest, router: Router, now: float) -> None:
        """Record the session's replica, and the prompt in the replica's tree."""
        super().routed(entry, router, now)
        if entry.request.session:
            self._sessions[entry.request.model, entry.request.session] = entry.replica_id

    def lost(self, replica_id: str) -> None:
        """Remove a worker that left from the trees and the sessions."""
        super().lost(replica_id)
        self._sessions = {session: owner for session, owner in self._sessions.items() if owner != replica_id}


def unbalanced(candidates: Sequence[Endpoint]) -> bool:
    """Return whether requests in flight differ so much that prefixes do not count."""
    loads = [endpoint.requests for endpoint in candidates]
    return max(loads) - min(loads) > BALANCE_ABS and max(loads) > BALANCE_REL * min(loads)
