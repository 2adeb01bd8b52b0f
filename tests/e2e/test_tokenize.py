"""Our /v1/tokenize and /v1/detokenize answer what the real engine's own routes answer, for every kind of prompt."""

from typing import Any

import aiohttp
import msgspec
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
        for stream in (False, True):
            await _check_ids(client, stack, tenant.key, stream=stream)
        chat = {"messages": TALK, "tools": [TOOL]}
        counted = await ask(stack.base_url, "tokenize", chat)
        answered = await ask(
            stack.base_url, "chat/completions", {**chat, "max_tokens": 1, "tool_choice": "none"}
        )
        assert counted["count"] == answered["usage"]["prompt_tokens"]


async def _check_ids(client: aiohttp.ClientSession, stack: Stack, key: str, *, stream: bool) -> None:
    """`return_token_ids` tells the tokens that tokenize tells, and those of the answer, however it is sent."""
    headers = {"authorization": f"Bearer {key}"}
    for route, prompt in (("chat/completions", {"messages": TALK}), ("completions", {"prompt": "The river"})):
        body = {"model": MODEL, **prompt, "max_tokens": 24, "ignore_eos": True, "return_token_ids": True}
        async with client.post(
            f"{stack.base_url}/{route}", json={**body, "stream": stream}, headers=headers
        ) as answer:
            raw = await answer.read()
            assert answer.status == 200, raw
        lines = raw.split(b"\n\n") if stream else [b"data: " + raw]
        events = [msgspec.json.decode(line[6:]) for line in lines if line.startswith(b"data: {")]
        choices = [choice for event in events for choice in event["choices"]]
        ids = [token for choice in choices for token in choice.get("token_ids") or ()]
        [told] = [each["prompt_token_ids"] for each in (*events, *choices) if each.get("prompt_token_ids")]
        assert len(ids) == 24
        async with client.post(
            f"{stack.base_url}/tokenize", json={"model": MODEL, **prompt}, headers=headers
        ) as answer:
            assert (await answer.json())["tokens"] == told
