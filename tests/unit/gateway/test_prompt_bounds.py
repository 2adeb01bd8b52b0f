"""The bound of a prompt's tokens: never below the bytes of what an engine may tokenize."""

import json
import unicodedata
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.schemas.bounds import MUCH_LONGER_BYTES, normalised_bytes, rewritten_growth
from gateway.schemas.chat import parse_chat
from gateway.schemas.completions import parse_completion

FORMS = ("NFC", "NFKC")
INDENTED = jinja2.Environment(autoescape=False)
INDENTED.filters["tojson"] = lambda value, **options: json.dumps(value, **options)
TEMPLATES = [
    """{% if tools %}{% for tool in tools %}{{ tool | tojson(indent=4) }}\n\n{% endfor %}{% endif %}""",
    """{% for tool in tools %}{{ tool | tojson(indent=4, ensure_ascii=False) }}\n{% endfor %}""",
    """{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}""",
]
MESSAGES = """{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}
{%- for call in m.tool_calls or [] %}{{ call.function.arguments | tojson(indent=4) }}{% endfor %}<|end|>{% endfor %}"""


def body(**fields: object) -> bytes:
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return json.dumps(chat, ensure_ascii=False).encode()


def test_no_character_becomes_longer_than_bounded() -> None:
    """Every character of Unicode, in both forms that tokenizers use."""
    for code in (*range(0x80, 0xD800), *range(0xE000, 0x110000)):
        character = chr(code)
        size = max(len(unicodedata.normalize(form, character).encode()) for form in FORMS)
        if size > len(character.encode()):
            assert size <= normalised_bytes(character.encode()), hex(code)


@settings(max_examples=200, deadline=None)
@given(
    st.text(st.sampled_from("aé\u0344\ufdfa\u0e33\u3300\u1100\u1161\u11a8\u0301\U0001d160中。ü"), max_size=60)
)
def test_no_text_becomes_longer_than_bounded(text: str) -> None:
    for form in FORMS:
        assert len(unicodedata.normalize(form, text).encode()) <= normalised_bytes(text.encode())


@pytest.mark.parametrize(
    "text", ["plain", "Привет, как дела?", "今天天气很好，我们去公园。", "한국어", "Ünïcödé"]
)
def test_usual_text_is_bounded_by_its_bytes(text: str) -> None:
    assert normalised_bytes(text.encode()) == len(text.encode())


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=30,
)


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_json_that_a_template_writes_again_is_bounded(value: object) -> None:
    document = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    bound = len(document) + rewritten_growth(document)
    parsed = json.loads(document)
    for options in ({}, {"indent": 2}, {"indent": 4}, {"indent": 4, "ensure_ascii": False}):
        assert len(json.dumps(parsed, **options).encode()) <= bound


@pytest.mark.parametrize("number", ["1e15", "9E15", "-1e15", "1e-4", "1e300"])
def test_numbers_are_written_in_full(number: str) -> None:
    document = b"[" + b",".join([number.encode()] * 200) + b"]"
    assert len(json.dumps(json.loads(document))) <= len(document) + rewritten_growth(document)


@pytest.mark.parametrize("template", TEMPLATES)
def test_tools_that_a_template_indents_are_bounded(template: str) -> None:
    """Deep and wide schemas: indented, they are several times as long as the client sent them."""
    deep: dict[str, object] = {}
    for _ in range(14):
        deep = {"a": deep, "b": [1], "é": "中"}
    tools = [{"type": "function", "function": {"name": f"f{n}", "parameters": deep}} for n in range(3)]
    prepared = parse_chat(body(tools=tools))
    rendered = INDENTED.from_string(template).render(tools=tools)
    assert len(rendered.encode()) <= prepared.max_input_tokens


def test_arguments_that_a_template_indents_are_bounded() -> None:
    arguments = json.dumps(
        {"a": [[[[[1.5e15, "\u00e9"]] * 9] * 5]]}, separators=(",", ":"), ensure_ascii=False
    )
    messages = [
        {"role": "user", "content": "\ufdfa" * 50},
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function",
                                               "function": {"name": "f", "arguments": arguments}}]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
    ]  # fmt: skip
    prepared = parse_chat(body(messages=messages))
    shown: list[dict[str, Any]] = json.loads(json.dumps(messages))
    shown[1]["tool_calls"][0]["function"]["arguments"] = json.loads(arguments)
    rendered = INDENTED.from_string(MESSAGES).render(messages=shown)
    assert len(unicodedata.normalize("NFKC", rendered).encode()) <= prepared.max_input_tokens


def test_prompts_of_text_completions_are_bounded() -> None:
    text = "\ufdfa" * 100
    one = json.dumps({"model": "m", "prompt": text}).encode()
    two = json.dumps({"model": "m", "prompt": [text, text]}).encode()
    grown = len(unicodedata.normalize("NFKC", text).encode())
    assert grown == len(text.encode()) + 100 * MUCH_LONGER_BYTES
    assert parse_completion(one).max_input_tokens >= grown
    assert parse_completion(two).max_input_tokens >= 2 * grown
