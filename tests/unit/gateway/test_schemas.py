"""Bodies: what an engine gets is made of allow-listed fields only, and hostile input is refused in bounded time."""

import json
import string

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import InvalidRequest, PenstockError, RequestTooLarge, UnsupportedField
from gateway.abilities import check_abilities
from gateway.limits import MAX_ARGUMENTS_DEPTH, MAX_SCHEMA_DEPTH
from gateway.schemas.chat import ChatRequest, parse_chat
from gateway.schemas.completions import CompletionRequest, parse_completion
from gateway.schemas.fields import IGNORED, REFUSED
from gateway.schemas.guard import nests_deeper
from tests.support.engine_hints import ENGINE_HINTS
from tests.support.gateway_fakes import FakeModel

OURS = {"model", "stream", "stream_options", "cache_salt"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}


def chat(**fields: object) -> bytes:
    return json.dumps({**CHAT, **fields}).encode()


def engine_body(body: bytes, parse=parse_chat) -> dict[str, object]:
    return msgspec.json.decode(parse(body).engine_body("served", "salt"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
names = st.one_of(
    st.sampled_from(
        [*REFUSED, *IGNORED, *ENGINE_HINTS, "temperature", "n", "stop", "tools", "seed", "logprobs"]
    ),
    st.text(string.ascii_lowercase + "_", min_size=1, max_size=12),
)


@pytest.mark.promise(18)
@settings(max_examples=400, deadline=None)
@given(
    extra=st.dictionaries(names, json_values, max_size=6),
    in_message=st.dictionaries(names, json_values, max_size=3),
)
@pytest.mark.parametrize("dialect", ["chat", "text"])
def test_no_field_outside_the_allow_list_survives(
    dialect: str, extra: dict[str, object], in_message: dict[str, object]
) -> None:
    shape, parse = (ChatRequest, parse_chat) if dialect == "chat" else (CompletionRequest, parse_completion)
    base = (
        {"model": "m", "messages": [{**in_message, "role": "user", "content": "hi"}]}
        if dialect == "chat"
        else TEXT
    )
    try:
        body = engine_body(json.dumps({**extra, **base}).encode(), parse)
    except InvalidRequest:
        return
    allowed = {name for name in shape.__struct_fields__ if not name.startswith("guided_")} - {
        "max_completion_tokens", "reasoning_effort", "modalities", "best_of", "functions", "function_call",
        "enable_thinking",
    }  # fmt: skip
    assert set(body) <= allowed | OURS
    assert body["cache_salt"] == "salt"
    assert body["model"] == "served"
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    if dialect == "chat":
        assert set(body["messages"][0]) <= {"role", "content", "name"}


@pytest.mark.parametrize("name", REFUSED)
def test_fields_that_change_the_answer_are_refused_unless_harmless(name: str) -> None:
    for value in ({"x": 1}, [1], "x", 7):
        with pytest.raises(UnsupportedField) as caught:
            parse_chat(chat(**{name: value}))
        assert (caught.value.code, caught.value.param) == ("unsupported_field", name)
    for off in REFUSED[name].harmless:
        assert engine_body(chat(**{name: json.loads(off)})).get(name) in (None, "salt")


@pytest.mark.parametrize("name", [*IGNORED, *ENGINE_HINTS, "whatever"])
def test_harmless_fields_are_dropped(name: str) -> None:
    if name not in REFUSED:
        assert engine_body(chat(**{name: "x"})).get(name) in (None, "salt")


@pytest.mark.promise(19)
@pytest.mark.parametrize(
    "fields",
    [
        {"n": 17}, {"n": 0}, {"max_tokens": 0}, {"max_tokens": 10**9}, {"temperature": 2.1}, {"top_p": 2},
        {"logprobs": True, "top_logprobs": 21}, {"top_logprobs": 21}, {"stop": ["a"] * 5}, {"stop": "x" * 257},
        {"logit_bias": {str(i): 1 for i in range(301)}}, {"logit_bias": {"x": 1}}, {"seed": 2**63},
        {"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(129)]},
        {"tools": [{"type": "function", "function": {"name": "bad name"}}]},
        {"tools": [{"type": "function", "function": {"name": "f"}}] * 2},
        {"tools": [{"type": "web_search"}]}, {"tool_choice": "required"},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": "x" * 70_000}}}]},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"a": "x" * 70_000}}}},
        {"response_format": {"type": "grammar"}}, {"messages": []}, {"messages": "hi"}, {"model": ""},
        {"model": "m" * 201}, {"modalities": ["audio"]}, {"stream": "yes"},
    ],
)  # fmt: skip
def test_caps_and_types(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        parse_chat(chat(**fields))


@pytest.mark.promise(19)
def test_schema_depth() -> None:
    deep: dict[str, object] = {}
    for _ in range(40):
        deep = {"properties": deep}
    tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
    with pytest.raises(RequestTooLarge, match="deeper than 32"):
        parse_chat(chat(tools=[tool]))


@pytest.mark.promise(20)
@pytest.mark.parametrize(
    ("kind", "ability"),
    [("image_url", "vision"), ("input_audio", "audio"), ("file", "files"), ("video_url", "video")],
)
@pytest.mark.parametrize("role", ["user", "system", "tool"])
def test_no_media(kind: str, ability: str, role: str) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": kind, kind: {"url": "http://169.254.169.254/"}}]
    message = {"role": role, "content": parts}
    before = []
    if role == "tool":
        before = [{"role": "assistant", "tool_calls": [CALL]}]
        message["tool_call_id"] = CALL["id"]
    parsed = parse_chat(chat(messages=[*before, message]))
    assert (ability, f"messages[{len(before)}].content[1]") in parsed.needs
    assert b"169.254" not in parsed.engine_body("m", "s")
    for capabilities in (("chat", "tools"), ("chat", "tools", ability)):
        with pytest.raises(UnsupportedField, match="Its capabilities are: chat, tools") as caught:
            check_abilities(parsed, FakeModel(capabilities=capabilities))
        assert caught.value.code == "unsupported_content"


def test_unknown_parts_are_refused() -> None:
    with pytest.raises(UnsupportedField) as caught:
        parse_chat(chat(messages=[{"role": "user", "content": [{"type": "image_embeds"}]}]))
    assert caught.value.code == "unsupported_content"
    assert caught.value.param == "messages[0].content[0].type"


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "wizard", "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": 3}],
        [{"role": "tool", "content": "x", "tool_call_id": "c1"}],
        [USER, {"role": "assistant", "tool_calls": [CALL]}],
        [USER, {"role": "assistant", "tool_calls": [CALL]}, USER],
        [USER, {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f"}}]}],
        [
            USER,
            {
                "role": "assistant",
                "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "[" * 70 + "]" * 70}}],
            },
            {"role": "tool", "content": "y", "tool_call_id": "c1"},
        ],
    ],
)
def test_conversations_that_make_no_sense(messages: list[object]) -> None:
    with pytest.raises(InvalidRequest):
        parse_chat(chat(messages=messages))


@pytest.mark.parametrize(
    ("answer", "sent"),
    [
        ({"content": None, "reasoning_content": "hm"}, {"content": "", "reasoning_content": "hm"}),
        ({"content": None, "tool_calls": []}, {"content": ""}),
        ({"content": "hi", "tool_calls": []}, {"content": "hi"}),
        ({"content": None, "refusal": "no", "audio": None}, {"content": "", "refusal": "no"}),
        ({}, {"content": ""}),
    ],
)
def test_an_answer_may_be_sent_back_as_it_came(answer: dict[str, object], sent: dict[str, object]) -> None:
    body = engine_body(chat(messages=[USER, {"role": "assistant", **answer}, USER]))
    assert body["messages"][1] == {"role": "assistant", **sent}


def test_a_conversation_with_tools_passes_unharmed() -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": [{"type": "text", "text": "42"}], "tool_call_id": "c1"},
        {"role": "assistant", "content": "it is 42", "reasoning": "hm"},
        USER,
    ]
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
    ]
    body = engine_body(chat(messages=messages, tools=tools, tool_choice="auto", max_completion_tokens=7))
    expected = [
        {**messages[0], "role": "system"},
        USER,
        {"role": "assistant", "tool_calls": [CALL]},
        *messages[3:],
    ]
    assert body["messages"] == expected
    assert body["tools"] == tools
    assert body["max_tokens"] == 7


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b'"x"', b"nonsense", b'{"model":"m"}', b"\xff\xfe", b"\xef\xbb\xbf{}",
        b'{"model":"m","messages":[{"role":"user","content":"a\x00b"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"\\udc00x"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}',
        b'{"model":"m","temperature":NaN,"messages":[{"role":"user","content":"x"}]}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' + b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)  # fmt: skip
def test_malformed_bodies(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_chat(body)


def test_escaped_backslashes_are_no_nul() -> None:
    body = engine_body(chat(messages=[{"role": "user", "content": "write \\u0000 in C"}]))
    assert body["messages"][0]["content"] == "write \\u0000 in C"


@pytest.mark.promise(28)
@given(st.binary(max_size=300))
def test_random_bytes_never_do_worse_than_a_400(data: bytes) -> None:
    for parse in (parse_chat, parse_completion):
        with pytest.raises(PenstockError):
            parse(data)


@settings(max_examples=300)
@given(json_values)
def test_nesting_agrees_with_the_obvious_way(value: object) -> None:
    def depth(node: object) -> int:
        inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    for text in (json.dumps(value), json.dumps(value, indent=1, ensure_ascii=False)):
        levels = depth(value)
        assert not nests_deeper(text.encode(), levels)
        assert levels == 0 or nests_deeper(text.encode(), levels - 1)


@pytest.mark.parametrize(
    ("text", "deeper"),
    [
        ("[" * 65, True),
        ("[" * 60 + "]" * 60 + "[" * 65, True),
        ('["' + "[" * 70, False),
        ("]" * 70 + "[" * 70, False),
    ],
)
def test_nesting_of_invalid_json_is_that_before_the_error(text: str, deeper: bool) -> None:
    assert nests_deeper(text.encode(), 64) == deeper


def nested(levels: int) -> str:
    """A JSON object that nests `levels` deep."""
    return '{"a":' + "[" * (levels - 1) + "]" * (levels - 1) + "}"


def test_schemas_nest_up_to_the_limit() -> None:
    def tools(levels: int) -> bytes:
        tool = {"type": "function", "function": {"name": "f", "parameters": json.loads(nested(levels))}}
        return chat(tools=[tool])

    parse_chat(tools(MAX_SCHEMA_DEPTH))
    with pytest.raises(RequestTooLarge, match="deeper than 32"):
        parse_chat(tools(MAX_SCHEMA_DEPTH + 1))


def test_arguments_of_calls_nest_up_to_the_limit() -> None:
    def called(arguments: str) -> bytes:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        result = {"role": "tool", "tool_call_id": "1", "content": "x"}
        return chat(messages=[{"role": "assistant", "tool_calls": [call]}, result])

    parse_chat(called(nested(MAX_ARGUMENTS_DEPTH)))
    parse_chat(called(json.dumps({"text": "[{" * 500 + '\\"[' * 100})))
    with pytest.raises(RequestTooLarge, match="deeper than 64"):
        parse_chat(called(nested(MAX_ARGUMENTS_DEPTH + 1)))


def test_ignored_fields_nest_as_deep_as_the_decoder_reads() -> None:
    def body(levels: int) -> bytes:
        return chat()[:-1] + b',"x":' + b"[" * levels + b"]" * levels + b"}"

    assert b"x" not in parse_chat(body(100)).fields
    with pytest.raises(RequestTooLarge) as refused:
        parse_chat(body(100_000))
    assert refused.value.code == "body_too_deep"


def test_schemas_pass_as_written() -> None:
    schema = b'{"type": "object", "maximum": 1' + b"0" * 40 + b', "title": "\\u00e9 \xc3\xa9"}'
    tool = b'{"type":"function","function":{"name":"f","parameters": %s }}' % schema
    sent = parse_chat(chat()[:-1] + b',"tools":[' + tool + b"]}").engine_body("m", "s")
    assert schema in sent


@pytest.mark.parametrize("schema", ["[1]", "true", '"x"', "1"])
def test_schemas_must_be_objects(schema: str) -> None:
    with pytest.raises(InvalidRequest, match="must be an object"):
        parse_chat(
            chat(tools=[{"type": "function", "function": {"name": "f", "parameters": json.loads(schema)}}])
        )


def test_schemas_must_be_utf8_and_may_be_null() -> None:
    form = b',"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":%s}}}'
    with pytest.raises(InvalidRequest) as refused:
        parse_chat(chat()[:-1] + form % b'{"a":"\xff"}')
    assert refused.value.code == "invalid_json"
    sent = engine_body(chat()[:-1] + form % b"null")
    assert sent["response_format"] == {"type": "json_object"}


def test_the_prompts_prefix_lacks_only_the_closing_bracket() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    parsed = parse_chat(chat(tools=tools))
    text = b'[{"type":"function","function":{"name":"f"}}][{"role":"user","content":"hi"}'
    assert parsed.prompt_prefix(10_000) == text
    assert parsed.prompt_bytes == len(text)
    assert parsed.prompt_prefix(5) == text[:5]
    assert parse_completion(json.dumps(TEXT).encode()).prompt_prefix(10) == b'"hi'


@pytest.mark.parametrize(
    ("prompt", "choices"),
    [("hi", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1], [2, 3]], 2)],
)
def test_prompts_of_text_completions(prompt: object, choices: int) -> None:
    parsed = parse_completion(json.dumps({"model": "m", "prompt": prompt}).encode())
    assert parsed.choices == choices
    body = msgspec.json.decode(parsed.engine_body("m", ""))
    assert body["prompt"] == prompt
    assert body["max_tokens"] == 16
    assert "cache_salt" not in body


@pytest.mark.parametrize(
    "prompt", [None, [], ["a", 1], [[]], [[1], "a"], [-1], ["x"] * 1025, {"a": 1}, [["a"]]]
)
def test_prompts_that_are_refused(prompt: object) -> None:
    with pytest.raises(InvalidRequest):
        parse_completion(json.dumps({"model": "m", "prompt": prompt}).encode())


def test_text_completion_options() -> None:
    for fields in (
        {"best_of": 3},
        {"echo": True},
        {"suffix": "x"},
        {"logprobs": 6},
        {"n": 16, "prompt": ["a"] * 65},
    ):
        with pytest.raises(InvalidRequest):
            parse_completion(json.dumps({**TEXT, **fields}).encode())
    parse_completion(json.dumps({**TEXT, "best_of": 1, "echo": False, "suffix": None}).encode())


@given(st.text(max_size=200))
def test_the_input_bound_is_an_upper_bound(text: str) -> None:
    encoded = text.encode("utf-8", "replace")
    clean = encoded.decode()
    parsed = parse_chat(chat(messages=[{"role": "user", "content": clean}]))
    assert parsed.max_input_tokens >= len(clean.encode())


@pytest.mark.parametrize(("effort", "thinking"), [("none", False), ("minimal", False), ("high", True)])
def test_reasoning_effort_becomes_the_templates_switch(effort: str, thinking: bool) -> None:
    parsed = parse_chat(chat(reasoning_effort=effort))
    body = msgspec.json.decode(parsed.engine_body("m", "s", reasoning=True))
    assert body["chat_template_kwargs"] == {"thinking": thinking, "enable_thinking": thinking}
    assert "chat_template_kwargs" not in engine_body(chat(reasoning_effort=effort))
