"""Anthropic's official client against the real vLLM: a stream, a forced call of a tool, and the count of the prompt."""

from typing import Any

import anthropic
import pytest

from tests.support.anthropic_schema import check
from tests.support.stack import Stack

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

TOOL = {
    "name": "get_weather",
    "description": "Tells the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Rain."}]}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}}
TALK = [
    {"role": "user", "content": "How is the weather in Oslo?"},
    {"role": "assistant", "content": [{"type": "text", "text": "I will look."}, CALL]},
    {"role": "user", "content": [RESULT, {"type": "text", "text": "And in Rome?"}]},
]


async def test_messages_on_the_real_engine(stacks: dict[str, Stack]) -> None:
    stack = stacks["exact"]
    tenant = stack.make_tenant("messages")
    async with anthropic.AsyncAnthropic(
        base_url=stack.root_url, api_key=tenant.key, auth_token=None, max_retries=10, timeout=120
    ) as client:
        prompt: dict[str, Any] = {
            "model": "penstock/tiny",
            "system": "Be brief.",
            "messages": TALK,
            "tools": [TOOL],
        }
        async with client.messages.stream(**prompt, max_tokens=24, tool_choice={"type": "none"}) as stream:
            streamed = await stream.get_final_message()
        assert streamed.content
        assert streamed.stop_reason in ("max_tokens", "end_turn")
        forced = {"type": "tool", "name": "get_weather"}
        called = await client.messages.create(**prompt, max_tokens=200, tool_choice=forced)
        check("Message", called.model_dump(mode="json"))
        (block,) = (each for each in called.content if each.type == "tool_use")
        assert block.name == "get_weather"
        assert block.input["city"] in ("Oslo", "Rome")
        assert called.stop_reason == "tool_use"
        counted = await client.messages.count_tokens(**prompt)
        assert counted.input_tokens == called.usage.input_tokens + called.usage.cache_read_input_tokens
