"""Custom tools whose input follows a grammar: what an engine is asked, and the calls that its text becomes."""

import re
from typing import Any

import msgspec
import pytest

from core.errors import InvalidRequest, PenstockError, UnsupportedField
from core.ids import uuid7
from gateway.dialects.responses.parser import parse_responses
from gateway.dialects.responses.translation import Responses
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import PreparedRequest
from gateway.sse import StreamCodec
from tests.support.gateway_fakes import FakeEngines, FakeReply, Gateway, chunk, principal
from tests.support.openai_schema import check, events_of
from tests.support.responses_schema import OPENAI
from tests.support.responses_schema import check as check_response

USER = {"role": "user", "content": "hi"}
LARK = 'start: "SELECT " /[a-z]+/'
GRAMMAR = {"type": "grammar", "grammar": {"syntax": "lark", "definition": LARK}}
REGEX = {"type": "grammar", "grammar": {"syntax": "regex", "definition": r"\d{4}|none"}}
FUNCTION = {"type": "function", "function": {"name": "f"}}
NAMED = {"type": "custom", "custom": {"name": "sql"}}


def tool(form: dict[str, Any], name: str = "sql") -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": name, "format": form}}


def prepared(**fields: object) -> PreparedRequest:
    return parse_chat(msgspec.json.encode({"model": "tiny", "messages": [USER], **fields}))


def sent(**fields: object) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.json.decode(prepared(**fields).engine_body("m", ""))
    return body


def test_a_regular_expression_bounds_the_tools_one_argument() -> None:
    [function] = sent(tools=[tool(REGEX)])["tools"]
    pattern = function["function"]["parameters"]["properties"]["input"]["pattern"]
    for text, matches in (("2026", True), ("none", True), ("x2026", False), ("20261", False)):
        assert bool(re.search(pattern, text)) is matches
    assert function["function"]["strict"] is True


@pytest.mark.parametrize(
    "choice",
    [
        NAMED,
        "required",
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
    ],
)
@pytest.mark.parametrize(
    ("form", "constraint"), [(GRAMMAR, {"grammar": LARK}), (REGEX, {"regex": r"\d{4}|none"})]
)
def test_the_text_of_a_forced_call_follows_the_grammar(
    choice: Any, form: dict[str, Any], constraint: dict[str, str]
) -> None:
    tools = [tool(form)] if choice == "required" else [tool(form), FUNCTION]
    body = sent(tools=tools, tool_choice=choice)
    assert (body["tool_choice"], body["structured_outputs"]) == ("none", constraint)
    assert body["tools"][0]["function"]["name"] == "sql"
    request = prepared(tools=tools, tool_choice=choice)
    assert ("json", "tools") in request.needs
    assert request.may_force_end
    assert not request.in_one_piece


@pytest.mark.parametrize("choice", ["auto", None, "required"])
def test_a_grammar_of_a_tool_that_is_not_forced_is_refused(choice: str | None) -> None:
    with pytest.raises(UnsupportedField, match="only where the call is forced") as refused:
        prepared(tools=[tool(GRAMMAR), FUNCTION], tool_choice=choice)
    assert refused.value.param == "tools[0].custom.format"
    assert "structured_outputs" not in sent(tools=[tool(GRAMMAR), FUNCTION], tool_choice="none")


@pytest.mark.parametrize(
    "more",
    [
        {"structured_outputs": {"regex": "a"}},
        {"response_format": {"type": "json_object"}},
        {"tools": [tool({"type": "grammar"})]},
        {"tools": [tool({"type": "grammar", "grammar": {"syntax": "bnf", "definition": "x"}})]},
        {"tools": [tool({"type": "grammar", "grammar": {"syntax": "lark", "definition": " "}})]},
        {"tools": [tool({"type": "grammar", "grammar": {"syntax": "lark", "definition": "a\0"}})]},
    ],
)
def test_what_does_not_go_together_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        prepared(**{"tools": [tool(GRAMMAR)], "tool_choice": NAMED, **more})


EVENTS = [
    chunk("", tokens=0, role=True),
    chunk("SELECT ", tokens=1),
    chunk('"a"', tokens=2),
    chunk("", tokens=3, finish="stop"),
]


async def whole() -> dict[str, Any]:
    """The answer to a forced call of the tool, merged from the engine's stream."""
    gateway, reply = Gateway(FakeEngines([*EVENTS, b"data: [DONE]\n\n"])), FakeReply()
    request = prepared(tools=[tool(GRAMMAR)], tool_choice=NAMED)
    await gateway.director.handle(uuid7(), principal(), request, reply)
    [record] = gateway.meter.settled
    assert record.usage.output == 3
    found: dict[str, Any] = msgspec.json.decode(reply.body)
    check(found, "chat")
    return found


async def test_a_whole_answer_is_the_call() -> None:
    [choice] = (await whole())["choices"]
    [call] = choice["message"]["tool_calls"]
    assert (call["type"], call["custom"]) == ("custom", {"name": "sql", "input": 'SELECT "a"'})
    assert call["id"].startswith("call_")
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")


async def test_events_are_parts_of_the_call() -> None:
    gateway, reply = Gateway(FakeEngines([*EVENTS, b"data: [DONE]\n\n"])), FakeReply()
    request = prepared(tools=[tool(GRAMMAR)], tool_choice=NAMED, stream=True)
    await gateway.director.handle(uuid7(), principal(), request, reply)
    events = events_of(reply.body.decode().split("\n\n"), "chat")
    deltas = [event["choices"][0]["delta"] for event in events]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert "".join(call["custom"]["input"] for call in calls) == 'SELECT "a"'
    assert (calls[0]["type"], calls[0]["custom"]["name"]) == ("custom", "sql")
    assert calls[0]["id"].startswith("call_")
    assert all("id" not in call for call in calls[1:])
    assert not any(delta.get("content") for delta in deltas)
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_the_responses_api_has_grammars_too() -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": LARK}
    asked = {
        "model": "tiny", "input": "hi", "tools": [{"type": "custom", "name": "sql", "format": form}],
        "tool_choice": {"type": "custom", "name": "sql"},
    }  # fmt: skip
    request = parse_responses(msgspec.json.encode(asked))
    assert msgspec.json.decode(request.engine_body("m", ""))["structured_outputs"] == {"grammar": LARK}
    answer = msgspec.json.encode(await whole())
    response = msgspec.json.decode(Responses(lambda: 1.0).begin(uuid7(), request).whole(answer))
    assert response["tools"][0]["format"] == form
    [item] = response["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "sql", 'SELECT "a"')
    check_response(response, "Response", OPENAI)
    with pytest.raises(PenstockError, match="only where the call is forced") as refused:
        parse_responses(msgspec.json.encode({**asked, "tool_choice": "auto"}))
    assert refused.value.param == "tools[0].format"


def test_no_event_of_such_a_stream_takes_the_short_way() -> None:
    request = prepared(tools=[tool(GRAMMAR)], tool_choice=NAMED, stream=True)
    codec = StreamCodec(1, 100, extras=request.extras)
    out = codec.feed(EVENTS[0]) + codec.feed(EVENTS[1])
    assert codec.relay_one(EVENTS[1]) is None
    assert b'"content":"SELECT' not in out
