"""What one replica's prefix cache is believed to hold, from either of two sources (DESIGN §6).

`Mirrored` guesses: an LRU of the prompts that were routed there, as large as the engine's cache. `Exact` knows: the
engine's own events, plus a short-lived belief for prompts on their way. Both write into the model's PrefixIndex.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Protocol

from scheduler.core.prefix_index import Numbers, PrefixIndex, marks, spanned
from workers.wire import KvDelta

OVERFILL = 1.25
"""How far a mirror may grow beyond its bounds until the next `trim`."""
MAX_LOG = 2
"""Marks in the log of uses per mark remembered, beyond which the log is written anew ..."""
MIN_LOG = 256
"""... but not for fewer than this many."""
BLOCK_TOKENS_GAIN = 0.05
NEVER = float("-inf")


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

    def routed(self, blocks: Sequence[int], block_tokens: float, now: float) -> float:
        """A prompt is on its way there; when its first block was last used before, -inf = never."""

    def prefilled(self, blocks: Sequence[int], now: float) -> None:
        """Its blocks are cached from now on."""

    def ended(self, blocks: Sequence[int], block_tokens: float, answer_tokens: int, now: float) -> None:
        """The request is over: its prompt and its answer are now what was used last."""

    def given_up(self, blocks: Sequence[int], known_tokens: int, block_tokens: float, now: float) -> None:
        """The request ended before its prefill: nothing beyond `known_tokens` of it is cached."""

    def failed(self, blocks: Sequence[int], prefilled: bool, now: float) -> None:
        """The replica failed the request."""

    def missed(self, used_at: float) -> None:
        """The engine did not have a chain last used at `used_at`."""

    def apply(self, delta: KvDelta) -> None:
        """The engine's own word."""

    def trim(self, now: float) -> None:
        """Back into bounds; called where no caller waits for a decision."""

    def clear(self) -> None:
        """The cache is empty."""


@dataclass(slots=True)
class Touch:
    """One use of a chain, or one answer: marks whose last use this is are those that name it in the mirror."""

    at: float
    hashes: Numbers
    spans: Numbers
    """Blocks that each mark stands for."""
    left: int
    """How many of them have not been forgotten or passed over, from the first."""
    answer_tokens: int


class Mirrored:
    """An LRU of routed prompts, sized like the replica's KV cache.

    The end of a chain ages first, as in vLLM, so what is held is always whole prefixes. Answers take room too, though
    nobody knows their hashes. LRU: if the engine has lost what was used at t, it has lost all that was used before.

    A use is written down once for the whole chain; marks used again since are passed over when it is the oldest. So a
    use costs a dictionary update, and the work of forgetting is left to `trim`.
    """

    def __init__(self, index: PrefixIndex, bit: int, room_tokens: int, max_entries: int) -> None:
        self.room_tokens = room_tokens
        self.max_entries = max_entries
        self._index = index
        self._bit = bit
        self._last: dict[int, Touch] = {}
        """Mark -> its last use."""
        self._touches: deque[Touch] = deque()
        """Uses, oldest first."""
        self._logged = 0
        """Marks in all uses; more than in `_last`, as chains are used again."""
        self._blocks = 0
        self._answer_tokens = 0
        self._block_tokens = 1.0
        """Tokens per block: a running mean, since text blocks hold more or fewer."""

    def __len__(self) -> int:
        return len(self._last)

    @property
    def tokens(self) -> int:
        """Tokens believed cached."""
        return int(self._blocks * self._block_tokens) + self._answer_tokens

    def routed(self, blocks: Sequence[int], block_tokens: float, now: float) -> float:
        """Believed from the moment of routing: the engine serves in order, so who comes later finds it."""
        if not blocks:
            return NEVER
        before = self._last.get(blocks[0])
        self._use(blocks, block_tokens, 0, now)
        if len(self._last) > OVERFILL * self.max_entries or self.tokens > OVERFILL * self.room_tokens:
            self.trim(now)
        return before.at if before else NEVER

    def prefilled(self, blocks: Sequence[int], now: float) -> None:
        """Nothing new: it was believed when it was routed."""

    def ended(self, blocks: Sequence[int], block_tokens: float, answer_tokens: int, now: float) -> None:
        """The engine's LRU counts from the end of a request, not from its beginning."""
        self._use(blocks, block_tokens, answer_tokens, now)
        self.trim(now)

    def given_up(self, blocks: Sequence[int], known_tokens: int, block_tokens: float, now: float) -> None:
        """Forget the part of the chain that was still to be prefilled."""
        for block, depth, span in zip(*spanned(blocks), strict=True):
            if depth * block_tokens > known_tokens and block in self._last:
                self._forget(block, span)

    def failed(self, blocks: Sequence[int], prefilled: bool, now: float) -> None:
        """It may have restarted: nothing is believed."""
        self.clear()

    def missed(self, used_at: float) -> None:
        """Forget what was last used at `used_at` or before."""
        while self._touches and self._touches[0].at <= used_at:
            self._forget_oldest()

    def apply(self, delta: KvDelta) -> None:
        """Only a cleared cache is believed: the engine's hashes are not those of text blocks."""
        if delta.cleared:
            self.clear()

    def trim(self, now: float) -> None:
        """Push out the oldest until it fits, and drop from the log what has been used again."""
        while self._touches and (self.tokens > self.room_tokens or len(self._last) > self.max_entries):
            self._forget_oldest()
        if self._logged > MAX_LOG * (len(self._last) + MIN_LOG):
            self._compact()

    def clear(self) -> None:
        """The engine restarted."""
        for block in self._last:
            self._index.drop(block, self._bit)
        self._last.clear()
        self._touches.clear()
        self._logged = self._blocks = self._answer_tokens = 0

    def _use(self, blocks: Sequence[int], block_tokens: float, answer_tokens: int, now: float) -> None:
        if not blocks and not answer_tokens:
            return
        hashes, _, spans = spanned(blocks)
        new = self._index.add_new(hashes, self._last, self._bit)
        self._blocks += sum([spans[place] for place in new])
        touch = Touch(now, hashes, spans, len(hashes), answer_tokens)
        self._last.update(zip(hashes, repeat(touch)))
        self._touches.append(touch)
        self._logged += len(hashes)
        self._answer_tokens += answer_tokens
        if blocks:
            gain = BLOCK_TOKENS_GAIN if self._block_tokens > 1.0 else 1.0
            self._block_tokens += gain * (block_tokens - self._block_tokens)

    def _forget_oldest(self) -> None:
        """Of the oldest use, the answer first, which follows its prompt, then the prompt from its end."""
        touch = self._touches[0]
        if touch.answer_tokens:
            self._answer_tokens -= touch.answer_tokens
            touch.answer_tokens = 0
            return
        while touch.left:
            self._logged -= 1
            touch.left -= 1
            block = touch.hashes[touch.left]
            if self._last.get(block) is touch:
                self._forget(block, touch.spans[touch.left])
                return
        self._touches.popleft()

    def _forget(self, block: int, span: int) -> None:
        del self._last[block]
        self._blocks -= span
        self._index.drop(block, self._bit)

    def _compact(self) -> None:
        kept: deque[Touch] = deque()
        for touch in self._touches:
            live = [place for place in range(touch.left) if self._last.get(touch.hashes[place]) is touch]
            touch.hashes = tuple([touch.hashes[place] for place in live])
            touch.spans = tuple([touch.spans[place] for place in live])
            touch.left = len(live)
            if live or touch.answer_tokens:
                kept.append(touch)
        self._touches = kept
        self._logged = len(self._last)


class Exact:
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
        self._index = index
        self._bit = bit
        self._held: set[int] = set()
        self._pledged: dict[int, int] = {}
        """Block -> prompts on their way that bring it."""
        self._leaving: deque[tuple[float, Numbers]] = deque()
        """Pledges that end, by when."""

    def __len__(self) -> int:
        return len(self._held) + len(self._pledged)

    @property
    def tokens(self) -> int:
        """Tokens the engine holds."""
        return int(len(self._held) * self.block_tokens)

    def routed(self, blocks: Sequence[int], block_tokens: float, now: float) -> float:
        """Believe it until it is prefilled."""
        self._expire(now)
        self.block_tokens = block_tokens
        if not blocks:
            return NEVER
        pledged, index, bit = self._pledged, self._index, self._bit
        for block in marks(blocks)[0]:
            count = pledged.get(block, 0)
            if not count and block not in self._held:
                index.add(block, bit)
            pledged[block] = count + 1
        return NEVER

    def prefilled(self, blocks: Sequence[int], now: float) -> None:
        """The engine's event is under way: the belief ends a little later."""
        if blocks:
            self._leaving.append((now + self.grace_s, marks(blocks)[0]))
        self._expire(now)

    def ended(self, blocks: Sequence[int], block_tokens: float, answer_tokens: int, now: float) -> None:
        """The engine tells itself."""
        self._expire(now)

    def given_up(self, blocks: Sequence[int], known_tokens: int, block_tokens: float, now: float) -> None:
        """Its belief ends now."""
        self._withdraw(marks(blocks)[0])
        self._expire(now)

    def failed(self, blocks: Sequence[int], prefilled: bool, now: float) -> None:
        """What the engine holds it says itself, and only once: an engine that restarted has another boot."""
        if not prefilled:
            self._withdraw(marks(blocks)[0])
        self._expire(now)

    def missed(self, used_at: float) -> None:
        """The engine's own events will tell."""

    def apply(self, delta: KvDelta) -> None:
        """Stored and removed blocks, and what was there before if it was cleared."""
        held, index, bit, pledged = self._held, self._index, self._bit, self._pledged
        if delta.cleared:
            for block in held:
                if block not in pledged:
                    index.drop(block, bit)
            held.clear()
        for block in delta.removed:
            if block in held:
                held.remove(block)
                if block not in pledged:
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
        for block in self._held | self._pledged.keys():
            self._index.drop(block, self._bit)
        self._held.clear()
        self._pledged.clear()
        self._leaving.clear()

    def _expire(self, now: float) -> None:
        while self._leaving and self._leaving[0][0] <= now:
            self._withdraw(self._leaving.popleft()[1])

    def _withdraw(self, hashes: Sequence[int]) -> None:
        pledged = self._pledged
        for block in hashes:
            count = pledged.get(block, 0)
            if count > 1:
                pledged[block] = count - 1
            elif count == 1:
                del pledged[block]
                if block not in self._held:
                    self._index.drop(block, self._bit)
