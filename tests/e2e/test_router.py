"""The real vLLM behind the real vllm-router: streams are counted by the ids of their tokens."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from core.tokens import TokenUsage
from gateway.sse import StreamCodec
from gateway.usage import UsageTracker
from tests.support.live_pool import watching
from tests.support.stack import Stack
from tests.support.vllm_router import router_for
from tests.support.waiting import until
from workers.engine_api import EngineApi
from workers.engine_fleet import StreamCounts, engines_behind, stream_counts
from workers.wire import ReplicaState

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
QUESTION = [{"role": "user", "content": "Tell me about the lake."}]


@pytest.fixture
async def routed(stacks: dict[str, Stack], tmp_path: Path) -> AsyncIterator[tuple[EngineApi, EngineApi]]:
    """An engine, and the same engine behind the router."""
    stack = stacks["mirrored"]  # not the one whose engines' counters are compared with what was billed
    async with watching(
        stack
    ) as pool:  # an earlier test may have restarted the engine, which has another port then
        await until(lambda: bool(pool.in_state(ReplicaState.READY)), timeout_s=180.0)
        engine = pool.in_state(ReplicaState.READY)[0].url
    router = router_for(tmp_path, engine)
    router.start()
    try:
        router.wait()
        async with aiohttp.ClientSession() as session:
            key = str(stack.ready["engine_key"])
            yield EngineApi(session, engine, key), EngineApi(session, router.url, key)
    finally:
        router.kill()


@pytest.mark.parametrize(
    ("path", "asked", "choices", "per_prompt"),
    [
        (CHAT, {"messages": QUESTION}, 1, 1),
        (CHAT, {"messages": QUESTION, "n": 3, "temperature": 1.0}, 3, 3),
        (CHAT, {"messages": QUESTION, "chat_template_kwargs": {"thinking": True}}, 1, 1),
        (TEXT, {"prompt": "Tell me about the lake."}, 1, 1),
        (TEXT, {"prompt": ["The lake", "The wheel of the mill turns"]}, 2, 1),
    ],
    ids=["chat", "choices", "reasoning", "text", "prompts"],
)
async def test_ids_count_what_the_engine_counts(
    routed: tuple[EngineApi, EngineApi], path: str, asked: dict[str, Any], choices: int, per_prompt: int
) -> None:
    direct, router = routed
    model = "penstock/tiny"
    assert await stream_counts(direct, model) == StreamCounts(usage=True, ids=True)
    assert await stream_counts(router, model) == StreamCounts(usage=False, ids=True)
    assert (await engines_behind(direct), await engines_behind(router)) == (0, 1)
    body = {
        "model": model, "max_tokens": 60, "temperature": 0, "return_token_ids": True, "stream": True,
        "stream_interval": 7, "stream_options": {"include_usage": True, "continuous_usage_stats": True}, **asked,
    }  # fmt: skip
    status, stream = await router.post(path, body, timeout_s=120)
    assert status == 200, stream
    *events, last, done = [event + b"\n\n" for event in stream.split(b"\n\n") if event]
    assert done == b"data: [DONE]\n\n"
    codec = StreamCodec(choices, 1 << 30, counts_ids=True)
    codec.tracker = UsageTracker(choices, per_prompt)
    for event in events:
        codec.feed(event)
    usage = msgspec.json.decode(last[6:])["usage"]
    assert codec.tracker.usage == TokenUsage(usage["prompt_tokens"], 0, usage["completion_tokens"])
    assert usage["completion_tokens"] > len(events), "each event had one token: the test proves nothing"
