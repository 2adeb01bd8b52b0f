"""The clients of `make cancels` notice every way in which an answer could be that of another request."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from bench.cancels.answers import Ids
from bench.cancels.asks import APIS, WAYS, Ask, Script, draw
from bench.cancels.client import Connection
from bench.chaos.journal import Entry

MODEL = "penstock/tiny"
END = b"0\r\n\r\n"


class Wire(asyncio.Transport):
    """Keeps what the client sends."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def close(self) -> None:
        self.closed = True


class Played:
    """One connection of a client, into which a test writes what the platform would."""

    def __init__(self, script: Script) -> None:
        self.entries: list[Entry] = []
        self.wire = Wire()
        self.connection = Connection(script, "key", self._entry, Ids())
        self.connection.connection_made(self.wire)

    def _entry(self, ask: Ask) -> Entry:
        self.entries.append(Entry(ask.number, "tenant", ask.kind, ask.prompt_tokens, ask.tokens, 0.0))
        return self.entries[-1]

    def answer(
        self, ask: Ask, *, request_id: str = "", document_id: str = "", text: str | None = None
    ) -> None:
        """Write a whole stream of chat, with parts of another request where the test says so."""
        self.connection.data_received(head(request_id or f"r-{ask.number}"))
        self.connection.data_received(events(ask, document_id or f"d-{ask.number}", text))
        self.connection.data_received(END)


def head(request_id: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nx-request-id: {request_id}\r\ntransfer-encoding: chunked\r\n\r\n".encode()


def events(ask: Ask, document_id: str, text: str | None = None) -> bytes:
    delta = {"content": ask.expected if text is None else text}
    event = json.dumps({"id": document_id, "choices": [{"index": 0, "delta": delta}]})
    data = f"data: {event}\n\ndata: [DONE]\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def chat_script(requests: int = 2, **changes: Any) -> Script:
    """Streams of chat on one connection, whose client stays."""
    numbers = (number for number in range(10_000))
    asks: list[Ask] = []
    while len(asks) < requests:
        asks += [ask for ask in draw(1, next(numbers), MODEL, 1).asks if ask.api == "chat" and ask.stream]
    made = Script(0, asks[:requests], False, requests - 1, "stays", 0.0, 1, False)
    return replace(made, **changes)


async def test_answers_in_their_order_are_right() -> None:
    for together in (False, True):
        script = chat_script(3, together=together)
        played = Played(script)
        for ask in script.asks:
            played.answer(ask)
        assert [entry.wrong for entry in played.entries] == ["", "", ""]
        assert all(entry.finished and entry.tokens == entry.max_tokens for entry in played.entries)
        assert played.connection.done.done()
        assert played.wire.closed
        assert played.wire.sent.count(b"POST ") == 3


@pytest.mark.parametrize(
    ("crossed", "told"),
    [
        ({"text": "the and "}, "the text is of another answer"),
        ({"request_id": "r-0"}, "the request's id"),
        ({"document_id": "d-0"}, "its id"),
        ({"text": ""}, "characters came"),
    ],
)
async def test_what_belongs_to_another_answer_is_found(crossed: dict[str, str], told: str) -> None:
    script = chat_script()
    first, second = (replace(ask, number=number) for number, ask in enumerate(script.asks))
    played = Played(replace(script, asks=[first, second]))
    played.answer(first)
    played.answer(second, **crossed)
    assert played.entries[0].wrong == ""
    assert told in played.entries[1].wrong


async def test_answers_in_another_order_are_found() -> None:
    script = chat_script(together=True)
    played = Played(script)
    for ask in reversed(script.asks):
        played.answer(ask)
    assert all("the text is of another answer" in entry.wrong for entry in played.entries)


async def test_bytes_without_a_request_are_found() -> None:
    script = chat_script(1)
    played = Played(script)
    played.connection.data_received(head("r-1") + events(script.asks[0], "d-1") + END + head("r-2"))
    assert played.entries[0].wrong == ""
    assert played.connection.strange == "an answer without a request"
    played = Played(chat_script())
    played.connection.data_received(head("r-1") + b"zz\r\n")
    assert "no HTTP" in played.connection.strange


async def test_a_stream_without_an_end_is_found() -> None:
    script = chat_script(1)
    played = Played(script)
    played.connection.data_received(head("r-1") + END)
    assert "the stream has no end" in played.entries[0].wrong


async def test_a_client_leaves_where_its_script_says() -> None:
    script = chat_script(1, way="head")
    played = Played(script)
    played.connection.data_received(head("r-1") + events(script.asks[0], "d-1"))
    assert (played.entries[0].left, played.entries[0].status, played.entries[0].tokens) == (True, 200, 0)
    script = chat_script(1, way="middle", after_tokens=1)
    played = Played(script)
    played.connection.data_received(head("r-1") + events(script.asks[0], "d-1", script.asks[0].expected[:4]))
    assert (played.entries[0].left, played.entries[0].tokens) == (True, 1)
    assert played.wire.closed


def test_a_seed_gives_the_same_connections() -> None:
    drawn = [draw(7, number, MODEL, 3) for number in range(300)]
    assert drawn == [draw(7, number, MODEL, 3) for number in range(300)]
    assert drawn != [draw(8, number, MODEL, 3) for number in range(300)]
    assert {script.way for script in drawn} == set(WAYS)
    asks = [ask for script in drawn for ask in script.asks]
    assert {ask.api for ask in asks} == set(APIS)
    assert len({ask.expected for ask in asks if ask.tokens > 16}) == sum(ask.tokens > 16 for ask in asks)
    assert len({ask.number for ask in asks}) == len(asks)
