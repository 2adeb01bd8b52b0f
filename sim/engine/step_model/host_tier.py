"""KV blocks in host memory behind an engine's cache, as vLLM's native offloading keeps them.

The blocks of a prompt are copied to the host when it is computed (the links are full duplex, and the copies wait for
nothing); those of its answer are not, until they are part of another prompt. A prompt that finds more of its blocks
there than in the engine waits until they have been brought back, and does not hold up others meanwhile. The engine
evicts without asking the host, and the other way round.
"""

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from sim.engine.step_model.decodes import Slot
from workers.wire import Capacity


class HostTier:
    """The blocks of an engine in host memory, least recently used first, and the link that brings them back."""

    __slots__ = ("_blocks", "_free_at", "_load_s", "_room", "loading")

    def __init__(self, capacity: Capacity) -> None:
        self._room = capacity.host_kv_tokens
        self._load_s = capacity.kv_load_s
        self._blocks: OrderedDict[int, int] = OrderedDict()
        """Tokens by hash."""
        self._free_at = 0.0
        """When the link has brought everything that was asked of it."""
        self.loading: list[tuple[float, int, Slot]] = []
        """Requests that wait for blocks: when they arrive, a number that breaks ties, and the request; a heap."""

    def __contains__(self, hash_: int) -> bool:
        return hash_ in self._blocks

    def store(self, hashes: Sequence[int], tokens: int) -> list[int]:
        """Keep a chain of blocks of `tokens` tokens each; returns the least recently used ones that made room.

        The end of a chain goes before its beginning, without which it would be of no use.
        """
        blocks, dropped = self._blocks, []
        for hash_ in reversed(hashes):
            if hash_ not in blocks:
                blocks[hash_] = tokens
                self._room -= tokens
            blocks.move_to_end(hash_)
        while self._room < 0:
            hash_, size = blocks.popitem(last=False)
            self._room += size
            dropped.append(hash_)
        return dropped

    def found(self, hashes: Sequence[int], known: int, limit: int) -> int:
        """Return how many leading hashes of a chain, at most `limit`, are here or among the first `known`, which the
        engine has itself."""
        blocks = self._blocks
        for index in range(min(limit, len(hashes))):
            hash_ = hashes[index]
            if hash_ in blocks:
                blocks.move_to_end(hash_)
            elif index >= known:
                return index
        return min(limit, len(hashes))

    def load(self, slot: Slot, tokens: int, now: float) -> None:
        """Bring `tokens` tokens back for a request. The link serves one after the other."""
        begins = max(now, self._free_at)
        self._free_at = begins + tokens * self._load_s
        heappush(self.loading, (self._free_at, slot.arrived, slot))

    def arrived(self, now: float) -> list[Slot]:
        """Return the requests whose blocks have arrived by `now`, in this order; they no longer wait."""
        arrived = []
        while self.loading and self.loading[0][0] <= now:
            arrived.append(heappop(self.loading)[2])
        return arrived

    def drop(self, slot: Slot) -> bool:
        """Forget a request that waits for blocks; False when it does not."""
        left = [item for item in self.loading if item[2] is not slot]
        if len(left) == len(self.loading):
            return False
        self.loading = left
        heapify(left)
        return True

    def clear(self) -> None:
        """Forget all blocks."""
        self._room += sum(self._blocks.values())
        self._blocks.clear()
