"""Routes beside inference, clients that are slow with whole answers, and invalid requests from one address."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from admin import limits as admin_limits
from api.customer.client_connection import EXTENSION
from api.customer.reply import HttpReply
from core import body_deadline
from core.ids import uuid7
from gateway.limits import MAX_BODY_BYTES
from gateway.parsing.budget import INLINE_BYTES
from gateway.parsing.parser import PARSERS
from tenants.principal import Limits
from tests.support.api_process import MODEL, Api, api_process, serving
from tests.support.gateway_fakes import pause
from tests.support.tenancy import ADMIN, make_organisation
from tests.support.waiting import until

GOOD = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
ADDRESS_LIMIT = 4
LISTINGS = 5


@asynccontextmanager
async def started(pg_url: str, redis_url: str, tmp_path: Path, **settings: Any) -> AsyncIterator[Api]:
    async with api_process(pg_url, redis_url, tmp_path, **settings) as made:
        yield made


@pytest.fixture
async def api(pg_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with started(
        pg_url, redis_url, tmp_path, listings_per_min=LISTINGS, invalid_per_address_per_min=ADDRESS_LIMIT,
        stripe_webhook_secret=SecretStr("whsec_x"),
    ) as made:  # fmt: skip
        yield made


def address(api: Api) -> tuple[str, int]:
    host, port = api.url.removeprefix("http://").split(":")
    return host, int(port)


@pytest.mark.promise(28, 29)
@pytest.mark.parametrize(
    "line",
    [
        b"POST /admin/v1/tenants", b"PATCH /admin/v1/tenants/00000000-0000-7000-8000-000000000000",
        b"POST /webhooks/stripe",
        b"GET /v1/models", b"POST /v1/nowhere",
    ],
)  # fmt: skip
async def test_a_body_that_trickles_ends_its_connection(
    api: Api, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    """Without any credential, on every kind of route: nothing stays open."""
    monkeypatch.setattr(body_deadline, "BODY_TIMEOUT_S", 0.5)

    async def trickle() -> bytes:
        reader, writer = await asyncio.open_connection(*address(api))
        writer.write(
            line + b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{"
        )
        try:
            if b"GET" in line or b"nowhere" in line:
                return await asyncio.wait_for(reader.readuntil(b"\r\n"), 60)  # answered without its body
            return await asyncio.wait_for(reader.read(), 60)
        finally:
            writer.close()

    answers = await asyncio.gather(*(trickle() for _ in range(LISTINGS)))
    if b"GET" in line or b"nowhere" in line:
        assert all(answer.split()[1] in (b"401", b"404", b"429") for answer in answers)
    else:
        assert all(b" 408 " in answer and b"body_timeout" in answer for answer in answers)


async def test_a_body_in_time_is_served(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_deadline, "BODY_TIMEOUT_S", 5.0)
    async with api.session.post(f"{api.url}/admin/v1/tenants", json={"name": "x"}) as answer:
        assert answer.status == 401


async def test_listings_have_a_rate_per_credential(api: Api) -> None:
    async def status(key: str, path: str = "/v1/models") -> int:
        async with api.session.get(api.url + path, headers={"Authorization": f"Bearer {key}"}) as answer:
            return answer.status

    assert [await status(api.organisation.key) for _ in range(LISTINGS + 2)] == [200] * LISTINGS + [429] * 2
    for spelled in (" " + api.organisation.key, api.organisation.key + " "):
        assert await status(spelled) == 429
    other = await make_organisation(api.database, "Other")
    assert await status(other.key) == 200
    assert {await status("pen_admin_x", "/admin/v1/tenants") for _ in range(LISTINGS + 1)} == {401, 429}
    assert {await status(api.organisation.key, "/healthz") for _ in range(20)} == {200}


@pytest.mark.promise(28, 29)
async def test_invalid_requests_count_per_address_and_hurt_no_other_key(api: Api) -> None:
    others = [await make_organisation(api.database, f"Other {number}") for number in range(3)]
    hostile = [api.organisation.key, others[0].key]
    statuses = [(await api.post(b"{", key=hostile[number % 2]))[0] for number in range(ADDRESS_LIMIT)]
    assert statuses == [400] * ADDRESS_LIMIT
    for key in hostile:
        status, answer, headers = await api.post(GOOD, key=key)
        assert (status, answer["error"]["code"]) == (429, "too_many_invalid_requests")
        assert int(headers["retry-after"]) >= 1
    assert (await api.post(GOOD, key=others[1].key))[0] == 402, (
        "no credit, but not refused for its neighbours"
    )
    assert (await api.post(b"{", key=others[2].key))[0] == 400
    assert (await api.post(b"{", key=others[2].key))[0] == 429, "it has contributed itself"


@pytest.mark.promise(28, 29)
@pytest.mark.parametrize("size", [100, INLINE_BYTES + 1000])
async def test_a_burst_of_invalid_bodies_is_parsed_up_to_the_rate(
    api: Api, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """All of them arrive before the first is parsed."""
    organisation = api.organisation
    await admin_limits.set_limits(
        api.database, ADMIN, tenant_id=organisation.tenant_id, scope_kind="key", scope_id=organisation.key_id,
        limits=Limits(requests_per_min=5),
    )  # fmt: skip
    await api.deps.keys.authenticate(organisation.key)

    def limited() -> bool:
        cached = api.deps.keys.authenticate_cached(organisation.key)
        return cached is not None and cached.key_limits.requests_per_min == 5

    await until(limited, what="the new limit")
    monkeypatch.setattr(api.deps.parser, "limit", lambda *_: MAX_BODY_BYTES)
    parsed = 0
    for endpoint, parse in list(PARSERS.items()):

        def count(document: bytes, parse: Any = parse) -> Any:
            nonlocal parsed
            parsed += 1
            return parse(document)

        monkeypatch.setitem(PARSERS, endpoint, count)
    answers = await asyncio.gather(*(api.post(b"{" + b" " * size) for _ in range(30)))
    statuses = [status for status, _, _ in answers]
    assert statuses.count(400) <= 5
    assert set(statuses) == {400, 429}
    assert parsed + api.deps.parser.pool.parsed <= 5


@pytest.mark.promise(29)
@pytest.mark.parametrize("size", [100_000, 40_000_000])
async def test_a_whole_answer_is_kept_until_it_is_read_or_cut(size: int) -> None:
    """What the network has not taken is known for as long, and of one that is cut nothing stays behind."""
    replies: list[HttpReply] = []
    tasks: list[asyncio.Task[Any] | None] = []
    ended: list[BaseException | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": message["type"] + ".complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        connection = scope["extensions"][EXTENSION]
        accepted = connection._cycle.transport.get_extra_info("socket")
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        replies.append(HttpReply(send, uuid7(), connection))
        tasks.append(asyncio.current_task())
        try:
            await replies[-1].respond(b"x" * size, [])
            ended.append(None)
        except asyncio.CancelledError as error:
            ended.append(error)

    async with serving(app) as url:
        host, port = url.removeprefix("http://").split(":")
        loop = asyncio.get_running_loop()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, (host, int(port)))
            await loop.sock_sendall(client, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            await until(lambda: replies and replies[0].unsent, what="the answer is written")
            await pause(20)
            assert not ended
            assert replies[0].unsent > size // 2
            [task] = tasks
            assert task is not None
            task.cancel()
            await until(lambda: ended, what="the answer is given up")
            assert isinstance(ended.pop(), asyncio.CancelledError)
            await until(lambda: not replies[0].unsent, what="nothing is kept")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"content-length: %d" % size in head.lower()
        assert len(await reader.readexactly(size)) == size
        await until(lambda: ended, what="the answer is read")
        assert ended == [None]
        writer.close()
