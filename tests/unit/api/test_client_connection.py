"""A client's connection: what is written past ASGI is byte for byte what uvicorn's `send` would write."""

import asyncio
import gc
import tracemalloc
import weakref
from functools import partial
from typing import Any
from unittest.mock import MagicMock

import pytest
import uvicorn
from uvicorn.server import ServerState

from api.customer import hotpath
from api.customer.client_connection import EXTENSION, ClientConnection
from api.customer.protocol import HeadLimitProtocol
from api.customer.reply import HttpReply
from core.ids import uuid7

REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
START = {"type": "http.response.start", "status": 200, "headers": []}


class Client:
    """A protocol on a fake transport, with an application that waits for the test."""

    def __init__(self) -> None:
        self.scopes: list[Any] = []
        self.sends: list[Any] = []
        self.end = asyncio.Event()
        state = ServerState()
        config = uvicorn.Config(
            self.app, lifespan="off", log_config=None, interface="asgi3", access_log=False
        )
        self.protocol = HeadLimitProtocol(config, state, {})
        self.transport = MagicMock(spec=asyncio.Transport)
        self.transport.is_closing.return_value = False
        self.protocol.connection_made(self.transport)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        self.sends.append(send)
        await self.end.wait()

    async def request(self, data: bytes = REQUEST) -> None:
        self.protocol.data_received(data)
        await asyncio.sleep(0)

    def connection(self, number: int = 0) -> ClientConnection:
        found = self.scopes[number]["extensions"][EXTENSION]
        assert isinstance(found, ClientConnection)
        return found

    def written(self) -> bytes:
        data = b"".join(call.args[0] for call in self.transport.write.call_args_list)
        self.transport.write.reset_mock()
        return data

    async def stop(self) -> None:
        self.protocol.connection_lost(None)
        self.end.set()
        await asyncio.gather(*self.protocol.tasks)


@pytest.fixture
async def client():
    made = Client()
    yield made
    await made.stop()


async def test_a_chunk_is_framed_as_uvicorn_frames_it(client: Client) -> None:
    await client.request()
    [send], connection = client.sends, client.connection()
    assert not connection.write_now(b"early")
    await send(START)
    assert b"transfer-encoding: chunked" in client.written()
    for data in (b"a", b"b" * 300):
        await send({"type": "http.response.body", "body": data, "more_body": True})
        expected = client.written()
        assert connection.write_now(data)
        assert client.written() == expected
    client.protocol.pause_writing()
    assert not connection.write_now(b"c")
    client.protocol.resume_writing()
    assert connection.write_now(b"d")
    client.written()
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    assert client.written() == b"0\r\n\r\n"
    assert not connection.write_now(b"late")
    assert client.written() == b""


@pytest.mark.parametrize("body", [None, b"{}"])
async def test_a_head_is_written_as_uvicorn_writes_it(client: Client, body: bytes | None) -> None:
    await client.request()
    await client.request()
    headers = [(b"content-type", b"application/json"), (b"x-request-id", b"1")]
    assert client.connection().start_now(headers, body)
    own = client.written()
    await client.sends[0]({"type": "http.response.body", "body": b"", "more_body": False})
    await asyncio.sleep(0)
    client.written()
    framing = [] if body is None else [(b"content-length", b"%d" % len(body))]
    await client.sends[1]({**START, "headers": [*headers, *framing]})
    if body is not None:
        await client.sends[1]({"type": "http.response.body", "body": body, "more_body": False})
    assert client.written() == own


@pytest.mark.parametrize("head", [b"Connection: close\r\n", b"HTTP/1.0"])
async def test_a_head_of_a_connection_that_ends_is_left_to_uvicorn(client: Client, head: bytes) -> None:
    old = REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0")
    await client.request(old if head == b"HTTP/1.0" else REQUEST.replace(b"Host", head + b"Host"))
    assert not client.connection().start_now([])
    assert client.written() == b""


async def test_a_header_cannot_end_the_head(client: Client) -> None:
    await client.request()
    with pytest.raises(ValueError, match="line break"):
        client.connection().start_now([(b"x-a", b"1\r\n\r\nHTTP/1.1 200 OK")])
    assert client.written() == b""


async def test_a_body_is_taken_when_all_of_it_has_arrived(client: Client) -> None:
    whole = REQUEST.replace(b": 0", b": 4")
    await client.request(whole + b"ab")
    connection = client.connection()
    assert connection.take_body(100) is None
    client.protocol.data_received(b"cd")
    assert connection.take_body(3) is None
    assert connection.take_body(4) == b"abcd"


async def test_a_client_that_waits_for_100_continue_gets_it(client: Client) -> None:
    expecting = REQUEST.replace(b"Host", b"Expect: 100-continue\r\nHost")
    await client.request(expecting)
    assert client.connection().take_body(100) is None


async def test_a_body_of_known_length_is_left_to_uvicorn(client: Client) -> None:
    await client.request()
    await client.sends[0]({**START, "headers": [(b"content-length", b"3")]})
    client.written()
    assert not client.connection().write_now(b"abc")
    assert client.written() == b""


async def test_the_end_of_the_connection_is_reported_to_the_request_that_is_answered(client: Client) -> None:
    await client.request(REQUEST + REQUEST)
    assert len(client.scopes) == 1  # the second one waits
    lost: list[str] = []
    assert client.connection().watch(lambda: lost.append("first"))
    await client.sends[0](START)
    assert client.connection().write_now(b"a")
    client.protocol.connection_lost(None)
    assert lost == ["first"]
    assert not client.connection().watch(lambda: lost.append("late"))
    assert not client.connection().write_now(b"a")
    client.end.set()
    await asyncio.sleep(0)
    assert (len(client.scopes), lost) == (1, ["first"])


async def test_a_complete_response_hears_nothing_of_the_connections_end(client: Client) -> None:
    await client.request()
    lost: list[str] = []
    client.connection().watch(lambda: lost.append("first"))
    await client.sends[0](START)
    await client.sends[0]({"type": "http.response.body", "body": b"", "more_body": False})
    client.protocol.connection_lost(None)
    assert lost == []


async def test_a_request_is_freed_when_the_next_one_begins(client: Client) -> None:
    """Without the garbage collector: what it has once found in use waits for a full collection."""
    await client.request()
    [send], kept = client.sends, client.connection()
    kept.watch(partial(list, [send]))
    cycle = weakref.ref(send.__self__)
    gc.collect()
    gc.disable()
    try:
        await send(START)
        await send({"type": "http.response.body", "body": b"x", "more_body": False})
        assert kept.unsent is not None  # who waits until the client has taken the answer still can
        client.end.set()
        await asyncio.gather(*client.protocol.tasks)
        client.scopes.clear()
        client.sends.clear()
        del send, kept
        await client.request()
        assert cycle() is None
    finally:
        gc.enable()


async def test_reading_goes_on_while_a_request_is_watched(client: Client) -> None:
    """uvicorn stops to read at 64 KiB of body, and the end of a connection is seen by reading only."""
    body = b"a" * 70_000
    await client.request(REQUEST.replace(b": 0", b": %d" % len(body)) + body)
    assert client.transport.pause_reading.called
    assert not client.transport.resume_reading.called
    client.connection().watch(lambda: None)
    assert client.transport.resume_reading.called


@pytest.mark.parametrize("whole", [True, False])
async def test_an_answer_that_is_given_up_closes_its_connection(client: Client, whole: bool) -> None:
    """Also while it waits to be written. What is left would otherwise be kept until the client reads it."""
    await client.request()
    reply = HttpReply(client.sends[0], uuid7(), client.connection())
    if not whole:
        await reply.start([])
    client.protocol.pause_writing()
    task = asyncio.create_task(reply.respond(b"{}", []) if whole else reply.end(b"data: [DONE]\n\n"))
    await asyncio.sleep(0)
    assert not client.transport.abort.called
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.transport.abort.called


def test_headers_are_not_kept_but_for_the_clients_address() -> None:
    named = (b"x-forwarded-for", b"192.0.2.1")
    headers = [(b"authorization", b"Bearer x"), named, (b"cookie", b"a" * 60_000)]
    kept = headers
    hotpath._drop_headers({"headers": headers})
    assert kept == [named], "uvicorn has the same list"


async def test_an_open_request_keeps_little_memory() -> None:
    """What uvicorn and we keep of a connection and its request, for as long as a stream is open."""
    files = (
        "*/uvicorn/protocols/*",
        "*/api/customer/protocol.py",
        "*/api/customer/client_connection.py",
        "*/asyncio/locks.py",
    )
    clients: list[Client] = []
    tracemalloc.start()
    try:
        clients = [Client() for _ in range(50)]
        for client in clients:
            await client.request()
        traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, each) for each in files])
        kept = sum(trace.size for trace in traces.traces) / len(clients)
    finally:
        tracemalloc.stop()
        for client in clients:
            await client.stop()
    assert kept < 5_500
