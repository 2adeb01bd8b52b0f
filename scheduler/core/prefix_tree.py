"""Which replicas hold which routed prompts: one radix tree of hash chains per model.

A node is a run of blocks without a branch, so a prompt needs one entry per branch and not per block. Hashes are
chained: each identifies a whole prefix. Chains that are equal at one depth are equal before it, and where they part
is found by bisection. The last known block of a chain is found by bisection over INDEXED_DEPTHS, five look-ups for
four thousand blocks, and again within the node. Parents lead back to the root. The cost of a decision is the number
of entries that are not in the processor's caches.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.core.prefix_index import MAX_DEPTH, spaced_depths

INDEXED_DEPTHS = spaced_depths(64, 8, 4)
"""Depths (1 = the first block) at which nodes can be looked up, besides by their first block."""


@dataclass(slots=True)
class PrefixUse:
    """One use of a chain by one replica, or one answer."""

    at: float
    number: int
    """Sequence number of the use on its replica."""
    leaf: "PrefixNode | None"
    """The node at the end of the chain; after its eviction the node above, if this is its last use."""
    answer_tokens: int


@dataclass(slots=True, eq=False)
class PrefixNode:
    """A run of blocks and the replicas that hold it."""

    hashes: "array[int]"
    """64-bit hashes, in an array because the garbage collector does not scan it."""
    start: int
    """Number of blocks of the chain before the node."""
    parent: "PrefixNode | None"
    children: int = 0
    holders: int = 0
    """Replicas (bits) that hold the whole node."""
    last_use: dict[int, PrefixUse] = field(default_factory=dict)
    """By row of every replica that holds all or the first part of the node: the last use that ended here or added it.
    A use counts for all nodes above its end, but is not stored there, because these outlive what is below."""
    children_held: dict[int, int] = field(default_factory=dict)
    """By row: how many of the children the replica holds."""
    partial: dict[int, int] = field(default_factory=dict)
    """By row: number of blocks held, where it is not all of them."""

    @property
    def end(self) -> int:
        """Depth of the last block."""
        return self.start + len(self.hashes)

    def contains(self, block: int, depth: int) -> bool:
        """Whether the chain has `block` at `depth`, and the depth lies in this node."""
        start = self.start
        return start < depth <= start + len(self.hashes) and self.hashes[depth - 1 - start] == block

    def common_depth(self, blocks: Sequence[int], low: int, length: int) -> int:
        """The depth up to which a chain is equal to this node, if it is equal at depth `low` in this node."""
        hashes, start = self.hashes, self.start
        high = min(start + len(hashes), length)
        if hashes[high - 1 - start] == blocks[high - 1]:
            return high
        while high - low > 1:
            middle = (low + high) >> 1
            if hashes[middle - 1 - start] == blocks[middle - 1]:
                low = middle
            else:
                high = middle
        return low

    def indexed_hashes(self) -> list[int]:
        """The hashes that the node is indexed by; the first may occur twice."""
        hashes, start = self.hashes, self.start
        first, last = (
            bisect_left(INDEXED_DEPTHS, start + 1),
            bisect_right(INDEXED_DEPTHS, start + len(hashes)),
        )
        return [hashes[0], *[hashes[depth - 1 - start] for depth in INDEXED_DEPTHS[first:last]]]

    def blocks_held(self, row: int) -> int:
        """Blocks of the node that a replica which uses it holds."""
        return self.partial.get(row, len(self.hashes))


class PrefixTree:
    """The chains of all mirrors of one model, up to MAX_DEPTH blocks."""

    def __init__(self) -> None:
        self._nodes: dict[int, PrefixNode] = {}
        """Nodes by their first block and by their blocks at INDEXED_DEPTHS. Of the latter, the known ones of a chain
        are consecutive from the first, which allows bisection."""
        self._last_lookup: tuple[Sequence[int], PrefixNode | None, int] | None = None
        """The last lookup, valid until a block changes its node: a request that is placed was looked up just
        before."""

    def __len__(self) -> int:
        return len(self._nodes)

    def deepest(self, blocks: Sequence[int]) -> tuple[PrefixNode | None, int]:
        """The last node along a chain, and the number of the chain's blocks that are known.

        A hash that is known at another depth is not a chained hash and counts as unknown.
        """
        if self._last_lookup is not None and self._last_lookup[0] is blocks:
            return self._last_lookup[1], self._last_lookup[2]
        get, length = self._nodes.get, min(len(blocks), MAX_DEPTH)
        node: PrefixNode | None = None
        low, high = 0, bisect_right(INDEXED_DEPTHS, length)
        while low < high:
            middle = (low + high + 1) >> 1
            depth = INDEXED_DEPTHS[middle - 1]
            block = blocks[depth - 1]
            found = get(block)
            if found is None or not found.contains(block, depth):
                high = middle - 1
            else:
                low, node = middle, found
        reached = 0
        if node is not None:
            reached = node.common_depth(blocks, INDEXED_DEPTHS[low - 1], length)
        while reached < length and (node is None or reached == node.end):
            below = get(blocks[reached])
            if below is None or not below.contains(blocks[reached], reached + 1) or below.start != reached:
                break
            node = below
            reached = node.common_depth(blocks, reached + 1, length)
        self._last_lookup = blocks, node, reached
        return node, reached

    def match(self, blocks: Sequence[int], least: float = 1, among: int = -1) -> list[tuple[int, int]]:
        """Replicas of `among` (bits) by the leading blocks that they hold, as (bits, blocks); each replica at most
        once.

        Replicas that hold fewer than `least` blocks are left out.
        """
        node, reached = self.deepest(blocks)
        found: list[tuple[int, int]] = []
        while node is not None and among and reached >= least:
            if here := node.holders & among:
                found.append((here, reached))
                among ^= here
            if node.partial:
                for row, held in node.partial.items():
                    if among >> row & 1 and (depth := min(node.start + held, reached)) >= least:
                        found.append((1 << row, depth))
                        among ^= 1 << row
            reached = node.start
            node = node.parent
        return found

    def longest_hit(self, blocks: Sequence[int]) -> int:
        """The largest number of leading blocks that a replica holds."""
        node, reached = self.deepest(blocks)
        while node is not None and not node.holders:
            if node.partial:
                return min(node.start + max(node.partial.values()), reached)
            reached = node.start
            node = node.parent
        return reached

    def add(self, hashes: "array[int]", start: int, parent: PrefixNode | None) -> PrefixNode:
        """Add a node below `parent`."""
        node = PrefixNode(hashes, start, parent)
        self._index(node)
        if parent is not None:
            parent.children += 1
        return node

    def extend(self, node: PrefixNode, hashes: "array[int]") -> None:
        """Append blocks to a node without children."""
        node.hashes += hashes
        self._index(node)

    def split(self, node: PrefixNode, at: int) -> PrefixNode:
        """Split a node after its first `at` blocks and return the new upper node. Uses keep pointing to the lower
        one."""
        upper = PrefixNode(node.hashes[:at], node.start, node.parent, 1, node.holders, node.last_use.copy())
        upper.children_held = dict.fromkeys(node.last_use, 1)
        self._index(upper)
        node.hashes, node.start, node.parent = node.hashes[at:], node.start + at, upper
        self._nodes[node.hashes[0]] = node
        for row, held in list(node.partial.items()):
            if held < at:
                upper.partial[row] = held
            else:
                upper.holders |= 1 << row
            if held <= at:
                del node.partial[row], upper.children_held[row]
                if (use := node.last_use.pop(row)).leaf is node:
                    use.leaf = upper
            else:
                node.partial[row] = held - at
        self._prune(node)
        return upper

    def release(self, node: PrefixNode, row: int) -> None:
        """Remove a replica from a node."""
        del node.last_use[row]
        above = node.parent
        if above is not None:
            left = above.children_held[row] - 1
            if left:
                above.children_held[row] = left
            else:
                del above.children_held[row]
        node.partial.pop(row, None)
        node.holders &= ~(1 << row)
        self._prune(node)

    def _index(self, node: PrefixNode) -> None:
        self._last_lookup = None
        for block in node.indexed_hashes():
            self._nodes[block] = node

    def _prune(self, node: PrefixNode) -> None:
        """Remove nodes without uses and children, upwards."""
        self._last_lookup = None
        below: PrefixNode | None = node
        while below is not None and not below.last_use and not below.children:
            for block in below.indexed_hashes():
                if self._nodes.get(block) is below:
                    del self._nodes[block]
            below = below.parent
            if below is not None:
                below.children -= 1
