"""Which replicas hold which routed prompt: one radix tree of hash chains per model, marked as `prefix_index` says.

An edge is a run of marks that nothing has yet parted, so a prompt costs as many look-ups as there were partings on its
way: after a shared system prompt and a conversation two or three, whether it has ten blocks or four thousand. Hashes
are chained, hence each names a whole prefix: a node is found by its first hash alone, and where two chains are equal
at one depth they are equal before it, so that the place where they part is found by bisection.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.core.prefix_index import RULER, Numbers

DEPTHS = (0, *RULER)
"""Blocks that a chain's first n marks reach to."""


@dataclass(slots=True)
class Touch:
    """One use of a chain by one replica, or one answer."""

    at: float
    leaf: "Node | None"
    """The deepest node of the chain that this may be the last use of."""
    answer_tokens: int


@dataclass(slots=True, eq=False)
class Node:
    """A run of marks, and who holds it."""

    hashes: Numbers
    start: int
    """Marks of the chain before it."""
    parent: "Node | None"
    children: int = 0
    holders: int = 0
    """Replicas (bits) that hold all of it."""
    used: dict[int, Touch] = field(default_factory=dict)
    """By row of every replica that holds all or the first part of it: its last use there."""
    partial: dict[int, int] = field(default_factory=dict)
    """By row: marks held, where not all of them are."""

    def common(self, blocks: Sequence[int], most: int) -> int:
        """Marks that a chain shares with it from its first on, which is known to be equal; `most` = the chain's."""
        hashes, start = self.hashes, self.start
        high = min(len(hashes), most - start)
        if hashes[high - 1] == blocks[RULER[start + high - 1] - 1]:
            return high
        low = 1
        while high - low > 1:
            middle = (low + high) >> 1
            if hashes[middle - 1] == blocks[RULER[start + middle - 1] - 1]:
                low = middle
            else:
                high = middle
        return low

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
        """By first hash."""

    def __len__(self) -> int:
        return len(self._nodes)

    def match(self, blocks: Sequence[int], least: float = 1, among: int = -1) -> list[tuple[int, int]]:
        """Who of `among` holds how much of the chain: (bits of replicas, leading blocks); nobody twice.

        Who holds fewer than `least` blocks is left out. Who lacks a part of the chain counts up to it only.
        """
        most, nodes = count_marks(blocks), self._nodes
        found: list[tuple[int, int]] = []
        alive, reached = among, 0
        while reached < most:
            node = nodes.get(blocks[RULER[reached] - 1])
            if node is None:
                break
            shared, gone = node.common(blocks, most), alive & ~node.holders
            if node.partial:
                for row, held in node.partial.items():
                    bit = 1 << row
                    if gone & bit:
                        gone ^= bit
                        alive ^= bit
                        depth = DEPTHS[reached + min(held, shared)]
                        if depth >= least:
                            found.append((bit, depth))
            if gone:
                if reached and DEPTHS[reached] >= least:
                    found.append((gone, DEPTHS[reached]))
                alive &= node.holders
                if not alive:
                    return found
            reached += shared
            if shared < len(node.hashes):
                break
        if reached and DEPTHS[reached] >= least:
            found.append((alive, DEPTHS[reached]))
        return found

    def path(self, blocks: Sequence[int]) -> list[tuple[Node, int]]:
        """The nodes along a chain, from the root on, and how many of its marks each shares with it."""
        most, reached = count_marks(blocks), 0
        found: list[tuple[Node, int]] = []
        while reached < most and (node := self._nodes.get(blocks[RULER[reached] - 1])) is not None:
            shared = node.common(blocks, most)
            found.append((node, shared))
            reached += shared
            if shared < len(node.hashes):
                break
        return found

    def add(self, hashes: Numbers, start: int, parent: Node | None) -> Node:
        """A new node below `parent`."""
        node = self._nodes[hashes[0]] = Node(hashes, start, parent)
        if parent is not None:
            parent.children += 1
        return node

    def split(self, node: Node, at: int) -> Node:
        """Part a node after its first `at` marks; its upper part, which is new. Uses keep naming the lower."""
        upper = self._nodes[node.hashes[0]] = Node(node.hashes[:at], node.start, node.parent, 1, node.holders)
        upper.used = node.used.copy()
        node.hashes, node.start, node.parent = node.hashes[at:], node.start + at, upper
        self._nodes[node.hashes[0]] = node
        for row, held in list(node.partial.items()):
            if held < at:
                upper.partial[row] = held
            else:
                upper.holders |= 1 << row
            if held <= at:
                del node.partial[row], node.used[row]
            else:
                node.partial[row] = held - at
        self._prune(node)
        return upper

    def release(self, node: Node, row: int) -> None:
        """A replica holds nothing of a node any more."""
        del node.used[row]
        node.partial.pop(row, None)
        node.holders &= ~(1 << row)
        self._prune(node)

    def _prune(self, node: Node) -> None:
        """Forget nodes that nobody uses; one with others below it stays, for they hang on it."""
        below: Node | None = node
        while below is not None and not below.used and not below.children:
            del self._nodes[below.hashes[0]]
            below = below.parent
            if below is not None:
                below.children -= 1
