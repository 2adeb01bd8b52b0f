"""Translates an engine's block hashes to Penstock's: the content of one engine's prefix cache."""

from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from workers.kv_events_wire import BlockRemoved, BlockStored, EngineHash
from workers.token_blocks import LINK_BYTES, TOKEN_BYTES, first_link, next_link, packed

MAX_BLOCKS = 500_000
"""Blocks per replica: 32 million tokens in blocks of 64, at most about 120 MB of the agent's memory."""
_IN_MEMORY = (None, "GPU")
"""Media of the engine's own cache, also of an engine without GPUs."""
_ON_HOST = "CPU"
"""Medium of copies in host memory (vLLM's native offloading). Copies further away are not followed."""
_FIRST_GROUP = (None, 0)
"""Hybrid models have several groups of layers with a cache each; only the first group is tracked."""


class _Block(msgspec.Struct, gc=False):
    hash: int
    copies: int = 1
    """Physical blocks of the engine's cache with this content; concurrent requests with the same prompt store it more
    than once."""
    on_host: bool = False
    """Whether host memory has it: it comes back from there in far less time than it takes to compute."""


class BlockMap:
    """Translates the events of one engine incarnation, by the hash chain from the salted start of each prompt.

    A block counts until it is neither in the engine's cache nor in host memory. Events of host memory have no tokens;
    they concern blocks that the engine's cache has just stored, and are followed by hash.

    Blocks that depend on more than tokens and salt (LoRA, images), and those with an unknown parent, are skipped.
    """

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self.max_blocks = max_blocks
        self.block_tokens = 0
        """Tokens per block: as set by the owner, or else of the first event; 0 = not known yet."""
        self.matching = 0
        """Number of events with that block size."""
        self.mismatched = 0
        """Number of events with another block size, which are skipped."""
        self._blocks: OrderedDict[EngineHash, _Block] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def fits(self) -> bool:
        """Whether the events so far are compatible with `block_tokens`."""
        return bool(self.matching) or not self.mismatched

    def block_hashes(self) -> list[int]:
        """The hashes of all blocks in the cache."""
        return [block.hash for block in self._blocks.values()]

    def store(self, event: BlockStored) -> tuple[list[int], list[int]]:
        """Add the blocks of an event; returns the hashes added, and those evicted to keep within `max_blocks`."""
        if event.group_idx not in _FIRST_GROUP:
            return [], []
        if event.medium == _ON_HOST:
            for block in self._known(event.block_hashes):
                block.on_host = True
        if event.medium not in _IN_MEMORY:
            return [], []
        self.block_tokens = self.block_tokens or event.block_size
        link = self._parent_link(event)
        width = event.block_size * TOKEN_BYTES
        tokens = _pack_or_empty(event.token_ids)
        fits = event.block_size == self.block_tokens
        self.matching, self.mismatched = self.matching + fits, self.mismatched + (not fits)
        if link is None or not fits or len(tokens) != width * len(event.block_hashes):
            return [], []
        stored = []
        for position, engine_hash in enumerate(event.block_hashes):
            if position and _extra_keys(event, position):
                break
            link = next_link(link, tokens[position * width : (position + 1) * width])
            known = self._blocks.get(engine_hash)
            if known is not None:
                known.copies += 1
                self._blocks.move_to_end(engine_hash)
                continue
            block_hash = int.from_bytes(link, "big")
            self._blocks[engine_hash] = _Block(block_hash)
            stored.append(block_hash)
        dropped = []
        while len(self._blocks) > self.max_blocks:
            dropped.append(self._blocks.popitem(last=False)[1].hash)
        return stored, dropped

    def remove(self, event: BlockRemoved) -> list[int]:
        """Remove the blocks of an event; returns the hashes that are nowhere any more."""
        if event.group_idx not in _FIRST_GROUP or event.medium not in (*_IN_MEMORY, _ON_HOST):
            return []
        removed = []
        for engine_hash in event.block_hashes:
            block = self._blocks.get(engine_hash)
            if block is None:
                continue
            if event.medium == _ON_HOST:
                block.on_host = False
            else:
                block.copies = max(0, block.copies - 1)
            if not (block.copies or block.on_host):
                del self._blocks[engine_hash]
                removed.append(block.hash)
        return removed

    def clear(self) -> None:
        """Remove all blocks."""
        self._blocks.clear()

    def _known(self, engine_hashes: list[EngineHash]) -> Iterator[_Block]:
        return (block for each in engine_hashes if (block := self._blocks.get(each)) is not None)

    def _parent_link(self, event: BlockStored) -> bytes | None:
        """The key of the event's first block; None when it is unknown or not made of tokens and salt alone."""
        keys = _extra_keys(event, 0)
        if event.lora_name is not None:
            return None
        if event.parent_block_hash is not None:
            parent = self._blocks.get(event.parent_block_hash)
            return parent.hash.to_bytes(LINK_BYTES, "big") if parent is not None and not keys else None
        if not keys:
            return first_link("")
        return first_link(keys[0]) if len(keys) == 1 and isinstance(keys[0], str) else None


def _extra_keys(event: BlockStored, position: int) -> list[object]:
    keys = event.extra_keys
    return (keys[position] or []) if keys is not None and position < len(keys) else []


def _pack_or_empty(tokens: list[int]) -> bytes:
    """Packed token ids; empty when one is not an unsigned 32-bit integer."""
    try:
        return packed(tokens)
    except (OverflowError, TypeError):
        return b""
