"""What reaches the engine of the fields that say how an answer is drawn, when it ends, and which form it has."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidRequest, RequestTooLarge
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import PreparedRequest
from gateway.schemas.completions import parse_completion

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


def prepared(route: str, **fields: object) -> PreparedRequest:
    parse, base = (parse_chat, CHAT) if route == "chat" else (parse_completion, TEXT)
    return parse(json.dumps({**base, **fields}).encode())


def sent(route: str, **fields: object) -> dict[str, Any]:
    """What of the fields reaches the engine."""
    body: dict[str, Any] = msgspec.json.decode(prepared(route, **fields).engine_body("m", ""))
    for name in ("model", "messages", "prompt", "stream", "stream_options"):
        body.pop(name, None)
    if route == "text" and body.get("max_tokens") == 16:
        del body["max_tokens"]
    return body


both = pytest.mark.parametrize("route", ["chat", "text"])


@both
@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("ignore_eos", [True], [1, "yes"]),
        ("min_tokens", [1, 16], [-1, 1.5, 10**9]),
        ("top_k", [-1, 0, 1, 1_000_000], [-2, 0.5, 10**7]),
        ("min_p", [0, 0.5, 1], [-0.1, 1.1]),
        ("repetition_penalty", [0.1, 2], [0, -1, 2.1]),
        ("presence_penalty", [-2, 2], [-2.1, 2.1]),
        ("frequency_penalty", [-2, 2], [-2.1, 2.1]),
        ("temperature", [0, 2], [-0.1, 2.1]),
        ("top_p", [0.1, 1], [-0.1, 1.1]),
        ("seed", [-1, 2**63 - 1], [2**63]),
        ("stop_token_ids", [[0], list(range(128))], [[-1], ["a"], list(range(129)), 3]),
        ("include_stop_str_in_output", [True], ["yes"]),
        ("skip_special_tokens", [False], [0]),
        ("spaces_between_special_tokens", [False], [0]),
        ("n", [2, 16], [0, 17]),
        ("stop", [["a", "b"]], [["a"] * 17, "x" * 257, 3]),
    ],
)
def test_sampling_fields_reach_the_engine_within_their_ranges(
    route: str, name: str, good: list[object], bad: list[object]
) -> None:
    for value in good:
        assert sent(route, **{name: value}) == {name: value}
    for value in bad:
        with pytest.raises(InvalidRequest) as caught:
            prepared(route, **{name: value})
        assert (caught.value.param or "").startswith(name)
    assert sent(route, **{name: None}) == {}


@both
def test_defaults_of_engines_are_not_sent(route: str) -> None:
    off = {"ignore_eos": False, "include_stop_str_in_output": False, "skip_special_tokens": True}
    assert sent(route, **off, spaces_between_special_tokens=True, min_tokens=0, stop_token_ids=[]) == {}


@both
@pytest.mark.parametrize(
    ("stop", "kept"), [("", None), ([""], None), (["", "a"], ["a"]), ("a", ["a"]), ([], None)]
)
def test_empty_stops_are_ignored(route: str, stop: object, kept: object) -> None:
    assert sent(route, stop=stop).get("stop") == kept


@both
def test_greedy_sampling_is_written_so_that_engines_take_it(route: str) -> None:
    assert sent(route, top_p=0) == {"temperature": 0.0}
    assert sent(route, top_p=0, temperature=1.5) == {"temperature": 0.0}
    assert sent(route, temperature=0, n=1) == {"temperature": 0, "n": 1}
    for fields in ({"temperature": 0}, {"top_p": 0}, {"temperature": 1e-6}):
        assert sent(route, n=2, **fields) == {"n": 2, "temperature": 1.0, "top_k": 1}


@both
def test_min_tokens_fit_below_max_tokens(route: str) -> None:
    assert sent(route, min_tokens=5, max_tokens=5) == {"min_tokens": 5, "max_tokens": 5}
    with pytest.raises(InvalidRequest, match="min_tokens") as caught:
        prepared(route, min_tokens=6, max_tokens=5)
    assert caught.value.param == "min_tokens"


@both
def test_certain_tokens(route: str) -> None:
    assert prepared(route, max_tokens=9).min_tokens == 0
    assert prepared(route, max_tokens=9, min_tokens=3).min_tokens == 3
    assert prepared(route, max_tokens=9, ignore_eos=True).min_tokens == 9
    assert prepared(route, max_tokens=9, ignore_eos=True, stop="a", min_tokens=2).min_tokens == 2


def test_top_logprobs_without_logprobs_are_left_out() -> None:
    assert sent("chat", top_logprobs=2) == {}
    assert sent("chat", logprobs=False, top_logprobs=0) == {"logprobs": False}
    assert sent("chat", logprobs=True, top_logprobs=2) == {"logprobs": True, "top_logprobs": 2}


@both
@pytest.mark.parametrize("value", ["a\x00b", "\x00", "write \\u0000 in C"])
def test_nul_is_text(route: str, value: str) -> None:
    fields = {"messages": [{"role": "user", "content": value}]} if route == "chat" else {"prompt": value}
    body = msgspec.json.decode(prepared(route, **fields).engine_body("m", ""))
    assert (body["messages"][0]["content"] if route == "chat" else body["prompt"]) == value
    assert prepared(route, **fields).max_input_tokens >= len(value.encode())


def test_more_prompts_than_choices_of_one() -> None:
    many = prepared("text", prompt=["a"] * 16)
    assert (many.choices, many.choices_per_prompt) == (16, 1)
    assert prepared("text", prompt=["a"] * 8, n=2).choices == 16
    assert prepared("text", prompt=["a"] * 512, n=2).choices == 1024
    with pytest.raises(RequestTooLarge, match="at most 1,024"):
        prepared("text", prompt=["a"] * 513, n=2)


# ---------------------------------------------------------------- the form of the answer


@both
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, {"json": SCHEMA}),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ["a", "b"]}),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, {"grammar": 'root ::= "a"'}),
        ({"structured_outputs": {"json_object": True}}, {"json_object": True}),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True, "regex": None}},
            {"json": SCHEMA, "disable_any_whitespace": True},
        ),
        ({"guided_json": SCHEMA}, {"json": SCHEMA}),
        ({"guided_json": json.dumps(SCHEMA)}, {"json": SCHEMA}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a"]}, {"choice": ["a"]}),
        ({"guided_grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
        (
            {"guided_json": SCHEMA, "guided_whitespace_pattern": " ?", "guided_decoding_backend": "xgrammar"},
            {"json": SCHEMA, "whitespace_pattern": " ?"},
        ),
    ],
)
def test_constraints_become_structured_outputs(
    route: str, fields: dict[str, object], expected: dict[str, object]
) -> None:
    assert sent(route, **fields) == {"structured_outputs": expected}
    assert prepared(route, **fields).may_force_end
    assert ("json", "structured_outputs") in prepared(route, **fields).needs


@both
@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {}}, {"structured_outputs": {"json_object": False}}, {"guided_json": None},
        {"response_format": {"type": "text"}}, {"response_format": None},
    ],
)  # fmt: skip
def test_no_constraint(route: str, fields: dict[str, object]) -> None:
    assert sent(route, **fields) == {}


@both
@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": SCHEMA, "guided_regex": "a"},
        {"structured_outputs": {"json": SCHEMA, "regex": "a"}},
        {"structured_outputs": {"choice": ["a"]}, "guided_choice": ["a"]},
        {"structured_outputs": {"choice": ["a"]}, "response_format": {"type": "json_object"}},
        {"guided_whitespace_pattern": " "},
        {"structured_outputs": {"disable_any_whitespace": True}},
        {"structured_outputs": {"unheard_of": 1}},
        {"structured_outputs": {"structural_tag": "{}"}},
        {"structured_outputs": {"json": "{"}}, {"structured_outputs": {"json": "[1]"}},
        {"structured_outputs": {"regex": "a\x00"}}, {"structured_outputs": {"grammar": "  "}},
        {"guided_choice": []}, {"guided_grammar": ""}, {"guided_regex": "a" * 5000},
        {"guided_json": {"a": "x" * 70_000}}, {"response_format": {"type": "regex"}},
    ],
)  # fmt: skip
def test_no_constraint_is_dropped(route: str, fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        prepared(route, **fields)


@both
def test_response_formats(route: str) -> None:
    assert sent(route, response_format=FORMAT) == {"response_format": FORMAT}
    assert sent(route, response_format={"type": "json_object"}) == {
        "response_format": {"type": "json_object"}
    }
    assert ("json", "response_format") in prepared(route, response_format=FORMAT).needs


def test_a_forced_call_cannot_follow_a_constraint() -> None:
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        with pytest.raises(InvalidRequest, match="cannot follow a constraint"):
            prepared("chat", tools=[TOOL], tool_choice=choice, guided_regex="a")
    assert sent("chat", tools=[TOOL], tool_choice="auto", guided_regex="a")["structured_outputs"] == {
        "regex": "a"
    }


# ---------------------------------------------------------------- the chat template


def test_switches_of_the_template() -> None:
    parsed = prepared("chat", chat_template_kwargs={"thinking": True, "x": None}, enable_thinking=False)
    assert parsed.template_switches == {"thinking": True, "enable_thinking": False}
    assert sent("chat", chat_template_kwargs={"thinking": True}) == {
        "chat_template_kwargs": {"thinking": True}
    }
    with pytest.raises(InvalidRequest, match="differ"):
        prepared("chat", chat_template_kwargs={"enable_thinking": True}, enable_thinking=False)
    for bad in ({"a": [1]}, {"a": "x" * 65}, {f"a{number}": 1 for number in range(17)}, {"x" * 65: 1}, [1]):
        with pytest.raises(InvalidRequest):
            prepared("chat", chat_template_kwargs=bad)


def test_the_switches_take_precedence_over_the_effort() -> None:
    parsed = prepared("chat", reasoning_effort="high", chat_template_kwargs={"enable_thinking": False})
    assert parsed.template_kwargs(reasoning=True) == {"thinking": True, "enable_thinking": False}


@given(st.dictionaries(st.sampled_from(["a", "b"]), st.text(max_size=20), max_size=2))
def test_switches_count_in_the_bound_of_the_prompt(switches: dict[str, str]) -> None:
    more = prepared("chat", chat_template_kwargs=switches).max_input_tokens
    assert more >= prepared("chat").max_input_tokens + sum(len(value.encode()) for value in switches.values())


def test_unsupported_choices_of_modalities() -> None:
    with pytest.raises(InvalidRequest):
        prepared("chat", modalities=["text", "audio"])
