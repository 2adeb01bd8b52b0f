"""Records every request that the scheduler handles: times, counts, salted hashes; never text.

From past traffic a simulation can say what the same traffic would have met on another pool. Pure: the
caller says what time it is. What the scheduler does not see is missing: requests that clients placed by themselves
while it was away, and those that ran when it started. What waited then is announced to it and not missing.
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
"""Requests under way that are followed ..."""
MAX_ACTIVE_HASHES = 10_000_000
"""... and hashes of all of them: 80 MB. A request beyond either is not followed and counted as dropped."""
MAX_ENDED = 100_000
MAX_ENDED_HASHES = 2_000_000
"""About 80 MB of ended requests wait to be stored at most; what comes beyond is dropped and counted."""
ACTIVE_TTL_S = 3_600.0
"""A request whose end is never heard of (its client died) is dropped after this."""
SAMPLE_TOKENS = 512
"""Hashes are thinned to one per this many tokens: enough to tell how much of a prompt was shared."""
MAX_HASHES = 256
TEXT_BLOCK_TOKENS = 256
"""What a text block of the gateway (1 KiB) is taken for."""
MAX_BATCH_BYTES = 64 << 20


class TracedRequest(msgspec.Struct, array_like=True, frozen=True):
    """One request. Written positionally: new fields go to the end, with a default."""

    at_ms: int
    """Unix time at which the scheduler heard of it."""
    tenant_id: str
    tier: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    """Counted by the engine where it ran; estimates where it did not."""
    blocks: list[int]
    """Every n-th of the salted, chained hashes of the prompt."""
    block_tokens: int
    """Prompt tokens that each of `blocks` stands for."""
    queue_ms: int
    """From `at_ms` to its placement or refusal; -1 = neither was heard of."""
    ttft_ms: int
    """From `at_ms` to its first token; -1 = none."""
    total_ms: int
    """From `at_ms` to its end."""
    outcome: str
    """done | failed (its replica's fault; tried again it appears again) | cancelled | refused:REASON"""
    weight: float = 1.0


@dataclass(slots=True)
class _Active:
    """A request under way, without its whole prompt: of that, the thinned hashes are enough."""

    at: float
    model: str
    tenant_id: str
    tier: str
    weight: float
    prompt_tokens: int
    output_tokens: int
    blocks: "array[int]"
    """64 bits each."""
    block_tokens: int
    queue_ms: int = -1
    ttft_ms: int = -1


@dataclass
class RequestTrace(Listener):
    """Follows requests from the question to their end. `recording` False = notes nothing."""

    recording: bool = True
    wall_offset_s: float = 0.0
    """Unix time less the monotonic clock that the callers' `now` is of."""
    dropped: int = 0
    """Requests of which nothing will be stored, since the start."""
    _active: "OrderedDict[tuple[str, str], _Active]" = field(default_factory=OrderedDict)
    _active_hashes: int = 0
    _ended: dict[str, list[TracedRequest]] = field(default_factory=dict)
    _ended_count: int = 0
    _ended_hashes: int = 0

    def on_submit(self, client: str, request: PlaceRequest, at: float, *, announced: bool) -> None:
        """Follow a request from now on, unless it is followed already or there is no room for it."""
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
        """Note how long it waited."""
        if entry := self._active.get((client, placement.request_id)):
            entry.queue_ms = _ms(at - entry.at)

    def on_first_token(
        self, client: str, request_id: str, placement: ActivePlacement | None, at: float
    ) -> None:
        """Note its time to first token."""
        if (entry := self._active.get((client, request_id))) and entry.ttft_ms < 0:
            entry.ttft_ms = _ms(at - entry.at)

    def on_refuse(self, client: str, model: str, refusal: PlaceRefused, at: float) -> None:
        """Record it as refused."""
        if entry := self._remove(client, refusal.request_id):
            entry.queue_ms = _ms(at - entry.at)
            self._record(entry, None, f"refused:{refusal.reason}", at)

    def on_cancel(self, client: str, request_id: str, at: float) -> None:
        """Record it as cancelled."""
        if entry := self._remove(client, request_id):
            self._record(entry, None, "cancelled", at)

    def on_release(
        self, client: str, released: Released, placement: ActivePlacement | None, at: float
    ) -> None:
        """Record it as done, or as failed by its replica."""
        if entry := self._remove(client, released.request_id):
            self._record(entry, released, "failed" if released.failed else "done", at)

    def take_ended(self, now: float) -> dict[str, list[TracedRequest]]:
        """All that has ended since the last call, by model; forgets those whose end will never come."""
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
        """No longer under way; None when it was not followed."""
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
    """Every n-th hash, and the tokens that each then stands for. n depends on the size of blocks alone, so that
    requests with a common prefix keep the same hashes. `block_tokens` 0 = text blocks."""
    size = block_tokens if block_tokens > 0 else TEXT_BLOCK_TOKENS
    step = max(1, SAMPLE_TOKENS // size)
    return list(blocks[step - 1 : step * MAX_HASHES : step]), size * step


def _sampled(request: PlaceRequest) -> tuple["array[int]", int]:
    """Its thinned hashes in 8 bytes each; none when one of them is no 64-bit number, which no prompt has."""
    blocks, block_tokens = sampled_blocks(request.blocks, request.block_tokens)
    try:
        return array("Q", blocks), block_tokens
    except OverflowError:
        return array("Q"), block_tokens


def pack(requests: list[TracedRequest]) -> bytes:
    """A batch of recorded requests for storage."""
    return zlib.compress(msgspec.msgpack.encode(requests), 6)


def unpack(data: bytes) -> list[TracedRequest]:
    """What `pack` was given. Raises Unavailable when it cannot be read."""
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
