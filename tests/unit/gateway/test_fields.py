"""Unknown, misspelt, refused and ignored fields of a body."""

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as TextParams

from core.errors import InvalidRequest, RequestTooLarge, UnsupportedField
from gateway.limits import MAX_IGNORED_FIELDS_BYTES
from gateway.schemas.chat import ChatRequest, parse_chat
from gateway.schemas.completions import CompletionRequest, parse_completion
from gateway.schemas.fields import (
    IGNORED,
    MIN_MISSPELT_CHARS,
    OPENAI,
    OTHER_ROUTE,
    REFUSED,
    check_fields,
    edits,
    ignored_header,
)
from tests.architecture.request_fields import PAGE, page_with

CHAT_FIELDS = frozenset(ChatRequest.__struct_fields__)
TEXT_FIELDS = frozenset(CompletionRequest.__struct_fields__)
KNOWN = CHAT_FIELDS | TEXT_FIELDS | IGNORED.keys() | REFUSED.keys()
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}


def chat(**fields: object) -> bytes:
    return json.dumps({**CHAT, **fields}).encode()


def test_every_field_has_one_treatment() -> None:
    assert not IGNORED.keys() & REFUSED.keys()
    assert not (IGNORED.keys() | REFUSED.keys()) & (CHAT_FIELDS | TEXT_FIELDS)
    assert OTHER_ROUTE["chat"] == TEXT_FIELDS - CHAT_FIELDS
    assert OTHER_ROUTE["text"] == CHAT_FIELDS - TEXT_FIELDS
    assert ChatParams.__annotations__.keys() <= KNOWN
    assert TextParams.__annotations__.keys() <= KNOWN


def test_unknown_fields_are_ignored_and_named() -> None:
    parsed = parse_chat(chat(zzz_first=1, user="me", zzz_second=None))
    assert parsed.ignored_fields == ("zzz_first", "zzz_second")
    assert not {"zzz_first", "user"} & parsed.fields.keys()
    assert parse_completion(json.dumps({**TEXT, "zzz": [1]}).encode()).ignored_fields == ("zzz",)
    assert parse_chat(chat(top_logprobs=2)).ignored_fields == ("top_logprobs",)
    assert parse_chat(chat()).ignored_fields == ()
    options = {"include_usage": True, "include_obfuscation": True, "zzz": 1, "off": False, "none": None}
    named = ("stream_options.include_obfuscation", "stream_options.zzz")
    assert parse_chat(chat(stream=True, stream_options=options)).ignored_fields == named
    assert parse_chat(chat(stream_options=options, zzz_first=1)).ignored_fields == ("zzz_first", *named)
    assert parse_chat(chat(stream_options=None)).ignored_fields == ()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_token", "max_tokens"),
        ("max_completions_tokens", "max_completion_tokens"),
        ("temprature", "temperature"),
        ("Stop", "stop"),
        ("topp", "top_p"),
        ("mesages", "messages"),
    ],
)
def test_misspelt_fields_are_refused_with_the_hint(name: str, meant: str) -> None:
    with pytest.raises(InvalidRequest, match=f"Did you mean '{meant}'") as caught:
        parse_chat(chat(**{name: 1}))
    assert (caught.value.code, caught.value.param) == ("unknown_field", name)


@given(
    name=st.sampled_from(sorted(CHAT_FIELDS)),
    changes=st.lists(
        st.tuples(
            st.sampled_from(["insert", "delete", "replace"]),
            st.integers(0, 30),
            st.sampled_from(string.ascii_letters + string.digits + "_é"),
        ),
        max_size=2,
    ),
)
def test_two_edits_of_an_accepted_name_are_refused(name: str, changes: list[tuple[str, int, str]]) -> None:
    text = name
    for kind, place, character in changes:
        at = place % (len(text) + 1)
        text = text[:at] + (character if kind != "delete" else "") + text[at + (kind != "insert") :]
    if text in KNOWN or len(name) < MIN_MISSPELT_CHARS:
        return
    with pytest.raises(InvalidRequest, match="Did you mean"):
        check_fields(OPENAI["chat"], CHAT_FIELDS, {text: b"1"})


@given(st.dictionaries(st.text(max_size=40), st.integers(), max_size=20))
def test_a_field_is_ignored_or_refused_by_its_distance(fields: dict[str, int]) -> None:
    unknown = {name: value for name, value in fields.items() if name not in KNOWN}
    near = any(
        len(each) >= MIN_MISSPELT_CHARS and edits(name, each) <= 2 for name in unknown for each in TEXT_FIELDS
    )
    body = json.dumps({**TEXT, **unknown}).encode()
    if near:
        with pytest.raises(InvalidRequest):
            parse_completion(body)
    else:
        assert parse_completion(body).ignored_fields == tuple(unknown)


@given(st.text(max_size=12), st.text(max_size=12), st.text(max_size=12))
def test_edits_are_a_distance(one: str, two: str, three: str) -> None:
    assert (edits(one, two) == 0) == (one == two)
    assert edits(one, two) == edits(two, one)
    assert edits(one, three) <= edits(one, two) + edits(two, three)
    assert abs(len(one) - len(two)) <= edits(one, two) <= max(len(one), len(two))


@given(st.lists(st.text(min_size=1, max_size=300), min_size=1, max_size=60))
def test_the_header_is_short_printable_ascii(names: list[str]) -> None:
    value = ignored_header(names)
    assert 0 < len(value) <= MAX_IGNORED_FIELDS_BYTES
    assert all(0x20 <= byte < 0x7F for byte in value)
    shown = value.decode().split(", ")
    assert shown[-1] == "..." or len(shown) == len(names)
    if names[0].isascii() and names[0].isalnum():
        assert shown[0] == names[0]


def test_fields_of_the_other_route_are_refused() -> None:
    for parse, body in ((parse_chat, {**CHAT, "best_of": 2}), (parse_completion, {**TEXT, "tools": [1]})):
        with pytest.raises(UnsupportedField, match="another route"):
            parse(json.dumps(body).encode())
    parse_completion(json.dumps({**TEXT, "tools": [], "top_logprobs": None}).encode())


def test_a_body_has_few_fields() -> None:
    with pytest.raises(RequestTooLarge, match="at most 128"):
        parse_chat(chat(**{f"unheard_of_{number}": 1 for number in range(200)}))


def test_the_page_shows_the_table() -> None:
    page = PAGE.read_text()
    assert page == page_with(page), "run python -m tests.architecture.request_fields --write"
