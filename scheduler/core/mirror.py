"""An estimate of a replica's prefix cache: an LRU of the prompts that were routed there."""

from array import array
from collections import deque
from collections.abc import Sequence

from scheduler.core.prefix import NOT_CACHED, CachedPrefix
from scheduler.core.prefix_index import MAX_DEPTH
from scheduler.core.prefix_tree import PrefixNode, PrefixTree, PrefixUse
from workers.wire import KvDelta

OVERFILL_FACTOR = 2.0
"""Factor by which a mirror may exceed its bounds until the next `trim`, so that decisions seldom wait for one."""
COMPACT_FACTOR = 2
"""The log is compacted when it has grown by this factor."""
COMPACT_MIN = 256
"""The log is compacted only when it has also grown by this many uses."""
ANSWER_GRAIN = 1 / 256
"""Share of the cache up to which the answers of compacted uses are summed into one entry."""
BLOCK_TOKENS_GAIN = 0.05
"""Step of the running mean of tokens per block."""


class MirroredPrefixes:
    """An LRU of routed prompts, as large as the replica's KV cache, in the prefix tree of its model.

    The end of a chain ages first, as in vLLM, so the mirror always holds whole prefixes. Answers take room too,
    although their hashes are unknown. When the engine lacks what was used at t, it lacks everything that was used
    before.

    A use is stored at the end of its chain only, and in the blocks that it adds: blocks nearer to the root outlive
    those below. The oldest use is evicted unless its chain was used again or continues. Eviction is left to `trim`.
    """

    def __init__(self, tree: PrefixTree, row: int, room_tokens: int, max_entries: int) -> None:
        self.room_tokens = room_tokens
        self.max_entries = max_entries
        self._tree = tree
        self._row = row
        self._log: deque[PrefixUse] = deque()
        """Uses, oldest first."""
        self._log_number = 0
        self._compact_at = COMPACT_MIN
        self._blocks = 0
        self._answer_tokens = 0
        self._block_tokens = 1.0
        """Tokens per block, a running mean: text blocks differ in size."""

    def __len__(self) -> int:
        return self._blocks

    @property
    def tokens(self) -> int:
        """Tokens believed to be cached."""
        return int(self._blocks * self._block_tokens) + self._answer_tokens

    def on_route(self, blocks: Sequence[int], block_tokens: float, now: float) -> CachedPrefix:
        """The prompt counts as cached from routing on: the engine serves in order, so later requests find it."""
        if not blocks:
            return NOT_CACHED
        before = self._record(blocks, block_tokens, 0, now)
        limit = OVERFILL_FACTOR * max(self.max_entries, MAX_DEPTH)
        if self._blocks > limit or self.tokens > OVERFILL_FACTOR * self.room_tokens:
            self.trim(now)
        return before

    def on_prefill(self, blocks: Sequence[int], now: float) -> None:
        """Nothing to do: the prompt counts as cached since it was routed."""

    def on_close(self, blocks: Sequence[int], block_tokens: float, answer_tokens: int, now: float) -> None:
        """Record the use again: the engine's LRU counts from the end of a request."""
        if blocks or answer_tokens:
            self._record(blocks, block_tokens, answer_tokens, now)
        self.trim(now)

    def on_abandon(self, blocks: Sequence[int], kept: int, used_until: float, now: float) -> None:
        """Remove the part of the chain that was not prefilled; requests that continue it will add it again."""
        node, row = self._tree.deepest(blocks)[0], self._row
        while node is not None and node.end > kept and row not in node.children_held:
            above, use = node.parent, node.last_use.get(row)
            if use is not None:
                if use.at > used_until:
                    return
                self._evict(node, use, max(0, kept - node.start))
            node = above

    def on_failure(self, blocks: Sequence[int], prefilled: bool, now: float) -> None:
        """Forget everything: the engine may have restarted."""
        self.clear()

    def on_miss(self, last_used_at: float) -> None:
        """Remove everything that was last used at `last_used_at` or before."""
        while self._log and self._log[0].at <= last_used_at:
            use = self._log.popleft()
            self._answer_tokens -= use.answer_tokens
            while (node := self._evictable(use)) is not None:
                self._evict(node, use, 0)

    def apply(self, delta: KvDelta) -> None:
        """Only a cleared cache is applied: the engine's hashes are not those of text blocks."""
        if delta.cleared:
            self.clear()

    def trim(self, now: float) -> None:
        """Evict the oldest uses until the bounds hold, and compact the log."""
        while self._log and (self.tokens > self.room_tokens or self._blocks > self.max_entries):
            self._evict_oldest()
        if len(self._log) > self._compact_at:
            self._compact()

    def clear(self) -> None:
        """Forget everything: the engine restarted."""
        self.on_miss(float("inf"))

    def _compact(self) -> None:
        """Rewrite the log without the uses that no longer count. Their answers are added to later uses, up to an
        ANSWER_GRAIN of the cache."""
        kept: deque[PrefixUse] = deque()
        answers = 0
        for use in self._log:
            answers += use.answer_tokens
            use.answer_tokens = 0
            counts = use.leaf is not None and use.leaf.last_use.get(self._row) is use
            if counts or answers >= ANSWER_GRAIN * self.room_tokens:
                use.answer_tokens, answers = answers, 0
                kept.append(use)
        if answers:
            kept.append(PrefixUse(self._log[-1].at, self._log_number, None, answers))
        self._log = kept
        self._compact_at = COMPACT_FACTOR * len(kept) + COMPACT_MIN

    def _record(
        self, blocks: Sequence[int], block_tokens: float, answer_tokens: int, now: float
    ) -> CachedPrefix:
        """Record a use of a chain; returns what was held of it before."""
        self._log_number += 1
        use = PrefixUse(now, self._log_number, None, answer_tokens)
        self._log.append(use)
        self._answer_tokens += answer_tokens
        if not blocks:
            return NOT_CACHED
        gain = BLOCK_TOKENS_GAIN if self._block_tokens > 1.0 else 1.0
        self._block_tokens += gain * (max(1.0, block_tokens) - self._block_tokens)
        tree, row, length = self._tree, self._row, min(len(blocks), MAX_DEPTH)
        leaf, reached = tree.deepest(blocks)
        if leaf is not None and reached < leaf.end:
            leaf = tree.split(leaf, reached - leaf.start)
        node, before = leaf, NOT_CACHED
        while node is not None and before is NOT_CACHED:
            if (last := node.last_use.get(row)) is not None:
                before = CachedPrefix(node.start + node.blocks_held(row), last.at)
            self._add_holder(node, use)
            node = node.parent
        if leaf is not None:
            leaf.last_use[row] = use
        if reached < length:
            added = array("Q", blocks[reached:length])
            if leaf is not None and not leaf.children and len(leaf.last_use) == 1:
                tree.extend(leaf, added)
                self._blocks += len(added)
            else:
                leaf = tree.add(added, reached, leaf)
                self._add_holder(leaf, use)
        use.leaf = leaf
        return before

    def _add_holder(self, node: PrefixNode, use: PrefixUse) -> None:
        """Mark that this replica holds a whole node, which `use` adds if it was not held."""
        row = self._row
        if row not in node.last_use:
            node.last_use[row] = use
            node.holders |= 1 << row
            self._blocks += len(node.hashes)
            if (above := node.parent) is not None:
                above.children_held[row] = above.children_held.get(row, 0) + 1
        elif row in node.partial:
            node.holders |= 1 << row
            self._blocks += len(node.hashes) - node.partial.pop(row)

    def _evict_oldest(self) -> None:
        """Evict from the oldest use: first the answer, then the prompt from its end."""
        use = self._log[0]
        if use.answer_tokens:
            self._answer_tokens -= use.answer_tokens
            use.answer_tokens = 0
            return
        node = self._evictable(use)
        if node is None:
            self._log.popleft()
            return
        fitting = int((self.room_tokens + 1 - self._answer_tokens) / self._block_tokens)
        surplus = self._blocks - max(0, min(fitting, self.max_entries))
        self._evict(node, use, max(0, node.blocks_held(self._row) - max(1, surplus)))

    def _evictable(self, use: PrefixUse) -> PrefixNode | None:
        """The node to evict with the oldest use; None when it was used again or continues."""
        node, row = use.leaf, self._row
        if node is None or node.last_use.get(row) is not use or row in node.children_held:
            return None
        return node

    def _evict(self, node: PrefixNode, use: PrefixUse, kept: int) -> None:
        """Evict all but the first `kept` blocks of a node. When none is left, `use` becomes the last use of the node
        above."""
        above, row = node.parent, self._row
        self._truncate(node, kept)
        if kept or use.leaf is not node:
            return
        while above is not None and row not in above.last_use:
            above = above.parent
        use.leaf = None
        if above is not None and above.last_use[row].number <= use.number:
            above.last_use[row], use.leaf = use, above

    def _truncate(self, node: PrefixNode, kept: int) -> None:
        """Reduce a node to its first `kept` blocks for this replica."""
        held = node.blocks_held(self._row)
        if held <= kept:
            return
        self._blocks -= held - kept
        if kept:
            node.partial[self._row] = kept
            node.holders &= ~(1 << self._row)
        else:
            self._tree.release(node, self._row)
