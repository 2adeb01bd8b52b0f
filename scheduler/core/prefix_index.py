"""Which replicas hold which prompt prefix: one inverted index per model, block hash -> bitmask of replicas.

Hashes are chained: each identifies a whole prefix, so it is enough to index some depths. SAMPLED_DEPTHS has every
block up to 32 and 8 per doubling above. A prompt of 4,096 blocks takes at most 89 look-ups, and the held length is
known to 1/8, on average to 1/16, as a lower bound. A look-up among a million blocks is a cache miss of the processor,
so their number determines the cost.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import itemgetter

FINE_DEPTH = 32
"""Depth up to which every block is sampled."""
SAMPLES_PER_DOUBLING = 8
"""Sampled depths per doubling above FINE_DEPTH."""
MAX_DEPTH = 4096
"""Blocks of a chain that are used; the rest is ignored."""


def spaced_depths(fine: int, step: int, per_doubling: int) -> tuple[int, ...]:
    """Depths up to MAX_DEPTH: every `step` blocks up to `fine` (a power of two), then `per_doubling` per doubling."""
    found = list(range(step, fine + 1, step))
    start = fine
    while start < MAX_DEPTH:
        gap = start // per_doubling
        found.extend(range(start + gap, 2 * start + 1, gap))
        start *= 2
    return tuple(found)


SAMPLED_DEPTHS = spaced_depths(FINE_DEPTH, 1, SAMPLES_PER_DOUBLING)
"""Depths (1 = the first block) that are indexed."""

_SAMPLERS = tuple(
    itemgetter(*[depth - 1 for depth in SAMPLED_DEPTHS[: count + 1]])
    for count in range(1, len(SAMPLED_DEPTHS))
)
"""Functions that take the first n sampled hashes out of a chain at once, from n = 2 on."""
Hashes = tuple[int, ...]
"""A tuple of integers, which the garbage collector does not scan, unlike a list."""


def sampled_hashes(blocks: Sequence[int]) -> tuple[Hashes, Hashes]:
    """The sampled hashes of a chain, first to last, and their depths; the end of the chain is always the last."""
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
        """Note that the replica `bit` holds `block`."""
        holders = self._holders
        holders[block] = holders.get(block, 0) | bit

    def drop(self, block: int, bit: int) -> None:
        """Note that the replica `bit` does not hold `block`."""
        left = self._holders.get(block, 0) & ~bit
        if left:
            self._holders[block] = left
        else:
            self._holders.pop(block, None)

    def match(self, blocks: Sequence[int], least: float = 1, among: int = -1) -> list[tuple[int, int]]:
        """Replicas of `among` (bits) by the leading blocks that they hold, as (bits, blocks), shortest first; each at
        most once.

        Replicas that hold fewer than `least` blocks are left out, and the blocks before are not verified. A replica
        that lost a block in the middle counts up to the gap.
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
