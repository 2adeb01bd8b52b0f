"""What one replica's prefix cache is believed to hold: a bounded LRU of salted block hashes."""

from collections import OrderedDict
from collections.abc import Sequence

MAX_BLOCKS = 65_536
"""Blocks remembered per replica whatever their size: about 8 MB."""


class PrefixMirror:
    """Mirrors a replica's LRU of prompt blocks from the prompts routed there.

    Hashes are chained and salted per tenant by the gateway, so a match is a common prefix of one tenant's prompts.
    `room_tokens` is the replica's KV cache: what does not fit there is forgotten here.
    """

    def __init__(self, room_tokens: int, max_blocks: int = MAX_BLOCKS) -> None:
        self.room_tokens = room_tokens
        self.max_blocks = max_blocks
        self.tokens = 0
        self._blocks: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, blocks: Sequence[int]) -> int:
        """How many leading blocks are believed cached."""
        known = self._blocks
        count = 0
        for block in blocks:
            if block not in known:
                break
            count += 1
        return count

    def remember(self, blocks: Sequence[int], prompt_tokens: int) -> None:
        """Note a routed prompt. The end of the chain ages first, as in vLLM, where leaves are evicted first."""
        if not blocks:
            return
        share = max(1, prompt_tokens // len(blocks))
        for block in reversed(blocks):
            self.tokens += share - self._blocks.pop(block, 0)
            self._blocks[block] = share
        while self._blocks and (self.tokens > self.room_tokens or len(self._blocks) > self.max_blocks):
            self.tokens -= self._blocks.popitem(last=False)[1]

    def clear(self) -> None:
        """The engine restarted: its cache is empty."""
        self._blocks.clear()
        self.tokens = 0
