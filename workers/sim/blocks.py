"""The KV block pool: reference counts, a prefix cache by chained hashes, least recently used blocks given up first."""

from collections import OrderedDict


class BlockPool:
    """Fixed number of KV blocks. A block is in use (references > 0) or free.

    A free block may still hold cached content until it is taken for something else.

    Invariant: every block is either in `_free` or referenced, never both.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._references = [0] * blocks
        self._hash_of: list[int | None] = [None] * blocks
        self._cached: dict[int, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict((block, None) for block in range(blocks))

    @property
    def free(self) -> int:
        """Blocks that can be taken now (cached content in them would be lost)."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks referenced by at least one sequence."""
        return self.blocks - len(self._free)

    @property
    def cached(self) -> int:
        """Blocks whose content can be found by its hash."""
        return len(self._cached)

    def match(self, hashes: list[int]) -> list[int]:
        """The blocks holding the longest cached prefix of `hashes`, without taking them."""
        found: list[int] = []
        for value in hashes:
            block = self._cached.get(value)
            if block is None:
                break
            found.append(block)
        return found

    def take_cached(self, blocks: list[int]) -> None:
        """Reference blocks that `match` returned."""
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1

    def take_new(self, count: int) -> list[int] | None:
        """`count` blocks for new content, least recently freed first; None, and nothing taken, when too few."""
        if count > len(self._free):
            return None
        taken: list[int] = []
        for _ in range(count):
            block, _none = self._free.popitem(last=False)
            old = self._hash_of[block]
            if old is not None:
                del self._cached[old]
                self._hash_of[block] = None
            self._references[block] = 1
            taken.append(block)
        return taken

    def publish(self, block: int, value: int) -> None:
        """Make a full block findable by its hash; the first block with a given content stays the one that is found."""
        if self._hash_of[block] is None and value not in self._cached:
            self._hash_of[block] = value
            self._cached[value] = block

    def release(self, blocks: list[int]) -> None:
        """Drop one reference to each; leaves (the end of the list) are given up before their parents."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None

    def reset_cache(self) -> None:
        """Forget all cached content (sleep level 2, or an operator's reset)."""
        self._cached.clear()
        self._hash_of = [None] * self.blocks

    def check(self) -> None:
        """Raise AssertionError when the invariant is broken; for tests."""
        for block in range(self.blocks):
            if (self._references[block] == 0) != (block in self._free):
                raise AssertionError(
                    f"block {block}: {self._references[block]} references, free list disagrees"
                )
        for value, block in self._cached.items():
            if self._hash_of[block] != value:
                raise AssertionError(f"block {block} is cached under a hash it does not carry")
