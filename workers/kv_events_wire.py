"""vLLM's KV-cache events as they are on the wire (read off vllm/distributed/kv_events.py of 0.32).

A message has three frames: topic, 8-byte big-endian sequence number, and msgpack of `[ts, [events], dp_rank]`. Only
what is needed here is decoded; unknown fields and unknown kinds of event are passed over.
"""

from typing import Any

import msgspec

EngineHash = int | bytes
"""The engine's own block hash: 64 bits of it, or all 32 bytes with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0."""
END_OF_REPLAY = -1


class BlockStored(msgspec.Struct, tag="BlockStored"):
    """Consecutive blocks of one request have become full and may be shared from now on."""

    block_hashes: list[EngineHash]
    parent_block_hash: EngineHash | None
    """The block before the first one; None at the start of a prompt."""
    token_ids: list[int]
    block_size: int
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    """Per block, untagged, what its hash covers beside tokens: LoRA name, (image, offset) pairs, the cache salt (in
    the first block of a prompt only), digests of prompt embeddings."""
    group_idx: int | None = None


class BlockRemoved(msgspec.Struct, tag="BlockRemoved"):
    """Blocks were evicted; one event per physical block, of which several may hold the same content."""

    block_hashes: list[EngineHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag="AllBlocksCleared"):
    """The prefix cache was reset, as when the engine went to sleep."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    dp_rank: int | None = None


_batches = msgspec.msgpack.Decoder(_Batch)
_events = msgspec.msgpack.Decoder(KvEvent)


def sent_at(payload: bytes) -> float:
    """When the engine made a message, in seconds since 1970 by its own clock; 0 = cannot be read."""
    try:
        return _batches.decode(payload).ts
    except msgspec.DecodeError:
        return 0.0


def decode_batch(payload: bytes) -> tuple[list[KvEvent], int]:
    """The events of one message and how many of them could not be read. Raises msgspec.DecodeError."""
    events: list[KvEvent] = []
    unread = 0
    for raw in _batches.decode(payload).events:
        try:
            events.append(_events.decode(raw))
        except (msgspec.DecodeError, RecursionError):
            unread += 1
    return events, unread
