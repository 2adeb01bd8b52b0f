"""vLLM's KV-cache events on the wire, as in vllm/distributed/kv_events.py of 0.32.

A message has three frames: topic, 8-byte big-endian sequence number, and msgpack of `[ts, [events], dp_rank]`. Unknown
fields and unknown kinds of events are skipped.
"""

from typing import Any

import msgspec

EngineHash = int | bytes
"""The engine's own block hash: its 64 bits, or all 32 bytes with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0."""
END_OF_REPLAY = -1
"""Sequence number of the message that ends a replay."""


class BlockStored(msgspec.Struct, tag="BlockStored"):
    """Consecutive blocks of one request became full, and can be shared from now on."""

    block_hashes: list[EngineHash]
    parent_block_hash: EngineHash | None
    """Hash of the block before the first one; None at the start of a prompt."""
    token_ids: list[int]
    block_size: int
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    """Per block, untagged, what its hash covers besides tokens: LoRA name, (image, offset) pairs, the cache salt (only
    in the first block of a prompt), digests of prompt embeddings."""
    group_idx: int | None = None


class BlockRemoved(msgspec.Struct, tag="BlockRemoved"):
    """Physical blocks were evicted; others may hold the same content."""

    block_hashes: list[EngineHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag="AllBlocksCleared"):
    """The prefix cache was reset, for example because the engine went to sleep."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    dp_rank: int | None = None


_batches = msgspec.msgpack.Decoder(_Batch)
_events = msgspec.msgpack.Decoder(KvEvent)


def sent_at(payload: bytes) -> float:
    """The timestamp of a message in Unix seconds of the engine's clock; 0 when it cannot be decoded."""
    try:
        return _batches.decode(payload).ts
    except msgspec.DecodeError:
        return 0.0


def decode_batch(payload: bytes) -> tuple[list[KvEvent], int]:
    """The events of one message, and the number of events that could not be decoded.

    Raises msgspec.DecodeError when the message itself cannot be decoded.
    """
    events: list[KvEvent] = []
    unread = 0
    for raw in _batches.decode(payload).events:
        try:
            events.append(_events.decode(raw))
        except (msgspec.DecodeError, RecursionError):
            unread += 1
    return events, unread
