"""A reply in a dialect translates every event once, whether it is written at once or has to wait."""

import gc
import weakref
from typing import Any
from uuid import UUID

import msgspec
import pytest

from api.customer.dialect_reply import DialectReply
from core.errors import EngineFailed, InvalidRequest, PaymentRequired, PenstockError
from core.ids import uuid7
from gateway.dialects.field_names import FieldNames
from gateway.open_requests import KEEP_ALIVE
from gateway.ports import Headers
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import PreparedRequest
from tests.support.gateway_fakes import principal

PREPARED = parse_chat(b'{"model": "m", "messages": [{"role": "user", "content": "Hello"}]}')


class Counting:
    """Numbers what it translates; an event "skip" becomes nothing."""

    names = FieldNames((r"\bmax_tokens\b", "most_tokens"))

    def __init__(self) -> None:
        self.count = 0

    def begin(self, request_id: UUID, prepared: PreparedRequest) -> "Counting":
        assert prepared is PREPARED
        return self

    def _number(self, data: bytes) -> bytes:
        self.count += 1
        return b"" if data == b"skip" else b"%d:%b" % (self.count, data)

    def feed(self, events: bytes) -> bytes:
        return self._number(events)

    def keep_alive(self) -> bytes:
        return b"ping"

    def end(self, events: bytes) -> bytes:
        return self._number(events)

    def fail(self, status: int, error: PenstockError) -> bytes:
        return self._number(b"%d" % status)

    def whole(self, body: bytes) -> bytes:
        return self._number(body)

    def start(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens

    def error(self, request_id: UUID, status: int, error: PenstockError) -> tuple[int, dict[str, Any]]:
        return status, {"id": str(request_id), "status": status, "message": error.message}

    def headers(self, request_id: UUID, headers: Headers) -> Headers:
        return [(b"x-dialect", b"%d" % len(headers))]


class Connection:
    """A connection that takes data at once while `free`."""

    def __init__(self) -> None:
        self.free, self.unsent = True, 0
        self.written: list[bytes] = []

    def can_write_now(self) -> bool:
        return self.free

    def start_now(self, headers: Any, body: bytes | None = None) -> bool:
        return False

    def write_now(self, data: bytes) -> bool:
        assert self.free
        self.written.append(data)
        return True

    async def drain(self) -> None:
        return None


class Client:
    """What a reply sends over a connection."""

    def __init__(self) -> None:
        self.connection = Connection()
        self.messages: list[Any] = []
        self.request_id = uuid7()
        connection: Any = self.connection
        self.reply = DialectReply(self.send, self.request_id, connection, Counting())

    async def send(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [one["body"] for one in self.messages if one["type"] == "http.response.body"]


@pytest.fixture
async def client() -> Client:
    return Client()


async def test_events_are_translated_once_whichever_way_they_go(client: Client) -> None:
    client.reply.begin(PREPARED, principal())
    await client.reply.start([])
    assert client.reply.write_now(b"a")
    client.connection.free = False
    assert not client.reply.write_now(b"b")
    await client.reply.write(b"b")
    client.connection.free = True
    assert client.reply.write_now(b"skip")
    await client.reply.write(b"skip")
    await client.reply.write(KEEP_ALIVE)
    await client.reply.end(b"z")
    assert client.connection.written == [b"1:a"]
    assert client.bodies == [b"2:b", b"ping", b"5:z"]


async def test_an_answer_is_freed_with_its_request() -> None:
    """A reply that refers to itself would stay, with its translation, until the garbage collector runs."""
    gc.disable()
    try:
        connection: Any = Connection()
        dialect = Counting()
        kept = weakref.ref(dialect)
        reply = DialectReply(Client().send, uuid7(), connection, dialect)
        reply.begin(PREPARED, principal())
        assert reply.write_now(b"a")
        del reply, dialect
        assert kept() is None
    finally:
        gc.enable()


async def test_a_whole_answer_is_translated_with_its_length(client: Client) -> None:
    client.reply.begin(PREPARED, principal())
    await client.reply.respond(b"{}", [])
    assert b"".join(client.bodies) == b"1:{}"
    assert (b"content-length", b"4") in client.messages[0]["headers"]


async def test_headers_of_the_form_stand_beside_the_others(client: Client) -> None:
    client.reply.begin(PREPARED, principal())
    await client.reply.start([(b"x-other", b"1")], 7)
    headers = client.messages[0]["headers"]
    assert (b"x-other", b"1") in headers
    assert (b"x-dialect", b"1") in headers


async def test_errors_have_the_form_and_the_status(client: Client) -> None:
    await client.reply.fail(PaymentRequired("No credit is left."))
    assert client.messages[0]["status"] == 402
    assert msgspec.json.decode(client.bodies[0]) == {
        "id": str(client.request_id), "status": 402, "message": "No credit is left.",
    }  # fmt: skip


async def test_an_error_ends_a_stream_in_the_form(client: Client) -> None:
    client.reply.begin(PREPARED, principal())
    await client.reply.start([])
    await client.reply.fail(EngineFailed("The engine failed."))
    assert client.bodies == [b"1:502"]


async def test_errors_of_checks_behind_the_parser_name_the_callers_fields(client: Client) -> None:
    """Those of the parser have the caller's names: a field that it sent and that only chat has keeps its name."""
    await client.reply.fail(InvalidRequest("There is no field 'max_tokens'.", param="max_tokens"))
    assert b"'max_tokens'" in client.bodies[0]
    other = Client()
    other.reply.begin(PREPARED, principal())
    await other.reply.fail(InvalidRequest("max_tokens is 9.", param="max_tokens"))
    assert b"most_tokens is 9." in other.bodies[0]
