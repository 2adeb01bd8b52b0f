"""Records every request that the scheduler handles: times, counts, salted hashes; never text.

A simulation of past traffic shows how another pool would have served it. Pure: times are arguments. Requests that
clients placed without the scheduler, and those that ran when it started, are not recorded. Requests that were queued
then are announced and recorded.
"""

import zlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from core.errors import Unavailable
from scheduler.core.placement import ActivePlacement
from scheduler.listeners import Listener
from scheduler.messages import PlaceRefused
from scheduler.wire import Placement, PlaceRequest, Released

MAX_ACTIVE = 100_000
"""Active requests that are followed; further ones are counted as dropped."""
MAX_ACTIVE_HASHES = 10_000_000
"""Hashes of all active requests (80 MB); requests beyond are counted as dropped."""
MAX_ENDED = 100_000
"""Ended requests that are kept until they are stored."""
MAX_ENDED_HASHES = 2_000_000
"""Hashes of ended requests that are kept until they are stored (about 80 MB in all); requests beyond are counted as
dropped."""
ACTIVE_TTL_S = 3_600.0
"""Seconds after which a request without an end is dropped, because its client has died."""
SAMPLE_TOKENS = 512
"""One hash is kept per this many tokens, enough to tell how much of a prompt was shared."""
MAX_HASHES = 256
"""Hashes that are kept of one request."""
TEXT_BLOCK_TOKENS = 256
"""Assumed tokens of a text block of the gateway (1 KiB)."""
MAX_BATCH_BYTES = 64 << 20
"""Largest size of a batch after decompression."""


class TracedRequest(msgspec.Struct, array_like=True, frozen=True):
    """One request. Encoded by position: new fields are appended, with a default."""

    at_ms: int
    """Unix time of its arrival at the scheduler, in milliseconds."""
    tenant_id: str
    tier: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    """As counted by the engine; an estimate if it did not run."""
    blocks: list[int]
    """Every n-th of the salted, chained hashes of the prompt."""
    block_tokens: int
    """Prompt tokens that each of `blocks` stands for."""
    queue_ms: int
    """Milliseconds from `at_ms` to placement or refusal; -1 = neither happened."""
    ttft_ms: int
    """Milliseconds from `at_ms` to the first token; -1 = none."""
    total_ms: int
    """Milliseconds from `at_ms` to the end."""
    outcome: str
    """done | failed (by its replica; a retry is recorded again) | cancelled | refused:REASON"""
    weight: float = 1.0


@dataclass(slots=True)
class _Active:
    """An active request, with sampled hashes of its prompt."""

    at: float
    model: str
    tenant_id: str
    tier: str
    weight: float
    prompt_tokens: int
    output_tokens: int
    blocks: "array[int]"
    """64-bit hashes."""
    block_tokens: int
    queue_ms: int = -1
    ttft_ms: int = -1


@dataclass
class RequestTrace(Listener):
    """Follows requests from submission to end. With `recording` False it records nothing."""

    recording: bool = True
    wall_offset_s: float = 0.0
    """Unix time minus the monotonic clock of the events."""
    dropped: int = 0
    """Requests dropped since the start."""
    _active: "OrderedDict[tuple[str, str], _Active]" = field(default_factory=OrderedDict)
    _active_hashes: int = 0
    _ended: dict[str, list[TracedRequest]] = field(default_factory=dict)
    _ended_count: int = 0
    _ended_hashes: int = 0

    def on_submit(self, client: str, request: PlaceRequest, at: float, *, announced: bool) -> None:
        """Follow a request, unless it is followed already or the bounds are reached."""
        if not self.recording:
            return
        key = (client, request.request_id)
        if key in self._active:
            return
        blocks, block_tokens = _sampled(request)
        if len(self._active) >= MAX_ACTIVE or self._active_hashes + len(blocks) > MAX_ACTIVE_HASHES:
            self.dropped += 1
            return
        self._active_hashes += len(blocks)
        self._active[key] = _Active(
            at,
            request.model,
            request.tenant_id,
            request.tier,
            request.weight,
            request.prompt_tokens,
            request.output_tokens,
            blocks,
            block_tokens,
        )

    def on_place(self, client: str, placement: Placement, tier: str, at: float) -> None:
        """Record its time in the queue."""
        if entry := self._active.get((client, placement.request_id)):
            entry.queue_ms = _ms(at - entry.at)

    def on_first_token(
        self, client: str, request_id: str, placement: ActivePlacement | None, at: float
    ) -> None:
        """Record its time to first token."""
        if (entry := self._active.get((client, request_id))) and entry.ttft_ms < 0:
            entry.ttft_ms = _ms(at - entry.at)

    def on_refuse(self, client: str, model: str, refusal: PlaceRefused, at: float) -> None:
        """Record its refusal."""
        if entry := self._remove(client, refusal.request_id):
            entry.queue_ms = _ms(at - entry.at)
            self._record(entry, None, f"refused:{refusal.reason}", at)

    def on_cancel(self, client: str, request_id: str, at: float) -> None:
        """Record its cancellation."""
        if entry := self._remove(client, request_id):
            self._record(entry, None, "cancelled", at)

    def on_release(
        self, client: str, released: Released, placement: ActivePlacement | None, at: float
    ) -> None:
        """Record its end, or its failure on the replica."""
        if entry := self._remove(client, released.request_id):
            self._record(entry, released, "failed" if released.failed else "done", at)

    def take_ended(self, now: float) -> dict[str, list[TracedRequest]]:
        """The requests that ended since the last call, by model. Requests without an end are dropped after
        ACTIVE_TTL_S."""
        while self._active:
            (client, request_id), entry = next(iter(self._active.items()))
            if now - entry.at < ACTIVE_TTL_S:
                break
            self._remove(client, request_id)
            self.dropped += 1
        ended, self._ended = self._ended, {}
        self._ended_count = self._ended_hashes = 0
        return ended

    def _remove(self, client: str, request_id: str) -> _Active | None:
        """Stop following a request; None when it was not followed."""
        entry = self._active.pop((client, request_id), None)
        if entry is not None:
            self._active_hashes -= len(entry.blocks)
        return entry

    def _record(self, entry: _Active, released: Released | None, outcome: str, now: float) -> None:
        if self._ended_count >= MAX_ENDED or self._ended_hashes + len(entry.blocks) > MAX_ENDED_HASHES:
            self.dropped += 1
            return
        self._ended_count += 1
        self._ended_hashes += len(entry.blocks)
        traced = TracedRequest(
            int((entry.at + self.wall_offset_s) * 1000),
            entry.tenant_id,
            entry.tier,
            released.input_tokens if released and released.input_tokens > 0 else entry.prompt_tokens,
            max(0, released.cached_input_tokens) if released else 0,
            max(0, released.output_tokens) if released else entry.output_tokens,
            entry.blocks.tolist(),
            entry.block_tokens,
            entry.queue_ms,
            entry.ttft_ms,
            _ms(now - entry.at),
            outcome,
            entry.weight,
        )
        self._ended.setdefault(entry.model, []).append(traced)


def sampled_blocks(blocks: Sequence[int], block_tokens: int) -> tuple[list[int], int]:
    """Every n-th hash, and the tokens that each stands for. n depends on the block size only, so that requests with a
    common prefix keep the same hashes. `block_tokens` 0 = text blocks."""
    size = block_tokens if block_tokens > 0 else TEXT_BLOCK_TOKENS
    step = max(1, SAMPLE_TOKENS // size)
    return list(blocks[step - 1 : step * MAX_HASHES : step]), size * step


def _sampled(request: PlaceRequest) -> tuple["array[int]", int]:
    """The sampled hashes of a request in an array; empty when one is not a 64-bit number."""
    blocks, block_tokens = sampled_blocks(request.blocks, request.block_tokens)
    try:
        return array("Q", blocks), block_tokens
    except OverflowError:
        return array("Q"), block_tokens


def pack(requests: list[TracedRequest]) -> bytes:
    """Encode and compress a batch for storage."""
    return zlib.compress(msgspec.msgpack.encode(requests), 6)


def unpack(data: bytes) -> list[TracedRequest]:
    """Decode a batch of `pack`. Raises Unavailable when it is damaged or too large."""
    try:
        unpacker = zlib.decompressobj()
        plain = unpacker.decompress(data, MAX_BATCH_BYTES)
        if not unpacker.eof:
            raise Unavailable(
                f"a batch of recorded requests is cut off or larger than {MAX_BATCH_BYTES:,} bytes"
            )
        return msgspec.msgpack.decode(plain, type=list[TracedRequest])
    except (zlib.error, msgspec.MsgspecError) as error:
        raise Unavailable(f"a batch of recorded requests is damaged: {error}") from None


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
