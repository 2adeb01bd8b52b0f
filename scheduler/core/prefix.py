"""What one replica's prefix cache is believed to hold, from either of two sources (DESIGN §6).

`MirroredPrefixes` (in `mirror`) is an estimate: an LRU of the prompts that were routed there, as large as the engine's
cache. `ExactPrefixes` follows the engine's own events, and expects prompts that are on their way for a short time.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from scheduler.core.prefix_index import Hashes, PrefixIndex, sampled_hashes
from workers.wire import KvDelta

NEVER = float("-inf")
RESYNC_S = 5.0
"""An agent says by itself all that an engine holds, right after the heartbeat that names it; one that has not within
this, or not after it was asked, is asked (again)."""
UNSYNCED = -1


class CachedPrefix(NamedTuple):
    """What a replica held of a prompt before it came."""

    blocks: int
    last_used_at: float
    """When it was last used, or a little earlier; -inf = never."""


NOT_CACHED = CachedPrefix(0, NEVER)


class PrefixSource(Protocol):
    """Prefix knowledge of one replica."""

    room_tokens: int
    """Room of the cache in tokens."""
    max_entries: int
    """Entries it may keep in memory."""

    @property
    def tokens(self) -> int:
        """Tokens believed cached."""

    def __len__(self) -> int:
        """Entries kept in memory."""

    def on_route(self, blocks: Sequence[int], block_tokens: float, now: float) -> CachedPrefix:
        """A prompt is on its way there; what was held of it before."""

    def on_prefill(self, blocks: Sequence[int], now: float) -> None:
        """Its blocks are cached from now on."""

    def on_close(self, blocks: Sequence[int], block_tokens: float, answer_tokens: int, now: float) -> None:
        """The request is over: its prompt and its answer are now what was used last."""

    def on_abandon(self, blocks: Sequence[int], kept: int, used_until: float, now: float) -> None:
        """Beyond its first `kept` blocks nothing of a prompt is cached, save what was used after `used_until`."""

    def on_failure(self, blocks: Sequence[int], prefilled: bool, now: float) -> None:
        """The replica failed the request."""

    def on_miss(self, last_used_at: float) -> None:
        """The engine did not have a chain last used at `used_at`."""

    def apply(self, delta: KvDelta) -> None:
        """The engine's own word."""

    def trim(self, now: float) -> None:
        """Back into bounds; called where no caller waits for a decision."""

    def clear(self) -> None:
        """The cache is empty."""


class ExactPrefixes:
    """What the engine says it holds, and prompts on their way to it.

    Events are 5-50 ms late, so a prompt is believed from routing until `grace_s` after its first token; without that
    a burst with one new prefix would scatter. Nothing else is remembered of routed prompts.
    """

    def __init__(
        self, index: PrefixIndex, bit: int, room_tokens: int, max_entries: int, grace_s: float
    ) -> None:
        self.room_tokens = room_tokens
        self.max_entries = max_entries
        self.block_tokens = 0.0
        """Tokens in each block; learnt from the first request."""
        self.grace_s = grace_s
        self.dropped = 0
        """Blocks the engine stored that did not fit in our bound."""
        self._seq = UNSYNCED
        """Number of the last delta; UNSYNCED = one is missing, or nothing has been heard yet."""
        self._resync_at: float | None = None
        """When to ask the agent for everything; None = a time is set at the next look."""
        self._resync_sent = False
        self._index = index
        self._bit = bit
        self._held: set[int] = set()
        self._expected: dict[int, int] = {}
        """Block -> prompts on their way that bring it."""
        self._in_flight: dict[int, tuple[Sequence[int], int]] = {}
        """By the identity of a chain: it, and how many prompts with it are on their way. One that was pledged before
        `clear`, or to another belief, withdraws nothing of those that came after it."""
        self._expiring: deque[tuple[float, Hashes]] = deque()
        """Pledges that end, by when."""

    def __len__(self) -> int:
        return len(self._held) + len(self._expected)

    @property
    def tokens(self) -> int:
        """Tokens the engine holds."""
        return int(len(self._held) * self.block_tokens)

    def on_route(self, blocks: Sequence[int], block_tokens: float, now: float) -> CachedPrefix:
        """Believe it until it is prefilled."""
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
        """The engine's event is under way: the belief ends a little later."""
        if expected := self._take_in_flight(blocks):
            self._expiring.append((now + self.grace_s, expected))
        self._expire(now)

    def on_close(self, blocks: Sequence[int], block_tokens: float, answer_tokens: int, now: float) -> None:
        """The engine tells itself. A prompt announced after its first token is pledged until here."""
        self.on_prefill(blocks, now)

    def on_abandon(self, blocks: Sequence[int], kept: int, used_until: float, now: float) -> None:
        """Its belief ends now."""
        self._forget(self._take_in_flight(blocks))
        self._expire(now)

    def on_failure(self, blocks: Sequence[int], prefilled: bool, now: float) -> None:
        """What the engine holds it says itself, and only once: an engine that restarted has another boot."""
        self._forget(self._take_in_flight(blocks))
        self._expire(now)

    def on_miss(self, last_used_at: float) -> None:
        """The engine's own events will tell."""

    def apply(self, delta: KvDelta) -> None:
        """Stored and removed blocks, and what was there before if it was cleared.

        After a gap they are the best that is known until the agent has said everything again.
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
            if len(held) >= self.max_entries:
                self.dropped += 1
            elif block not in held:
                held.add(block)
                index.add(block, bit)

    def trim(self, now: float) -> None:
        """Ends beliefs that are due."""
        self._expire(now)

    def clear(self) -> None:
        """The engine restarted: nothing is held and nothing is on its way."""
        for block in self._held | self._expected.keys():
            self._index.drop(block, self._bit)
        self._held.clear()
        self._expected.clear()
        self._in_flight.clear()
        self._expiring.clear()
        self._seq, self._resync_at, self._resync_sent = UNSYNCED, None, False

    def needs_resync(self, now: float) -> bool:
        """Whether the agent should be asked now for all that the engine holds; asking is then taken for done."""
        if self._seq != UNSYNCED:
            return False
        if self._resync_at is None:
            self._resync_at = now + RESYNC_S
        if now < self._resync_at:
            return False
        self._resync_at, self._resync_sent = now + RESYNC_S, True
        return True

    def _check_sequence(self, delta: KvDelta) -> None:
        """Notices deltas that went missing; those that were under way when the agent was asked are no news."""
        if delta.cleared or (self._seq != UNSYNCED and delta.seq == self._seq + 1):
            self._seq, self._resync_sent = delta.seq, False
            return
        if not self._resync_sent:
            self._resync_at = NEVER
        self._seq = UNSYNCED

    def _take_in_flight(self, blocks: Sequence[int]) -> Hashes:
        """The marks that a prompt pledged, which is on its way no longer; none when nothing is known of it."""
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
