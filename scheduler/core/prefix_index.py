"""Which replicas hold which prompt prefix: one inverted index per model, block hash -> bitmask of replicas.

Hashes are chained, so one hash names a whole prefix, and it is enough to know the chain at some depths. The depths
are those of `SAMPLED_DEPTHS`: every block up to 32, then 8 in every doubling. A prompt of 4,096 blocks costs at most 89
look-ups, and what is held is known to 1/8 of its length, on average to 1/16, always from below: a look-up in a million
blocks is a cache miss of the processor, so their number is what a decision costs.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import itemgetter

FINE_DEPTH = 32
"""Up to this depth every block is a mark."""
SAMPLES_PER_DOUBLING = 8
MAX_DEPTH = 4096
"""Blocks of one chain that are looked at."""


def spaced_depths(fine: int, step: int, per_doubling: int) -> tuple[int, ...]:
    """Depths up to MAX_DEPTH: every `step` blocks up to `fine`, a power of two, then so many in every doubling."""
    found = list(range(step, fine + 1, step))
    start = fine
    while start < MAX_DEPTH:
        gap = start // per_doubling
        found.extend(range(start + gap, 2 * start + 1, gap))
        start *= 2
    return tuple(found)


SAMPLED_DEPTHS = spaced_depths(FINE_DEPTH, 1, SAMPLES_PER_DOUBLING)
"""Depths (1 = the first block) at which chains are marked."""

_SAMPLERS = tuple(
    itemgetter(*[depth - 1 for depth in SAMPLED_DEPTHS[: count + 1]])
    for count in range(1, len(SAMPLED_DEPTHS))
)
"""Takes a chain's first n marks out of its blocks at once, n from 2 on."""
Hashes = tuple[int, ...]
"""A tuple of numbers is no business of the garbage collector, as a list would be."""


def sampled_hashes(blocks: Sequence[int]) -> tuple[Hashes, Hashes]:
    """The hashes at a chain's marks, first to last, and their depths; its end is always the last mark."""
    length = min(len(blocks), MAX_DEPTH)
    if length <= FINE_DEPTH:
        return tuple(blocks[:length]), SAMPLED_DEPTHS[:length]
    count = bisect_right(SAMPLED_DEPTHS, length)
    hashes, at = _SAMPLERS[count - 2](blocks), SAMPLED_DEPTHS[:count]
    if at[-1] != length:
        hashes += (blocks[length - 1],)
        at += (length,)
    return hashes, at


class PrefixIndex:
    """Block hash -> replicas (bits) believed to hold the chain up to that block."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, block: int, bit: int) -> None:
        """The replica `bit` holds `block`."""
        holders = self._holders
        holders[block] = holders.get(block, 0) | bit

    def drop(self, block: int, bit: int) -> None:
        """The replica `bit` does not hold `block` (any more)."""
        left = self._holders.get(block, 0) & ~bit
        if left:
            self._holders[block] = left
        else:
            self._holders.pop(block, None)

    def match(self, blocks: Sequence[int], least: float = 1, among: int = -1) -> list[tuple[int, int]]:
        """Who of `among` holds how much of the chain: (bits of replicas, leading blocks), shortest first; nobody twice.

        Who holds fewer than `least` blocks is left out, and the chain before is taken on trust. From there it goes
        from mark to mark and drops who lacks one: a replica whose engine lost a block in the middle counts up to the
        hole only.
        """
        if not blocks:
            return []
        hashes, at = sampled_hashes(blocks)
        first = bisect_left(at, least)
        found: list[tuple[int, int]] = []
        alive, place = among, first
        for place, holders in enumerate(map(self._holders.get, hashes[first:]), first):
            if holders == alive:
                continue
            still = alive & holders if holders else 0
            if still != alive:
                if place > first:
                    found.append((alive ^ still, at[place - 1]))
                if not still:
                    return found
                alive = still
        found.append((alive, at[place]))
        return found
