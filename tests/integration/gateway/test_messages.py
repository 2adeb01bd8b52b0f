"""Anthropic's official client against the whole platform with the simulated engine."""

from collections.abc import AsyncIterator
from pathlib import Path

import anthropic
import pytest

from admin import keys as admin_keys
from admin import limits as admin_limits
from cli.commands.sim.engine import simulated_tokenizer
from tenants.principal import Limits
from tests.support.anthropic_schema import check, events_of
from tests.support.api_process import MODEL, Api, api_process
from tests.support.tenancy import ADMIN, PEPPER

HELLO = [{"role": "user", "content": "Say something about water."}]
TOOLS = [{"name": "get_weather", "description": "Tells the weather.", "input_schema": {"type": "object"}}]


@pytest.fixture
async def api(pg_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with api_process(pg_url, redis_url, tmp_path, tokenizer=simulated_tokenizer()) as made:
        yield made


async def test_messages_whole_and_streamed(api: Api) -> None:
    client = api.anthropic()
    raw = await client.messages.with_raw_response.create(model=MODEL, messages=HELLO, max_tokens=20)
    whole = await raw.parse()
    check("Message", raw.http_response.json())
    assert whole.content[0].text
    assert whole.stop_reason in ("max_tokens", "end_turn")
    assert raw.headers["request-id"] == raw.headers["x-request-id"]
    async with client.messages.stream(model=MODEL, messages=HELLO, max_tokens=20) as stream:
        said = "".join([text async for text in stream.text_stream])
        message = await stream.get_final_message()
    assert said == message.content[0].text
    rows = await api.usage_rows(2)
    for row, usage in zip(rows, (whole.usage, message.usage), strict=True):
        assert row.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
        assert (row.cached_input_tokens, row.output_tokens) == (
            usage.cache_read_input_tokens,
            usage.output_tokens,
        )
    counted = await client.messages.count_tokens(model=MODEL, messages=HELLO)
    assert counted.input_tokens == rows[0].input_tokens
    assert len(await api.usage_rows(2)) == 2


async def test_the_events_of_a_stream_conform(api: Api) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 5, "stream": True}
    headers = {"x-api-key": api.organisation.key, "anthropic-version": "2023-06-01", "anthropic-beta": "a,b"}
    async with api.session.post(f"{api.url}/v1/messages?beta=true", json=body, headers=headers) as answer:
        assert answer.status == 200
        events = [one for one in events_of(await answer.read()) if one["type"] != "ping"]
    assert events[0]["message"]["usage"]["input_tokens"] > 0
    assert events[-2]["usage"]["cost"] > 0
    assert [one["type"] for one in events[-2:]] == ["message_delta", "message_stop"]


async def test_a_test_key_calls_tools(api: Api) -> None:
    made = await admin_keys.create_key(
        api.database,
        ADMIN,
        pepper=PEPPER,
        tenant_id=api.organisation.tenant_id,
        project_id=api.organisation.project_id,
        name="tests",
        kind="test",
    )
    client = api.anthropic(made.secret)
    whole = await client.messages.create(
        model="test/tool_call", messages=HELLO, max_tokens=50, tools=TOOLS, tool_choice={"type": "any"}
    )
    async with client.messages.stream(
        model="test/tool_call", messages=HELLO, max_tokens=50, tools=TOOLS
    ) as stream:
        streamed = await stream.get_final_message()
    for message in (whole, streamed):
        (block,) = message.content
        assert (block.type, block.name, block.input) == ("tool_use", "get_weather", {})
        assert message.stop_reason == "tool_use"
    with pytest.raises(anthropic.OverloadedError) as overloaded:
        await client.messages.create(model="test/no_capacity", messages=HELLO, max_tokens=5)
    assert overloaded.value.status_code == 529
    with pytest.raises(anthropic.APIStatusError) as unpaid:
        await client.messages.create(model="test/insufficient_credit", messages=HELLO, max_tokens=5)
    assert unpaid.value.body["error"]["type"] == "billing_error"
    assert unpaid.value.response.headers["x-should-retry"] == "false"
    counted = await client.messages.count_tokens(model="test/ok", messages=HELLO)
    told = await client.messages.create(model="test/ok", messages=HELLO, max_tokens=5)
    assert counted.input_tokens == told.usage.input_tokens
    with pytest.raises(anthropic.APIError, match="fails in the middle"):
        async with client.messages.stream(model="test/stream_error", messages=HELLO, max_tokens=50) as stream:
            await stream.get_final_message()


async def test_errors_are_anthropics(api: Api) -> None:
    client = api.anthropic()
    with pytest.raises(anthropic.AuthenticationError) as unknown:
        await api.anthropic("pen_live_no").messages.create(model=MODEL, messages=HELLO, max_tokens=5)
    assert unknown.value.request_id
    check("ErrorResponse", unknown.value.body)
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.create(model="nothing", messages=HELLO, max_tokens=5)
    with pytest.raises(anthropic.BadRequestError, match="web_search_20250305"):
        await client.messages.create(
            model=MODEL,
            messages=HELLO,
            max_tokens=5,
            tools=[{"type": "web_search_20250305", "name": "web_search"}],
        )
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    with pytest.raises(anthropic.BadRequestError, match="read images"):
        await client.messages.create(
            model=MODEL, messages=[{"role": "user", "content": [image]}], max_tokens=5
        )
    with pytest.raises(anthropic.NotFoundError) as missing:
        await client.messages.batches.list()
    check("ErrorResponse", missing.value.body)
    async with api.session.get(f"{api.url}/v1/messages") as answer:
        assert answer.status == 405
        check("ErrorResponse", await answer.json())


async def test_models_are_listed_in_anthropics_form(api: Api) -> None:
    client = api.anthropic()
    raw = await client.models.with_raw_response.list()
    check("ListResponse_ModelInfo_", raw.http_response.json())
    assert [model.id async for model in client.models.list(limit=1)] == [MODEL]
    found = await client.models.retrieve(MODEL)
    assert (found.id, found.type) == (MODEL, "model")
    with pytest.raises(anthropic.NotFoundError):
        await client.models.retrieve("nothing")
    with pytest.raises(anthropic.BadRequestError, match="no model of this list"):
        await client.models.list(after_id="nothing")
    listed = await api.openai().models.list()
    assert listed.object == "list"


async def test_counts_and_messages_have_the_limits_of_the_key(api: Api) -> None:
    await admin_limits.set_limits(
        api.database,
        ADMIN,
        tenant_id=api.organisation.tenant_id,
        scope_kind="key",
        scope_id=api.organisation.key_id,
        limits=Limits(requests_per_min=1),
    )
    client = api.anthropic()
    raw = await client.messages.with_raw_response.create(model=MODEL, messages=HELLO, max_tokens=5)
    assert raw.headers["anthropic-ratelimit-requests-limit"] == "1"
    assert raw.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
    with pytest.raises(anthropic.RateLimitError) as limited:
        await client.messages.count_tokens(model=MODEL, messages=HELLO)
    assert limited.value.body["error"]["type"] == "rate_limit_error"
    assert limited.value.response.headers["retry-after"]
