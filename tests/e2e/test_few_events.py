"""The real vLLM asked for few events."""

from typing import Any

import aiohttp
import msgspec
import openai
import pytest

from tests.support.live_pool import watching
from tests.support.log_search import PROMPT
from tests.support.patience import patiently
from tests.support.stack import Stack
from tests.support.waiting import until
from workers.wire import ReplicaState

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

QUESTION = [{"role": "user", "content": f"Tell me about the lake and the wheel, {PROMPT}."}]


async def test_an_interval_joins_the_tokens_of_the_real_engine(stacks: dict[str, Stack]) -> None:
    stack = stacks["mirrored"]
    async with watching(stack) as pool:
        await until(lambda: len(pool.in_state(ReplicaState.READY)) == 2, 60.0, "both engines are ready")
        replicas = pool.in_state(ReplicaState.READY)
        assert all(replica.stream_interval for replica in replicas)
    # A text completion, because chat has no event for tokens without text, such as the first half of a character. And
    # long intervals, because vLLM joins two when its API process has not yet read the first as the second ends.
    body = {
        "model": stack.ready["model"], "prompt": "Tell me about the lake.", "max_tokens": 901, "min_tokens": 901,
        "stream": True, "stream_interval": 300,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }  # fmt: skip
    headers = {"authorization": f"Bearer {stack.ready['engine_key']}"}
    async with (
        aiohttp.ClientSession(replicas[0].url, headers=headers) as client,
        client.post("/v1/completions", json=body) as answer,
    ):
        lines = [line async for line in answer.content if line.startswith(b"data: {")]
    events = [msgspec.json.decode(line[6:]) for line in lines]
    counts = [event["usage"]["completion_tokens"] for event in events if event["choices"]]
    assert counts == [1, 301, 601, 901]


async def test_a_whole_answer_is_the_stream_of_the_same_seed(stacks: dict[str, Stack]) -> None:
    stack = stacks["mirrored"]
    tenant, model = stack.make_tenant("Same"), str(stack.ready["model"])
    asked: Any = {"model": model, "messages": QUESTION, "max_tokens": 200, "seed": 5, "temperature": 0}
    async with openai.AsyncOpenAI(base_url=stack.base_url, api_key=tenant.key, max_retries=0) as api:
        whole = await patiently(lambda: api.chat.completions.create(**asked))
        stream = await patiently(
            lambda: api.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        )
        events = [event async for event in stream]
    text = "".join(choice.delta.content or "" for event in events for choice in event.choices)
    assert whole.choices[0].message.content == text
    assert whole.usage is not None
    assert whole.usage.completion_tokens == events[-1].usage.completion_tokens
