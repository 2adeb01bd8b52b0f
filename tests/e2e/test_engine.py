"""The real vLLM as the agent runs it, asked directly: usage, counters, cached tokens, its key, clients that leave."""

import asyncio
import os
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.e2e.conftest import MODEL
from tests.support.live_pool import PoolView, watching
from tests.support.log_search import PROMPT
from tests.support.stack import ROOT, Stack
from tests.support.waiting import until
from workers.engine_api import parse_metrics
from workers.wire import EngineCounters, ReplicaState

ENGINE_ENV = Path(os.environ.get("PENSTOCK_ENGINE_ENV") or ROOT / ".engine")

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


async def test_the_real_engine_is_what_the_agent_says_it_is(stacks: dict[str, Stack]) -> None:
    stack = stacks["mirrored"]  # not the one whose engines' counters are compared with what was billed
    async with watching(stack) as pool:
        await until(lambda: len(pool.in_state(ReplicaState.READY)) == 2, 60.0, "both engines are ready")
        replica = pool.in_state(ReplicaState.READY)[0]
        assert not replica.simulated
        assert (replica.block_size, replica.kv_blocks) == (32, 2304)
        assert replica.warmup_counters.generation_tokens > 0
        headers = {"authorization": f"Bearer {stack.ready['engine_key']}"}
        async with aiohttp.ClientSession(replica.url, headers=headers) as client:
            await _check_requests(client, pool, replica.replica_id)
            await _check_abort(client)
        async with aiohttp.ClientSession(replica.url) as stranger, stranger.get("/v1/models") as answer:
            assert answer.status == 401


async def _check_requests(client: aiohttp.ClientSession, pool: PoolView, replica_id: str) -> None:
    """Usage of every kind of request, its sum in the heartbeat's counters, cached tokens told."""
    before = await _counters(client)
    question = "Tell me about the lake and the wheel. " * 20
    spent: list[dict[str, Any]] = []
    for salt in ("one", "one", "two"):
        body = {"model": MODEL, "prompt": question, "max_tokens": 6, "cache_salt": salt}
        async with client.post("/v1/completions", json=body) as answer:
            spent.append(msgspec.json.decode(await answer.read())["usage"])
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in spent]
    assert cached[0] == cached[2] == 0
    assert cached[1] > 0
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    async with client.post("/v1/chat/completions", json=body) as answer:
        lines = [line async for line in answer.content if line.startswith(b"data: {")]
    events = [msgspec.json.decode(line[6:]) for line in lines]
    assert all(event["usage"]["prompt_tokens"] > 0 for event in events)
    spent.append(events[-1]["usage"])

    def agrees() -> bool:
        now = pool.replica(replica_id).counters
        return (
            now.prompt_tokens - before.prompt_tokens,
            now.generation_tokens - before.generation_tokens,
        ) == (
            sum(usage["prompt_tokens"] for usage in spent),
            sum(usage["completion_tokens"] for usage in spent),
        )

    await until(agrees, what="what its counters gained = usage")


async def _counters(client: aiohttp.ClientSession) -> EngineCounters:
    async with client.get("/metrics") as metrics:
        return parse_metrics(await metrics.text()).counters


async def _check_abort(client: aiohttp.ClientSession) -> None:
    body = {"model": MODEL, "prompt": "x", "max_tokens": 1900, "stream": True}
    answer = await client.post("/v1/completions", json=body)
    await answer.content.readline()
    answer.close()

    async def idle() -> bool:
        async with client.get("/metrics") as metrics:
            return parse_metrics(await metrics.text()).running == 0

    await until(idle, 2.0)


async def test_the_tiny_model_is_the_same_every_time(tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        process = await asyncio.create_subprocess_exec(
            str(ENGINE_ENV / "bin" / "python"),
            str(ROOT / "workers" / "tiny_model.py"),
            str(tmp_path / name),
        )
        assert await process.wait() == 0
        contents.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert contents[0] == contents[1]
    assert sum(len(content) for content in contents[0].values()) < 20 * 2**20
