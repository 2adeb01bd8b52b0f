"""Text completions of more prompts than an engine gets at once, from the official client to the usage row."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cli.commands.sim.engine import simulated_tokenizer
from tests.support.api_process import MODEL, Api, api_process

PROMPTS = [f"{'water ' * (1 + number % 5)}{number}" for number in range(40)]


@pytest.fixture
async def api(pg_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with api_process(pg_url, redis_url, tmp_path, tokenizer=simulated_tokenizer()) as made:
        yield made


@pytest.mark.parametrize("stream", [True, False])
async def test_the_official_client_gets_every_choice_and_pays_once(api: Api, stream: bool) -> None:
    client, prompts, said = api.openai(), dict[int, list[int]](), dict[int, str]()
    asked = {"model": MODEL, "prompt": PROMPTS, "max_tokens": 6, "n": 2}
    ids = {"return_token_ids": True}
    if stream:
        events = await client.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}, extra_body=ids
        )
        documents = [event async for event in events]
        assert len({document.id for document in documents}) == 1
    else:
        documents = [await client.completions.create(**asked, extra_body=ids)]
    for choice in (choice for document in documents for choice in document.choices):
        said[choice.index] = said.get(choice.index, "") + choice.text
        told = (choice.model_extra or {}).get("prompt_token_ids")
        if told:
            prompts[choice.index] = told
    assert sorted(said) == list(range(80))
    assert all(said.values())
    usage = documents[-1].usage
    assert usage is not None
    assert usage.completion_tokens == 80 * 6
    counted = 0
    for number, prompt in enumerate(PROMPTS):
        body = {"model": MODEL, "prompt": prompt}
        async with api.session.post(f"{api.url}/v1/tokenize", json=body, headers=api_key(api)) as answer:
            tokens = (await answer.json())["tokens"]
        assert prompts[2 * number] == prompts[2 * number + 1] == tokens, "each choice is that of its prompt"
        one = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=1)
        assert one.usage is not None
        counted += one.usage.prompt_tokens
    assert usage.prompt_tokens == counted
    row = (await api.usage_rows(1 + len(PROMPTS)))[0]
    assert (row.input_tokens, row.output_tokens, row.attempts) == (counted, 480, 1)


async def test_more_than_the_engines_cap_is_refused(api: Api) -> None:
    body = {"model": MODEL, "prompt": ["x"] * 1025}
    async with api.session.post(f"{api.url}/v1/completions", json=body, headers=api_key(api)) as answer:
        assert answer.status == 400
        assert "at most 1,024" in (await answer.json())["error"]["message"]


def api_key(api: Api) -> dict[str, str]:
    return {"authorization": f"Bearer {api.organisation.key}"}
