"""Embeddings from the official client to the usage row, and the parts of OpenAI's API that there are none of."""

from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from api.customer.not_available import METHODS, PARTS, ROUTES
from core.money import usd_to_pico
from tests.support.api_process import Api, api_process

MODEL = "penstock/tiny-embed"


@pytest.fixture
async def api(pg_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with api_process(pg_url, redis_url, tmp_path, model=MODEL) as made:
        yield made


async def test_the_official_client(api: Api) -> None:
    client = api.openai()
    raw = await client.embeddings.with_raw_response.create(model=MODEL, input=["four", "and eight tokens"])
    answer = raw.parse()  # the client asks for base64 and unpacks it
    assert [len(entry.embedding) for entry in answer.data] == [256, 256]
    floats = await client.embeddings.create(
        model=MODEL, input="four", encoding_format="float", dimensions=8, user="u"
    )
    assert len(floats.data[0].embedding) == 8
    tokens = await client.embeddings.create(model=MODEL, input=[[1, 2, 3], [4]])
    assert (answer.usage.prompt_tokens, tokens.usage.total_tokens) == (1 + 4, 4)
    assert raw.headers["x-penstock-outcome"] == "completed"
    rows = await api.usage_rows(3)
    assert [(row.input_tokens, row.output_tokens, row.outcome) for row in rows] == [
        (5, 0, "completed"), (1, 0, "completed"), (4, 0, "completed"),
    ]  # fmt: skip
    assert [row.cost for row in rows] == [row.input_tokens * 1_000_000 for row in rows]
    assert usd_to_pico(raw.headers["x-penstock-cost-usd"]) == rows[0].cost


async def test_a_failed_engine_costs_nothing_and_what_is_too_long_is_refused(api: Api) -> None:
    api.engines[0].failpoints.error_next = 1
    client = api.openai()
    with pytest.raises(openai.APIStatusError) as failed:
        await client.embeddings.create(model=MODEL, input="x")
    assert failed.value.status_code in (502, 503)
    with pytest.raises(openai.BadRequestError) as refused:
        await client.embeddings.create(model=MODEL, input="x" * 40_000)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    with pytest.raises(openai.BadRequestError) as other:
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}])
    assert other.value.code == "unsupported_by_model"
    assert "embeddings" in str(other.value.body)
    assert {row.cost for row in await api.usage_rows(2)} == {0}


async def test_models_list_the_ability(api: Api) -> None:
    [model] = [model async for model in api.openai().models.list()]
    assert model.model_extra["capabilities"] == ["embeddings"]


async def test_what_is_not_available_says_what_is(api: Api) -> None:
    for part in (*PARTS, *ROUTES):
        for path in (f"/v1/{part}", f"/v1/{part}/x/y"):
            for method in METHODS if "responses" not in path else ("POST",):  # GET has a response's id there
                async with api.session.request(method, api.url + path) as answer:
                    assert answer.status == 404, (method, path)
                    if method == "HEAD":
                        continue
                    error = (await answer.json())["error"]
                kind = "not_found_error" if "messages" in path else "invalid_request_error"  # Anthropic's
                assert (error["code"], error["type"]) == ("not_available", kind)
                assert "POST /v1/embeddings" in error["message"]
    with pytest.raises(openai.NotFoundError, match="/v1/files is not available"):
        await api.openai().files.list()
