"""What a replica's prefix cache is guessed to hold: an LRU of the prompts that were routed there (DESIGN §6)."""

from array import array
from collections import deque
from collections.abc import Sequence

from scheduler.core.prefix import NOTHING, Held
from scheduler.core.prefix_index import MAX_DEPTH
from scheduler.core.prefix_tree import Node, PrefixTree, Touch
from workers.wire import KvDelta

OVERFILL = 2.0
"""How far a mirror may grow beyond its bounds until the next `trim`, so that a decision seldom waits for one."""
MAX_LOG = 2
"""The log of uses is written anew when it has grown by this factor since ..."""
MIN_LOG = 256
"""... and by this many."""
GRAIN = 1 / 256
BLOCK_TOKENS_GAIN = 0.05


class Mirrored:
    """An LRU of routed prompts, sized like the replica's KV cache, in the tree of its model.

    The end of a chain ages first, as in vLLM, so what is held is always whole prefixes. Answers take room too, though
    nobody knows their hashes. LRU: if the engine has lost what was used at t, it has lost all that was used before.

    A use is written down at the end of its chain only, and in what it brings: what is above outlives what is below.
    When a use is the oldest, it counts unless its chain was used again since or goes on below. The work of forgetting
    is left to `trim`.
    """

    def __init__(self, tree: PrefixTree, row: int, room_tokens: int, max_entries: int) -> None:
        self.room_tokens = room_tokens
        self.max_entries = max_entries
        self._tree = tree
        self._row = row
        self._touches: deque[Touch] = deque()
        """Uses, oldest first."""
        self._uses = 0
        self._longest_log = MIN_LOG
        self._blocks = 0
        self._answer_tokens = 0
        self._block_tokens = 1.0
        """Tokens per block: a running mean, since text blocks hold more or fewer."""

    def __len__(self) -> int:
        return self._blocks

    @property
    def tokens(self) -> int:
        """Tokens believed cached."""
        return int(self._blocks * self._block_tokens) + self._answer_tokens

    def routed(self, blocks: Sequence[int], block_tokens: float, now: float) -> Held:
        """Believed from the moment of routing: the engine serves in order, so who comes later finds it."""
        if not blocks:
            return NOTHING
        before = self._use(blocks, block_tokens, 0, now)
        most = OVERFILL * max(self.max_entries, MAX_DEPTH)
        if self._blocks > most or self.tokens > OVERFILL * self.room_tokens:
            self.trim(now)
        return before

    def prefilled(self, blocks: Sequence[int], now: float) -> None:
        """Nothing new: it was believed when it was routed."""

    def ended(self, blocks: Sequence[int], block_tokens: float, answer_tokens: int, now: float) -> None:
        """The engine's LRU counts from the end of a request, not from its beginning."""
        if blocks or answer_tokens:
            self._use(blocks, block_tokens, answer_tokens, now)
        self.trim(now)

    def given_up(self, blocks: Sequence[int], kept: int, used_until: float, now: float) -> None:
        """Forget the part of the chain that was still to be prefilled; others that go on below it will bring it."""
        node, row = self._tree.deepest(blocks)[0], self._row
        while node is not None and node.end > kept and row not in node.below:
            above, touch = node.parent, node.used.get(row)
            if touch is not None:
                if touch.at > used_until:
                    return
                self._leave(node, touch, max(0, kept - node.start))
            node = above

    def failed(self, blocks: Sequence[int], prefilled: bool, now: float) -> None:
        """It may have restarted: nothing is believed."""
        self.clear()

    def missed(self, used_at: float) -> None:
        """Forget what was last used at `used_at` or before."""
        while self._touches and self._touches[0].at <= used_at:
            touch = self._touches.popleft()
            self._answer_tokens -= touch.answer_tokens
            while (node := self._last_used(touch)) is not None:
                self._leave(node, touch, 0)

    def apply(self, delta: KvDelta) -> None:
        """Only a cleared cache is believed: the engine's hashes are not those of text blocks."""
        if delta.cleared:
            self.clear()

    def trim(self, now: float) -> None:
        """Push out the oldest until it fits, and drop from the log what has been used again."""
        while self._touches and (self.tokens > self.room_tokens or self._blocks > self.max_entries):
            self._forget_oldest()
        if len(self._touches) > self._longest_log:
            self._rewrite()

    def clear(self) -> None:
        """The engine restarted."""
        self.missed(float("inf"))

    def _rewrite(self) -> None:
        """Write the log anew without the uses that no longer count. Their answers are counted with later ones, until
        together they are a GRAIN of the room: there are more answers than anyone need tell apart.
        """
        kept: deque[Touch] = deque()
        answers = 0
        for touch in self._touches:
            answers += touch.answer_tokens
            touch.answer_tokens = 0
            counts = touch.leaf is not None and touch.leaf.used.get(self._row) is touch
            if counts or answers >= GRAIN * self.room_tokens:
                touch.answer_tokens, answers = answers, 0
                kept.append(touch)
        if answers:
            kept.append(Touch(self._touches[-1].at, self._uses, None, answers))
        self._touches = kept
        self._longest_log = MAX_LOG * len(kept) + MIN_LOG

    def _use(self, blocks: Sequence[int], block_tokens: float, answer_tokens: int, now: float) -> Held:
        """Write down a use of a chain; what was held of it before."""
        self._uses += 1
        touch = Touch(now, self._uses, None, answer_tokens)
        self._touches.append(touch)
        self._answer_tokens += answer_tokens
        if not blocks:
            return NOTHING
        gain = BLOCK_TOKENS_GAIN if self._block_tokens > 1.0 else 1.0
        self._block_tokens += gain * (max(1.0, block_tokens) - self._block_tokens)
        tree, row, length = self._tree, self._row, min(len(blocks), MAX_DEPTH)
        leaf, reached = tree.deepest(blocks)
        if leaf is not None and reached < leaf.end:
            leaf = tree.split(leaf, reached - leaf.start)
        node, before = leaf, NOTHING
        while node is not None and before is NOTHING:
            if (last := node.used.get(row)) is not None:
                before = Held(node.start + node.held(row), last.at)
            self._hold(node, touch)
            node = node.parent
        if leaf is not None:
            leaf.used[row] = touch
        if reached < length:
            added = array("Q", blocks[reached:length])
            if leaf is not None and not leaf.children and len(leaf.used) == 1:
                tree.extend(leaf, added)
                self._blocks += len(added)
            else:
                leaf = tree.add(added, reached, leaf)
                self._hold(leaf, touch)
        touch.leaf = leaf
        return before

    def _hold(self, node: Node, touch: Touch) -> None:
        """This replica holds all of a node, which `touch` brings if it was not there."""
        row = self._row
        if row not in node.used:
            node.used[row] = touch
            node.holders |= 1 << row
            self._blocks += len(node.hashes)
            if (above := node.parent) is not None:
                above.below[row] = above.below.get(row, 0) + 1
        elif row in node.partial:
            node.holders |= 1 << row
            self._blocks += len(node.hashes) - node.partial.pop(row)

    def _forget_oldest(self) -> None:
        """Of the oldest use, the answer first, which follows its prompt, then the prompt from its end."""
        touch = self._touches[0]
        if touch.answer_tokens:
            self._answer_tokens -= touch.answer_tokens
            touch.answer_tokens = 0
            return
        node = self._last_used(touch)
        if node is None:
            self._touches.popleft()
            return
        fitting = int((self.room_tokens + 1 - self._answer_tokens) / self._block_tokens)
        surplus = self._blocks - max(0, min(fitting, self.max_entries))
        self._leave(node, touch, max(0, node.held(self._row) - max(1, surplus)))

    def _last_used(self, touch: Touch) -> Node | None:
        """What is to be forgotten when a use is the oldest; None when it was used again since, or goes on below."""
        node, row = touch.leaf, self._row
        if node is None or node.used.get(row) is not touch or row in node.below:
            return None
        return node

    def _leave(self, node: Node, touch: Touch, kept: int) -> None:
        """Forget all but the first blocks of a node; after its last, `touch` is the last use of what is above."""
        above, row = node.parent, self._row
        self._shorten(node, kept)
        if kept or touch.leaf is not node:
            return
        while above is not None and row not in above.used:
            above = above.parent
        touch.leaf = None
        if above is not None and above.used[row].number <= touch.number:
            above.used[row], touch.leaf = touch, above

    def _shorten(self, node: Node, kept: int) -> None:
        """This replica holds no more than the first `kept` blocks of a node that it uses."""
        held = node.held(self._row)
        if held <= kept:
            return
        self._blocks -= held - kept
        if kept:
            node.partial[self._row] = kept
            node.holders &= ~(1 << self._row)
        else:
            self._tree.release(node, self._row)
