"""The engine's side of HTTP: any cut of a response gives the same body, and what is no response fails the attempt."""

import asyncio
from contextlib import suppress
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import EngineFailed
from gateway.engine_connection import (
    MAX_BYTES_WITHOUT_BODY,
    MAX_KEPT_BYTES,
    EngineConnection,
    EngineResponse,
)

BODY = b"data: one\n\ndata: \x00two\r\n\n\ndata: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = (
    HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + b"".join(b"%x;x=y\r\n%b\r\n" % (len(part), part) for part in (BODY[:5], BODY[5:20], BODY[20:]))
    + b"0\r\nX-Trailer: t\r\n\r\n"
)
SIZED = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
UNSIZED = HEAD + b"connection: close\r\n\r\n" + BODY
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection:
    """A connection on a fake transport, and what became of it."""

    def __init__(self) -> None:
        self.idle: list[EngineConnection] = []
        self.lost: list[EngineConnection] = []
        self.connection = EngineConnection(asyncio.get_running_loop(), self.idle.append, self.lost.append)
        self.transport = MagicMock(spec=asyncio.Transport)
        self.transport.is_closing.return_value = False
        self.transport.get_write_buffer_size.return_value = 0
        self.connection.connection_made(self.transport)

    def send(self) -> EngineResponse:
        return self.connection.send(b"POST / HTTP/1.1\r\n\r\n")

    def receive(self, *reads: bytes) -> None:
        for data in reads:
            self.connection.data_received(data)


async def whole(response: EngineResponse) -> bytes:
    await response.headers()
    parts: list[bytes] = []

    def take(data: bytes) -> bool:
        parts.append(data)
        return True

    assert not await response.read_into(take)
    return b"".join(parts)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % len(data) for place in places} - {0})
    return [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]


@given(
    st.sampled_from([CHUNKED, SIZED, UNSIZED]), st.booleans(), st.lists(st.integers(0, 10**6)), st.booleans()
)
def test_any_cut_of_a_response_gives_the_same_body(
    sent: bytes, interim: bool, places: list[int], waiting: bool
) -> None:
    """Also when the reader comes late, and when an interim response precedes."""

    async def scenario() -> None:
        made = Connection()
        response = made.send()
        reader = asyncio.create_task(whole(response)) if waiting else None
        await asyncio.sleep(0)
        made.receive(*cut(INTERIM + sent if interim else sent, places))
        if sent is UNSIZED:
            made.connection.connection_lost(None)
        await response.headers()
        assert response.status == 200
        assert (await reader if reader is not None else await whole(response)) == BODY
        assert made.idle == ([] if sent is UNSIZED else [made.connection])

    asyncio.run(scenario())


@given(st.binary(max_size=200), st.lists(st.integers(0, 10**6), max_size=5))
def test_whatever_an_engine_sends_ends_in_a_response_or_a_failure(noise: bytes, places: list[int]) -> None:
    async def scenario() -> None:
        made = Connection()
        response = made.send()
        for read in cut(noise, places) if noise else []:
            if not made.transport.abort.called:
                made.receive(read)
        made.connection.connection_lost(None)
        with suppress(EngineFailed):
            await whole(response)

    asyncio.run(scenario())


def chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


async def test_a_read_that_is_one_chunk_does_not_need_the_parser() -> None:
    made = Connection()
    response = made.send()
    reader = asyncio.create_task(whole(response))
    await asyncio.sleep(0)
    made.receive(HEAD + b"transfer-encoding: chunked\r\n\r\n", chunks(b"a\n"))
    parser, made.connection._parser = made.connection._parser, MagicMock()
    made.receive(chunks(b"b\n"), chunks(b"c" * 3000))
    assert not made.connection._parser.feed_data.called
    made.connection._parser = parser
    made.receive(chunks(b"d\n", b"e\n"), chunks(b"f\n")[:2], chunks(b"f\n")[2:], chunks(b"g\n"), b"0\r\n\r\n")
    assert await reader == b"a\nb\n" + b"c" * 3000 + b"d\ne\nf\ng\n"
    assert made.connection.usable


@given(
    st.lists(st.text("14\r\n", min_size=1, max_size=20), min_size=1, max_size=8),
    st.lists(st.integers(0, 10**6)),
)
def test_chunks_that_look_like_the_framing_arrive_unchanged(texts: list[str], places: list[int]) -> None:
    """Also where a read looks like a chunk and is the end of one with the size of the next."""
    parts = [text.encode() for text in texts]
    sent = HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunks(b"\n", b"\n", *parts) + b"0\r\n\r\n"

    async def scenario() -> None:
        made = Connection()
        response = made.send()
        reader = asyncio.create_task(whole(response))
        await asyncio.sleep(0)
        made.receive(*cut(sent, places))
        assert await reader == b"\n\n" + b"".join(parts)

    asyncio.run(scenario())


async def test_the_end_of_a_chunk_and_the_size_of_the_next_are_not_taken_for_a_chunk() -> None:
    made = Connection()
    response = made.send()
    reader = asyncio.create_task(whole(response))
    await asyncio.sleep(0)
    made.receive(HEAD + b"transfer-encoding: chunked\r\n\r\n7\r\nabc", b"4\r\n4\r\n4\r\n", b"1\r\na\r\n")
    made.receive(chunks(b"\n"), b"4\r\n", b"1\r\nb\r\n", b"0\r\n\r\n")
    assert await reader == b"abc4\r\n41\r\na\n1\r\nb"


async def test_a_chunk_with_a_wrong_size_breaks_the_connection() -> None:
    made = Connection()
    response = made.send()
    reader = asyncio.create_task(whole(response))
    await asyncio.sleep(0)
    made.receive(HEAD + b"transfer-encoding: chunked\r\n\r\n", chunks(b"a\n"), b"3\r\nabcd\r\n")
    with pytest.raises(EngineFailed):
        await reader


async def test_a_connection_serves_one_request_after_the_other() -> None:
    made = Connection()
    for sent in (CHUNKED, SIZED, CHUNKED):
        response = made.send()
        made.receive(sent)
        assert await whole(response) == BODY
        assert made.connection.usable
    assert len(made.idle) == 3


@pytest.mark.promise(24)
@pytest.mark.parametrize("garbage", [SIZED, b"garbage\r\n\r\n", b"\x00"])
async def test_what_follows_a_response_is_not_taken_for_the_next(garbage: bytes) -> None:
    made = Connection()
    response = made.send()
    made.receive(SIZED + garbage)
    assert await whole(response) == BODY
    assert made.transport.abort.called
    assert not made.idle


async def test_data_without_a_request_closes_the_connection() -> None:
    made = Connection()
    made.receive(SIZED)
    assert made.transport.abort.called


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        HEAD,
        HEAD + b"content-length: 100\r\n\r\nabc",
        CHUNKED[:-1],
        b"SSH-2.0\r\n",
        b"HTTP/1.1 101 Up\r\n\r\n",
    ],
)
async def test_a_response_that_breaks_off_is_a_failure(sent: bytes) -> None:
    made = Connection()
    response = made.send()
    if sent:
        made.receive(sent)
    if not made.transport.abort.called:
        made.connection.connection_lost(None)
    with pytest.raises(EngineFailed):
        await whole(response)
    assert not made.idle
    assert made.connection.untouched == (not sent)


@pytest.mark.parametrize("start", [HEAD, CHUNKED[: -len(b"\r\n")]])
async def test_headers_and_trailers_are_bounded(start: bytes) -> None:
    made = Connection()
    response = made.send()
    made.receive(start)
    for _ in range(MAX_BYTES_WITHOUT_BODY // 1000 + 2):
        if not made.transport.abort.called:
            made.receive(b"x-y: " + b"a" * 993 + b"\r\n")
    assert made.transport.abort.called
    with pytest.raises(EngineFailed):
        await whole(response)


@pytest.mark.promise(24)
async def test_abort_during_headers_and_body() -> None:
    for sent in (b"", HEAD, CHUNKED[:90]):
        made = Connection()
        response = made.send()
        if sent:
            made.receive(sent)
        waiting = asyncio.create_task(whole(response))
        await asyncio.sleep(0)
        response.abort()
        with pytest.raises(EngineFailed):
            await waiting
        assert made.transport.abort.called


@pytest.mark.promise(24)
async def test_an_ended_response_does_not_touch_the_next_one() -> None:
    made = Connection()
    first = made.send()
    made.receive(SIZED)
    second = made.send()
    first.abort()
    first.close()
    assert not made.transport.abort.called
    made.receive(SIZED)
    assert await whole(second) == BODY


async def test_the_task_wakes_only_when_the_sink_asks_for_it() -> None:
    made = Connection()
    response = made.send()
    made.receive(HEAD + b"transfer-encoding: chunked\r\n\r\n")
    taken: list[bytes] = []

    def take(data: bytes) -> bool:
        taken.append(data)
        return data != b"stop"

    reader = asyncio.create_task(response.read_into(take))
    await asyncio.sleep(0)
    made.receive(b"1\r\na\r\n1\r\nb\r\n", b"1\r\nc\r\n")
    assert taken == [b"ab", b"c"]  # in the callbacks, and what came together in one piece
    assert not reader.done()
    made.receive(b"4\r\nstop\r\n", b"1\r\nd\r\n")
    assert taken == [b"ab", b"c", b"stop"]
    assert await reader
    made.receive(b"0\r\n\r\n")
    assert not await response.read_into(take)
    assert taken == [b"ab", b"c", b"stop", b"d"]


async def test_an_error_of_the_sink_reaches_the_task() -> None:
    made = Connection()
    response = made.send()

    def take(data: bytes) -> bool:
        raise KeyError(data)

    reader = asyncio.create_task(response.read_into(take))
    await asyncio.sleep(0)
    made.receive(SIZED)
    with pytest.raises(KeyError):
        await reader


@pytest.mark.parametrize("rest", [b"garbage", None])
async def test_what_arrived_before_the_connection_broke_is_not_lost(rest: bytes | None) -> None:
    """The sink has what it wants, and the connection breaks before the task runs: the task learns both in order."""
    made = Connection()
    response = made.send()
    taken: list[bytes] = []

    def take(data: bytes) -> bool:
        taken.append(data)
        return False

    reader = asyncio.create_task(response.read_into(take))
    await asyncio.sleep(0)
    made.receive(HEAD + b"transfer-encoding: chunked\r\n\r\n6\r\n[DONE]\r\n" + (rest or b""))
    if rest is None:
        made.connection.connection_lost(ConnectionResetError())
    assert await reader
    assert taken == [b"[DONE]"]
    with pytest.raises(EngineFailed):
        await response.read_into(take)


async def test_reading_pauses_while_nothing_takes_the_body() -> None:
    made = Connection()
    response = made.send()
    made.receive(HEAD + b"content-length: %d\r\n\r\n" % (2 * MAX_KEPT_BYTES))
    made.receive(b"a" * MAX_KEPT_BYTES)
    assert not made.transport.pause_reading.called
    made.receive(b"a")
    assert made.transport.pause_reading.call_count == 1
    reader = asyncio.create_task(whole(response))
    await asyncio.sleep(0)
    assert made.transport.resume_reading.call_count == 1
    made.receive(b"a" * (MAX_KEPT_BYTES - 1))
    assert len(await reader) == 2 * MAX_KEPT_BYTES


async def test_a_closed_response_frees_its_connection_at_the_end_of_the_body() -> None:
    made = Connection()
    response = made.send()
    made.receive(CHUNKED[:-5])
    response.close()
    assert not made.idle
    made.receive(CHUNKED[-5:])
    assert made.idle == [made.connection]
    assert not made.transport.abort.called


async def test_a_response_before_the_whole_request_is_written_ends_the_connection() -> None:
    made = Connection()
    made.transport.get_write_buffer_size.return_value = 1000
    response = made.send()
    made.receive(SIZED)
    assert await whole(response) == BODY
    assert not made.idle
    assert made.transport.abort.called
