"""What is wrong with the body of a request is said in our own words, and names the field."""

from typing import Any

import msgspec
import pytest

from core.errors import InvalidRequest, RequestTooLarge, UnsupportedField
from gateway.dialects.responses.parser import parse_responses
from gateway.schemas.chat import parse_chat

USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": [{"role": "user"}]}, "messages[0].content", "'messages[0].content' is missing; add it."),
        ({"messages": []}, "messages", "'messages' must have at least 1 entry."),
        ({"messages": "x"}, "messages", "'messages' must be an array, but is a string."),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role",
         "'messages[0].role' does not take the value 'wizard'."),
        ({"temperature": "hot"}, "temperature", "'temperature' must be a number or null, but is a string."),
        ({"temperature": 9}, "temperature", "'temperature' must be a number of at most 2."),
        ({"max_tokens": 0}, "max_tokens", "'max_tokens' must be an integer of at least 1."),
        ({"stream": "yes"}, "stream", "'stream' must be a boolean or null, but is a string."),
        ({"stop": 3}, "stop", "'stop' must be a string, an array or null, but is an integer."),
        ({"stop": ["x"] * 9}, "stop", "'stop' must have at most 4 entries."),
        ({"user": "x" * 999}, "user", "'user' must have at most 128 characters."),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name",
         "'tools[0].function.name' must match the regular expression '^[a-zA-Z0-9_.-]{1,64}$'."),
        ({"logit_bias": {"a": 1}}, "logit_bias",
         r"A name in 'logit_bias' must match the regular expression '^\d{1,9}$'."),
        ({"structured_outputs": {"bogus": 1}}, "structured_outputs.bogus",
         "'structured_outputs.bogus' is not a known field; leave it out."),
        ({"tool_choice": "maybe"}, "tool_choice", "'tool_choice' does not take the value 'maybe'."),
    ],
)  # fmt: skip
def test_a_field_that_is_wrong(fields: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_chat(msgspec.json.encode({"model": "m", "messages": [USER], **fields}))
    assert (refused.value.param, refused.value.message) == (param, message)
    assert isinstance(refused.value, RequestTooLarge) is ("at most 4 " in message or "128" in message)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The body is not valid JSON: it ends too early."),
        (b'{"model" 1}', "The body is not valid JSON, at byte 9."),
        (b'{"model":"\xff"}', "The body is not valid JSON: it is not UTF-8."),
        (b"[]", "The body must be an object, but is an array."),
    ],
)
def test_a_body_that_is_wrong(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_chat(body)
    assert (refused.value.param, refused.value.message) == (None, message)


def test_content_that_is_not_accepted_says_what_is() -> None:
    with pytest.raises(UnsupportedField, match="does not take the value 'image': only parts of type 'text'"):
        parse_chat(
            msgspec.json.encode(
                {"model": "m", "messages": [{"role": "user", "content": [{"type": "image"}]}]}
            )
        )


def test_the_place_of_an_item_is_named() -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_responses(msgspec.json.encode({"model": "m", "input": [{"type": "message", "role": "user"}]}))
    assert refused.value.param == "input[0].content"
    assert refused.value.message == "'input[0].content' is missing; add it."
