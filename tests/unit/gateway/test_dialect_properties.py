"""Whatever an engine answers, each dialect keeps its ids, texts, ends and counts: streamed, whole, and sent back.

A chat answer is drawn and given to a dialect as a stream, cut into events and reads at any place, and as a document.
Both are the same answer; sent back as history, it becomes the chat messages that it came from.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.dialect import Translation
from gateway.dialects.messages.dialect import MessagesDialect
from gateway.dialects.messages.request import parse_messages
from gateway.dialects.responses.parser import parse_responses
from gateway.dialects.responses.translation import Responses

ID = UUID("01900000-0000-7000-8000-000000000001")
NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
ASKED = 100
"""The output tokens that every request allows."""
TOOLS = ("look_up", "run")
DONE = b"data: [DONE]\n\n"
text = st.text(max_size=12)
arguments = st.dictionaries(st.text(max_size=5), st.integers(-(2**53), 2**53) | text, max_size=3)


@dataclass
class Call:
    """A call of a tool. `id`: empty = the engine gives none."""

    id: str
    name: str
    arguments: str


@dataclass
class Answer:
    """What an engine answers to one chat request."""

    thoughts: str
    text: str
    calls: list[Call]
    finish: str
    stop: str | int | None
    usage: dict[str, Any]

    @property
    def last(self) -> dict[str, Any]:
        """The members that come once, at the end."""
        return {"usage": self.usage, "service_tier": "default", "penstock": {"outcome": "completed"}}

    def document(self) -> bytes:
        """The answer in one piece."""
        message = {
            "role": "assistant", "content": self.text or None, "reasoning_content": self.thoughts or None,
            "tool_calls": [{"type": "function", "id": call.id or None, **_function(call)} for call in self.calls],
        }  # fmt: skip
        choice = {"index": 0, "message": message, "finish_reason": self.finish, "stop_reason": self.stop}
        return msgspec.json.encode(
            {"id": "chatcmpl-1", "created": 1, "model": "m", "choices": [choice], **self.last}
        )

    def reads(self, data: st.DataObject) -> list[bytes]:
        """The events of a stream, each with any part of a text, and several in a read."""
        events = [_event({"role": "assistant", "content": ""})]
        events += [_event({"reasoning_content": part}) for part in _cut(self.thoughts, data)]
        events += [_event({"content": part}) for part in _cut(self.text, data)]
        for index, call in enumerate(self.calls):
            first = {"index": index, "id": call.id or None, "function": {"name": call.name, "arguments": ""}}
            events.append(_event({"tool_calls": [first]}))
            events += [
                _event({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
                for part in _cut(call.arguments, data)
            ]
        events.append(_event({}, finish_reason=self.finish, stop_reason=self.stop))
        places = sorted({0, len(events), *data.draw(st.lists(st.integers(0, len(events)), max_size=4))})
        return [b"".join(events[start:stop]) for start, stop in pairwise(places)]

    def ending(self) -> bytes:
        """The last event of a stream, with the counts."""
        return _data({"id": "chatcmpl-1", "created": 1, "model": "m", "choices": [], **self.last}) + DONE


def _function(call: Call) -> dict[str, Any]:
    return {"function": {"name": call.name, "arguments": call.arguments}}


def _data(document: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


def _event(delta: dict[str, Any], **members: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None, **members}
    return _data({"id": "chatcmpl-1", "created": 1, "model": "m", "choices": [choice]})


def _cut(whole: str, data: st.DataObject) -> list[str]:
    places = sorted({0, len(whole), *data.draw(st.lists(st.integers(0, len(whole)), max_size=4))})
    return [whole[start:stop] for start, stop in pairwise(places)]


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    made = draw(st.lists(st.tuples(st.booleans(), st.sampled_from(TOOLS), arguments), max_size=3))
    calls = [
        Call(f"call_{number}" if has_id else "", name, msgspec.json.encode(given_to).decode())
        for number, (has_id, name, given_to) in enumerate(made)
    ]
    ends = [("length", None), ("stop", None), ("stop", 151645), ("stop", "END"), ("content_filter", None)]
    finish, stop = draw(st.sampled_from([("tool_calls", None), ("stop", None)] if calls else ends))
    prompt, output = draw(st.integers(1, 10**6)), draw(st.integers(0, ASKED))
    usage = {
        "prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": draw(st.integers(0, prompt))},
        "completion_tokens_details": {"reasoning_tokens": draw(st.integers(0, output))},
        "cost": msgspec.Raw(format(Decimal(draw(st.integers(0, 10**15))).scaleb(-12), "f").encode()),
    }  # fmt: skip
    return Answer(draw(text), draw(text), calls, finish, stop, usage)


# -- the two dialects --------------------------------------------------------------------------------------------------


def messages() -> Translation:
    body = {
        "model": "m", "max_tokens": ASKED, "messages": [{"role": "user", "content": "Hello"}],
        "thinking": {"type": "adaptive"},
    }  # fmt: skip
    return MessagesDialect(lambda: NOW).begin(ID, parse_messages(msgspec.json.encode(body)))


def responses() -> Translation:
    body = {"model": "m", "max_output_tokens": ASKED, "input": "Hello", "tools": _tools()}
    return Responses(NOW.timestamp).begin(ID, parse_responses(msgspec.json.encode(body)))


def _tools() -> list[dict[str, Any]]:
    return [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in TOOLS]


def events_of(stream: bytes) -> list[dict[str, Any]]:
    return [
        msgspec.json.decode(line.removeprefix(b"data: "))
        for line in stream.split(b"\n")
        if line.startswith(b"data: {")
    ]


def streamed(translation: Translation, answer: Answer, data: st.DataObject) -> list[dict[str, Any]]:
    translation.start(answer.usage["prompt_tokens"])
    out = b"".join(translation.feed(read) for read in answer.reads(data)) + translation.end(answer.ending())
    return events_of(out)


def message_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client puts together from the events of Anthropic's stream."""
    message: dict[str, Any] = events[0]["message"]
    inputs: dict[int, str] = {}
    for event in events[1:]:
        if event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            kind, delta = event["delta"]["type"], event["delta"]
            if kind == "input_json_delta":
                inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
            else:
                member = kind.removesuffix("_delta")
                message["content"][event["index"]][member] += delta[member]
        elif event["type"] == "message_delta":
            message |= {**event["delta"], "usage": event["usage"], "penstock": event["penstock"]}
    for index, given_to in inputs.items():
        message["content"][index]["input"] = msgspec.json.decode(given_to)
    return message


# -- properties --------------------------------------------------------------------------------------------------------


@given(answers(), st.data())
def test_a_streamed_message_is_the_whole_one(answer: Answer, data: st.DataObject) -> None:
    whole = msgspec.json.decode(messages().whole(answer.document()))
    assert message_of(streamed(messages(), answer, data)) == whole
    assert whole["id"] == f"msg_{ID.hex}"
    assert "".join(block["text"] for block in whole["content"] if block["type"] == "text") == answer.text
    thoughts = [block["thinking"] for block in whole["content"] if block["type"] == "thinking"]
    assert "".join(thoughts) == answer.thoughts
    called = [block for block in whole["content"] if block["type"] == "tool_use"]
    assert [block["name"] for block in called] == [call.name for call in answer.calls]
    assert [block["input"] for block in called] == [
        msgspec.json.decode(call.arguments) for call in answer.calls
    ]
    assert len({block["id"] for block in called}) == len(called)
    assert all(block["id"] == call.id for block, call in zip(called, answer.calls, strict=True) if call.id)


@given(answers(), st.data())
def test_a_streamed_response_is_the_whole_one(answer: Answer, data: st.DataObject) -> None:
    whole = msgspec.json.decode(responses().whole(answer.document()))
    events = streamed(responses(), answer, data)
    assert events[-1]["response"] == {**whole, "store": whole["store"]}
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert {event["response"]["id"] for event in events if "response" in event} == {whole["id"]}
    deltas: dict[str, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            deltas[event["item_id"]] = deltas.get(event["item_id"], "") + event["delta"]
    by_kind = {item["id"]: item for item in whole["output"]}
    assert len(by_kind) == len(whole["output"])
    for name, item in by_kind.items():
        said = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert deltas.get(name, "") == said
    called = [item for item in whole["output"] if item["type"] == "function_call"]
    assert [(item["name"], item["arguments"]) for item in called] == [
        (call.name, call.arguments) for call in answer.calls
    ]
    assert len({item["call_id"] for item in called}) == len(called)
    assert all(item["call_id"] == call.id for item, call in zip(called, answer.calls, strict=True) if call.id)


@given(answers())
def test_counts_and_cost_survive(answer: Answer) -> None:
    chat, details = answer.usage, answer.usage["completion_tokens_details"]
    cached = chat["prompt_tokens_details"]["cached_tokens"]
    cost = b'"cost":' + bytes(chat["cost"])
    raw = messages().whole(answer.document())
    usage = msgspec.json.decode(raw)["usage"]
    assert cost in raw  # to the last digit, never through a float
    assert usage["cache_read_input_tokens"] == cached
    assert usage["input_tokens"] + cached == chat["prompt_tokens"]
    assert usage["output_tokens"] == chat["completion_tokens"]
    assert usage["output_tokens_details"]["thinking_tokens"] == details["reasoning_tokens"]
    raw = responses().whole(answer.document())
    usage = msgspec.json.decode(raw)["usage"]
    assert cost in raw
    assert usage["input_tokens_details"]["cached_tokens"] == cached
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (
        chat["prompt_tokens"], chat["completion_tokens"], chat["total_tokens"],
    )  # fmt: skip
    assert usage["output_tokens_details"] == {"reasoning_tokens": details["reasoning_tokens"]}


@given(answers())
def test_why_an_answer_ended_survives(answer: Answer) -> None:
    message = msgspec.json.decode(messages().whole(answer.document()))
    response = msgspec.json.decode(responses().whole(answer.document()))
    full = answer.usage["completion_tokens"] >= ASKED
    expected = {
        "length": "max_tokens" if full else "model_context_window_exceeded",
        "content_filter": "refusal",
        "tool_calls": "tool_use",
        "stop": "tool_use" if answer.calls else "stop_sequence" if answer.stop == "END" else "end_turn",
    }
    assert message["stop_reason"] == expected[answer.finish]
    assert message["stop_sequence"] == ("END" if message["stop_reason"] == "stop_sequence" else None)
    reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
    if answer.finish in reasons:
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": reasons[answer.finish]}
    else:
        assert (response["status"], response["incomplete_details"]) == ("completed", None)


def _as_history(sent: list[dict[str, Any]], answer: Answer) -> None:
    """Compare the chat messages that an answer, sent back, becomes with what the engine answered."""
    said = [message for message in sent if message["role"] == "assistant"]
    assert "".join(message.get("content") or "" for message in said) == answer.text
    calls = [call for message in said for call in message.get("tool_calls") or ()]
    assert [call["function"]["name"] for call in calls] == [call.name for call in answer.calls]
    assert [msgspec.json.decode(call["function"]["arguments"]) for call in calls] == [
        msgspec.json.decode(call.arguments) for call in answer.calls
    ]
    results = [message["tool_call_id"] for message in sent if message["role"] == "tool"]
    assert results == [call["id"] for call in calls]


@given(answers().filter(lambda answer: answer.text or answer.calls))
def test_a_message_that_is_sent_back_is_what_the_engine_answered(answer: Answer) -> None:
    content = msgspec.json.decode(messages().whole(answer.document()))["content"]
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "42"}
        for block in content
        if block["type"] == "tool_use"
    ]
    history = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": content},
        {"role": "user", "content": results or "Go on."},
    ]
    body = {"model": "m", "max_tokens": ASKED, "messages": history}
    sent = msgspec.json.decode(parse_messages(msgspec.json.encode(body)).fields["messages"])
    _as_history(sent, answer)


@given(answers().filter(lambda answer: answer.text or answer.calls))
def test_a_response_that_is_sent_back_is_what_the_engine_answered(answer: Answer) -> None:
    output = msgspec.json.decode(responses().whole(answer.document()))["output"]
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "42"}
        for item in output
        if item["type"] == "function_call"
    ]
    history = [{"role": "user", "content": "Hello"}, *output, *results, {"role": "user", "content": "Go on."}]
    body = {"model": "m", "input": history, "tools": _tools()}
    prepared = parse_responses(msgspec.json.encode(body))
    _as_history(msgspec.json.decode(prepared.engine_body("m", ""))["messages"], answer)


@pytest.mark.parametrize("translation", [messages, responses])
@given(answer=answers(), data=st.data())
def test_no_read_is_kept_back(translation: Any, answer: Answer, data: st.DataObject) -> None:
    """What an engine has said reaches the client with the read that brings it."""
    made = translation()
    made.start(answer.usage["prompt_tokens"])
    for read in answer.reads(data):
        out = made.feed(read).decode()
        for event in events_of(read):
            for delta in (choice["delta"] for choice in event["choices"]):
                for said in (delta.get("content"), delta.get("reasoning_content")):
                    assert not said or msgspec.json.encode(said).decode() in out
