"""From the official client to the usage row, with real parts and the simulated engine."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import event

from admin import keys as admin_keys
from admin import limits as admin_limits
from admin import users as admin_users
from admin.logins import authenticate_token, create_admin_token
from api import deps as api_deps
from api.customer import prices
from core.supervise import FAILURES, FailingTasks
from sim.engine import server as engine_server
from tenants.key_format import new_key
from tenants.principal import Limits
from tests.support.api_process import MODEL, Api, api_process
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


async def test_chat_whole_and_streamed(api: Api) -> None:
    client = api.openai()
    whole = await client.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO, max_tokens=20)
    answer = whole.parse()
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.usage.completion_tokens <= 20
    assert whole.headers["x-penstock-outcome"] in ("completed", "length")
    assert whole.headers["x-request-id"]
    stream = await client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=20, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
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
    assert len(whole.choices) == 2
    assert all(choice.text for choice in whole.choices)
    stream = await client.completions.create(model=MODEL, prompt="one", max_tokens=8, stream=True)
    chunks = [chunk async for chunk in stream]
    assert all(chunk.usage is None for chunk in chunks)
    rows = await api.usage_rows(2)
    assert rows[0].output_tokens == whole.usage.completion_tokens
    assert rows[1].output_tokens <= 8


async def test_models(api: Api) -> None:
    client = api.openai()
    listed = [model async for model in client.models.list()]
    assert [model.id for model in listed] == [MODEL]
    one = await client.models.retrieve(MODEL)
    assert one.model_extra["pricing"]["output"] == "2.00"
    assert one.model_extra["replicas"]["ready"] == 1
    with pytest.raises(openai.AuthenticationError):
        await api.openai("pen_live_nonsense").models.list()


@pytest.mark.parametrize(
    ("trouble", "expected"),
    [(ConnectionRefusedError("gone"), 503), (TimeoutError(), 503), (ZeroDivisionError(), 500), (None, 503)],
)
async def test_models_without_postgresql(
    api: Api, monkeypatch: pytest.MonkeyPatch, trouble: Exception | None, expected: int
) -> None:
    """Gone, slow, broken or frozen: an error in the usual shape, and soon."""
    assert (await api.post({"model": MODEL, "messages": HELLO, "max_tokens": 1}))[0] == 200

    @asynccontextmanager
    async def read() -> AsyncIterator[None]:
        if trouble is not None:
            raise trouble
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr(api.deps.pools.models, "read", read)
    monkeypatch.setattr(prices, "TIMEOUT_S", 0.1)
    headers = {"Authorization": f"Bearer {api.organisation.key}"}
    async with api.session.get(api.url + "/v1/models", headers=headers) as answer:
        assert answer.status == expected
        assert (await answer.json())["error"]["message"]
        assert ("retry-after" in answer.headers) == (expected == 503)


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

        await until(refused, timeout_s=5.0)


async def test_a_made_up_admin_token_takes_no_connection_of_revocations(api: Api) -> None:
    made_up = new_key("admin", b"the pepper of another platform")
    async with contextlib.AsyncExitStack() as busy:
        for _ in range(2):
            await busy.enter_async_context(api.deps.pools.revocations.read())
        headers = {"Authorization": f"Bearer {made_up}"}
        async with api.session.get(api.url + "/admin/v1/tenants", headers=headers) as answer:
            assert answer.status == 401


async def test_models_are_listed_from_memory(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "TIMEOUT_S", 60.0)
    monkeypatch.setattr(prices, "FRESH_S", 3600.0)
    reads = 0

    def count(*_: object) -> None:
        nonlocal reads
        reads += 1

    await api.deps.models.close()  # it polls the same database
    event.listen(api.deps.pools.models.engine.sync_engine, "begin", count)
    headers = {"Authorization": f"Bearer {api.organisation.key}"}

    async def listed() -> int:
        async with api.session.get(api.url + "/v1/models", headers=headers) as answer:
            return answer.status

    assert set(await asyncio.gather(*(listed() for _ in range(100)))) == {200}
    assert reads == 1


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
        assert error["error"]["type"] == "authentication_error"
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
        await asyncio.wait_for(rest(), 5)
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
        assert body["error"]["code"] == "insufficient_credit"
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
    await until(lambda: len(api.deps.open_requests) == 0, timeout_s=2.0)
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
    words = [{"role": "user", "content": "word " * 20_000}]
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
    for name in ("chat_template", "kv_transfer_params", "allowed_token_ids", "prompt_logprobs", "ignore_eos"):
        status, error, _ = await api.post({**body, name: 1})
        assert (status, error["error"]["code"]) == (400, "unsupported_field")
    status, _, _ = await api.post({**body, "priority": -5, "request_id": "x", "cache_salt": "mine", "zzz": 1})
    assert status == 200
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


async def test_the_only_replica_failing_is_said_at_once(api: Api) -> None:
    """There is nowhere else to go: the client hears of it without waiting for the queue's deadline."""
    api.engines[0].failpoints.error_next = 1
    start = asyncio.get_running_loop().time()
    status, body, _ = await api.post({"model": MODEL, "messages": HELLO, "max_tokens": 2})
    assert (status, body["error"]["code"]) == (502, "engine_failed")
    assert asyncio.get_running_loop().time() - start < 15
    [row] = await api.usage_rows(1)
    assert (row.cost, row.outcome) == (0, "engine_failed")
