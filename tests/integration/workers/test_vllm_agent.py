"""The agent with the real vLLM on the CPU and the tiny model."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.integration.workers.test_agent import CHECKOUT, Host, Scheduler, gone
from tests.support.ports import free_port
from tests.support.waiting import until
from workers import engine_install
from workers.engine_api import parse_metrics
from workers.wire import ReplicaState

ENGINE_ENV = Path(os.environ.get("PENSTOCK_ENGINE_ENV") or CHECKOUT / ".engine")

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        engine_install.status(ENGINE_ENV).state != "installed", reason="`penstock engine install` has not run"
    ),
]


async def test_the_real_engine_from_start_to_stop(tmp_path: Path) -> None:
    port = free_port()
    scheduler, host = Scheduler(), Host(tmp_path, port)
    host.env |= {
        "PENSTOCK_ENGINE": "vllm",
        "PENSTOCK_MODEL": "penstock/tiny",
        "PENSTOCK_ENGINE_ENV": str(ENGINE_ENV),
    }
    await scheduler.start(port)
    await host.start()
    try:
        await until(lambda: scheduler.states() == [ReplicaState.READY], 300.0, "the engine is ready")
        replica = scheduler.replicas[0]
        assert not replica.simulated
        assert (replica.block_size, replica.kv_blocks) == (32, 800)
        assert replica.warmup_counters.generation_tokens > 0
        headers = {"authorization": "Bearer engine-key"}
        async with aiohttp.ClientSession(replica.url, headers=headers) as client:
            await _check_requests(client, scheduler)
            await _check_abort(client)
        async with aiohttp.ClientSession(replica.url) as stranger, stranger.get("/v1/models") as answer:
            assert answer.status == 401

        os.kill(replica.pid, signal.SIGKILL)
        await until(lambda: scheduler.states() == [ReplicaState.FAILED])
        await until(lambda: scheduler.states() == [ReplicaState.READY], 300.0, "the engine is ready again")
        assert scheduler.replicas[0].boot_id != replica.boot_id
        assert scheduler.replicas[0].restarts == 1
        last = scheduler.replicas[0].pid
        assert await host.stop() == 0
        assert gone(last)
    finally:
        if host.process is not None and host.process.returncode is None:
            await host.stop()
        await scheduler.close()


async def _check_requests(client: aiohttp.ClientSession, scheduler: Scheduler) -> None:
    """Usage of every kind of request, its sum in the heartbeat's counters, cached tokens told."""
    question = "Tell me about the lake and the wheel. " * 20
    spent: list[dict[str, Any]] = []
    for salt in ("one", "one", "two"):
        body = {"model": "penstock/tiny", "prompt": question, "max_tokens": 6, "cache_salt": salt}
        async with client.post("/v1/completions", json=body) as answer:
            spent.append(msgspec.json.decode(await answer.read())["usage"])
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in spent]
    assert cached[0] == cached[2] == 0
    assert cached[1] > 0
    options = {"include_usage": True, "continuous_usage_stats": True}
    messages = [{"role": "user", "content": "hello"}]
    body = {
        "model": "penstock/tiny",
        "messages": messages,
        "max_tokens": 9,
        "stream": True,
        "stream_options": options,
    }
    async with client.post("/v1/chat/completions", json=body) as answer:
        lines = [line async for line in answer.content if line.startswith(b"data: {")]
    events = [msgspec.json.decode(line[6:]) for line in lines]
    assert all(event["usage"]["prompt_tokens"] > 0 for event in events)
    spent.append(events[-1]["usage"])

    def agrees() -> bool:
        now, base = scheduler.replicas[0].counters, scheduler.replicas[0].warmup_counters
        return (now.prompt_tokens - base.prompt_tokens, now.generation_tokens - base.generation_tokens) == (
            sum(usage["prompt_tokens"] for usage in spent),
            sum(usage["completion_tokens"] for usage in spent),
        )

    await until(agrees, what="counters less warm-up = usage")


async def _check_abort(client: aiohttp.ClientSession) -> None:
    body = {"model": "penstock/tiny", "prompt": "x", "max_tokens": 1900, "stream": True}
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
            str(CHECKOUT / "workers" / "tiny_model.py"),
            str(tmp_path / name),
        )
        assert await process.wait() == 0
        contents.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert contents[0] == contents[1]
    assert sum(len(content) for content in contents[0].values()) < 20 * 2**20
