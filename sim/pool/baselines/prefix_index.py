"""Indexes of prefix blocks by replica: from the engines' KV events, or from routed prompts."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockIndex:
    """Maps blocks to the replicas that hold them, as a bit mask: one pass over a prompt matches all replicas."""

    def __init__(self, other: "BlockIndex | None" = None) -> None:
        """With `other`, both indexes share replica bits and can be matched as one."""
        self._bits: dict[str, int] = {} if other is None else other._bits
        self._names: list[str] = [] if other is None else other._names
        self._owners: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def add(self, replica_id: str, blocks: Iterable[int]) -> None:
        """Record that the replica holds these blocks."""
        bit = self._bit(replica_id)
        for block in blocks:
            self._owners[block] = self._owners.get(block, 0) | bit

    def remove(self, replica_id: str, blocks: Iterable[int]) -> None:
        """Record that the replica no longer holds these blocks."""
        keep = ~self._bit(replica_id)
        for block in blocks:
            left = self._owners.get(block, 0) & keep
            if left:
                self._owners[block] = left
            else:
                self._owners.pop(block, None)

    def clear(self, replica_id: str) -> None:
        """Record that the replica holds no blocks."""
        bit = self._bit(replica_id)
        self.remove(replica_id, [block for block, owners in self._owners.items() if owners & bit])

    def match(self, blocks: Sequence[int], other: "BlockIndex | None" = None) -> dict[str, int]:
        """Return how many leading blocks each replica holds, here or in `other`; replicas without any are omitted."""
        matched: dict[str, int] = {}
        here = self._owners.get
        there = other._owners.get if other and other._owners else None
        holding, count = -1, 0
        for block in blocks:
            owners = here(block, 0) | there(block, 0) if there else here(block, 0)
            still = holding & owners
            if still != holding:
                if count:
                    self._note(holding & ~still, count, matched)
                holding = still
                if not holding:
                    return matched
            count += 1
        if count:
            self._note(holding, count, matched)
        return matched

    def _bit(self, replica_id: str) -> int:
        if replica_id not in self._bits:
            self._bits[replica_id] = 1 << len(self._names)
            self._names.append(replica_id)
        return self._bits[replica_id]

    def _note(self, mask: int, count: int, matched: dict[str, int]) -> None:
        while mask:
            lowest = mask & -mask
            matched[self._names[lowest.bit_length() - 1]] = count
            mask ^= lowest


class ApproximateIndex:
    """Prompts routed to each replica, least recently used first: the approximate index of most routers."""

    def __init__(self) -> None:
        self.owners = BlockIndex()
        self._blocks: dict[str, OrderedDict[int, int]] = {}
        self._tokens: dict[str, int] = {}

    def tokens(self, replica_id: str) -> int:
        """Return the size of a replica's part in tokens."""
        return self._tokens.get(replica_id, 0)

    def insert(self, replica_id: str, blocks: Sequence[int], tokens: Sequence[int]) -> None:
        """Record that a prompt of these blocks, with `tokens` tokens each, was routed there. Its end is evicted
        first.
        """
        known = self._blocks.setdefault(replica_id, OrderedDict())
        size = self._tokens.get(replica_id, 0)
        for block, share in zip(reversed(blocks), reversed(tokens), strict=True):
            if block in known:
                known.move_to_end(block)
            else:
                known[block] = share
                size += share
        self._tokens[replica_id] = size
        self.owners.add(replica_id, blocks)

    def evict(self, max_tokens: int) -> None:
        """Reduce every replica's part to `max_tokens`."""
        for replica_id, known in self._blocks.items():
            evicted = []
            while self._tokens[replica_id] > max_tokens and known:
                block, share = known.popitem(last=False)
                self._tokens[replica_id] -= share
                evicted.append(block)
            self.owners.remove(replica_id, evicted)

    def forget(self, replica_id: str) -> None:
        """Remove a replica that left."""
        self.owners.remove(replica_id, self._blocks.pop(replica_id, ()))
        self._tokens.pop(replica_id, None)
