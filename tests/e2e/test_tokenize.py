"""Our /v1/tokenize and /v1/detokenize answer what the real engine's own routes answer, for every kind of prompt."""

from typing import Any

import aiohttp
import pytest

from tests.e2e.conftest import MODEL
from tests.support.live_pool import watching
from tests.support.request_fields import TOOL
from tests.support.stack import Stack
from tests.support.waiting import until
from workers.wire import ReplicaState

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is a lake? \u00e9\n\n  \u6c34"},
]
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"ok": true}'}}
CALLED = [
    {"role": "user", "name": "me", "content": [{"type": "text", "text": "look"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "seen"},
]
PROMPTS: list[dict[str, Any]] = [
    {"prompt": "The river runs  to the sea.\n<|im_start|>user"},
    {"prompt": "The river", "add_special_tokens": False},
    {"prompt": ""},
    {"messages": TALK},
    {"messages": TALK, "add_generation_prompt": False},
    {"messages": TALK, "add_special_tokens": True},
    {"messages": TALK, "tools": [TOOL], "chat_template_kwargs": {"thinking": True}},
    {"messages": CALLED, "tools": [TOOL]},
]


async def test_the_engine_says_the_same(stacks: dict[str, Stack]) -> None:
    stack = stacks["mirrored"]
    tenant = stack.make_tenant("Tokens")
    async with watching(stack) as pool:
        await until(lambda: len(pool.in_state(ReplicaState.READY)) == 2, 60.0, "both engines are ready")
        engine_url = pool.now.replicas[0].url
    keys = {stack.base_url: tenant.key, engine_url: str(stack.ready["engine_key"])}
    async with aiohttp.ClientSession() as client:

        async def ask(base: str, route: str, body: dict[str, Any]) -> dict[str, Any]:
            headers = {"authorization": f"Bearer {keys[base]}"}
            async with client.post(
                f"{base}/{route}", json={"model": MODEL, **body}, headers=headers
            ) as answer:
                found: dict[str, Any] = await answer.json()
                assert answer.status == 200, found
                return found

        for prompt in PROMPTS:
            asked = {**prompt, "return_token_strs": True}
            ours, theirs = (
                await ask(stack.base_url, "tokenize", asked),
                await ask(engine_url, "tokenize", asked),
            )
            assert ours == theirs, prompt
            tokens = {"tokens": ours["tokens"]}
            text = await ask(stack.base_url, "detokenize", tokens)
            assert text == await ask(engine_url, "detokenize", tokens)
        chat = {"messages": TALK, "tools": [TOOL]}
        counted = await ask(stack.base_url, "tokenize", chat)
        answered = await ask(
            stack.base_url, "chat/completions", {**chat, "max_tokens": 1, "tool_choice": "none"}
        )
        assert counted["count"] == answered["usage"]["prompt_tokens"]
