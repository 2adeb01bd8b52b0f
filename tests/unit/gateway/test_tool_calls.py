"""Custom and allowed tools and OpenAI's older functions: what engines get, and the form of the calls in answers."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidRequest
from core.ids import uuid7
from gateway.schemas.common import CallForm
from gateway.tool_calls import InputReader, reshape_answer
from tests.support.gateway_fakes import FakeEngines, FakeReply, Gateway, chunk, final, principal
from tests.unit.gateway.test_request_params import prepared, sent

SPEC = {"name": "f", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": SPEC}
CUSTOM = {
    "type": "custom",
    "custom": {"name": "shell", "description": "Runs it.", "format": {"type": "text"}},
}
USER = {"role": "user", "content": "x"}


def names(body: dict[str, Any]) -> list[str]:
    assert all(tool["type"] == "function" for tool in body["tools"])
    return [tool["function"]["name"] for tool in body["tools"]]


def test_older_functions_become_tools() -> None:
    body = sent("chat", functions=[SPEC])
    assert body == {"tools": [TOOL], "parallel_tool_calls": False}
    assert sent("chat", functions=[SPEC], function_call="auto")["tool_choice"] == "auto"
    assert sent("chat", functions=[SPEC], function_call="none")["tool_choice"] == "none"
    chosen = sent("chat", functions=[SPEC], function_call={"name": "f"})["tool_choice"]
    assert chosen == {"type": "function", "function": {"name": "f"}}
    assert sent("chat", function_call="none", functions=[]) == {}
    for wrong in (
        {"functions": [SPEC], "tools": [TOOL]},
        {"functions": [SPEC], "function_call": {"name": "g"}},
        {"functions": [SPEC, SPEC]},
        {"functions": [{"name": "bad name"}]},
        {"function_call": {"name": "f"}},
    ):
        with pytest.raises(InvalidRequest):
            prepared("chat", **wrong)


def test_custom_tools_become_functions() -> None:
    body = sent("chat", tools=[CUSTOM, TOOL], tool_choice={"type": "custom", "custom": {"name": "shell"}})
    assert names(body) == ["shell", "f"]
    assert body["tools"][0]["function"]["parameters"]["required"] == ["input"]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "shell"}}
    grammar = {"type": "grammar", "grammar": {"definition": "a", "syntax": "lark"}}
    with pytest.raises(InvalidRequest, match="grammar"):
        prepared("chat", tools=[{"type": "custom", "custom": {"name": "a", "format": grammar}}])


def test_of_allowed_tools_the_others_are_left_out() -> None:
    def choice(mode: str, *allowed: dict[str, object]) -> dict[str, object]:
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(allowed)}}

    function = {"type": "function", "function": {"name": "f"}}
    body = sent("chat", tools=[CUSTOM, TOOL], tool_choice=choice("required", function))
    assert (names(body), body["tool_choice"]) == (["f"], "required")
    custom = {"type": "custom", "custom": {"name": "shell"}}
    body = sent("chat", tools=[CUSTOM, TOOL], tool_choice=choice("auto", custom, function))
    assert (names(body), body["tool_choice"]) == (["shell", "f"], "auto")
    for wrong in (
        choice("auto"),
        choice("none", function),
        choice("auto", {**function, "function": {"name": "g"}}),
    ):
        with pytest.raises(InvalidRequest):
            prepared("chat", tools=[CUSTOM, TOOL], tool_choice=wrong)


def test_older_and_custom_calls_of_a_conversation() -> None:
    messages = [
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": None},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "shell", "input": 'ls "a"'}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": None},
    ]
    body = msgspec.json.decode(prepared("chat", messages=messages).engine_body("m", ""))["messages"]
    assert body[1]["tool_calls"] == [
        {"id": "call_1", "function": {"name": "f", "arguments": "{}"}, "type": "function"}
    ]
    assert body[2] == {"role": "tool", "content": "", "tool_call_id": "call_1"}
    [call] = body[3]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"input": 'ls "a"'}
    assert body[4]["content"] == ""
    for wrong in (
        [USER, messages[2]],
        [USER, messages[1], {**messages[2], "name": "g"}],
        [USER, messages[1], USER],
        [USER, {**messages[1], "tool_calls": messages[3]["tool_calls"]}],
        [USER, {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]}],
    ):
        with pytest.raises(InvalidRequest):
            prepared("chat", messages=wrong)


def called(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def whole(calls: list[dict[str, Any]]) -> dict[str, Any]:
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}


def test_a_whole_answer_has_the_form_that_was_asked_for() -> None:
    answer = whole([called("f", "{}")])
    reshape_answer(answer, CallForm())
    assert answer == whole([called("f", "{}")])
    reshape_answer(answer, CallForm(functions=True))
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "f", "arguments": "{}"}
    assert "tool_calls" not in choice["message"]

    answer = whole([called("f", "{}"), called("shell", '{"input": "ls"}'), called("shell", "broken")])
    reshape_answer(answer, CallForm(custom=("shell",)))
    calls = answer["choices"][0]["message"]["tool_calls"]
    assert calls[0] == called("f", "{}")
    assert calls[1] == {"id": "c1", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
    assert calls[2]["custom"]["input"] == "broken"


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.booleans(),
    st.lists(st.integers(1, 7), min_size=1, max_size=10),
)
def test_the_input_of_a_custom_tool_survives_any_cut(text: str, ascii_only: bool, cuts: list[int]) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    reader, read, at, turn = InputReader(), "", 0, 0
    while at < len(arguments):
        step = cuts[turn % len(cuts)]
        read += reader.read(arguments[at : at + step])
        at, turn = at + step, turn + 1
    assert read == text


def event(delta: dict[str, Any], *, tokens: int, finish: str | None = None) -> bytes:
    document = msgspec.json.decode(chunk(tokens=tokens, finish=finish)[6:])
    document["choices"][0]["delta"] = delta
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


def piece(arguments: str, **first: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": first.pop("name")} if first else {})}
    return {"tool_calls": [{"index": 0, **first, "function": function}]}


async def streamed(name: str, pieces: list[str], **fields: object) -> list[dict[str, Any]]:
    """The choices of a stream's events in which the engine calls a function in pieces."""
    events = [event(piece("", id="c1", type="function", name=name), tokens=1)]
    events += [event(piece(text), tokens=number + 2) for number, text in enumerate(pieces)]
    events += [event({}, tokens=9, finish="tool_calls"), final(9), b"data: [DONE]\n\n"]
    gateway, reply = Gateway(FakeEngines(events)), FakeReply()
    request = prepared("chat", model="tiny", stream=True, **fields)
    await gateway.director.handle(uuid7(), principal(), request, reply)
    gateway.assert_resolved()
    lines = bytes(reply.body).split(b"\n\n")
    found = [msgspec.json.decode(line[6:]) for line in lines if line.startswith(b"data: {")]
    return [choice for one in found for choice in one["choices"]]


async def test_a_stream_has_the_form_that_was_asked_for() -> None:
    choices = await streamed("f", ['{"a"', ": 1}"], functions=[SPEC])
    calls = [choice["delta"].get("function_call", {}) for choice in choices]
    assert calls[0] == {"name": "f", "arguments": ""}
    assert "".join(call.get("arguments", "") for call in calls) == '{"a": 1}'
    assert choices[-1]["finish_reason"] == "function_call"
    assert all("tool_calls" not in choice["delta"] for choice in choices)

    choices = await streamed("shell", ['{"inp', 'ut": "l', "s \\", 'n"}'], tools=[CUSTOM])
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    assert {name: calls[0][name] for name in ("id", "type")} == {"id": "c1", "type": "custom"}
    assert calls[0]["custom"]["name"] == "shell"
    assert "".join(call["custom"]["input"] for call in calls) == "ls \n"
    assert choices[-1]["finish_reason"] == "tool_calls"

    choices = await streamed("f", ["{}"], tools=[CUSTOM, TOOL])
    assert [call["function"] for choice in choices for call in choice["delta"].get("tool_calls", ())] == [
        {"arguments": "", "name": "f"},
        {"arguments": "{}"},
    ]
