"""Which replicas hold which routed prompt: one radix tree of hash chains per model, marked as `prefix_index` says.

A node is a run of marks that nothing has yet parted, so a prompt is written down once for each parting on its way, not
for each mark. Hashes are chained, hence each names a whole prefix: what is known of a chain ends at one mark, which is
found by bisection over every eighth, four look-ups for four thousand blocks, and a few steps from there. Parents lead
back to the root.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.core.prefix_index import RULER

DEPTHS = (0, *RULER)
"""Blocks that a chain's first n marks reach to."""
STEP = 8
"""One mark in so many is entered into the tree's table: look-ups and entries outside of the processor's caches are what
a decision costs."""


@dataclass(slots=True)
class Touch:
    """One use of a chain by one replica, or one answer."""

    at: float
    number: int
    """Of all uses there, in order."""
    leaf: "Node | None"
    """The chain's end; once that is forgotten, the node above which this is now the last use of."""
    answer_tokens: int


@dataclass(slots=True, eq=False)
class Node:
    """A run of marks, and who holds it."""

    hashes: "array[int]"
    """64-bit; an array, for the garbage collector would walk through a tuple."""
    start: int
    """Marks of the chain before it."""
    parent: "Node | None"
    children: int = 0
    holders: int = 0
    """Replicas (bits) that hold all of it."""
    used: dict[int, Touch] = field(default_factory=dict)
    """By row of every replica that holds all or the first part of it: the last use there that ended here, or brought
    it. Who uses a chain uses all that is above its end, which is not written down: it outlives what is below."""
    below: dict[int, int] = field(default_factory=dict)
    """By row: how many of its children the replica holds."""
    partial: dict[int, int] = field(default_factory=dict)
    """By row: marks held, where not all of them are."""

    def has(self, block: int, place: int) -> bool:
        """Whether a mark is the chain's at a place (0 = its first), which lies in this node."""
        start = self.start
        return start <= place < start + len(self.hashes) and self.hashes[place - start] == block

    def entries(self) -> tuple[int, ...]:
        """The marks that it is found by; the first may be named twice."""
        hashes = self.hashes
        return (hashes[0], *hashes[(-1 - self.start) % STEP :: STEP])

    def held(self, row: int) -> int:
        """Marks of it that a replica which uses it holds."""
        return self.partial.get(row, len(self.hashes))


def count_marks(blocks: Sequence[int]) -> int:
    """Marks of a chain; what follows its last mark, at most 1/8 of it, is not known."""
    return bisect_right(RULER, len(blocks))


class PrefixTree:
    """The chains of all mirrors of one model."""

    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {}
        """By its first mark, and by every one whose number is a multiple of STEP. Of those a chain has all up to one
        of them, and none after it, whence bisection."""
        self._found: tuple[Sequence[int], Node | None, int] | None = None
        """What was last looked up, until a mark changes its node: who is placed was looked up just before."""

    def __len__(self) -> int:
        return len(self._nodes)

    def deepest(self, blocks: Sequence[int]) -> tuple[Node | None, int]:
        """The last node along a chain, and how many of the chain's marks are known.

        A hash that is known at another depth is no chained one: it is taken for unknown.
        """
        if self._found is not None and self._found[0] is blocks:
            return self._found[1], self._found[2]
        get, most = self._nodes.get, count_marks(blocks)
        node: Node | None = None
        low, high = 0, most // STEP
        while low < high:
            middle = (low + high + 1) >> 1
            number = middle * STEP
            block = blocks[RULER[number - 1] - 1]
            found = get(block)
            if found is None or not found.has(block, number - 1):
                high = middle - 1
            else:
                low, node = middle, found
        reached = low * STEP
        while reached < most:
            block = blocks[RULER[reached] - 1]
            if node is None or reached == node.start + len(node.hashes):
                below = get(block)
                if below is None or below.start != reached or below.hashes[0] != block:
                    break
                node = below
            elif node.hashes[reached - node.start] != block:
                break
            reached += 1
        self._found = blocks, node, reached
        return node, reached

    def match(self, blocks: Sequence[int], least: float = 1, among: int = -1) -> list[tuple[int, int]]:
        """Who of `among` holds how much of the chain: (bits of replicas, leading blocks); nobody twice.

        Who holds fewer than `least` blocks is left out.
        """
        node, reached = self.deepest(blocks)
        found: list[tuple[int, int]] = []
        while node is not None and among and (depth := DEPTHS[reached]) >= least:
            if here := node.holders & among:
                found.append((here, depth))
                among ^= here
            if node.partial:
                for row, held in node.partial.items():
                    if among >> row & 1 and (depth := DEPTHS[min(node.start + held, reached)]) >= least:
                        found.append((1 << row, depth))
                        among ^= 1 << row
            reached = node.start
            node = node.parent
        return found

    def longest(self, blocks: Sequence[int]) -> int:
        """Leading blocks that whoever holds most of the chain holds."""
        node, reached = self.deepest(blocks)
        while node is not None and not node.holders:
            if node.partial:
                return DEPTHS[min(node.start + max(node.partial.values()), reached)]
            reached = node.start
            node = node.parent
        return DEPTHS[reached]

    def add(self, hashes: "array[int]", start: int, parent: Node | None) -> Node:
        """A new node below `parent`."""
        node = Node(hashes, start, parent)
        self._enter(node)
        if parent is not None:
            parent.children += 1
        return node

    def extend(self, node: Node, hashes: "array[int]") -> None:
        """Let a node without children go on."""
        node.hashes += hashes
        self._enter(node)

    def split(self, node: Node, at: int) -> Node:
        """Part a node after its first `at` marks; its upper part, which is new. Uses keep naming the lower."""
        upper = Node(node.hashes[:at], node.start, node.parent, 1, node.holders, node.used.copy())
        upper.below = dict.fromkeys(node.used, 1)
        self._enter(upper)
        node.hashes, node.start, node.parent = node.hashes[at:], node.start + at, upper
        self._nodes[node.hashes[0]] = node
        for row, held in list(node.partial.items()):
            if held < at:
                upper.partial[row] = held
            else:
                upper.holders |= 1 << row
            if held <= at:
                del node.partial[row], upper.below[row]
                if (touch := node.used.pop(row)).leaf is node:
                    touch.leaf = upper
            else:
                node.partial[row] = held - at
        self._prune(node)
        return upper

    def release(self, node: Node, row: int) -> None:
        """A replica holds nothing of a node any more."""
        del node.used[row]
        above = node.parent
        if above is not None:
            left = above.below[row] - 1
            if left:
                above.below[row] = left
            else:
                del above.below[row]
        node.partial.pop(row, None)
        node.holders &= ~(1 << row)
        self._prune(node)

    def _enter(self, node: Node) -> None:
        self._found = None
        for block in node.entries():
            self._nodes[block] = node

    def _prune(self, node: Node) -> None:
        """Forget nodes that nobody uses; one with others below it stays, for they hang on it."""
        self._found = None
        below: Node | None = node
        while below is not None and not below.used and not below.children:
            for block in below.entries():
                self._nodes.pop(block, None)
            below = below.parent
            if below is not None:
                below.children -= 1
