"""The KV block pool by counts: which prefixes can be found, which blocks are in use, which is evicted next.

A block has no number here. Content that can be found is an `Entry` under its chained hash (one hash may stand for
several KV blocks); everything else is a count of anonymous blocks. Free blocks are taken as vLLM takes them: in the
order in which they were freed, the end of a chain before its beginning, whether or not they hold something findable.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class Entry:
    """Some KV blocks freed or found together. Without a hash the content cannot be found again."""

    __slots__ = ("blocks", "hash", "references")

    def __init__(self, hash_: int | None, blocks: int, references: int) -> None:
        self.hash = hash_
        self.blocks = blocks
        self.references = references


class CountedPool:
    """`blocks` KV blocks: blank, idle (freed, content still there) or in use.

    Invariant: blank + idle + used = blocks, and an entry is idle exactly when nothing references it.
    """

    __slots__ = ("_entries", "_idle", "_idle_blocks", "blank", "blocks", "removed")

    def __init__(self, blocks: int, removed: list[int] | None = None) -> None:
        self.blocks = blocks
        self.blank = blocks
        """Number of blocks without content."""
        self.removed = removed
        """List to which hashes of evicted entries are appended; None = not recorded."""
        self._entries: dict[int, Entry] = {}
        self._idle: OrderedDict[Entry, None] = OrderedDict()
        self._idle_blocks = 0

    @property
    def free(self) -> int:
        """Number of blocks that can be allocated now; allocation evicts their cached content."""
        return self.blank + self._idle_blocks

    @property
    def used(self) -> int:
        """Number of blocks that running requests reference."""
        return self.blocks - self.blank - self._idle_blocks

    @property
    def cached_count(self) -> int:
        """Number of hashes that can be found."""
        return len(self._entries)

    def __contains__(self, hash_: int) -> bool:
        return hash_ in self._entries

    def hashes(self) -> list[int]:
        """Return all hashes that can be found, in order of insertion."""
        return list(self._entries)

    def match(self, hashes: Sequence[int], limit: int) -> tuple[list[Entry], int]:
        """Return the longest cached prefix of the first `limit` hashes, and how many of its blocks are idle."""
        found: list[Entry] = []
        idle = 0
        get = self._entries.get
        for index in range(min(limit, len(hashes))):
            entry = get(hashes[index])
            if entry is None:
                break
            found.append(entry)
            if not entry.references:
                idle += entry.blocks
        return found, idle

    def touch(self, entries: Iterable[Entry]) -> None:
        """Reference entries that `match` returned."""
        idle = self._idle
        for entry in entries:
            if not entry.references:
                del idle[entry]
                self._idle_blocks -= entry.blocks
            entry.references += 1

    def allocate(self, count: int) -> bool:
        """Allocate `count` anonymous blocks; returns False, and allocates none, when fewer are free."""
        blank = self.blank
        if blank < count:
            if blank + self._idle_blocks < count:
                return False
            while blank < count:
                blank += self._evict()
        self.blank = blank - count
        return True

    def _evict(self) -> int:
        entry, _none = self._idle.popitem(last=False)
        self._idle_blocks -= entry.blocks
        if entry.hash is not None:
            del self._entries[entry.hash]
            if self.removed is not None:
                self.removed.append(entry.hash)
        return entry.blocks

    def publish(self, hashes: Sequence[int], blocks: int, held: list[Entry]) -> list[int]:
        """Cache the caller's anonymous blocks, `blocks` of them under each hash; return the new hashes.

        Their entries are appended to `held`. Where a hash exists already, the first content stays and the
        caller's blocks stay anonymous.
        """
        entries = self._entries
        stored: list[int] = []
        for hash_ in hashes:
            if hash_ not in entries:
                entry = entries[hash_] = Entry(hash_, blocks, 1)
                held.append(entry)
                stored.append(hash_)
        return stored

    def release(self, entries: Sequence[Entry], anonymous: int) -> None:
        """Release `entries` (a chain from its start) and anonymous blocks; the end of the chain is evicted first."""
        idle = self._idle
        if anonymous:
            idle[Entry(None, anonymous, 0)] = None
            self._idle_blocks += anonymous
        for entry in reversed(entries):
            entry.references -= 1
            if not entry.references:
                idle[entry] = None
                self._idle_blocks += entry.blocks

    def reset_prefix_cache(self) -> None:
        """Remove all hashes; blocks in use stay in use."""
        for entry in self._entries.values():
            entry.hash = None
        self._entries.clear()

    def check(self, held: int | None = None) -> None:
        """Raise AssertionError when an invariant is violated; `held` = the number of blocks that requests hold."""
        if self._idle_blocks != sum(entry.blocks for entry in self._idle) or self.blank < 0:
            raise AssertionError(f"{self._idle_blocks} idle and {self.blank} blank blocks do not add up")
        if any(entry.references for entry in self._idle):
            raise AssertionError("an entry in use is among the idle ones")
        if any(entry.references == 0 and entry not in self._idle for entry in self._entries.values()):
            raise AssertionError("an entry without users is not idle")
        if not 0 <= self.used <= self.blocks or (held is not None and held != self.used):
            raise AssertionError(f"{self.used} of {self.blocks} blocks in use, the requests hold {held}")
