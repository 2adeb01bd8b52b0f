"""/v1/tokenize and /v1/detokenize through the whole API: not billed, within the key's limits and models."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from admin import keys as admin_keys
from admin import limits as admin_limits
from admin import models as admin_models
from cli.commands.sim.engine import simulated_tokenizer
from tenants.principal import Limits
from tests.support.api_process import MODEL, Api, api_process
from tests.support.tenancy import ADMIN, PEPPER

SAID = [{"role": "user", "content": "Say something about water."}]
EMBEDDER = "penstock/tiny-embed"


@pytest.fixture(params=[MODEL])
async def api(
    request: pytest.FixtureRequest, pg_url: str, redis_url: str, tmp_path: Path
) -> AsyncIterator[Api]:
    async with api_process(
        pg_url, redis_url, tmp_path, model=request.param, tokenizer=simulated_tokenizer()
    ) as made:
        yield made


async def ask(api: Api, route: str, key: str = "", **body: Any) -> tuple[int, dict[str, Any]]:
    headers = {"authorization": f"Bearer {key or api.organisation.key}"}
    async with api.session.post(f"{api.url}/v1/{route}", json=body, headers=headers) as answer:
        assert answer.headers["x-request-id"]
        return answer.status, await answer.json()


async def test_the_tokens_are_those_that_are_billed(api: Api) -> None:
    status, found = await ask(api, "tokenize", model=MODEL, messages=SAID, return_token_strs=True)
    assert status == 200
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    answer = await api.openai().chat.completions.create(model=MODEL, messages=SAID, max_tokens=4)
    assert answer.usage.prompt_tokens == found["count"]
    status, text = await ask(api, "detokenize", model=MODEL, tokens=found["tokens"])
    assert (status, text["prompt"]) == (200, "".join(found["token_strs"]))
    assert "Say something about water." in text["prompt"]
    [model] = [each async for each in api.openai().models.list()]
    assert found["max_model_len"] == model.model_extra["context_length"]
    assert len(await api.usage_rows(1)) == 1  # of the chat


@pytest.mark.parametrize("api", [EMBEDDER], indirect=True)
async def test_an_embedding_model(api: Api) -> None:
    status, found = await ask(api, "tokenize", model=EMBEDDER, prompt="four and eight tokens")
    assert status == 200
    answer = await api.openai().embeddings.create(model=EMBEDDER, input="four and eight tokens")
    assert found["count"] == answer.usage.prompt_tokens


async def test_a_large_list_arrives_whole(api: Api) -> None:
    status, found = await ask(api, "tokenize", model=MODEL, prompt="water, " * 30_000, return_token_strs=True)
    assert (status, found["count"]) == (200, 52_500)
    assert found["token_strs"][0] == "wate"
    status, text = await ask(api, "detokenize", model=MODEL, tokens=found["tokens"])
    assert (status, text["prompt"]) == (200, "water, " * 30_000)
    too_long = json.dumps({"model": MODEL, "prompt": "x" * (2**20 + 8)}).encode()
    status, refused, _ = await api.post(too_long, path="/v1/tokenize")
    assert (status, refused["error"]["param"]) == (400, "prompt")


async def test_errors_have_openais_shape(api: Api) -> None:
    for route, body, status, code, param in (
        ("tokenize", {"model": MODEL}, 400, "invalid_request", "prompt"),
        ("tokenize", {"model": "nobody/nothing", "prompt": "x"}, 404, "model_not_found", "model"),
        ("detokenize", {"model": MODEL, "tokens": ["x"]}, 400, "invalid_request", "tokens[0]"),
    ):
        got, document = await ask(api, route, **body)
        error = document["error"]
        assert (got, error["code"], error["param"]) == (status, code, param), error
    got, document = await ask(api, "tokenize", "pen_live_nonsense", model=MODEL, prompt="x")
    assert (got, document["error"]["code"]) == (401, "invalid_api_key")
    async with api.session.get(f"{api.url}/v1/tokenize") as answer:
        assert answer.status == 405


async def make_key(api: Api, *allowed: str) -> admin_keys.CreatedKey:
    return await admin_keys.create_key(
        api.database,
        ADMIN,
        pepper=PEPPER,
        tenant_id=api.organisation.tenant_id,
        project_id=api.organisation.project_id,
        name="narrow",
        allowed_models=[*allowed],
    )


async def test_a_key_is_answered_within_its_models_and_its_rate(api: Api) -> None:
    await admin_models.add_model(api.database, ADMIN, name=EMBEDDER)
    other = await make_key(api, EMBEDDER)
    for route, body in (("tokenize", {"prompt": "x"}), ("detokenize", {"tokens": [1]})):
        status, document = await ask(api, route, other.secret, model=MODEL, **body)
        assert (status, document["error"]["code"]) == (403, "model_not_allowed")
    narrow = await make_key(api, MODEL)
    await admin_limits.set_limits(
        api.database,
        ADMIN,
        tenant_id=api.organisation.tenant_id,
        scope_kind="key",
        scope_id=narrow.view.id,
        limits=Limits(requests_per_min=1),
    )
    status, _ = await ask(api, "tokenize", narrow.secret, model=MODEL, prompt="x")
    assert status == 200
    status, document = await ask(api, "tokenize", narrow.secret, model=MODEL, prompt="x")
    assert (status, document["error"]["code"]) == (429, "rate_limit_exceeded")
