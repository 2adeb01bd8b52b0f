"""Events of the simulated engine, received and translated: the same hashes as the gateway computes of the prompt."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import zmq.asyncio

from core.clock import SystemClock
from gateway.schemas.chat import parse_chat
from sim.engine.tokenizer import SimulatedTokenizer
from tests.support.ports import free_port
from tests.support.waiting import until
from workers.kv_endpoints import kv_endpoints, make_directory
from workers.kv_events import KvSubscriber
from workers.kv_events_feed import KvOutbox
from workers.token_blocks import token_block_hashes

MODEL = "penstock/tiny"
BODY = b'{"model": "penstock/tiny", "messages": [{"role": "user", "content": "%s"}], "max_tokens": 4}'


@pytest.mark.parametrize("salt", ["tenant-a", "tenant-b"])
async def test_prompts_of_a_tenant_are_known_by_their_hashes(tmp_path: Path, salt: str) -> None:
    make_directory(tmp_path)
    endpoints, port = kv_endpoints(tmp_path, "h/m-0"), free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sim.engine", "--model", MODEL, "--port", str(port),
        "--kv-events-endpoint", endpoints.events, "--kv-replay-endpoint", endpoints.replay,
        env={**os.environ, "VLLM_API_KEY": ""},
    )  # fmt: skip
    feed = KvOutbox().feed("h/m-0")
    context = zmq.asyncio.Context()
    follower = KvSubscriber(
        endpoints, feed, boot_id=lambda: "boot-1", now=SystemClock().monotonic, context=context
    )
    following = asyncio.create_task(follower.run())
    try:
        await until(lambda: feed.live)
        prepared = parse_chat(BODY % (b"the river runs to the sea " * 30))
        async with aiohttp.ClientSession() as client:

            async def answered() -> Any:
                try:
                    return await client.post(
                        f"http://127.0.0.1:{port}/v1/chat/completions", data=prepared.engine_body(MODEL, salt)
                    )
                except aiohttp.ClientConnectionError:
                    return None

            answer = await until(answered)
            assert answer.status == 200
            await answer.read()
        tokens = SimulatedTokenizer().tokenize(prepared, salt, reasoning=False)
        await until(lambda: feed.blocks.block_tokens)
        hashes = set(token_block_hashes(tokens, feed.blocks.block_tokens, salt))
        assert len(hashes) > 4
        await until(lambda: hashes <= set(feed.blocks.block_hashes()))
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        context.destroy(linger=0)
        process.terminate()
        await process.wait()
