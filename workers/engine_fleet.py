"""What is behind an external engine's address: one engine, or a router with a fleet of them; and how it counts.

A router such as vllm-router sends each request to an engine of its own choice, also one for /metrics, and may change
what it passes on.
"""

from typing import Any

import msgspec

from core.errors import EngineFailed
from workers.engine_api import EngineApi
from workers.wire import Capacity

STREAM_TIMEOUT_S = 20.0
"""Longest time of the request that shows how streams are counted."""


class _Worker(msgspec.Struct, frozen=True):
    worker_type: str = "regular"
    is_healthy: bool = True


class _Workers(msgspec.Struct, frozen=True):
    workers: list[_Worker]


async def engines_behind(api: EngineApi) -> int:
    """The engines that a router says it can send answers to (GET /workers of vllm-router); 0 = it is no such router.

    Raises EngineFailed when it cannot be reached.
    """
    status, body = await api.get("/workers")
    try:
        listed = msgspec.json.decode(body, type=_Workers).workers if status == 200 else []
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return 0
    able = [each for each in listed if each.is_healthy and each.worker_type != "prefill"]
    return max(1, len(able)) if listed else 0


def capacity_of(one: Capacity, engines: int) -> Capacity:
    """The capacity of a fleet of `engines` like `one`, among which its router divides the requests evenly."""
    return msgspec.structs.replace(
        one,
        prefill_tokens_per_s=one.prefill_tokens_per_s * engines,
        step_per_seq_s=one.step_per_seq_s / engines,
        max_num_seqs=one.max_num_seqs * engines,
        kv_cache_tokens=one.kv_cache_tokens * engines,
    )


class StreamCounts(msgspec.Struct, frozen=True):
    """What the events of a stream say about its tokens."""

    usage: bool = False
    """Running usage, as `continuous_usage_stats` asks for."""
    ids: bool = False
    """Ids of tokens, as `return_token_ids` asks for."""

    @property
    def exact(self) -> bool:
        """Whether the tokens of a stream that ends early are known."""
        return self.usage or self.ids


class _Choice(msgspec.Struct, frozen=True):
    token_ids: list[int] | None = None


class _Event(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: dict[str, Any] | None = None


async def stream_counts(api: EngineApi, model: str) -> StreamCounts:
    """What a small stream of `model` shows; nothing where it is refused. Raises EngineFailed as `EngineApi.post`."""
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 2,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
    }
    status, answer = await api.post("/v1/chat/completions", body, timeout_s=STREAM_TIMEOUT_S)
    if status >= 500 or status == 429:
        raise EngineFailed(f"a stream was answered with {status}")
    return counts_of(answer) if status == 200 else StreamCounts()


def counts_of(stream: bytes) -> StreamCounts:
    """What the events of a whole stream show."""
    usage = ids = False
    for line in stream.splitlines():
        try:
            event = msgspec.json.decode(line.removeprefix(b"data:"), type=_Event)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue  # the end of the stream, a blank line or a comment
        usage |= bool(event.choices) and event.usage is not None
        ids |= any(choice.token_ids for choice in event.choices)
    return StreamCounts(usage, ids)
