"""Promises 28 and 29 below HTTP's surface: endless or trickling heads, and clients that do not read."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from api import serve
from api.customer import hotpath, protocol
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
    monkeypatch.setattr(hotpath, "ERROR_TIMEOUT_S", 0.2)
    async with api_process(pg_url, redis_url, tmp_path) as made:
        yield made


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
    assert b"headers_timeout" in await asyncio.wait_for(reader.read(), 10)
    writer.close()


async def test_an_answer_may_take_longer_than_a_head(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.2)
    api.engines[0].server._loop.speedup = 1.0
    status, answer, _ = await api.post({"model": MODEL, "messages": HELLO, "max_tokens": 100})
    assert status == 200
    assert answer["usage"]["completion_tokens"] > 0


@pytest.mark.promise(24, 29)
async def test_a_client_that_does_not_read_is_billed_and_dropped(api: Api) -> None:
    """Nothing of it stays behind: no task, no connection, although it neither reads nor hangs up."""
    api.deps.open_requests._timeouts = StreamTimeouts(write_s=1.0)
    api.engines[0].server._loop.speedup = 1e6
    loop = asyncio.get_running_loop()
    body = json.dumps(
        {"model": MODEL, "messages": HELLO, "stream": True, "n": 16, "max_tokens": 1900}
    ).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, address(api))
        length = b"Content-Length: %d\r\n" % len(body)
        key = b"Authorization: Bearer %s\r\n\r\n" % api.organisation.key.encode()
        await loop.sock_sendall(client, START + length + key + body)
        [row] = await api.usage_rows(1)
        assert row.outcome == "client_cancelled"
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
