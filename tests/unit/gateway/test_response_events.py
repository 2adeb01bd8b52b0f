"""Events of responses in the background: how they are cut, bounded and numbered, and the state that rows tell."""

import asyncio
import json
import zlib
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.customer.background_reply import BackgroundReply
from core.errors import EngineFailed, PenstockError, UnsupportedField
from core.money import pico_to_usd
from gateway.context import AbortReason
from gateway.dialects.responses import events as response_events
from gateway.dialects.responses.events import Entry, EventLog
from gateway.dialects.responses.parser import parse_responses
from gateway.dialects.responses.state import LOST, document_of
from gateway.dialects.responses.translation import Responses, ResponseTranslation, last_event
from tests.support.gateway_fakes import FakeEngines, Gateway, principal
from tests.support.gateway_fakes import chunk as engine_chunk
from tests.support.responses_schema import OPENAI, check, validate, without_null_usage
from tests.support.waiting import until

REQUEST_ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


def begin(**fields: Any) -> ResponseTranslation:
    body = {"model": "m", "input": "Hello", "background": True, **fields}
    return Responses(lambda: 1_800_000_000.0).begin(REQUEST_ID, parse_responses(json.dumps(body).encode()))


def plain(document: dict[str, Any]) -> dict[str, Any]:
    """The object as it is sent."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
    return found


def chunk(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return b"data: " + json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode() + b"\n\n"


def decoded(events: bytes) -> list[dict[str, Any]]:
    found = [json.loads(each.split(b"\ndata: ")[1]) for each in events.split(b"\n\n")[:-1]]
    for event in found:
        validate(event)
    return found


def test_the_response_is_told_to_be_queued_then_in_progress_once() -> None:
    translation = begin()
    events = decoded(translation.queue() + translation.progress() + translation.progress())
    events += decoded(translation.feed(chunk("Hi")))
    assert [event["type"] for event in events] == [
        "response.created", "response.queued", "response.in_progress", "response.output_item.added",
        "response.content_part.added", "response.output_text.delta",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in events] == list(range(6))
    assert [event["response"]["status"] for event in events[:3]] == ["queued", "queued", "in_progress"]
    assert events[0]["response"]["background"] is True


def test_the_object_of_a_queued_response_stays_as_it_was_when_its_answer_ends() -> None:
    translation = begin()
    document = translation.document("queued")
    translation.feed(chunk("Hi"))
    translation.cancel()
    assert (document["status"], document["output"]) == ("queued", [])


def test_a_cancelled_response_keeps_its_output() -> None:
    translation = begin()
    translation.queue()
    translation.feed(chunk("Hi"))
    events = decoded(translation.cancel())
    assert events[-1]["type"] == "response.output_item.done"
    document = plain(translation.document("cancelled"))
    check(without_null_usage(document), "Response", OPENAI)
    assert (document["status"], document["output"]) == ("cancelled", [events[-1]["item"]])
    assert document["output"][0]["status"] == "incomplete"
    assert last_event(document, 9) == b""


@pytest.mark.parametrize("stream", [True, False])
async def test_a_response_that_was_broken_off_says_what_it_cost(stream: bool) -> None:
    prepared = parse_responses(
        json.dumps({"model": "tiny", "input": "Hello", "background": True, "stream": stream}).encode()
    )
    response = Responses(lambda: 1_800_000_000.0).begin(REQUEST_ID, prepared)
    reply = BackgroundReply(response, None)
    pause = asyncio.Event()
    engines = FakeEngines([engine_chunk("a", tokens=1), engine_chunk("b", tokens=2), pause])
    gateway = Gateway(engines)
    task = asyncio.create_task(gateway.director.handle(REQUEST_ID, principal(), prepared, reply))
    await until(lambda: engines.streams and pause not in engines.streams[0].script, what="the engine pauses")
    assert response.document("in_progress")["usage"] is None
    gateway.open_requests.abort_request(REQUEST_ID, AbortReason.CLIENT_DISCONNECTED)
    with pytest.raises(PenstockError):
        await task
    [record] = gateway.meter.settled
    for document in (response.document("cancelled"), response.failed(503, EngineFailed("x"))):
        found = plain(document)
        assert found["usage"]["output_tokens"] == record.usage.output == 2
        assert found["usage"]["input_tokens"] == record.usage.input
        assert Decimal(str(found["penstock"]["cost_usd"])) == Decimal(pico_to_usd(record.cost)) > 0
        assert found["penstock"]["outcome"] == "client_cancelled"
        check(found, "Response", OPENAI)


def test_what_is_in_the_background_is_stored() -> None:
    with pytest.raises(UnsupportedField) as refused:
        begin(store=False)
    assert refused.value.param == "background"
    assert plain(begin(store=True).document("queued"))["store"] is True


@given(st.integers(1, 6), st.integers(0, 5), st.integers(-1, 12))
def test_an_entry_is_cut_after_any_event(count: int, first: int, after: int) -> None:
    texts = [b"event: x\ndata: %d\n\n" % number for number in range(first, first + count)]
    entry = Entry(first + count - 1, b"".join(texts), False)
    kept = [text for number, text in enumerate(texts, first) if number > after]
    assert entry.after(after) == b"".join(kept)


def test_events_that_come_while_others_are_written_are_kept() -> None:
    log = EventLog("key", asyncio.Event())
    log.add(b"a\n\n", 1)
    log.add(b"b\n\n", 2)
    entry = log.entry()
    assert entry == Entry(1, b"a\n\nb\n\n", False)
    log.add(b"c\n\n", 3)
    log.written(entry)
    log.end()
    rest = log.entry()
    assert rest == Entry(2, b"c\n\n", True)
    log.written(rest)
    assert log.entry() == Entry(2, b"", True)


@pytest.mark.parametrize("bound", ["MAX_EVENTS_BYTES", "MAX_PENDING_BYTES"])
def test_the_events_of_a_response_are_bounded(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_events, bound, 100)
    log = EventLog("key", asyncio.Event())
    for number in range(50):
        log.add(b"x" * 8 + b"\n\n", number + 1)
        assert sum(map(len, log.pending)) <= 110
    assert log.given_up
    log.end()
    assert log.entry() == Entry(49, b"", True)


@dataclass
class Row:
    """What PostgreSQL says of a response."""

    runs: bool
    open: bool = True
    in_progress: bool = False
    cancel: bool = False
    response: bytes = b""


@pytest.mark.parametrize(
    ("row", "status"),
    [
        (Row(runs=True), "queued"),
        (Row(runs=True, in_progress=True), "in_progress"),
        (Row(runs=True, in_progress=True, cancel=True), "cancelled"),
        (Row(runs=False, in_progress=True), "failed"),
        (Row(runs=False, cancel=True), "cancelled"),
        (Row(runs=False, open=False), "completed"),
    ],
)
def test_a_row_tells_the_status(row: Row, status: str) -> None:
    stored = plain(begin().document("completed" if not row.open else "queued"))
    row.response = zlib.compress(json.dumps(stored).encode())
    document = json.loads(document_of(row))
    check(without_null_usage(document), "Response", OPENAI)
    assert document["status"] == status
    assert (document["error"] or {}).get("message") == (LOST if status == "failed" else None)


def test_the_last_event_is_made_from_what_is_stored() -> None:
    translation = begin()
    translation.queue()
    translation.fail(502, EngineFailed("The engine failed."))
    document = plain(translation.failed(502, EngineFailed("The engine failed.")))
    [event] = decoded(last_event(document, 7))
    assert (event["type"], event["sequence_number"]) == ("response.failed", 7)
    assert event["response"] == document
