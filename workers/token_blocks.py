"""Hash chain over a prompt's token blocks, shared by agents and API processes.

The agent computes it from an engine's KV events, an API process from the tokens of a prompt; both get the same values
without the engine's own hash function. Each digest is keyed by the previous one and the first by the tenant's salt, so
equal hashes mean equal prefixes of one tenant.
"""

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b

LINK_BYTES = 8
TOKEN_BYTES = 4


def first_link(salt: str) -> bytes:
    """The key of the first block of a tenant's prompts."""
    return blake2b(salt.encode(), digest_size=LINK_BYTES).digest()


def next_link(link: bytes, block: bytes) -> bytes:
    """The digest of one block of packed tokens, keyed by the digest `link` of the previous one."""
    return blake2b(block, digest_size=LINK_BYTES, key=link).digest()


def packed(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian unsigned 32-bit integers. Raises OverflowError or TypeError for other values."""
    numbers = array("I", tokens)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def token_block_hashes(tokens: bytes, block_tokens: int, salt: str) -> list[int]:
    """The 64-bit hash chain over the complete blocks of packed `tokens`, `block_tokens` tokens each."""
    width = block_tokens * TOKEN_BYTES
    link = first_link(salt)
    hashes = []
    for start in range(0, len(tokens) - width + 1, width):
        link = next_link(link, tokens[start : start + width])
        hashes.append(int.from_bytes(link, "big"))
    return hashes
