"""From the engine's block hashes to ours: what one engine's prefix cache holds, in Penstock's hashes."""

from collections import OrderedDict

import msgspec

from workers.kv_events_wire import BlockRemoved, BlockStored, EngineHash
from workers.token_blocks import LINK_BYTES, TOKEN_BYTES, first_link, next_link, packed

MAX_BLOCKS = 500_000
"""Blocks known per replica: 32 million tokens in blocks of 64, about 120 MB of the agent's memory at the very most."""
_IN_MEMORY = (None, "GPU")
"""Events of other media are about offloaded copies. The CPU engine says GPU too."""
_FIRST_GROUP = (None, 0)
"""Hybrid models have several groups of layers with a cache each; a prefix is followed through the first."""


class _Block(msgspec.Struct, gc=False):
    own: int
    copies: int = 1
    """Physical blocks with this content: two requests that computed the same prompt at once store it twice."""


class BlockMap:
    """Translates one engine incarnation's events, following parent links from the salted start of each prompt.

    Blocks that hold more than tokens and salt (LoRA, images), and those whose parent is not known, are passed over:
    the mirror knows them no better.
    """

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self.max_blocks = max_blocks
        self.block_tokens = 0
        """The engine's block size: as it was told here, or else that of the first event; 0 = not known yet."""
        self.fitting = 0
        """Events of that size, and ..."""
        self.odd = 0
        """... of another, which are passed over."""
        self._blocks: OrderedDict[EngineHash, _Block] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def fits(self) -> bool:
        """Whether the engine's events are of the size that is followed, as far as they have come."""
        return bool(self.fitting) or not self.odd

    def own_hashes(self) -> list[int]:
        """Everything the cache holds now."""
        return [block.own for block in self._blocks.values()]

    def store(self, event: BlockStored) -> tuple[list[int], list[int]]:
        """Our hashes of what is new in the cache, and of what is forgotten here to keep within `max_blocks`."""
        if event.group_idx not in _FIRST_GROUP or event.medium not in _IN_MEMORY:
            return [], []
        self.block_tokens = self.block_tokens or event.block_size
        link = self._link_before(event)
        width = event.block_size * TOKEN_BYTES
        tokens = _packed(event.token_ids)
        fits = event.block_size == self.block_tokens
        self.fitting, self.odd = self.fitting + fits, self.odd + (not fits)
        if link is None or not fits or len(tokens) != width * len(event.block_hashes):
            return [], []
        stored = []
        for position, engine_hash in enumerate(event.block_hashes):
            if position and _keys(event, position):
                break
            link = next_link(link, tokens[position * width : (position + 1) * width])
            known = self._blocks.get(engine_hash)
            if known is not None:
                known.copies += 1
                self._blocks.move_to_end(engine_hash)
                continue
            own = int.from_bytes(link, "big")
            self._blocks[engine_hash] = _Block(own)
            stored.append(own)
        dropped = []
        while len(self._blocks) > self.max_blocks:
            dropped.append(self._blocks.popitem(last=False)[1].own)
        return stored, dropped

    def remove(self, event: BlockRemoved) -> list[int]:
        """Our hashes of what the cache holds no longer."""
        if event.group_idx not in _FIRST_GROUP or event.medium not in _IN_MEMORY:
            return []
        removed = []
        for engine_hash in event.block_hashes:
            block = self._blocks.get(engine_hash)
            if block is None:
                continue
            block.copies -= 1
            if block.copies == 0:
                del self._blocks[engine_hash]
                removed.append(block.own)
        return removed

    def clear(self) -> None:
        """The cache is empty."""
        self._blocks.clear()

    def _link_before(self, event: BlockStored) -> bytes | None:
        """What the event's first block is keyed by; None when it cannot be told."""
        keys = _keys(event, 0)
        if event.lora_name is not None:
            return None
        if event.parent_block_hash is not None:
            parent = self._blocks.get(event.parent_block_hash)
            return parent.own.to_bytes(LINK_BYTES, "big") if parent is not None and not keys else None
        if not keys:
            return first_link("")
        return first_link(keys[0]) if len(keys) == 1 and isinstance(keys[0], str) else None


def _keys(event: BlockStored, position: int) -> list[object]:
    keys = event.extra_keys
    return (keys[position] or []) if keys is not None and position < len(keys) else []


def _packed(tokens: list[int]) -> bytes:
    """Packed token ids; empty when the engine sends what are none."""
    try:
        return packed(tokens)
    except (OverflowError, TypeError):
        return b""
