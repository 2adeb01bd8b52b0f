"""Anthropic's requests become the chat requests that ask for the same."""

from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidRequest, RequestTooLarge, UnsupportedField
from gateway.dialects.messages.request import parse_count, parse_messages
from gateway.parsing.worker import PARSERS, answer, decode_reply
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import PreparedRequest

TOOL = {"name": "look_up", "description": "Looks up.", "input_schema": {"type": "object"}}
HELLO = {"role": "user", "content": "Hello"}


def parse(*messages: Any, **members: Any) -> PreparedRequest:
    body = {"model": "m", "max_tokens": 100, "messages": list(messages) or [HELLO], **members}
    return parse_messages(msgspec.json.encode(body))


def chat(prepared: PreparedRequest) -> list[dict[str, Any]]:
    """The messages that the engine gets."""
    return msgspec.json.decode(prepared.fields["messages"])


def test_the_engine_gets_what_the_same_chat_request_gives_it() -> None:
    own = parse(
        HELLO, system="Be brief.", temperature=0.5, top_p=0.9, top_k=20, stop_sequences=["END"], tools=[TOOL],
        tool_choice={"type": "auto"},
    )  # fmt: skip
    function = {"name": "look_up", "description": "Looks up.", "parameters": {"type": "object"}}
    body = {
        "model": "m", "max_tokens": 100, "temperature": 0.5, "top_p": 0.9, "top_k": 20, "stop": ["END"],
        "messages": [{"role": "system", "content": "Be brief."}, HELLO], "tool_choice": "auto",
        "tools": [{"type": "function", "function": function}],
    }  # fmt: skip
    other = parse_chat(msgspec.json.encode(body))
    assert own.engine_body("m", "") == other.engine_body("m", "")
    assert own.max_input_tokens == other.max_input_tokens


def test_a_system_prompt_of_blocks_and_messages_of_one_role_are_joined() -> None:
    blocks = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.0; cch=1234;"},
        {"type": "text", "text": "One.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Two."},
    ]
    messages = chat(
        parse(HELLO, {"role": "user", "content": [{"type": "text", "text": "again"}]}, system=blocks)
    )
    parts = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]
    both = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "again"}]
    assert messages == [{"role": "system", "content": parts}, {"role": "user", "content": both}]


def test_calls_and_results_of_tools_keep_their_ids() -> None:
    calls = [
        {"type": "thinking", "thinking": "Hm.", "signature": "any"},
        {"type": "redacted_thinking", "data": "any"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "toolu_1", "name": "a" * 100, "input": {"q": 1.5}},
        {"type": "tool_use", "id": "toolu_2", "name": "look_up", "input": {}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "toolu_2", "content": "No network.", "is_error": True},
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "42"}]},
        {"type": "text", "text": "Go on."},
    ]
    messages = chat(
        parse(HELLO, {"role": "assistant", "content": calls}, {"role": "user", "content": results})
    )
    function = {
        "id": "toolu_1",
        "type": "function",
        "function": {"name": "a" * 100, "arguments": '{"q":1.5}'},
    }
    assert messages[1]["content"] == "Let me see."
    assert messages[1]["reasoning"] == "Hm."
    assert msgspec.json.encode(messages[1]["tool_calls"][0]) == msgspec.json.encode(
        {key: function[key] for key in messages[1]["tool_calls"][0]}
    )
    assert messages[2:] == [
        {"role": "tool", "content": "Error: No network.", "tool_call_id": "toolu_2"},
        {"role": "tool", "content": "42", "tool_call_id": "toolu_1"},
        {"role": "user", "content": "Go on."},
    ]


def test_documents_and_search_results_of_text_are_read() -> None:
    document = {
        "type": "document",
        "title": "Notes",
        "source": {"type": "text", "media_type": "text/plain", "data": "A b."},
    }
    found = {"type": "search_result", "title": "T", "source": "S", "content": [{"type": "text", "text": "C"}]}
    (message,) = chat(parse({"role": "user", "content": [document, found]}))
    assert [part["text"] for part in message["content"]] == ["Notes\n\nA b.", "T (S)\nC"]


@pytest.mark.parametrize(
    ("block", "ability"),
    [
        ({"type": "image", "source": {"type": "url", "url": "https://x"}}, "vision"),
        ({"type": "document", "source": {"type": "base64", "data": "AA=="}}, "files"),
    ],
)
def test_media_are_asked_of_the_model_at_their_place(block: dict[str, Any], ability: str) -> None:
    text = {"type": "text", "text": "What is this?"}
    assert (ability, "messages[0].content[1]") in parse({"role": "user", "content": [text, block]}).needs


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", None),
        ({"type": "tool", "name": "look_up"}, {"type": "function", "function": {"name": "look_up"}}, None),
    ],
)
def test_tool_choice(choice: dict[str, Any], expected: Any, parallel: bool | None) -> None:
    prepared = parse(HELLO, tools=[TOOL], tool_choice=choice)
    assert prepared.fields["tool_choice"] == expected
    assert prepared.fields.get("parallel_tool_calls") is parallel


@pytest.mark.parametrize(
    ("members", "effort", "shown"),
    [
        ({}, "none", "hidden"),
        ({"thinking": {"type": "disabled"}}, "none", "hidden"),
        ({"thinking": {"type": "adaptive"}}, "medium", "shown"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "max", "shown"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}, "low", "shown"),
        ({"thinking": {"type": "enabled", "budget_tokens": 31999}, "max_tokens": 32000}, "high", "shown"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "medium", "omitted"),
        ({"output_config": {"effort": "high"}}, "none", "hidden"),
    ],
)
def test_thinking_is_the_reasoning_of_the_model(members: dict[str, Any], effort: str, shown: str) -> None:
    prepared = parse(HELLO, **members)
    assert prepared.reasoning_effort == effort
    assert prepared.dialect_fields["thinking"] == shown
    assert "reasoning" not in dict(prepared.needs)


@pytest.mark.parametrize("member", ["output_config", "output_format"])
def test_a_schema_constrains_the_answer(member: str) -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    prepared = parse(HELLO, **{member: {"format": form} if member == "output_config" else form})
    assert msgspec.json.decode(prepared.fields["response_format"])["json_schema"]["schema"] == form["schema"]
    assert ("json", "output_config.format") in prepared.needs


@pytest.mark.parametrize(
    ("members", "kind", "words"),
    [
        ({"max_tokens": None}, InvalidRequest, "max_tokens"),
        ({"max_tokens": 0}, InvalidRequest, "max_tokens"),
        ({"temperature": 1.5}, InvalidRequest, "temperature"),
        ({"stop": ["x"]}, UnsupportedField, "stop_sequences"),
        ({"stop_sequences": list("abcde")}, InvalidRequest, "at most 4 entries"),
        ({"n": 2}, UnsupportedField, "one message"),
        ({"mcp_servers": [{"url": "https://x"}]}, UnsupportedField, "runs no tools"),
        ({"stop_sequence": ["x"]}, InvalidRequest, "Did you mean 'stop_sequences'"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            UnsupportedField,
            "web_search_20250305",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, UnsupportedField, "bash_20250124"),
        ({"tools": [{"name": "look_up"}]}, InvalidRequest, "tools[0] needs 'input_schema'"),
        ({"tools": [TOOL, TOOL]}, InvalidRequest, "Two tools are named"),
        ({"tools": [{**TOOL, "input_schema": []}]}, InvalidRequest, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, InvalidRequest, "no tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, InvalidRequest, "'name'"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, InvalidRequest, "'other'"),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, InvalidRequest, "thinking.budget_tokens"),
        ({"messages": []}, InvalidRequest, "messages"),
        ({"messages": [HELLO, {"role": "assistant", "content": "{"}]}, InvalidRequest, "assistant message"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, UnsupportedField, "'audio'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1"}]}]},
            InvalidRequest,
            "toolu_1",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]},
            InvalidRequest,
            "'thinking'",
        ),
        ({"system": [{"type": "text", "text": "x"}] * 300}, RequestTooLarge, "system"),
    ],
)
def test_what_is_wrong_is_named(members: dict[str, Any], kind: type[InvalidRequest], words: str) -> None:
    with pytest.raises(kind) as caught:
        parse_messages(msgspec.json.encode({"model": "m", "max_tokens": 50, "messages": [HELLO], **members}))
    assert words in caught.value.message


def test_a_tool_of_anthropics_with_a_schema_is_a_tool_of_the_client() -> None:
    prepared = parse(HELLO, tools=[{**TOOL, "type": "bash_20250124"}])
    assert "tools" in prepared.fields


def test_what_agents_send_beside_is_accepted() -> None:
    prepared = parse(
        HELLO, metadata={"user_id": "u" * 512}, cache_control={"type": "ephemeral"}, service_tier="standard_only",
        context_management={"edits": []}, tools=[{**TOOL, "type": "custom", "eager_input_streaming": True}],
    )  # fmt: skip
    assert prepared.ignored_fields == ("context_management",)
    assert prepared.service_tier == "standard_only"


@pytest.mark.parametrize(
    ("given_id", "end_user"),
    [("u-1", "u-1"), ("u" * 512, sha256(b"u" * 512).hexdigest()), ("a\nb", sha256(b"a\nb").hexdigest())],
)
def test_the_user_is_the_end_user_of_the_request(given_id: str, end_user: str) -> None:
    labels = parse(HELLO, metadata={"user_id": given_id}).labels
    assert labels is not None
    assert labels.end_user == end_user


def test_a_request_without_a_user_has_no_label() -> None:
    assert parse(HELLO, metadata={"user_id": None}).labels is None


def test_count_tokens_has_the_prompt_of_the_message() -> None:
    body = {
        "model": "m",
        "system": "Be brief.",
        "messages": [HELLO],
        "tools": [TOOL],
        "thinking": {"type": "adaptive"},
    }
    counted = parse_count(msgspec.json.encode(body))
    asked = parse_messages(msgspec.json.encode({**body, "max_tokens": 10}))
    for name in ("messages", "tools"):
        assert bytes(counted.fields[name]) == bytes(asked.fields[name])
    assert counted.template_kwargs(reasoning=True) == asked.template_kwargs(reasoning=True)
    assert counted.max_tokens == 0


@pytest.mark.parametrize("endpoint", [b"m", b"n"])
def test_a_worker_returns_the_same_as_the_event_loop(endpoint: bytes) -> None:
    body = msgspec.json.encode({"model": "m", "messages": [HELLO], "tools": [TOOL], "max_tokens": 5})
    here, there = PARSERS[endpoint](body), decode_reply(answer(endpoint + body))
    assert here.engine_body("m", "") == there.engine_body("m", "")
    assert here.dialect_fields == there.dialect_fields
    assert here.limit_yields is there.limit_yields


text_blocks = st.text(max_size=20).map(lambda text: {"type": "text", "text": text})
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(st.dictionaries(st.text(max_size=5), json_values, max_size=3), min_size=1, max_size=5), st.data()
)
def test_inputs_and_results_survive(inputs: list[dict[str, Any]], data: st.DataObject) -> None:
    calls = [
        {"type": "tool_use", "id": f"toolu_{number}", "name": "look_up", "input": each}
        for number, each in enumerate(inputs)
    ]
    order = data.draw(st.permutations(range(len(inputs))))
    texts = {number: data.draw(st.text(max_size=10)) for number in order}
    results = [
        {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": texts[number]}
        for number in order
    ]
    more = data.draw(st.lists(text_blocks, max_size=3))
    messages = chat(
        parse(HELLO, {"role": "assistant", "content": calls}, {"role": "user", "content": [*results, *more]})
    )
    made = messages[1]["tool_calls"]
    assert [msgspec.json.decode(call["function"]["arguments"]) for call in made] == inputs
    assert [call["id"] for call in made] == [call["id"] for call in calls]
    told = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
    assert told == {f"toolu_{number}": text for number, text in texts.items()}
    said = [message["content"] for message in messages[2 + len(inputs) :]]
    joined = "".join(
        each if isinstance(each, str) else "".join(part["text"] for part in each) for each in said
    )
    assert joined == "".join(block["text"] for block in more)
