"""From the official client to the usage row, with real parts and the simulated engine."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import text

from admin import keys as admin_keys
from admin import limits as admin_limits
from admin import models as admin_models
from admin import prices as admin_prices
from admin import users as admin_users
from admin.logins import authenticate_token, create_admin_token
from api import deps as api_deps
from core.supervise import FAILURES, FailingTasks
from sim.engine import server as engine_server
from tenants.key_format import new_key
from tenants.principal import Limits
from tests.support.api_process import MODEL, Api, api_process
from tests.support.openai_schema import check, events_of
from tests.support.request_fields import BOTH, CHAT, TEXT
from tests.support.tenancy import ADMIN, PEPPER, make_organisation
from tests.support.waiting import until

HELLO = [{"role": "user", "content": "Say something about water."}]
COST = {"input": 1_000_000, "cached": 500_000, "output": 2_000_000}


@pytest.fixture
async def api(pg_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with api_process(pg_url, redis_url, tmp_path) as made:
        yield made


def price(prompt: int, cached: int, output: int) -> int:
    return (prompt - cached) * COST["input"] + cached * COST["cached"] + output * COST["output"]


async def test_a_request_runs_in_its_region_and_says_so(api: Api) -> None:
    client = api.openai()

    async def ask(**headers: str) -> Any:
        return await client.chat.completions.with_raw_response.create(
            model=MODEL, messages=HELLO, max_tokens=2, extra_headers=headers
        )

    answer = await ask(**{"x-penstock-region": "fra1, LOCAL"})
    assert answer.headers["x-penstock-region"] == "local"
    body = answer.parse().to_dict(mode="json")
    assert (body["penstock"]["region"], body["penstock"]["gpu"]) == ("local", None)
    once = client.with_options(max_retries=0)
    for header, value in (("x-penstock-region", "fra1"), ("x-penstock-gpu", "B300")):
        with pytest.raises(openai.InternalServerError) as refused:
            await once.chat.completions.create(
                model=MODEL, messages=HELLO, max_tokens=2, extra_headers={header: value}
            )
        assert refused.value.body["details"]["reason"] == "no_replica_in_region"
    with pytest.raises(openai.BadRequestError) as wrong:
        await ask(**{"x-penstock-region": "no such place!"})
    assert wrong.value.param == "x-penstock-region"
    listed = await client.models.retrieve(MODEL)
    assert listed.to_dict()["regions"] == ["local"]


async def test_chat_whole_and_streamed(api: Api) -> None:
    client = api.openai()
    whole = await client.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO, max_tokens=20)
    answer = whole.parse()
    check(answer.to_dict(mode="json"), "chat")
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.usage.completion_tokens <= 20
    assert whole.headers["x-penstock-outcome"] in ("completed", "length")
    assert whole.headers["x-request-id"]
    stream = await client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=20, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    for chunk in chunks:
        check(chunk.to_dict(mode="json"), "chat", streamed=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage.total_tokens > 0
    assert chunks[-1].model_extra["penstock"]["simulated"] is True
    rows = await api.usage_rows(2)
    for row, usage in zip(rows, (answer.usage, chunks[-1].usage), strict=True):
        assert (row.input_tokens, row.output_tokens) == (usage.prompt_tokens, usage.completion_tokens)
        cached = usage.prompt_tokens_details.cached_tokens
        assert row.cost == price(usage.prompt_tokens, cached, usage.completion_tokens)


async def test_text_completions(api: Api) -> None:
    client = api.openai()
    whole = await client.completions.create(model=MODEL, prompt=["one", "two"], max_tokens=8)
    check(whole.to_dict(mode="json"), "text")
    assert len(whole.choices) == 2
    assert all(choice.text for choice in whole.choices)
    stream = await client.completions.create(model=MODEL, prompt="one", max_tokens=8, stream=True)
    chunks = [chunk async for chunk in stream]
    for chunk in chunks:
        check(chunk.to_dict(mode="json"), "text", streamed=True)
    assert all(chunk.usage is None for chunk in chunks)
    rows = await api.usage_rows(2)
    assert rows[0].output_tokens == whole.usage.completion_tokens
    assert rows[1].output_tokens <= 8


@pytest.mark.parametrize("stream", [False, True])
async def test_every_answer_and_event_has_openais_shape(api: Api, stream: bool) -> None:
    requests: list[tuple[str, dict[str, Any]]] = [
        ("chat", {"messages": HELLO, **fields}) for fields in (*BOTH, *CHAT)
    ]
    requests += [("text", {"prompt": "one", **fields}) for fields in (*BOTH, *TEXT)]
    for endpoint, fields in requests:
        path = {"chat": "chat/completions", "text": "completions"}[endpoint]
        body = {"model": MODEL, "max_tokens": 8, **fields, "stream": stream}
        async with api.session.post(
            f"{api.url}/v1/{path}", json=body, headers={"Authorization": f"Bearer {api.organisation.key}"}
        ) as answer:
            assert answer.status == 200, (fields, await answer.text())
            if stream:
                events_of((await answer.text()).splitlines(), endpoint)
            else:
                check(await answer.json(), endpoint)


async def test_models(api: Api) -> None:
    client = api.openai()
    listed = [model async for model in client.models.list()]
    assert [model.id for model in listed] == [MODEL]
    one = (await client.models.retrieve(MODEL)).model_extra
    assert one["pricing"]["output"] == "2.00"
    assert one["replicas"]["ready"] == 1
    assert (one["status"], one["offline_since"], one["expected_at"]) == ("active", None, None)
    assert one["tiers"]["standard"]["ttft_p50_s"] is None
    with pytest.raises(openai.AuthenticationError):
        await api.openai("pen_live_nonsense").models.list()


async def test_a_model_shows_how_fast_its_answers_were(api: Api) -> None:
    client = api.openai()
    for _ in range(3):
        async with await client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=20, stream=True
        ) as stream:
            assert [chunk async for chunk in stream]

    async def measured() -> bool:
        tier = (await client.models.retrieve(MODEL)).model_extra["tiers"]["standard"]
        known = (tier["ttft_p50_s"], tier["output_tokens_per_s"], tier["availability"])
        return None not in known and min(known) > 0.0 and tier["availability"] == 1.0

    await until(measured, what="the figures of three answers")


async def test_a_model_that_nothing_serves_is_offline_and_refused_at_once(api: Api) -> None:
    await admin_models.add_model(api.database, ADMIN, name="llama-3.3-70b")
    await api.deps.models.refresh()
    client = api.openai()

    async def offline() -> bool:
        return (await client.models.retrieve("llama-3.3-70b")).model_extra["status"] == "offline"

    await until(offline, what="the agents had the time to report")
    shown = (await client.models.retrieve("llama-3.3-70b")).model_extra
    assert shown["offline_since"] > 1_700_000_000
    assert shown["quantization"] == "fp8"
    with pytest.raises(openai.InternalServerError) as refused:
        await client.chat.completions.create(model="llama-3.3-70b", messages=HELLO)
    assert (refused.value.status_code, refused.value.code) == (503, "model_offline")
    assert refused.value.body["details"]["offline_since"] == shown["offline_since"]
    assert int(refused.value.response.headers["retry-after"]) > 60  # SDKs do not wait as long
    async with api.database.read() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM holds"))).scalar_one() == 0


async def test_the_list_for_openrouter(api: Api) -> None:
    async with api.session.get(
        api.url + "/v1/openrouter/models", headers={"Authorization": f"Bearer {api.organisation.key}"}
    ) as answer:
        [entry] = (await answer.json())["data"]
    assert entry["pricing"] == {
        "prompt": "0.000001", "completion": "0.000002", "input_cache_read": "0.0000005", "image": "0", "request": "0",
    }  # fmt: skip
    assert entry["id"] == MODEL
    assert entry["is_ready"] is False, "a toy"
    async with api.session.get(api.url + "/v1/openrouter/models") as answer:
        assert answer.status == 401


async def test_a_test_key_is_answered_without_a_model_and_never_billed(api: Api) -> None:
    made = await admin_keys.create_key(
        api.database,
        ADMIN,
        pepper=PEPPER,
        tenant_id=api.organisation.tenant_id,
        project_id=api.organisation.project_id,
        name="ci",
        kind="test",
    )
    client = api.openai(made.secret)
    whole = await client.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO)
    assert whole.parse().choices[0].message.content.startswith("This answer was written without a model")
    assert whole.headers["x-penstock-cost-usd"] == "0"
    async with await client.chat.completions.create(model="test/ok", messages=HELLO, stream=True) as stream:
        told = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(told) == whole.parse().choices[0].message.content
    called = await client.chat.completions.create(model="test/tool_call", messages=HELLO)
    assert called.choices[0].message.tool_calls[0].function.name == "get_weather"
    with pytest.raises(openai.RateLimitError):
        await client.chat.completions.create(model="test/rate_limited", messages=HELLO)
    with pytest.raises(openai.InternalServerError):
        await client.chat.completions.create(model="test/no_capacity", messages=HELLO)
    with pytest.raises(openai.APIError, match="middle of an answer"):
        async with await client.chat.completions.create(
            model="test/stream_error", messages=HELLO, stream=True
        ) as broken:
            assert [chunk async for chunk in broken]
    async with api.database.read() as connection:
        for table in ("holds", "usage"):
            count = await connection.execute(text(f"SELECT count(*) FROM {table}"))
            assert count.scalar_one() == 0


async def test_the_price_follows_the_tier_of_the_request(api: Api) -> None:
    await admin_prices.set_price(
        api.database, ADMIN, model=MODEL, tier="batch", input="0.5", cached_input="0.25", output="1"
    )
    await api.deps.prices.refresh()
    client = api.openai()
    told = await client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=10, service_tier="flex"
    )
    assert told.service_tier == "flex"
    own = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=10)
    assert own.service_tier == "default"
    first, second = await api.usage_rows(2)
    assert (first.tier, second.tier) == ("batch", "standard")
    for row, answer, share in ((first, told, 2), (second, own, 1)):
        cached = answer.usage.prompt_tokens_details.cached_tokens
        full = price(answer.usage.prompt_tokens, cached, answer.usage.completion_tokens)
        assert row.cost * share == full
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model=MODEL, messages=HELLO, service_tier="priority")
    assert refused.value.code == "service_tier_not_allowed"


async def test_llms_txt_needs_no_key(api: Api) -> None:
    async with api.session.get(api.url + "/llms.txt") as answer:
        assert answer.content_type == "text/plain"
        told = await answer.text()
    assert told.startswith("# Penstock\n\n> ")
    assert "`x-api-key: pen_live_...`" in told
    assert "Any Anthropic SDK works, too: set its base URL to this host without /v1." in told
    assert "- `POST /v1/chat/completions`: " in told
    assert "/admin/" not in told


async def test_models_are_listed_from_memory_without_postgresql(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list is answered while no connection can be had; after the longest age prices are not shown."""
    assert (await api.post({"model": MODEL, "messages": HELLO, "max_tokens": 1}))[0] == 200

    def read() -> None:
        raise ConnectionRefusedError("gone")

    monkeypatch.setattr(api.deps.pools.models, "read", read)
    headers = {"Authorization": f"Bearer {api.organisation.key}"}
    async with api.session.get(api.url + "/v1/models", headers=headers) as answer:
        assert (await answer.json())["data"][0]["pricing"]["output"] == "2.00"
    monkeypatch.setattr(api.deps.prices, "max_age_s", -1.0)
    async with api.session.get(api.url + "/v1/models", headers=headers) as answer:
        assert answer.status == 503
        assert (await answer.json())["error"]["message"]
        assert "retry-after" in answer.headers


async def test_each_purpose_has_connections_of_its_own(api: Api) -> None:
    """Every connection for administration, exports, customers' reports and prices is in use."""
    admin = await admin_users.create_user(
        api.database, ADMIN, email="root@example.com", password="correct horse battery", role="platform_admin",
        tenant_id=None,
    )  # fmt: skip
    token = await create_admin_token(api.database, ADMIN, pepper=PEPPER, user_id=admin.id, name="t")
    actor = await authenticate_token(api.deps.pools.revocations, token.secret, pepper=PEPPER)
    other = await make_organisation(api.database, "Other")
    headers = {"Authorization": f"Bearer {api.organisation.key}"}
    async with api.session.get(api.url + "/v1/models", headers=headers) as answer:
        assert answer.status == 200
    pools = api.deps.pools
    async with contextlib.AsyncExitStack() as busy:
        for pool, size in ((pools.admin, 10), (pools.exports, 2), (pools.customers, 4), (pools.models, 2)):
            for _ in range(size):
                await busy.enter_async_context(pool.read())
        principal = await api.deps.keys.authenticate(other.key)
        assert principal.tenant == "Other"
        async with api.session.get(api.url + "/v1/models", headers=headers) as answer:
            assert (await answer.json())["data"][0]["pricing"]["output"] == "2.00"
        await admin_keys.revoke_key(pools.revocations, actor, key_id=api.organisation.key_id)
        body = {"model": MODEL, "messages": HELLO, "max_tokens": 1}

        async def refused() -> bool:
            return (await api.post(body))[0] == 401

        await until(refused)


async def test_a_made_up_admin_token_takes_no_connection_of_revocations(api: Api) -> None:
    made_up = new_key("admin", b"the pepper of another platform")
    async with contextlib.AsyncExitStack() as busy:
        for _ in range(2):
            await busy.enter_async_context(api.deps.pools.revocations.read())
        headers = {"Authorization": f"Bearer {made_up}"}
        async with api.session.get(api.url + "/admin/v1/tenants", headers=headers) as answer:
            assert answer.status == 401


async def test_health(api: Api) -> None:
    async with api.session.get(f"{api.url}/healthz") as answer:
        assert answer.status == 200

    async def ready() -> bool:
        async with api.session.get(f"{api.url}/readyz") as answer:
            return answer.status == 200

    await until(ready)


async def test_a_task_that_keeps_failing_is_named(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = FailingTasks()
    monkeypatch.setattr(api_deps, "FAILING", failing)
    for _ in range(FAILURES):
        failing.add("holds")
    async with api.session.get(f"{api.url}/readyz") as answer:
        assert answer.status == 503
        assert (await answer.json())["checks"]["task holds"] is False


async def test_unknown_model_is_told_where_to_look(api: Api) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await api.openai().chat.completions.create(model="penstock/tinny", messages=HELLO)
    assert "/v1/models" in caught.value.message
    assert MODEL in caught.value.message
    assert caught.value.code == "model_not_found"


async def test_bad_keys(api: Api) -> None:
    body = {"model": MODEL, "messages": HELLO}
    for key in ("", "pen_live_x", "sk-other", api.organisation.key[:-1] + "!", "\u00fc" * 9, "a" * 5000):
        status, error, headers = await api.post(body, key=key)
        assert status == 401, key
        assert error["error"]["type"] == "invalid_request_error"
        assert headers.get("x-request-id"), headers
        assert not key or key not in json.dumps(error)


@pytest.mark.promise(26)
async def test_revoked_key_and_its_open_streams(api: Api) -> None:
    api.engines[0].failpoints.stall_after_tokens = 5
    stream = await api.openai().chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=500, stream=True
    )
    iterator = aiter(stream)
    await anext(iterator)
    await admin_keys.revoke_key(api.database, ADMIN, key_id=api.organisation.key_id, reason="leaked")

    async def rest() -> None:
        while True:
            await anext(iterator)

    with pytest.raises(openai.APIError, match="revoked"):
        await asyncio.wait_for(rest(), 60)
    with pytest.raises(openai.AuthenticationError):
        await api.openai().chat.completions.create(model=MODEL, messages=HELLO)
    [row] = await api.usage_rows(1)
    assert row.outcome == "client_cancelled"
    assert row.output_tokens >= 1


@pytest.mark.promise(26)
async def test_a_key_revoked_while_the_body_arrives_runs_nothing(api: Api) -> None:
    body = json.dumps({"model": MODEL, "messages": HELLO, "max_tokens": 1}).encode()
    host, port = api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(body)
        + b"Authorization: Bearer %s\r\n\r\n" % api.organisation.key.encode()
        + body[:9]
    )
    await until(lambda: len(api.deps.keys._cache) > 0, what="the key has been looked at")
    await admin_keys.revoke_key(api.database, ADMIN, key_id=api.organisation.key_id, reason="leaked")

    async def refused() -> bool:
        return (await api.post(body))[0] == 401

    await until(refused, what="the revocation")
    writer.write(body[9:])
    assert b" 401 " in await reader.readline()
    writer.close()
    await writer.wait_closed()


async def test_over_limit_gets_429_with_retry_after(api: Api) -> None:
    await admin_limits.set_limits(
        api.database,
        ADMIN,
        tenant_id=api.organisation.tenant_id,
        scope_kind="key",
        scope_id=api.organisation.key_id,
        limits=Limits(requests_per_min=1),
    )
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 1}

    async def limited() -> bool:
        return (await api.post(body))[0] == 429

    await until(limited, what="the new limit")
    status, error, headers = await api.post(body)
    assert (status, error["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(headers["retry-after"]) >= 1


async def test_no_credit_gets_402_and_no_retry(pg_url: str, redis_url: str, tmp_path: Path) -> None:
    async with api_process(pg_url, redis_url, tmp_path, credit="0.0000001") as api:
        status, body, headers = await api.post({"model": MODEL, "messages": HELLO})
        assert status == 402
        assert (body["error"]["type"], body["error"]["code"]) == ("insufficient_quota",) * 2
        assert body["error"]["details"]["reason"] == "insufficient_credit"
        assert body["error"]["details"]["balance_usd"] == "0.0000001"
        assert headers["x-should-retry"] == "false"


@pytest.mark.promise(6)
@pytest.mark.parametrize("stream", [True, False])
async def test_client_gone_aborts_the_engine_and_is_billed(api: Api, stream: bool) -> None:
    api.engines[0].server._loop.speedup = 1.0
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 2000, "stream": stream}
    headers = {"Authorization": f"Bearer {api.organisation.key}"}
    request = asyncio.create_task(
        api.session.post(api.url + "/v1/chat/completions", json=body, headers=headers)
    )
    await until(lambda: any(run.usage.output >= 3 for run in api.deps.open_requests))
    if stream:
        (await request).close()
    else:
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
    await until(lambda: len(api.deps.open_requests) == 0)
    [row] = await api.usage_rows(1)
    assert row.outcome == "client_cancelled"
    assert 3 <= row.output_tokens < 2000
    assert row.cost > 0


async def test_failed_engine_is_retried_on_another(pg_url: str, redis_url: str, tmp_path: Path) -> None:
    async with api_process(pg_url, redis_url, tmp_path, engines=2) as api:
        for engine in api.engines:
            engine.failpoints.error_next = 1
        client = api.openai()
        failures = 0
        for _ in range(6):
            try:
                await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=4)
            except openai.InternalServerError:
                failures += 1
        assert failures <= 1
        rows = await api.usage_rows(6)
        assert max(row.attempts for row in rows) == 2
        for row in rows:
            assert (row.cost == 0) == (row.outcome == "engine_failed")


@pytest.mark.parametrize("stream", [True, False])
async def test_prompt_beyond_the_context_is_the_clients_fault(api: Api, stream: bool) -> None:
    words = [{"role": "user", "content": "word " * 70_000}]
    status, body, _ = await api.post({"model": MODEL, "messages": words, "stream": stream})
    assert status == 400
    assert body["error"]["type"] == "invalid_request_error"
    [row] = await api.usage_rows(1)
    assert (row.cost, row.outcome) == (0, "zero_output")


@pytest.mark.promise(18)
async def test_engine_sees_only_allow_listed_fields(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """What arrived at the engine, read there."""
    arrived: list[dict[str, Any]] = []
    parse = engine_server._parse

    def read(raw: bytes, shape: type[Any]) -> Any:
        arrived.append(json.loads(raw))
        return parse(raw, shape)

    monkeypatch.setattr(engine_server, "_parse", read)
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 3}
    for name in (
        "chat_template",
        "kv_transfer_params",
        "allowed_token_ids",
        "prompt_logprobs",
        "priority",
        "cache_salt",
    ):
        status, error, _ = await api.post({**body, name: 7})
        assert (status, error["error"]["code"]) == (400, "unsupported_field")
    status, _, headers = await api.post({**body, "request_id": "x", "session_id": "y", "zzz_é": 1})
    assert (status, headers["x-penstock-ignored-fields"]) == (200, "zzz_\\u00e9")
    [sent] = arrived
    ours = {"model", "messages", "max_tokens", "stream", "stream_options", "stream_interval", "cache_salt"}
    assert set(sent) <= ours
    assert sent["cache_salt"] != "mine"


async def test_wrong_methods_and_paths(api: Api) -> None:
    for method, path, expected in (
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/nothing", 404),
        ("DELETE", "/v1/models", 405),
    ):
        headers = {"Authorization": f"Bearer {api.organisation.key}"}
        async with api.session.request(method, api.url + path, headers=headers) as answer:
            assert answer.status == expected
            assert (await answer.json())["error"]["message"]
            assert answer.headers["x-request-id"]


@pytest.mark.parametrize("stream", [True, False])
async def test_no_header_of_an_engine_reaches_the_customer(
    api: Api, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 2, "stream": stream}
    headers = {"Authorization": f"Bearer {api.organisation.key}"}
    names = []
    for name in ("x-penstock-simulated", "set-cookie", "location", "server", "x-request-id", "x-engine"):
        monkeypatch.setattr(engine_server, "_MARK", (name.encode(), b"of-the-engine"))
        async with api.session.post(
            api.url + "/v1/chat/completions", json=body, headers=headers, allow_redirects=False
        ) as answer:
            await answer.read()
            assert answer.status == 200
            assert "of-the-engine" not in answer.headers.values()
            names.append(set(map(str.lower, answer.headers)))
    assert all(one == names[0] for one in names)
    assert names[0].isdisjoint({"set-cookie", "location", "x-engine"})


async def test_the_only_replica_failing_is_said_at_once(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """There is nowhere else to go: the client hears of it without waiting for the queue's deadline."""
    api.engines[0].failpoints.error_next = 1
    start = asyncio.get_running_loop().time()
    status, body, _ = await api.post({"model": MODEL, "messages": HELLO, "max_tokens": 2})
    assert (status, body["error"]["code"]) == (502, "engine_failed")
    assert asyncio.get_running_loop().time() - start < 15
    [row] = await api.usage_rows(1)
    assert (row.cost, row.outcome) == (0, "engine_failed")
    assert "failed: The engine answered 500." in caplog.text
    assert "failpoint" not in caplog.text  # the engine's own words, which might quote the prompt
