"""Clients of old habits, on a fake transport: a protocol change that is asked for, HTTP/1.0, Expect."""

import asyncio
from typing import Any
from unittest.mock import MagicMock

import pytest
import uvicorn
from uvicorn.server import ServerState

from api.customer.protocol import HeadLimitProtocol

UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
SECOND = b"GET /second HTTP/1.1\r\nHost: x\r\n\r\n"


class Server:
    """A protocol on a fake transport with an application that reads the body and answers with it."""

    def __init__(self, *, length_known: bool = True) -> None:
        self.seen: list[tuple[str, bytes]] = []
        self._length_known = length_known
        config = uvicorn.Config(self.app, lifespan="off", log_config=None, interface="asgi3", ws="none")
        self.state = ServerState()
        self.protocol = HeadLimitProtocol(config, self.state, {})
        self.transport = MagicMock(spec=asyncio.Transport)
        self.transport.is_closing.return_value = False
        self.protocol.connection_made(self.transport)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message["body"]
            more = message["more_body"]
        self.seen.append((scope["path"], body))
        headers = [(b"content-length", b"%d" % (2 * len(body)))] if self._length_known else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def take(self, *parts: bytes) -> bytes:
        """What is written in answer to `parts`, each a read of its own."""
        for part in parts:
            self.protocol.data_received(part)
            for _ in range(5):
                await asyncio.sleep(0)
        return b"".join(call.args[0] for call in self.transport.write.call_args_list)


@pytest.mark.parametrize("cut", [0, 1, 5])
@pytest.mark.parametrize(
    "framing",
    [b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"],
)
async def test_a_request_for_h2c_is_answered_in_http_1(framing: bytes, cut: int) -> None:
    """Java's client asks for h2c with the first request of a connection, and reads the answer as HTTP/1.1."""
    server = Server()
    data = b"POST /first HTTP/1.1\r\nHost: x\r\n" + UPGRADE + framing
    head = data.index(b"\r\n\r\n") + 4 + cut
    await server.take(*([data] if cut == 1 else [data[:head], data[head:]]), SECOND)
    assert server.seen == [("/first", b"hello"), ("/second", b"")]


async def test_what_follows_a_request_for_h2c_on_its_connection_is_answered_too() -> None:
    server = Server()
    first = b"POST /%d HTTP/1.1\r\nHost: x\r\n" + UPGRADE + b"Content-Length: 2\r\n\r\nab"
    await server.take(first % 1 + first % 2 + b"GET /3 HTTP/1.1\r\n" + UPGRADE + b"\r\n" + SECOND)
    assert server.seen == [("/1", b"ab"), ("/2", b"ab"), ("/3", b""), ("/second", b"")]


async def test_a_body_that_ends_in_no_known_way_is_refused_with_an_upgrade_too() -> None:
    server = Server()
    both = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    written = await server.take(b"POST /first HTTP/1.1\r\nHost: x\r\n" + UPGRADE + both, b"hello" + SECOND)
    assert server.seen == []
    assert b" 400 " in written


@pytest.mark.parametrize("length_known", [True, False])
async def test_http_1_0_gets_no_chunks(length_known: bool) -> None:
    server = Server(length_known=length_known)
    written = await server.take(b"POST /first HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello")
    head, _, body = written.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body == b"hellohello"
    assert server.transport.close.called


async def test_expect_100_continue_is_answered_when_the_body_is_wanted() -> None:
    server = Server()
    head = b"POST /first HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    assert await server.take(head) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert b"hellohello" in await server.take(b"hello")
