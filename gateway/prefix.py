"""Hashes of a prompt's prefix, by which the scheduler finds replicas with a warm cache without seeing any text."""

from hashlib import blake2b
from typing import Protocol

import msgspec

from gateway.schemas.common import PreparedRequest

BLOCK_BYTES = 1024
"""Bytes of one text block."""
MAX_BLOCKS = 128
"""Blocks hashed of one prompt: its first 128 KiB, which is enough to choose a replica."""


class PromptBlocks(msgspec.Struct, frozen=True):
    """Chained block hashes of one prompt, first to last, salted per tenant."""

    hashes: list[int]
    block_tokens: int = 0
    """Tokens of each block; 0 for blocks of text."""
    prompt_tokens: int = 0
    """Exact tokens of the prompt; 0 when not known."""


class PromptHasher(Protocol):
    """Computes the block hashes of prompts."""

    async def blocks(
        self, model: str, prepared: PreparedRequest, salt: str, *, reasoning: bool
    ) -> PromptBlocks:
        """Return the blocks of a prompt, in bounded time. Raises nothing.

        `salt`: the tenant's cache salt. `reasoning`: whether the model's template has a switch for thinking.
        """


class TextBlockHasher:
    """Hashes blocks of the prompt's text; the scheduler matches them with what it has routed to each replica."""

    async def blocks(
        self, model: str, prepared: PreparedRequest, salt: str, *, reasoning: bool
    ) -> PromptBlocks:
        """Return the blocks of the text as the customer sent it."""
        del model, reasoning
        return PromptBlocks(block_hashes(prepared.prompt_prefix(MAX_BLOCKS * BLOCK_BYTES), salt.encode()))


def block_hashes(text: bytes, salt: bytes) -> list[int]:
    """Return the chained 64-bit hashes of the whole blocks of `text`, first to last, at most MAX_BLOCKS.

    Each digest is keyed by the one before it, so that equal hashes mean equal prefixes. The first is keyed by the
    tenant's `salt`, so that equal prompts of two tenants have different hashes.
    """
    hashes: list[int] = []
    if len(text) < BLOCK_BYTES:
        return hashes
    chain = blake2b(salt, digest_size=8).digest()
    for start in range(0, min(len(text), MAX_BLOCKS * BLOCK_BYTES) - BLOCK_BYTES + 1, BLOCK_BYTES):
        chain = blake2b(text[start : start + BLOCK_BYTES], digest_size=8, key=chain).digest()
        hashes.append(int.from_bytes(chain, "big"))
    return hashes
