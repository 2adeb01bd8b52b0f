"""Hashes of a prompt's leading text blocks, so that the scheduler can find warm caches without ever seeing text."""

from hashlib import blake2b

BLOCK_BYTES = 1024
MAX_BLOCKS = 128
"""Prompts longer than 128 KiB are told apart by their first 128 KiB: enough to choose a replica by."""


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
