"""The edges of the customer API over real connections: what old, simple and careful clients send and expect."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import openai
import pytest

from admin import keys as admin_keys
from admin import limits as admin_limits
from tenants.principal import Limits
from tests.support.api_process import MODEL, Api, api_process
from tests.support.tenancy import ADMIN, make_organisation
from tests.support.waiting import until

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


@pytest.fixture
async def api(pg_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with api_process(pg_url, redis_url, tmp_path) as made:
        yield made


async def talk(api: Api, request: bytes) -> bytes:
    """All that the server writes until it closes the connection."""
    host, port = api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), 30)
    finally:
        writer.close()


def post(
    api: Api, body: bytes, *lines: str, version: str = "1.1", path: str = "/v1/chat/completions"
) -> bytes:
    head = [
        f"POST {path} HTTP/{version}",
        "Host: x",
        f"Authorization: Bearer {api.organisation.key}",
        f"Content-Length: {len(body)}",
        *lines,
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


async def test_clients_of_old_habits_are_served(api: Api) -> None:
    body = json.dumps(BODY).encode()
    stream = json.dumps({**BODY, "stream": True}).encode()
    old = await talk(api, post(api, stream, version="1.0"))
    assert b"transfer-encoding" not in old.partition(b"\r\n\r\n")[0]
    events = old.partition(b"\r\n\r\n")[2]
    assert events.startswith(b"data: {")
    assert events.endswith(b"data: [DONE]\n\n")
    java = ("Connection: Upgrade, HTTP2-Settings, close", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAB")
    for lines in (java, ("Connection: close", "Expect: 100-continue")):
        answer = await talk(api, post(api, body, *lines))
        assert b"HTTP/1.1 200 OK" in answer, answer
        assert b'"chat.completion"' in answer
    slash = await talk(api, post(api, body, "Connection: close", path="/v1/chat/completions/"))
    assert slash.startswith(b"HTTP/1.1 200 OK")


async def test_compressed_bodies(api: Api) -> None:
    body = gzip.compress(json.dumps(BODY).encode())
    assert (await talk(api, post(api, body, "Connection: close", "Content-Encoding: gzip"))).startswith(
        b"HTTP/1.1 200 OK"
    )
    bomb = gzip.compress(b"0" * 10**8)
    refused = await talk(api, post(api, bomb, "Content-Encoding: gzip"))
    assert refused.startswith(b"HTTP/1.1 413 ")
    other = await talk(api, post(api, body, "Connection: close", "Content-Encoding: br"))
    assert other.startswith(b"HTTP/1.1 415 ")
    assert b"accept-encoding: gzip" in other


async def test_every_answer_says_who_answered_what(api: Api) -> None:
    """Ids and OpenAI's headers on inference and beside it, on answers and refusals."""
    headers = {"Authorization": f"Bearer {api.organisation.key}", "X-Client-Request-Id": "mine-7"}
    calls = [
        ("POST", "/v1/chat/completions", BODY, 200),
        ("POST", "/v1/chat/completions", {**BODY, "stream": True}, 200),
        ("POST", "/v1/chat/completions", {"model": MODEL}, 400),
        ("POST", "/v1/completions", {"model": "nobody", "prompt": "x"}, 404),
        ("GET", "/v1/models", None, 200),
        ("GET", "/v1/models/", None, 200),
        ("GET", "/v1/nothing", None, 404),
        ("GET", "/openapi.json", None, 200),
    ]
    ids = set()
    for method, path, body, expected in calls:
        async with api.session.request(method, api.url + path, json=body, headers=headers) as answer:
            assert answer.status == expected, path
            assert answer.headers["x-client-request-id"] == "mine-7", path
            assert answer.headers["openai-version"] == "2020-10-01"
            assert int(answer.headers["openai-processing-ms"]) >= 0
            assert len(answer.headers.getall("x-request-id")) == 1
            ids.add(answer.headers["x-request-id"])
    assert len(ids) == len(calls)
    for path in ("/v1/chat/completions", "/v1/models"):
        answer = await talk(
            api, post(api, b"{}", "Connection: close", f"X-Client-Request-Id: {'x' * 513}", path=path)
        )
        assert answer.startswith(b"HTTP/1.1 400 "), answer
        assert b"invalid_client_request_id" in answer
    broken = await talk(api, b"GET / HTTP/1.1\r\nBad Header: x\r\n\r\n")
    assert b"x-request-id: " in broken


async def test_limits_stand_on_answers_and_refusals(api: Api) -> None:
    await admin_limits.set_limits(
        api.database,
        ADMIN,
        tenant_id=api.organisation.tenant_id,
        scope_kind="key",
        scope_id=api.organisation.key_id,
        limits=Limits(requests_per_min=100, input_tokens_per_min=100_000),
    )

    async def limited() -> bool:
        return "x-ratelimit-limit-tokens" in (await api.post(BODY))[2]

    await until(limited, what="the new limits")
    for body, expected in ((BODY, 200), ({"model": MODEL}, 400), ({**BODY, "model": "nobody"}, 404)):
        status, _, headers = await api.post(body)
        assert status == expected
        for kind in ("requests", "tokens"):
            limit = int(headers[f"x-ratelimit-limit-{kind}"])
            assert 0 < int(headers[f"x-ratelimit-remaining-{kind}"]) <= limit
            assert headers[f"x-ratelimit-reset-{kind}"].endswith("s")


async def test_methods_that_a_route_has_not(api: Api) -> None:
    headers = {"Authorization": f"Bearer {api.organisation.key}"}
    for method, path, allowed in (("GET", "/v1/chat/completions", "POST"), ("POST", "/v1/models", "GET")):
        async with api.session.request(method, api.url + path, headers=headers) as answer:
            assert (answer.status, answer.headers["allow"]) == (405, allowed)
            assert (await answer.json())["error"]["code"] == "method_not_allowed"


async def test_health_for_load_tools(api: Api) -> None:
    async def ready() -> bool:
        async with api.session.get(f"{api.url}/health") as answer:
            return answer.status == 200

    await until(ready)
    async with api.session.head(f"{api.url}/health/") as answer:
        assert answer.status == 200


async def test_customers_see_their_routes_and_no_others(api: Api) -> None:
    async with api.session.get(f"{api.url}/openapi.json") as answer:
        document = await answer.json()
    paths = document["paths"]
    assert not [path for path in paths if path.startswith(("/admin", "/webhooks"))]
    schemas = document["components"]["schemas"]
    for path, name in (("/v1/chat/completions", "ChatRequest"), ("/v1/completions", "CompletionRequest")):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body == {"$ref": f"#/components/schemas/{name}"}
        assert "model" in schemas[name]["required"]
    text = json.dumps(document)
    for ref in set(part.split('"')[0] for part in text.split("#/components/schemas/")[1:]):
        assert ref in schemas, ref
    async with api.session.get(f"{api.url}/admin/v1/openapi.json") as answer:
        admin = msgspec.json.decode(await answer.read())
    assert admin["paths"]
    assert all(path.startswith("/admin") for path in admin["paths"])


PAGE, OTHER = "https://app.example.com", "https://evil.example.com"


async def test_pages_of_the_origins_that_a_key_allows(api: Api) -> None:
    """The preflight is answered for the origins of any key, the request for those of its own."""
    preflight = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
    }
    url = api.url + "/v1/chat/completions"
    async with api.session.options(url, headers=preflight) as answer:
        assert answer.status == 405, "off by default"
        assert "access-control-allow-origin" not in answer.headers
    await admin_keys.set_client_settings(
        api.database, ADMIN, key_id=api.organisation.key_id, quota_status=402, cors_origins=[PAGE]
    )
    await until(lambda: PAGE in api.deps.keys.origins, what="the key's origins")
    async with api.session.options(url, headers=preflight) as answer:
        assert answer.status == 204
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["access-control-allow-headers"] == "authorization,content-type,x-stainless-lang"
    async with api.session.options(url, headers={**preflight, "Origin": OTHER}) as answer:
        assert answer.status == 405
    other = await make_organisation(api.database, "Other")
    for path, key, origin, status, readable in (
        (url, api.organisation.key, PAGE, 200, True),
        (url, api.organisation.key, OTHER, 403, False),
        (url, other.key, PAGE, 402, False),
        (url, "pen_live_unknown", PAGE, 401, True),
        (api.url + "/v1/models", api.organisation.key, PAGE, 200, True),
        (api.url + "/v1/models", other.key, PAGE, 200, False),
    ):
        headers = {"Authorization": f"Bearer {key}", "Origin": origin}
        method, body = ("GET", None) if path.endswith("models") else ("POST", BODY)
        async with api.session.request(method, path, json=body, headers=headers) as answer:
            assert answer.status == status, (path, origin)
            assert answer.headers.get("access-control-allow-origin") == (origin if readable else None)


async def test_a_keys_own_status_of_a_used_up_quota(pg_url: str, redis_url: str, tmp_path: Path) -> None:
    """The official client gets what it knows, and does not repeat the request."""
    async with api_process(pg_url, redis_url, tmp_path, credit="0.0000001") as api:
        await admin_keys.set_client_settings(
            api.database, ADMIN, key_id=api.organisation.key_id, quota_status=429, cors_origins=None
        )
        client = api.openai().with_options(max_retries=2)

        async def refused() -> openai.APIStatusError:
            with pytest.raises(openai.APIStatusError) as found:
                await client.chat.completions.create(**BODY)
            return found.value

        async def changed() -> bool:
            return isinstance(await refused(), openai.RateLimitError)

        await until(changed, what="the key's new setting")
        error = await refused()
        assert (error.code, error.type) == ("insufficient_quota", "insufficient_quota")
        assert error.response.headers["x-should-retry"] == "false"
        assert "x-stainless-retry-count" not in error.request.headers or (
            error.request.headers["x-stainless-retry-count"] == "0"
        )
