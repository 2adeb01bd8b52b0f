"""The check of answers and events against OpenAI's schemas finds what does not conform."""

from typing import Any

import pytest
from jsonschema import ValidationError

from tests.support.openai_schema import check, modern

EVENT = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def choice(**more: object) -> dict[str, Any]:
    return {"index": 0, "delta": {}, "finish_reason": None, "logprobs": None, **more}


@pytest.mark.parametrize(
    "wrong",
    [
        choice(finish_reason="abort"),
        choice(delta={"content": 3}),
        choice(delta={"tool_calls": [{"function": {}}]}),
        choice(logprobs={"content": []}),
        {"index": 0, "delta": {}},
    ],
)
def test_an_event_that_does_not_conform_is_found(wrong: dict[str, Any]) -> None:
    check({**EVENT, "choices": [choice()], "usage": None}, "chat", streamed=True)
    with pytest.raises(ValidationError):
        check({**EVENT, "choices": [wrong]}, "chat", streamed=True)


def test_only_nullable_members_may_be_null() -> None:
    assert modern({"type": "string", "enum": ["a"], "nullable": True}) == {
        "anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]
    }
    with pytest.raises(ValidationError):
        check({**EVENT, "choices": [choice()], "system_fingerprint": None}, "chat", streamed=True)
