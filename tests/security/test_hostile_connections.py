"""Promises 28 and 29 below HTTP's surface: endless or trickling heads, and clients that do not read."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import uvicorn
from uvicorn.server import ServerState

from api import serve
from api.customer import protocol, reply
from gateway.open_requests import StreamTimeouts
from tests.support.api_process import MODEL, Api, api_process
from tests.support.waiting import until

START = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def api(
    pg_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Api]:
    monkeypatch.setattr(serve, "TCP_USER_TIMEOUT_MS", 1000)
    monkeypatch.setattr(reply, "ERROR_TIMEOUT_S", 0.2)
    async with api_process(pg_url, redis_url, tmp_path) as made:
        yield made


def request(api: Api, **fields: object) -> bytes:
    """A request for a chat completion as it stands on the wire."""
    body = json.dumps({"model": MODEL, "messages": HELLO, **fields}).encode()
    key = api.organisation.key.encode()
    return START + b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n" % (key, len(body)) + body


def address(api: Api) -> tuple[str, int]:
    host, port = api.url.removeprefix("http://").split(":")
    return host, int(port)


@pytest.mark.promise(19, 28)
@pytest.mark.parametrize("header", [b"X-%d: " + b"a" * 32_768 + b"\r\n", b"%d" + b"a" * 32_768])
async def test_a_heads_size_is_bounded(api: Api, header: bytes) -> None:
    """Many headers, or one that never ends."""
    _, writer = await asyncio.open_connection(*address(api))
    writer.write(START)
    sent = 0
    try:
        for number in range(400):
            writer.write(header % number)
            await writer.drain()
            sent += len(header)
    except ConnectionError:
        pass
    assert sent < 4_000_000
    writer.transport.abort()
    assert (await api.post({"model": MODEL, "messages": HELLO, "max_tokens": 1}))[0] == 200


async def test_a_large_head_is_told_why(api: Api) -> None:
    reader, writer = await asyncio.open_connection(*address(api))
    writer.write(START + b"X: " + b"a" * protocol.MAX_HEAD_BYTES)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert b" 431 " in head
    assert json.loads(body)["error"]["code"] == "headers_too_large"
    writer.close()


@pytest.mark.parametrize("before", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_a_large_head_is_refused_when_it_comes_in_one_read(before: bytes) -> None:
    """Fed to the protocol in one piece; a socket may cut it anywhere. Alone and behind another request."""
    started: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        started.append(scope["path"])

    connection = protocol.HeadLimitProtocol(uvicorn.Config(app, lifespan="off"), ServerState(), {})
    transport = MagicMock(spec=asyncio.Transport)
    transport.is_closing.return_value = False
    connection.connection_made(transport)
    head = START + b"X: " + b"a" * protocol.MAX_HEAD_BYTES + b"\r\nContent-Length: 0\r\n\r\n"
    connection.data_received(before + head)
    await asyncio.sleep(0)
    if before:
        assert transport.abort.called
    else:
        assert b" 431 " in transport.write.call_args.args[0]
        assert transport.close.called
    assert "/v1/chat/completions" not in started
    connection.connection_lost(None)


@pytest.mark.promise(6, 28)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("behind", [b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", None])
async def test_a_request_behind_a_running_one_does_not_detach_it(
    api: Api, stream: bool, behind: bytes | None
) -> None:
    """The client sends another request while the first is answered, and closes: the first ends and is billed."""
    api.engines[0].server._loop.speedup = 1.0
    reader, writer = await asyncio.open_connection(*address(api))
    writer.write(request(api, stream=stream, max_tokens=1900))
    await until(lambda: any(run.usage.output >= 3 for run in api.deps.open_requests))
    if stream:
        await reader.readuntil(b"data: ")
    writer.write(behind or request(api, max_tokens=1900))
    await writer.drain()
    [running] = api.deps.open_requests
    delivered = running.usage.output + 3
    await until(lambda: running.usage.output >= delivered, what="it goes on with the other one behind it")
    writer.close()
    await until(lambda: len(api.deps.open_requests) == 0)
    [row] = await api.usage_rows(1)
    assert row.outcome == "client_cancelled"
    assert delivered <= row.output_tokens < 1900
    assert row.cost >= row.output_tokens * 2_000_000
    [engine] = api.engines
    await until(lambda: not engine.server._loop._collectors, what="the engine stops")


async def test_requests_behind_another_are_answered_in_turn(api: Api) -> None:
    reader, writer = await asyncio.open_connection(*address(api))
    writer.write(request(api, max_tokens=3) + request(api, max_tokens=4))
    for tokens in (3, 4):
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        answer = json.loads(await reader.readexactly(length))
        assert answer["usage"]["completion_tokens"] == tokens
    writer.close()


@pytest.mark.promise(28)
@pytest.mark.parametrize(
    "behind",
    [
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 100,
        START + b"Content-Length: 1000000\r\n\r\n" + b"a" * 500_000,
        b"\x16\x03 no HTTP \r\n\r\n",
    ],
)
async def test_too_much_behind_a_running_request_ends_the_connection(api: Api, behind: bytes) -> None:
    """Too many requests, too long a body, and what is not HTTP: nothing of an answer to it is in the stream."""
    api.engines[0].server._loop.speedup = 1.0
    reader, writer = await asyncio.open_connection(*address(api))
    writer.write(request(api, stream=True, max_tokens=1900))
    got = await reader.readuntil(b"data: ")
    writer.write(behind)
    with suppress(ConnectionError):
        got += await asyncio.wait_for(reader.read(), 60)
    assert got.count(b"HTTP/1.1") == 1
    [row] = await api.usage_rows(1)
    assert row.outcome == "client_cancelled"
    assert 0 < row.output_tokens < 1900
    writer.close()


@pytest.mark.promise(28, 29)
@pytest.mark.parametrize("before", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_a_head_that_trickles_is_given_up(
    api: Api, monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    """As the first request of a connection and as a further one."""
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.5)
    reader, writer = await asyncio.open_connection(*address(api))
    if before:
        writer.write(before)
        assert b" 200 " in await reader.readline()
    writer.write(START)
    assert b"headers_timeout" in await asyncio.wait_for(reader.read(), 60)
    writer.close()


async def test_an_answer_may_take_longer_than_a_head(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.2)
    api.engines[0].server._loop.speedup = 1.0
    status, answer, _ = await api.post({"model": MODEL, "messages": HELLO, "max_tokens": 100})
    assert status == 200
    assert answer["usage"]["completion_tokens"] > 0


@pytest.mark.promise(24, 29)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_does_not_read_is_billed_and_dropped(
    api: Api, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it stays behind: no task, no connection, although it neither reads nor hangs up."""
    made = protocol.HeadLimitProtocol.connection_made

    def with_little_in_the_kernel(self: protocol.HeadLimitProtocol, transport: asyncio.Transport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(self, transport)

    monkeypatch.setattr(protocol.HeadLimitProtocol, "connection_made", with_little_in_the_kernel)
    api.engines[0].server._loop.speedup = 1e6
    loop = asyncio.get_running_loop()
    body = json.dumps(
        {"model": MODEL, "messages": HELLO, "stream": stream, "n": 16, "max_tokens": 1900}
    ).encode()
    registry = api.deps.open_requests

    def unread() -> bool:
        return any(one.request.reply.unsent for one in registry) and (stream or not registry.has_room(tenant))

    tenant = api.organisation.tenant_id
    # The whole answer has 2.2 MB: more than the organisation's quarter, but not ended for its memory.
    registry._max_answer_bytes = 4_000_000
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, address(api))
        length = b"Content-Length: %d\r\n" % len(body)
        key = b"Authorization: Bearer %s\r\n\r\n" % api.organisation.key.encode()
        await loop.sock_sendall(client, START + length + key + body)
        await until(unread, what="what is not read counts")
        registry._timeouts = StreamTimeouts(read_window_s=1.0)
        [row] = await api.usage_rows(1)
        assert row.outcome == ("client_cancelled" if stream else "length")
        assert row.cost > 0

        def dropped() -> bool:
            """The server's kernel answers a byte with a reset once it knows the connection no more."""
            try:
                client.send(b"x")
            except ConnectionError:
                return True
            return False

        def tasks() -> list[str]:
            return [text for task in asyncio.all_tasks() if "run_asgi" in (text := repr(task))]

        await until(lambda: not tasks(), what="the request's task ends")
        await until(dropped, what="the connection is dropped")
