"""Policies that know each replica's cached blocks from the engines' KV events."""

import random
from collections import Counter, deque
from collections.abc import Sequence

from sim.pool.baselines.base import Baseline, Endpoint, RoutedRequest, Router
from sim.pool.baselines.prefix_index import BlockIndex
from sim.pool.contract import SimRequest
from workers.wire import KvDelta


class EventIndexed(Baseline):
    """Keeps an index of all replicas' blocks from KV events.

    With `speculative_s` above 0, a routed prompt counts as cached for that many seconds until events confirm
    it, so that a burst with one prefix is not spread over replicas (llm-d, `speculativeIndexing`).
    """

    central = True
    wants_kv_events = True
    speculative_s = 0.0

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._cached = BlockIndex()
        self._expected = BlockIndex(self._cached)
        self._lapses: deque[tuple[float, str, Sequence[int]]] = deque()
        self._times: Counter[tuple[str, int]] = Counter()
        """Number of pending expectations of a block on a replica."""
        self._last: tuple[int, float, dict[str, int]] = (-1, -1.0, {})

    def matches(self, request: SimRequest, now: float) -> dict[str, int]:
        """Return the leading blocks of the prompt believed cached, by replica; replicas without any are omitted."""
        key, at, matched = self._last
        if (key, at) == (request.key, now):
            return matched
        self._expire(now)
        matched = self._cached.match(request.blocks, self._expected)
        self._last = (request.key, now, matched)
        return matched

    def cached_tokens(self, request: SimRequest, endpoint: Endpoint, now: float) -> int:
        """Return the matched blocks in tokens."""
        return self.matches(request, now).get(endpoint.replica_id, 0) * request.block_tokens

    def load(self, request: SimRequest, router: int) -> float:
        """Return the uncached tokens in flight, then outstanding requests, of the replica that has the fewest."""
        candidates = self.router(router).candidates(request)
        return min((each.prefill_tokens + each.requests for each in candidates), default=0)

    def routed(self, entry: RoutedRequest, router: Router, now: float) -> None:
        """Expect the prompt's new blocks on the replica for `speculative_s` seconds."""
        del router
        request = entry.request
        if self.speculative_s > 0:
            new = request.blocks[self._cached.match(request.blocks).get(entry.replica_id, 0) :]
            self._expected.add(entry.replica_id, new)
            self._times.update((entry.replica_id, block) for block in new)
            self._lapses.append((now + self.speculative_s, entry.replica_id, new))
        self._last = (-1, -1.0, {})

    def lost(self, replica_id: str) -> None:
        """Clear the replica's index."""
        self._cached.clear(replica_id)
        self._last = (-1, -1.0, {})

    def kv_events(self, delta: KvDelta, now: float) -> None:
        """Apply the blocks that an engine stored and evicted."""
        del now
        replica_id = _replica_of(delta.replica_id)
        if delta.cleared:
            self._cached.clear(replica_id)
        self._cached.remove(replica_id, delta.removed)
        self._cached.add(replica_id, delta.stored)
        self._last = (-1, -1.0, {})

    def _expire(self, now: float) -> None:
        while self._lapses and self._lapses[0][0] <= now:
            _, replica_id, blocks = self._lapses.popleft()
            over = []
            for block in blocks:
                self._times[replica_id, block] -= 1
                if not self._times[replica_id, block]:
                    del self._times[replica_id, block]
                    over.append(block)
            self._expected.remove(replica_id, over)


def _replica_of(name: str) -> str:
    """Return the replica of a rank's name (`workers.ranks.rank_id`): these policies know no ranks, and take what all
    of them hold for what the replica holds."""
    head, _, tail = name.rpartition("/")
    return head if tail.isdigit() else name
