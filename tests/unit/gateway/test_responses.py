"""Responses: what an engine gets for a request, and that answers have the form that the official schemas describe."""

import json
import zlib
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import EngineFailed, InvalidRequest, RateLimited, RequestTooLarge, UnsupportedField
from gateway.dialects.responses.parser import parse_continued, parse_responses
from gateway.dialects.responses.request import ResponsesRequest
from gateway.dialects.responses.stored import StoredContext, framed
from gateway.dialects.responses.translation import Responses
from gateway.schemas.chat import ChatRequest
from gateway.schemas.common import PreparedRequest
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.fields import IGNORED, OTHER_ROUTE, REFUSED
from gateway.sse import DONE
from tests.support.responses_schema import OPEN, OPENAI, check, validate

REQUEST_ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
NOW = 1_800_000_000.0
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 5,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 3},
    "completion_tokens_details": {"reasoning_tokens": 2},
    "cost": 0.000012,
}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
CUSTOM = {"type": "custom", "name": "shell"}


def prepared(**fields: Any) -> PreparedRequest:
    return parse_responses(json.dumps({"model": "m", "input": "Hello", **fields}).encode())


def sent(**fields: Any) -> dict[str, Any]:
    """What the engine gets."""
    body: dict[str, Any] = json.loads(prepared(**fields).engine_body("m", ""))
    return body


def messages(*items: Any, **fields: Any) -> Any:
    return sent(input=list(items), **fields)["messages"]


def message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def call(call_id: str, name: str = "f", arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id: str, text: str = "42") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def chat_call(call_id: str, name: str = "f", arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_text_is_a_message_of_the_user() -> None:
    body = sent()
    assert body["messages"] == [message("user", "Hello")]
    assert prepared().include_usage
    assert prepared(stream=True).stream


def test_instructions_and_leading_system_messages_are_one_message() -> None:
    found = messages(
        message("developer", "B"), message("user", "C"), message("system", "D"), instructions="A"
    )
    assert found == [message("system", "A\n\nB"), message("user", "C"), message("system", "D")]


def test_what_the_model_made_is_one_message() -> None:
    parts = [{"type": "output_text", "text": "Let me see.", "annotations": []}]
    reasoning = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "R"}],
    }
    found = messages(
        message("user", "A"),
        reasoning,
        {"type": "message", "role": "assistant", "content": parts, "id": "msg_1", "status": "completed"},
        call("c1"),
        call("c2"),
        output("c2", "2"),
        output("c1", "1"),
        call("c3"),
        {"type": "function_call_output", "call_id": "c3", "output": [{"type": "input_text", "text": "3"}]},
    )
    assert found == [
        message("user", "A"),
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "R",
            "tool_calls": [chat_call("c1"), chat_call("c2")],
        },
        {"role": "tool", "content": "2", "tool_call_id": "c2"},
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
        {"role": "assistant", "tool_calls": [chat_call("c3")]},
        {"role": "tool", "content": "3", "tool_call_id": "c3"},
    ]


def test_two_answers_are_two_messages() -> None:
    found = messages(message("assistant", "A"), message("assistant", "B"), message("user", "C"))
    assert found == [message("assistant", "A"), message("assistant", "B"), message("user", "C")]


def test_custom_tools_are_functions_with_one_text() -> None:
    custom_call = {"type": "custom_tool_call", "call_id": "c", "name": "shell", "input": "ls"}
    result = {"type": "custom_tool_call_output", "call_id": "c", "output": "x"}
    body = sent(input=[message("user", "A"), custom_call, result], tools=[CUSTOM, FUNCTION])
    assert [tool["function"]["name"] for tool in body["tools"]] == ["shell", "f"]
    assert body["messages"][1]["tool_calls"] == [chat_call("c", "shell", '{"input":"ls"}')]


@pytest.mark.parametrize(
    ("choice", "expected", "names"),
    [
        ("required", "required", ["f", "shell"]),
        ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}, ["f", "shell"]),
        (
            {"type": "custom", "name": "shell"},
            {"type": "function", "function": {"name": "shell"}},
            ["f", "shell"],
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
            "required",
            ["f"],
        ),
    ],
)
def test_tool_choice(choice: Any, expected: Any, names: list[str]) -> None:
    body = sent(tools=[FUNCTION, CUSTOM], tool_choice=choice)
    assert body["tool_choice"] == expected
    assert [tool["function"]["name"] for tool in body["tools"]] == names


def test_the_tools_of_a_namespace_have_its_name() -> None:
    group = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [FUNCTION, CUSTOM]}
    body = sent(tools=[group, FUNCTION])
    names = [each["function"]["name"] for each in body["tools"]]
    own = FUNCTION["name"]
    assert names == [f"crm__{own}", f"crm__{CUSTOM['name']}", own]
    earlier = {**call("c", own), "namespace": "crm"}
    assert messages(earlier, output("c"), tools=[group])[0]["tool_calls"] == [chat_call("c", f"crm__{own}")]
    translation = Responses(lambda: NOW).begin(REQUEST_ID, prepared(tools=[group, FUNCTION]))
    chosen = {"tool_calls": [chat_call("c", f"crm__{own}"), chat_call("d", own)]}
    answer = {"choices": [{"message": chosen, "finish_reason": "tool_calls"}], "usage": {}}
    response = json.loads(translation.whole(json.dumps(answer).encode()))
    assert [(each.get("namespace"), each["name"]) for each in response["output"]] == [
        ("crm", own),
        (None, own),
    ]
    check(response, "Response", OPENAI)
    assert response["tools"][0]["type"] == "namespace"
    with pytest.raises(RequestTooLarge, match="64 characters"):
        prepared(tools=[{**group, "name": "n" * 64}])
    several = [{**FUNCTION, "name": f"f{number}"} for number in range(64)]
    with pytest.raises(RequestTooLarge, match="129 tools"):
        prepared(tools=[{**group, "tools": several}, {**group, "name": "b", "tools": several}, FUNCTION])


def test_a_search_that_may_not_leave_is_left_out_by_name() -> None:
    search = {"type": "web_search", "external_web_access": False}
    asked = prepared(tools=[FUNCTION, search])
    assert asked.ignored_fields == ("tools[1]",)
    assert len(json.loads(asked.engine_body("m", ""))["tools"]) == 1
    assert "tools" not in sent(tools=[search], parallel_tool_calls=True)


def test_settings_reach_the_engine() -> None:
    schema = {"type": "object", "properties": {}}
    form = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    body = sent(
        text={"format": form, "verbosity": "low"},
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=20,
        top_logprobs=2,
        presence_penalty=1,
        include=["message.output_text.logprobs"],
    )
    expected = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 20, "top_logprobs": 2, "logprobs": True}
    assert expected.items() <= body.items()
    assert body["response_format"]["json_schema"] == {"name": "n", "schema": schema, "strict": True}
    assert prepared(text={"verbosity": "low"}).ignored_fields == ("text.verbosity",)
    assert ("reasoning", "reasoning.effort") in prepared(reasoning={"effort": "high"}).needs
    engine = {
        "ignore_eos": True,
        "min_tokens": 3,
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "seed": 7,
    }
    assert engine.items() <= sent(**engine).items()
    with pytest.raises(InvalidRequest, match="'max_output_tokens'"):
        prepared(min_tokens=9, max_output_tokens=5)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call", "id": "x"}]}, "input[0].type"),
        ({"input": [message("user", "A"), {"type": "function_call", "call_id": "c"}]}, "input[1].name"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "owner", "content": "A"}]}, "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
        ({"input": [call("c")]}, "input"),
        ({"input": [output("c")]}, "input"),
        ({"input": [call("c"), call("c"), output("c")]}, "input"),
        ({"input": [call("c"), call("d"), output("d"), call("e")]}, "input"),
        ({"input": [call("c", arguments="[" * 99), output("c")]}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name"),
        (
            {"tools": [{**CUSTOM, "format": {"type": "grammar", "syntax": "lark"}}]},
            "tools[0].format.definition",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": []}}}, "text.format.schema"),
        ({"include": ["web_search_call.results"]}, "include"),
        ({"truncation": "auto"}, "truncation"),
        (dict(background=True, store=False), "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"messages": [message("user", "A")]}, "messages"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"temprature": 1}, "temprature"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
    ],
)
def test_errors_name_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as found:
        prepared(**fields)
    assert found.value.param == param
    assert "messages[" not in found.value.message


def test_end_users_and_tags_are_those_of_chat() -> None:
    labels = prepared(safety_identifier="u1", metadata={"tag_team": "a", "other": "b"}).labels
    assert labels is not None
    assert (labels.end_user, dict(labels.tags)) == ("u1", {"tag_team": "a"})


def test_unavailable_fields_may_be_null() -> None:
    names = ("conversation", "prompt", "background", "truncation")
    assert prepared(**dict.fromkeys(names)).model == "m"


def test_fields_of_other_routes_are_refused_by_name() -> None:
    others = {*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__}
    known = {*ResponsesRequest.__struct_fields__, *IGNORED, *REFUSED}
    assert OTHER_ROUTE["responses"] == others - known
    with pytest.raises(UnsupportedField, match="another route"):
        prepared(stop=["x"])


def test_the_input_is_kept_as_items() -> None:
    kept = json.loads(zlib.decompress(prepared().dialect_fields["input"]))
    assert kept == [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]


def test_a_request_continues_stored_items() -> None:
    stored = json.loads(begin(**SETTINGS).whole(json.dumps(WHOLE).encode()))["output"]
    question = {"type": "message", "role": "user", "content": "A"}
    chain = [msgspec.Raw(json.dumps(item).encode()) for item in (question, *stored)]
    results = [output("c1"), {"type": "custom_tool_call_output", "call_id": "c2", "output": "files"}]
    body = {"model": "m", "input": results, "previous_response_id": "resp_1"}
    found = parse_continued(framed(StoredContext(chain=chain), json.dumps(body).encode()))
    roles = [each["role"] for each in json.loads(bytes(found.fields["messages"]))]
    assert roles == ["user", "assistant", "tool", "tool"]
    assert found.dialect_fields["previous"] == "resp_1"
    kept = json.loads(zlib.decompress(found.dialect_fields["input"]))
    assert [item["call_id"] for item in kept] == ["c1", "c2"]


def test_references_are_replaced_by_the_items() -> None:
    item = {"type": "message", "role": "assistant", "id": "msg_1", "content": "Hi"}
    named = {"msg_1": msgspec.Raw(json.dumps(item).encode())}
    body = {"model": "m", "input": [{"type": "item_reference", "id": "msg_1"}, message("user", "A")]}
    found = parse_continued(framed(StoredContext(named=named), json.dumps(body).encode()))
    assert json.loads(bytes(found.fields["messages"])) == [message("assistant", "Hi"), message("user", "A")]


def test_nothing_is_kept_that_shall_not_be_stored() -> None:
    fields = prepared(store=False).dialect_fields
    assert (fields["store"], fields["input"]) == (False, b"")


# Answers


def chunk(delta: dict[str, Any], finish_reason: str | None = None, **choice: Any) -> dict[str, Any]:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish_reason, **choice}]
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}


def last() -> dict[str, Any]:
    return {
        "id": "c",
        "model": "m",
        "choices": [],
        "usage": USAGE,
        "service_tier": "default",
        "penstock": {"outcome": "completed"},
    }


def encoded(*chunks: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in chunks)


def begin(**fields: Any) -> Any:
    return Responses(lambda: NOW).begin(REQUEST_ID, prepared(**fields))


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """The events, each validated against the schemas that know its type."""
    assert stream.endswith(DONE)
    found = []
    for text in stream.removesuffix(DONE).decode().split("\n\n")[:-1]:
        name, _, data = text.removeprefix("event: ").partition("\ndata: ")
        event = json.loads(data)
        assert event["type"] == name
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def stream_of(translation: Any, chunks: list[dict[str, Any]], cuts: list[int] | None = None) -> bytes:
    """The translated stream; `cuts`: after which events a write ends."""
    parts, pending = [], b""
    for position, each in enumerate(chunks):
        pending += encoded(each)
        if cuts is None or position in cuts:
            parts.append(translation.feed(pending))
            pending = b""
    return b"".join([*parts, translation.end(pending + encoded(last()) + DONE)])


LOGPROB = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}
CHUNKS = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning": "Hm", "reasoning_content": "Hm"}),
    chunk({"reasoning_content": "."}),
    chunk({"content": "Hi"}, logprobs={"content": [LOGPROB]}),
    chunk({"content": " there"}),
    chunk({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
    chunk(
        {
            "tool_calls": [
                {"index": 1, "id": "c2", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
            ]
        }
    ),
    chunk({}, "tool_calls"),
]
WHOLE = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "reasoning_content": "Hm.",
                "content": "Hi there",
                "tool_calls": [
                    chat_call("c1", arguments='{"a":1}'),
                    {"id": "c2", "type": "custom", "custom": {"name": "shell", "input": "ls"}},
                ],
            },
            "logprobs": {"content": [LOGPROB]},
            "finish_reason": "tool_calls",
        }
    ],
    "usage": USAGE,
    "service_tier": "default",
    "penstock": {"outcome": "completed"},
}
SETTINGS: dict[str, Any] = {"tools": [FUNCTION, CUSTOM], "metadata": {"a": "b"}, "instructions": "Be brief."}


def test_a_stream_tells_how_every_item_grows() -> None:
    events = events_of(stream_of(begin(**SETTINGS), CHUNKS))
    for event in events:
        validate(event)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "output_item.added", "custom_tool_call_input.delta",
        "function_call_arguments.done", "output_item.done", "custom_tool_call_input.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert [event["output_index"] for event in events if event["type"].endswith("item.added")] == [0, 1, 2, 3]
    final = events[-1]["response"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert final["output"] == done
    assert final["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 12,
        "cost": 0.000012,
    }
    assert final["completed_at"] == NOW
    assert final["metadata"] == {"a": "b"}


@given(st.sets(st.integers(0, len(CHUNKS) - 1)))
def test_the_final_response_is_that_of_the_whole_answer(cuts: set[int]) -> None:
    events = events_of(stream_of(begin(**SETTINGS), CHUNKS, sorted(cuts)))
    assert events[-1]["response"] == json.loads(begin(**SETTINGS).whole(json.dumps(WHOLE).encode()))


PIECES = st.lists(
    st.tuples(st.sampled_from(["reasoning_content", "content", "refusal", "call"]), st.text(max_size=5)),
    max_size=12,
)


@given(PIECES)
def test_deltas_add_up_to_the_items(pieces: list[tuple[str, str]]) -> None:
    """Whatever an engine sends in whatever order, no text is lost, and every item that begins ends."""
    chunks, index = [], -1
    for kind, text in pieces:
        if kind == "call":
            index += 1
            function = {"name": "f", "arguments": text}
            chunks.append(chunk({"tool_calls": [{"index": index, "id": f"c{index}", "function": function}]}))
        else:
            chunks.append(chunk({kind: text}))
    events = events_of(stream_of(begin(tools=[FUNCTION]), [*chunks, chunk({}, "stop")]))
    final = events[-1]["response"]
    check(final, "ResponseResource", OPEN)
    check(final, "Response", OPENAI)
    deltas: dict[str, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            deltas[event["item_id"]] = deltas.get(event["item_id"], "") + event["delta"]
    for item in final["output"]:
        parts = item.get("content") or [{"text": item.get("arguments", "")}]
        text = "".join(part.get("text", part.get("refusal", "")) for part in parts)
        assert text == deltas.get(item["id"], "")
    assert len({item["id"] for item in final["output"]}) == len(final["output"])
    sent_texts = sorted(text for _, text in pieces if text)
    assert sum(map(len, deltas.values())) == sum(map(len, sent_texts))


def test_an_answer_that_ends_at_its_limit_is_incomplete() -> None:
    events = events_of(stream_of(begin(), [chunk({"content": "Hi"}), chunk({}, "length")]))
    for event in events:
        validate(event)
    assert events[-1]["type"] == "response.incomplete"
    response = events[-1]["response"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert response["completed_at"] is None


def test_a_stream_that_breaks_says_so() -> None:
    translation = begin()
    stream = translation.feed(encoded(chunk({"content": "Hi"})))
    stream += translation.fail(502, EngineFailed("The engine failed."))
    events = events_of(stream)
    for event in events:
        validate(event)
    assert events[-2]["type"] == "error"
    assert events[-2]["message"] == events[-2]["error"]["message"] == "The engine failed."
    failed = events[-1]["response"]
    assert failed["status"] == "failed"
    assert failed["error"] == {"code": "server_error", "message": "The engine failed."}
    assert failed["output"][0]["status"] == "incomplete"
    assert failed["usage"] is None


def test_a_stream_may_fail_before_its_first_event() -> None:
    events = events_of(begin().fail(429, RateLimited("Slower.")))
    assert [event["type"] for event in events] == [
        "response.created", "response.in_progress", "error", "response.failed",
    ]  # fmt: skip
    assert events[-1]["response"]["error"]["code"] == "rate_limit_exceeded"


def test_an_empty_answer_has_no_items() -> None:
    assert events_of(stream_of(begin(), [chunk({}, "stop")]))[-1]["response"]["output"] == []


def test_a_silent_stream_gets_comments() -> None:
    assert begin().keep_alive().startswith(b":")
