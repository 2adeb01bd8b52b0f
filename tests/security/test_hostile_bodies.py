"""Promises 18, 19, 28: hostile input gets a 4xx, memory stays bounded, and nothing of it reaches an engine."""

import asyncio
import gc
import json
import re
import resource
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from admin import limits as admin_limits
from admin import models as admin_models
from bench.hostile.bodies import bodies
from gateway.limits import MAX_BODY_BYTES, body_limit
from gateway.parsing.budget import INLINE_BYTES
from gateway.parsing.parser import CHAT
from gateway.parsing.worker import PARSERS
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import Parse, PreparedRequest
from gateway.schemas.fields import REFUSED
from tenants.principal import Limits
from tests.support.api_process import MODEL, Api, api_process
from tests.support.engine_hints import ENGINE_HINTS
from tests.support.tenancy import ADMIN
from tests.support.waiting import until

LARGEST = "qwen3.5-397b"
SMALLER = "qwen2.5-0.5b"
GOOD = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.fixture
async def api(pg_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with api_process(pg_url, redis_url, tmp_path) as made:
        yield made


def body(**fields: object) -> bytes:
    return json.dumps({**GOOD, **fields}).encode()


BODIES = {
    "empty": b"",
    "not json": b"hello",
    "an array": b"[]",
    "cut short": body()[:-5],
    "too deep": body()[:-1] + b',"x":' + b"[" * 2000 + b"]" * 2000 + b"}",
    "absurdly deep": b'{"a":' * 30_000,
    "deep and closed": b'{"a":' + b"[" * 60_000 + b"]" * 60_000 + b"}",
    "lone surrogate": body().replace(b'"hi"', b'"\\ud800"'),
    "raw surrogate": body().replace(b'"hi"', b'"\xed\xa0\x80"'),
    "broken utf-8": body().replace(b'"hi"', b'"\xc3\x28"'),
    "nan": body().replace(b'"max_tokens": 2', b'"temperature": NaN'),
    "huge number": body().replace(b'"max_tokens": 2', b'"temperature": 1e999'),
    "huge integer": body().replace(b'"max_tokens": 2', b'"seed": ' + b"9" * 5000),
    "many choices": body(n=10_000),
    "many tokens": body(max_tokens=2**62),
    "many messages": body(messages=[{"role": "user", "content": ""}] * 5000),
    "wide schema": body(
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {str(i): {} for i in range(9000)}},
        }
    ),
    "image": body(
        messages=[
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}
        ]
    ),
}


CHAT_ONLY = {"many messages", "wide schema", "image"}
CODES = {
    "not json": "invalid_json",
    "cut short": "invalid_json",
    "too deep": "body_too_deep",
    "absurdly deep": "body_too_deep",
    "deep and closed": "body_too_deep",
    "lone surrogate": "invalid_json",
    "raw surrogate": "invalid_json",
    "broken utf-8": "invalid_json",
}
"""What each is refused for, so that none passes for another fault of the body."""


def as_completion(chat: bytes) -> bytes:
    """The same body for /v1/completions: its one message is the prompt."""
    return re.sub(
        rb'"messages": \[\{"role": "user", "content": (".*?")\}\]', rb'"prompt": \1', chat, flags=re.DOTALL
    )


@pytest.mark.promise(19, 28)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_hostile_bodies_get_a_4xx(api: Api, path: str) -> None:
    chat = "chat" in path
    for name, hostile in BODIES.items():
        if not chat and name in CHAT_ONLY:
            continue
        status, answer, _ = await api.post(hostile if chat else as_completion(hostile), path=path)
        assert 400 <= status < 500, name
        assert answer["error"]["message"], name
        assert answer["error"]["code"] == CODES.get(name, answer["error"]["code"]), name
    assert await _engine_requests(api) == 0
    good = body() if chat else as_completion(body())
    assert (await api.post(good, path=path))[0] == 200
    assert await _engine_requests(api) > 0, "the counter is the right one"


async def _engine_requests(api: Api) -> int:
    headers = {"Authorization": "Bearer engine-key"}
    async with api.session.get(f"{api.engines[0].url}/metrics", headers=headers) as answer:
        lines = (await answer.text()).splitlines()
    return int(
        sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:prompt_tokens_total"))
    )


@pytest.mark.promise(19, 28)
async def test_bodies_are_counted_while_they_stream(api: Api) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 64 * MAX_BODY_BYTES:
            sent += 65_536
            yield b"x" * 65_536

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    headers = {"Authorization": f"Bearer {api.organisation.key}"}
    url = f"{api.url}/v1/chat/completions"
    try:
        async with api.session.post(url, data=endless(), headers=headers) as answer:
            assert answer.status == 413
            assert (await answer.json())["error"]["code"] == "body_too_large"
    except ConnectionError:
        pass  # the server hung up while we were still pushing, as it may
    assert sent < 64 * MAX_BODY_BYTES
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


@pytest.mark.promise(19)
async def test_announced_size_is_enough_to_be_refused(api: Api) -> None:
    host, port = api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n"
        b"Authorization: Bearer " + api.organisation.key.encode() + b"\r\n\r\n{"
    )
    answer = await reader.read(200)
    assert b" 413 " in answer
    writer.close()
    await writer.wait_closed()


async def test_strangers_bodies_are_not_read(api: Api) -> None:
    status, answer, _ = await api.post(b"x" * (MAX_BODY_BYTES + 1), key="pen_live_stranger")
    assert (status, answer["error"]["type"]) == (401, "invalid_request_error")


@pytest.mark.promise(19, 28)
async def test_a_body_is_bounded_by_the_models_context(api: Api) -> None:
    """Two models: a body that fits the larger one's limit is read and then refused by the smaller one's."""
    await admin_models.add_model(api.database, ADMIN, name=SMALLER)
    await api.deps.models.refresh()
    limits = {name: body_limit(api.deps.models.resolve(name).context_len, 1) for name in (SMALLER, MODEL)}
    assert limits[SMALLER] <= INLINE_BYTES < limits[MODEL]
    content = [{"role": "user", "content": "x" * limits[SMALLER]}]
    status, answer, _ = await api.post(body(model=SMALLER, messages=content))
    assert (status, answer["error"]["code"]) == (413, "body_too_large")
    assert f"accepts at most {limits[SMALLER]:,} bytes" in answer["error"]["message"]
    status, answer, _ = await api.post(b"x" * (limits[MODEL] + 1))
    assert (status, answer["error"]["code"]) == (413, "body_too_large")
    assert f"larger than {limits[MODEL]:,} bytes" in answer["error"]["message"]


@pytest.mark.promise(28, 29)
async def test_large_bodies_are_parsed_outside_the_event_loop(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admin_models.add_model(api.database, ADMIN, name=SMALLER)
    await api.deps.models.refresh()
    inline: list[int] = []
    for endpoint, parse in list(PARSERS.items()):

        def spy(document: bytes, parse: Parse = parse) -> PreparedRequest:
            inline.append(len(document))
            return parse(document)

        monkeypatch.setitem(PARSERS, endpoint, spy)
    size = INLINE_BYTES
    floods = [
        body()[:-1] + b',"x":' + b"[" * size + b"]" * size + b"}",
        body(model=SMALLER)[:-1] + b',"x":[' + (b"[" * 60 + b"]" * 60 + b",") * (size // 60) + b"1]}",
        body(model=SMALLER, messages=[{"role": "user", "content": "a" * 2 * size}]),
        body(model=SMALLER, messages=[{"role": "user", "content": "a" * 200}] * 3000),
        body(messages=[{"role": "user", "content": "\xff" * (size // 3)}])[:-9],
        body()[:-1] + b',"seed":' + b"9" * 2 * size + b"}",
    ]
    answers = await asyncio.gather(*(api.post(flood) for flood in floods for _ in range(4)))
    assert {status for status, _, _ in answers} <= {400, 413}
    assert api.deps.parser.pool.parsed == len(answers)
    assert not inline
    assert (await api.post(body()))[0] == 200
    assert len(inline) == 1


@pytest.mark.promise(28, 29)
async def test_no_large_body_occupies_the_event_loop(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest step of the loop in CPU time, beside the time of parsing one such body in a single step."""
    await admin_models.add_model(api.database, ADMIN, name=LARGEST)
    await api.deps.models.refresh()
    made = bodies(LARGEST, MAX_BODY_BYTES - 4096)
    await api.post(made["cut short"])  # starts a worker
    steps: list[float] = []
    run = asyncio.Handle._run

    def timed(self: asyncio.Handle) -> None:
        began = time.thread_time()
        run(self)
        steps.append(time.thread_time() - began)

    gc.disable()
    try:
        began = time.thread_time()
        parse_chat(made["nested"])
        single_step = time.thread_time() - began
        monkeypatch.setattr(asyncio.Handle, "_run", timed)
        for name, hostile in made.items():
            assert (await api.post(hostile))[0] in (400, 404, 503), name
    finally:
        gc.enable()
        monkeypatch.setattr(asyncio.Handle, "_run", run)
    assert len(steps) > len(made)
    assert max(steps) < single_step / 3


@pytest.mark.promise(28, 29)
async def test_invalid_requests_count_against_the_rate_and_then_are_not_parsed(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(requests_per_min=4)
    organisation = api.organisation
    await admin_limits.set_limits(
        api.database, ADMIN, tenant_id=organisation.tenant_id, scope_kind="key", scope_id=organisation.key_id,
        limits=limits,
    )  # fmt: skip

    def limited() -> bool:
        cached = api.deps.keys.authenticate_cached(organisation.key)
        return cached is not None and cached.key_limits == limits

    await api.deps.keys.authenticate(organisation.key)
    await until(limited, what="the new limit")
    hostile = [b"{", body(n=99), body(model="nobody"), body(echo=True)]
    statuses = [(await api.post(each))[0] for each in hostile]
    assert statuses == [400, 400, 404, 400]

    def never(_: bytes) -> PreparedRequest:
        raise AssertionError("parsed although the rate is used up")

    monkeypatch.setitem(PARSERS, CHAT, never)
    for refused in (b"{", body(), b"x" * (MAX_BODY_BYTES + 1)):
        status, answer, headers = await api.post(refused)
        assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(headers["retry-after"]) >= 1


@pytest.mark.promise(18)
async def test_smuggled_engine_fields_never_arrive(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the engine gets, byte for byte, for every field on the black list and some that are on no list."""
    seen: list[dict[str, object]] = []
    open_stream = api.deps.engines.open

    async def spy(url: str, path: str, sent: bytes, headers: dict[str, str], **options: Any) -> object:
        seen.append(json.loads(sent))
        return await open_stream(url, path, sent, headers, **options)

    monkeypatch.setattr(api.deps.engines, "open", spy)
    for name in (*REFUSED, *ENGINE_HINTS, "unheard_of", "extra_body", "__proto__"):
        await api.post(body(**{name: "x"}))
        await api.post({"model": MODEL, "prompt": "x", "max_tokens": 1, name: "x"}, path="/v1/completions")
    allowed = {"model", "messages", "prompt", "max_tokens", "stream", "stream_options", "cache_salt"}
    assert seen
    assert all(set(sent) <= allowed for sent in seen)
    assert len({sent["cache_salt"] for sent in seen}) == 1
    assert seen[0]["cache_salt"] != "x"


async def test_request_ids_are_ours(api: Api) -> None:
    headers = {"Authorization": f"Bearer {api.organisation.key}", "X-Request-Id": "mine"}
    async with api.session.post(f"{api.url}/v1/chat/completions", json=GOOD, headers=headers) as answer:
        assert answer.headers["x-request-id"] != "mine"
        assert "mine" not in await answer.text()
