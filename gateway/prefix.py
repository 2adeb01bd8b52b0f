"""What a prompt begins with, as hashes: so that the scheduler can find warm caches without ever seeing text."""

from hashlib import blake2b
from typing import Protocol

import msgspec

from gateway.schemas.common import PreparedRequest

BLOCK_BYTES = 1024
MAX_BLOCKS = 128
"""Prompts longer than 128 KiB are told apart by their first 128 KiB: enough to choose a replica by."""


class PromptBlocks(msgspec.Struct, frozen=True):
    """The blocks of one prompt, hashed and salted per tenant."""

    hashes: list[int]
    block_tokens: int = 0
    """Tokens in each block; 0 = blocks of text."""
    prompt_tokens: int = 0
    """Exact tokens of the prompt; 0 = not known."""


class PromptHasher(Protocol):
    """How prompts become blocks."""

    async def blocks(
        self, model: str, prepared: PreparedRequest, salt: str, *, reasoning: bool
    ) -> PromptBlocks:
        """The blocks of a prompt; never raises, never takes long."""


class TextBlockHasher:
    """Blocks of the prompt's text: cheap, and matched against a mirror of what was routed where."""

    async def blocks(
        self, model: str, prepared: PreparedRequest, salt: str, *, reasoning: bool
    ) -> PromptBlocks:
        """The blocks of the text as the customer sent it."""
        del model, reasoning
        return PromptBlocks(block_hashes(prepared.prompt_text, salt.encode()))


def block_hashes(text: bytes, salt: bytes) -> list[int]:
    """Chained 64-bit hashes of the whole blocks of `text`, first to last.

    Each digest covers the one before it, so equal hashes mean equal prefixes; the tenant's salt keys the first, so
    two tenants with the same prompt share nothing (DESIGN §6).
    """
    hashes: list[int] = []
    chain = blake2b(salt, digest_size=8).digest()
    for start in range(0, min(len(text), MAX_BLOCKS * BLOCK_BYTES) - BLOCK_BYTES + 1, BLOCK_BYTES):
        chain = blake2b(text[start : start + BLOCK_BYTES], digest_size=8, key=chain).digest()
        hashes.append(int.from_bytes(chain, "big"))
    return hashes
