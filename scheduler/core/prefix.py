"""What one replica's prefix cache is believed to hold, from one of two sources.

`MirroredPrefixes` (in `mirror`) is an estimate: an LRU of the prompts that were routed there, as large as the
engine's cache. `ExactPrefixes` follows the engine's own events, and expects prompts that are on their way for a short
time.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from scheduler.core.prefix_index import Hashes, PrefixIndex, sampled_hashes
from workers.wire import KvDelta

NEVER = float("-inf")
"""The time of last use of blocks that were never used."""
RESYNC_S = 5.0
"""Seconds after which an agent is asked for the full cache state, if it has not sent it by itself or on request. It
normally sends it right after the first heartbeat of a replica."""
UNSYNCED = -1
"""Sequence number while deltas are missing."""


class CachedPrefix(NamedTuple):
    """What a replica held of a prompt before it was routed there."""

    blocks: int
    last_used_at: float
    """When the blocks were last used, or a little earlier; -inf = never."""


NOT_CACHED = CachedPrefix(0, NEVER)
"""No part of the prompt was held."""


class PrefixSource(Protocol):
    """Prefix knowledge of one replica. Times are monotonic seconds."""

    room_tokens: int
    """Size of the KV cache in tokens."""
    max_entries: int
    """Most entries that are kept in memory."""

    @property
    def tokens(self) -> int:
        """Tokens believed to be cached."""

    def __len__(self) -> int:
        """Entries in memory."""

    def on_route(self, blocks: Sequence[int], block_tokens: float, now: float) -> CachedPrefix:
        """A prompt is routed to the replica. Returns what was held of it before."""

    def on_prefill(self, blocks: Sequence[int], now: float) -> None:
        """A prompt is prefilled: its blocks are cached."""

    def on_close(self, blocks: Sequence[int], block_tokens: float, answer_tokens: int, now: float) -> None:
        """A request is over: its prompt and answer were used last."""

    def on_abandon(self, blocks: Sequence[int], kept: int, used_until: float, now: float) -> None:
        """A prompt was not prefilled: beyond its first `kept` blocks only what was used after `used_until` is
        cached."""

    def on_failure(self, blocks: Sequence[int], prefilled: bool, now: float) -> None:
        """The replica failed the request."""

    def on_miss(self, last_used_at: float) -> None:
        """The engine did not hold a chain that was last used at `last_used_at`."""

    def apply(self, delta: KvDelta) -> None:
        """Apply the engine's own cache events."""

    def trim(self, now: float) -> None:
        """Reduce to the bounds. Called when no decision waits for it."""

    def clear(self) -> None:
        """The cache is empty."""


class ExactPrefixes:
    """What the engine reports as cached, and the prompts that are on their way to it.

    Events arrive 5 to 50 ms late, so a prompt counts as cached from routing until `grace_s` after its first token.
    Otherwise a burst with one new prefix would be spread over many replicas. Nothing else is kept of routed prompts.
    """

    def __init__(
        self, index: PrefixIndex, bit: int, room_tokens: int, max_entries: int, grace_s: float
    ) -> None:
        self.room_tokens = room_tokens
        self.max_entries = max_entries
        self.block_tokens = 0.0
        """Tokens in each block, as in the last routed request."""
        self.grace_s = grace_s
        self._seq = UNSYNCED
        """Sequence number of the last delta; UNSYNCED = deltas are missing, or none has arrived."""
        self._resync_at: float | None = None
        """When to ask the agent for the full state; None = not set yet."""
        self._resync_sent = False
        self._index = index
        self._bit = bit
        self._held: set[int] = set()
        self._expected: dict[int, int] = {}
        """Block -> number of prompts on their way that contain it."""
        self._in_flight: dict[int, tuple[Sequence[int], int]] = {}
        """By identity of a chain: the chain and how many of its prompts are on their way. Prompts from before `clear`
        are not contained, so that their end does not affect later ones."""
        self._expiring: deque[tuple[float, Hashes]] = deque()
        """When expectations end, and their blocks."""

    def __len__(self) -> int:
        return len(self._held) + len(self._expected)

    @property
    def tokens(self) -> int:
        """Tokens that the engine holds."""
        return int(len(self._held) * self.block_tokens)

    def on_route(self, blocks: Sequence[int], block_tokens: float, now: float) -> CachedPrefix:
        """Expect the prompt's blocks until they are prefilled."""
        self._expire(now)
        self.block_tokens = block_tokens
        if not blocks:
            return NOT_CACHED
        expected, index, bit = self._expected, self._index, self._bit
        for block in sampled_hashes(blocks)[0]:
            count = expected.get(block, 0)
            if not count and block not in self._held:
                index.add(block, bit)
            expected[block] = count + 1
        self._in_flight[id(blocks)] = (blocks, self._in_flight.get(id(blocks), (blocks, 0))[1] + 1)
        return NOT_CACHED

    def on_prefill(self, blocks: Sequence[int], now: float) -> None:
        """Expect the blocks for `grace_s` more, in which the engine's event arrives."""
        if expected := self._take_in_flight(blocks):
            self._expiring.append((now + self.grace_s, expected))
        self._expire(now)

    def on_close(self, blocks: Sequence[int], block_tokens: float, answer_tokens: int, now: float) -> None:
        """End the expectation of a prompt that was announced after its first token."""
        self.on_prefill(blocks, now)

    def on_abandon(self, blocks: Sequence[int], kept: int, used_until: float, now: float) -> None:
        """End the expectation at once."""
        self._forget(self._take_in_flight(blocks))
        self._expire(now)

    def on_failure(self, blocks: Sequence[int], prefilled: bool, now: float) -> None:
        """End the expectation at once. What the engine holds stays: a restarted engine has another boot id."""
        self._forget(self._take_in_flight(blocks))
        self._expire(now)

    def on_miss(self, last_used_at: float) -> None:
        """Nothing to do: the engine's events report it."""

    def apply(self, delta: KvDelta) -> None:
        """Apply stored and removed blocks; a cleared cache is emptied first.

        After a gap the result is the best knowledge until the agent has sent the full state.
        """
        self._check_sequence(delta)
        held, index, bit, expected = self._held, self._index, self._bit, self._expected
        if delta.cleared:
            for block in held:
                if block not in expected:
                    index.drop(block, bit)
            held.clear()
        for block in delta.removed:
            if block in held:
                held.remove(block)
                if block not in expected:
                    index.drop(block, bit)
        for block in delta.stored:
            if len(held) < self.max_entries and block not in held:
                held.add(block)
                index.add(block, bit)

    def trim(self, now: float) -> None:
        """End the expectations that are due."""
        self._expire(now)

    def clear(self) -> None:
        """The engine restarted: nothing is cached and nothing is on its way."""
        for block in self._held | self._expected.keys():
            self._index.drop(block, self._bit)
        self._held.clear()
        self._expected.clear()
        self._in_flight.clear()
        self._expiring.clear()
        self._seq, self._resync_at, self._resync_sent = UNSYNCED, None, False

    def needs_resync(self, now: float) -> bool:
        """Whether the agent should now be asked for the full cache state. The caller then asks."""
        if self._seq != UNSYNCED:
            return False
        if self._resync_at is None:
            self._resync_at = now + RESYNC_S
        if now < self._resync_at:
            return False
        self._resync_at, self._resync_sent = now + RESYNC_S, True
        return True

    def _check_sequence(self, delta: KvDelta) -> None:
        """Detect missing deltas. Deltas that were under way when the agent was asked do not count."""
        if delta.cleared or (self._seq != UNSYNCED and delta.seq == self._seq + 1):
            self._seq, self._resync_sent = delta.seq, False
            return
        if not self._resync_sent:
            self._resync_at = NEVER
        self._seq = UNSYNCED

    def _take_in_flight(self, blocks: Sequence[int]) -> Hashes:
        """The sampled hashes of a prompt that is no longer on its way; empty when it is not known."""
        chain, prompts = self._in_flight.pop(id(blocks), (blocks, 0))
        if prompts > 1:
            self._in_flight[id(blocks)] = (chain, prompts - 1)
        return sampled_hashes(blocks)[0] if prompts else ()

    def _expire(self, now: float) -> None:
        while self._expiring and self._expiring[0][0] <= now:
            self._forget(self._expiring.popleft()[1])

    def _forget(self, hashes: Sequence[int]) -> None:
        expected = self._expected
        for block in hashes:
            count = expected.get(block, 0)
            if count > 1:
                expected[block] = count - 1
            elif count == 1:
                del expected[block]
                if block not in self._held:
                    self._index.drop(block, self._bit)
