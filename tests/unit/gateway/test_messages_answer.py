"""Chat events and answers become Anthropic's, whichever way they are cut, and conform to its published schemas."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest
from anthropic.types import Message
from hypothesis import given
from hypothesis import strategies as st

from core.errors import (
    AuthenticationFailed,
    EngineFailed,
    InsufficientCredit,
    InvalidRequest,
    ModelNotFound,
    PenstockError,
    PermissionDenied,
    RateLimited,
    Refused,
    RequestTooLarge,
    Unavailable,
)
from gateway.dialects.messages.dialect import MessagesDialect
from gateway.dialects.messages.request import parse_messages
from gateway.dialects.messages.stream import PING, PING_EVERY, MessageTranslation
from tests.support.anthropic_schema import check, events_of

ID = UUID("01900000-0000-7000-8000-000000000001")
NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
USAGE = {
    "prompt_tokens": 30, "completion_tokens": 7, "total_tokens": 37, "cost": 0.00001,
    "prompt_tokens_details": {"cached_tokens": 16}, "completion_tokens_details": {"reasoning_tokens": 3},
}  # fmt: skip
SHELL = {"id": "chatcmpl-1", "created": 1, "model": "m"}


def translation(thinking: str = "adaptive", max_tokens: int = 100, **members: Any) -> MessageTranslation:
    body = {
        "model": "m", "max_tokens": max_tokens, "messages": [{"role": "user", "content": "Hello"}],
        "thinking": {"type": thinking, **members},
    }  # fmt: skip
    return MessagesDialect(lambda: NOW).begin(ID, parse_messages(msgspec.json.encode(body)))


def event(delta: dict[str, Any] | None = None, **choice: Any) -> bytes:
    choices = [{"index": 0, "delta": delta or {}, "finish_reason": None, **choice}]
    return b"data: " + msgspec.json.encode({**SHELL, "choices": choices}) + b"\n\n"


def last(**members: Any) -> bytes:
    document = {**SHELL, "choices": [], "usage": USAGE, "service_tier": "default", **members}
    document["penstock"] = {"outcome": "completed"}
    return b"data: " + msgspec.json.encode(document) + b"\n\ndata: [DONE]\n\n"


def call(index: int, arguments: str, call_id: str | None = None, name: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return {"tool_calls": [{"index": index, "function": function, **({"id": call_id} if call_id else {})}]}


def assembled(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client puts together; raises when the blocks do not follow one another."""
    message: dict[str, Any] = {}
    inputs: dict[int, str] = {}
    opened = closed = 0
    for one in events:
        kind = one["type"]
        if kind == "message_start":
            assert not message
            message = one["message"]
        elif kind == "content_block_start":
            assert one["index"] == opened == closed == len(message["content"])
            opened += 1
            message["content"].append(dict(one["content_block"]))
        elif kind == "content_block_delta":
            block, delta = message["content"][one["index"]], one["delta"]
            if delta["type"] == "input_json_delta":
                inputs[one["index"]] = inputs.get(one["index"], "") + delta["partial_json"]
            else:
                name = delta["type"].removesuffix("_delta")
                block[name] += delta[name]
        elif kind == "content_block_stop":
            assert one["index"] == closed == opened - 1
            closed += 1
        elif kind == "message_delta":
            assert opened == closed
            message |= one["delta"]
            message["usage"] |= one["usage"]
            message["penstock"] = one["penstock"]
    for index, text in inputs.items():
        message["content"][index]["input"] = msgspec.json.decode(text)
    assert events[-1]["type"] == "message_stop"
    return message


def streamed(
    *events: bytes, made: MessageTranslation | None = None, end: bytes | None = None
) -> dict[str, Any]:
    made = made or translation()
    made.start(30)
    out = b"".join(made.feed(one) for one in events) + made.end(end or last())
    return assembled(events_of(out))


def test_thoughts_text_and_calls_are_blocks_in_turn() -> None:
    message = streamed(
        event({"role": "assistant", "content": ""}),
        event({"reasoning_content": "Let me "}),
        event({"reasoning_content": "think."}),
        event({"content": "I will "}),
        event({"content": "look."}),
        event(call(0, "", "call_a", "look_up")),
        event(call(0, '{"q": ')),
        event(call(0, "1}")),
        event(call(1, '{"q": 2}', "call_b", "look_up")),
        event({}, finish_reason="tool_calls"),
    )
    thought, text, one, two = message["content"]
    assert thought["thinking"] == "Let me think."
    assert thought["signature"]
    assert text["text"] == "I will look."
    assert (one["id"], one["name"], one["input"]) == ("call_a", "look_up", {"q": 1})
    assert (two["id"], two["name"], two["input"]) == ("call_b", "look_up", {"q": 2})
    assert message["stop_reason"] == "tool_use"
    assert message["id"] == f"msg_{ID.hex}"
    assert message["penstock"] == {"outcome": "completed"}


def test_usage_counts_as_anthropic_does() -> None:
    made = translation()
    made.start(30)
    events = events_of(
        made.feed(event({"content": "x"})) + made.end(event({}, finish_reason="stop") + last())
    )
    assert events[0]["message"]["usage"]["input_tokens"] == 30
    usage = events[-2]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (14, 16, 7)
    assert usage["output_tokens_details"] == {"thinking_tokens": 3}
    assert usage["service_tier"] == "standard"
    assert usage["cost"] == 0.00001


@pytest.mark.parametrize(
    ("ends", "max_tokens", "reason", "sequence"),
    [
        ({"finish_reason": "stop"}, 100, "end_turn", None),
        ({"finish_reason": "stop", "stop_reason": "END"}, 100, "stop_sequence", "END"),
        ({"finish_reason": "stop", "stop_reason": 151645}, 100, "end_turn", None),
        ({"finish_reason": "length"}, 7, "max_tokens", None),
        ({"finish_reason": "length"}, 100, "model_context_window_exceeded", None),
        ({"finish_reason": "content_filter"}, 100, "refusal", None),
    ],
)
def test_why_it_stopped(ends: dict[str, Any], max_tokens: int, reason: str, sequence: str | None) -> None:
    made = translation(max_tokens=max_tokens)
    message = streamed(event({"content": "x"}, **ends), made=made)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
    choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, **ends}
    whole = msgspec.json.decode(
        made.whole(msgspec.json.encode({**SHELL, "choices": [choice], "usage": USAGE}))
    )
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)


def test_a_forced_call_that_stopped_by_itself_is_a_call() -> None:
    message = streamed(event(call(0, "{}", "call_a", "look_up")), event({}, finish_reason="stop"))
    assert message["stop_reason"] == "tool_use"


def test_thoughts_that_nobody_asked_for_are_not_shown() -> None:
    made = translation("disabled")
    thoughts = [event({"reasoning_content": "x"}) for _ in range(2 * PING_EVERY)]
    out = b"".join(made.feed(one) for one in thoughts)
    assert out.count(PING) == 1  # the first event begins the message
    events = events_of(out + made.feed(event({"content": "Hi"})) + made.end(last()))
    assert assembled(events)["content"] == [{"type": "text", "text": "Hi", "citations": None}]


def test_omitted_thoughts_are_a_block_without_text() -> None:
    made = translation(display="omitted")
    message = streamed(event({"reasoning_content": "x"}), event({"content": "Hi"}), made=made)
    assert message["content"][0]["thinking"] == ""
    assert message["content"][0]["signature"]


def test_a_stream_without_content_is_a_message() -> None:
    message = streamed(end=event({}, finish_reason="stop") + last())
    assert (message["content"], message["stop_reason"]) == ([], "end_turn")


def test_a_name_may_come_after_the_first_arguments() -> None:
    message = streamed(event(call(0, '{"a"')), event(call(0, ": 1}", None, "look_up")))
    (block,) = message["content"]
    assert (block["name"], block["input"]) == ("look_up", {"a": 1})
    assert block["id"].startswith("toolu_")


def test_an_error_ends_a_stream() -> None:
    made = translation()
    out = made.feed(event({"content": "x"})) + made.fail(502, EngineFailed("The engine failed."))
    error = events_of(out)[-1]
    assert error["error"] == {"type": "api_error", "message": "The engine failed.", "code": "engine_failed"}
    assert error["request_id"] == str(ID)


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ('{"a": [1]}', {"a": [1]}),
        ("", {}),
        ("null", {}),
        ('{"a": ', {"INVALID_JSON": '{"a": '}),
        ("[1]", {"INVALID_JSON": "[1]"}),
    ],
)
def test_a_whole_answer_is_a_message(arguments: str, given: dict[str, Any]) -> None:
    function = {"name": "look_up", "arguments": arguments}
    message = {
        "role": "assistant", "content": "Hi", "reasoning_content": "Hm.", "refusal": None,
        "tool_calls": [{"id": "call_a", "type": "function", "function": function}],
    }  # fmt: skip
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    document = msgspec.json.encode({**SHELL, "choices": [choice], "usage": USAGE, "service_tier": "flex"})
    answer = msgspec.json.decode(translation().whole(document))
    check("Message", answer)
    assert Message.model_validate(answer).usage.input_tokens == 14
    assert [block["type"] for block in answer["content"]] == ["thinking", "text", "tool_use"]
    assert answer["content"][2]["input"] == given
    assert answer["usage"]["service_tier"] == "batch"
    assert answer["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("error", "status", "answered", "kind"),
    [
        (InvalidRequest("x"), 400, 400, "invalid_request_error"),
        (AuthenticationFailed("x"), 401, 401, "authentication_error"),
        (InsufficientCredit("x"), 402, 402, "billing_error"),
        (InsufficientCredit("x"), 429, 429, "billing_error"),
        (PermissionDenied("x"), 403, 403, "permission_error"),
        (ModelNotFound("x"), 404, 404, "not_found_error"),
        (InvalidRequest("x", code="method_not_allowed"), 405, 405, "invalid_request_error"),
        (RequestTooLarge("x"), 413, 413, "request_too_large"),
        (RateLimited("x"), 429, 429, "rate_limit_error"),
        (Refused("x", status=429), 429, 429, "rate_limit_error"),
        (Refused("x"), 503, 529, "overloaded_error"),
        (Unavailable("x"), 503, 503, "api_error"),
        (EngineFailed("x"), 502, 502, "api_error"),
    ],
)
def test_errors_have_anthropics_types(error: PenstockError, status: int, answered: int, kind: str) -> None:
    found, document = MessagesDialect(lambda: NOW).error(ID, status, error)
    assert (found, document["error"]["type"]) == (answered, kind)
    if kind != "request_too_large":  # which Anthropic answers and its description lacks
        check("ErrorResponse", document)


def test_a_prompt_that_is_too_long_is_called_so() -> None:
    error = InvalidRequest("It does not fit.", code="context_length_exceeded")
    _, document = MessagesDialect(lambda: NOW).error(ID, 400, error)
    assert document["error"]["message"] == "prompt is too long: It does not fit."


def test_limits_have_anthropics_headers() -> None:
    headers = [
        (b"x-ratelimit-limit-requests", b"60"), (b"x-ratelimit-remaining-requests", b"59"),
        (b"x-ratelimit-reset-requests", b"90.500s"), (b"x-penstock-outcome", b"completed"),
    ]  # fmt: skip
    assert MessagesDialect(lambda: NOW).headers(ID, headers) == [
        (b"request-id", str(ID).encode()),
        (b"anthropic-ratelimit-requests-limit", b"60"),
        (b"anthropic-ratelimit-requests-remaining", b"59"),
        (b"anthropic-ratelimit-requests-reset", b"2026-11-23T12:01:30Z"),
    ]


texts = st.text(min_size=1, max_size=8)
inputs = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=10), max_size=3)


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[bytes], str, str, list[dict[str, Any]]]:
    """The events of an answer in any pieces, and its thoughts, text and inputs of calls."""
    thoughts, said = draw(st.lists(texts, max_size=4)), draw(st.lists(texts, max_size=4))
    given_to = draw(st.lists(inputs, max_size=3))
    events = [event({"role": "assistant", "content": ""})]
    events += [event({"reasoning_content": text}) for text in thoughts]
    events += [event({"content": text}) for text in said]
    for index, each in enumerate(given_to):
        arguments = msgspec.json.encode(each).decode()
        cuts = sorted(draw(st.lists(st.integers(0, len(arguments)), max_size=3)))
        pieces = [arguments[start:stop] for start, stop in zip([0, *cuts], [*cuts, None], strict=True)]
        events.append(event(call(index, pieces[0], f"call_{index}", "look_up")))
        events += [event(call(index, piece)) for piece in pieces[1:]]
    events.append(event({}, finish_reason="tool_calls" if given_to else "stop"))
    return events, "".join(thoughts), "".join(said), given_to


@given(answers(), st.data())
def test_any_chunking_gives_the_same_message(
    answer: tuple[list[bytes], str, str, list[dict[str, Any]]], data: st.DataObject
) -> None:
    events, thoughts, said, given_to = answer
    cuts = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=4)))
    reads = [b"".join(events[start:stop]) for start, stop in zip([0, *cuts], [*cuts, None], strict=True)]
    message = streamed(*reads)
    assert message == streamed(*events)
    blocks = message["content"]
    assert "".join(block["thinking"] for block in blocks if block["type"] == "thinking") == thoughts
    assert "".join(block["text"] for block in blocks if block["type"] == "text") == said
    called = [block for block in blocks if block["type"] == "tool_use"]
    assert [block["input"] for block in called] == given_to
    assert [block["id"] for block in called] == [f"call_{index}" for index in range(len(given_to))]
    assert message["stop_reason"] == ("tool_use" if given_to else "end_turn")
    assert message["usage"]["output_tokens"] == 7
    check("Message", message)
