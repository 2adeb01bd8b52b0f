"""`return_token_ids` through the whole API: the ids of prompt and answer, in streams, merged and in one piece."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.commands.sim.engine import simulated_tokenizer
from tests.support.api_process import MODEL, Api, api_process

SAID = [{"role": "user", "content": "Say something about water."}]
TOOL = {"type": "function", "function": {"name": "look"}}


@pytest.fixture
async def api(pg_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with api_process(pg_url, redis_url, tmp_path, tokenizer=simulated_tokenizer()) as made:
        yield made


async def documents(api: Api, route: str, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, or the one document."""
    headers = {"authorization": f"Bearer {api.organisation.key}"}
    asked = {"model": MODEL, "max_tokens": 12, **body}
    async with api.session.post(f"{api.url}/v1/{route}", json=asked, headers=headers) as answer:
        raw = await answer.read()
        assert answer.status == 200, raw
    lines = raw.split(b"\n\n") if body.get("stream") else [b"data: " + raw]
    return [msgspec.json.decode(line[6:]) for line in lines if line.startswith(b"data: {")]


PROMPTS: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": SAID},
    "completions": {"prompt": "water " * 9},
}


@pytest.mark.parametrize("route", PROMPTS)
@pytest.mark.parametrize("how", [{"stream": True}, {}, {"n": 2}, {"tools": [TOOL]}], ids=str)
async def test_ids_are_told_when_they_are_asked_for(api: Api, route: str, how: dict[str, Any]) -> None:
    if route == "completions" and "tools" in how:
        return
    prompt, choices = PROMPTS[route], how.get("n", 1)
    [counted] = await documents(api, "tokenize", **prompt)
    found = await documents(api, route, **prompt, **how, return_token_ids=True)
    parts = [choice for document in found for choice in document["choices"]]
    told = [each["prompt_token_ids"] for each in (*found, *parts) if "prompt_token_ids" in each]
    assert told == [counted["tokens"]] * (1 if route == "chat/completions" else choices)
    for index in range(choices):
        own = [part for part in parts if part["index"] == index]
        ids = [token for part in own for token in part.get("token_ids") or ()]
        assert len(ids) == 12
        text = "".join(
            part.get("text") or (part.get("delta") or part.get("message") or {}).get("content") or ""
            for part in own
        )
        [said] = await documents(api, "detokenize", tokens=ids)
        assert said["prompt"] == text
    plain = await documents(api, route, **prompt, **how)
    for document in plain:
        assert not document.get("prompt_token_ids")
        assert not any(
            choice.get("token_ids") or choice.get("prompt_token_ids") for choice in document["choices"]
        )


async def test_other_routes_refuse_it(api: Api) -> None:
    headers = {"authorization": f"Bearer {api.organisation.key}"}
    body = {"model": MODEL, "input": "x", "return_token_ids": True}
    async with api.session.post(f"{api.url}/v1/responses", json=body, headers=headers) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["param"] == "return_token_ids"
