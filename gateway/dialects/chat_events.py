"""The parts of chat events and documents that dialects translate."""

from collections.abc import Iterator
from typing import Any

import msgspec


class FunctionDelta(msgspec.Struct, gc=False):
    """A part of a call of a function."""

    name: str | None = None
    arguments: str | None = None


class CustomDelta(msgspec.Struct, gc=False):
    """A part of a call of a custom tool."""

    name: str | None = None
    input: str | None = None


class ToolCallDelta(msgspec.Struct, gc=False):
    """A part of a tool call. The first one of an index has id and name."""

    index: int = 0
    id: str | None = None
    function: FunctionDelta | None = None
    custom: CustomDelta | None = None


class Delta(msgspec.Struct, gc=False):
    """What an event adds to a message; in a whole answer, the message."""

    content: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class Choice(msgspec.Struct, gc=False):
    """A choice of an event, or with `message` in a whole answer."""

    delta: Delta = msgspec.field(default_factory=Delta)
    message: Delta = msgspec.field(default_factory=Delta)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    """The stop string or token that ended the choice; null or a number is the model's own end."""
    logprobs: msgspec.Raw = msgspec.Raw(b"null")


class PromptDetails(msgspec.Struct, gc=False):
    """Kinds of prompt tokens."""

    cached_tokens: int = 0


class CompletionDetails(msgspec.Struct, gc=False):
    """Kinds of output tokens."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct, gc=False):
    """The tokens and the cost of a request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptDetails = msgspec.field(default_factory=PromptDetails)
    completion_tokens_details: CompletionDetails = msgspec.field(default_factory=CompletionDetails)
    cost: msgspec.Raw = msgspec.Raw(b"0")
    """Exact decimal dollars, as they stand in the chat answer."""


class ChatEvent(msgspec.Struct, gc=False):
    """An event of a streamed answer, or a whole answer."""

    id: str = ""
    created: int = 0
    model: str = ""
    choices: list[Choice] = []
    usage: Usage | None = None
    service_tier: str | None = None
    system_fingerprint: str | None = None
    penstock: dict[str, Any] | None = None
    """How the request was billed."""


_decoder = msgspec.json.Decoder(ChatEvent)
_DATA = b"data: "


def chat_events(events: bytes) -> Iterator[ChatEvent]:
    """Decode whole server-sent events, without comments and [DONE].

    Raises msgspec.MsgspecError for what is not a chat event; the gateway passes none on.
    """
    for event in events.split(b"\n\n"):
        if event.startswith(_DATA) and not event.endswith(b"[DONE]"):
            yield _decoder.decode(memoryview(event)[len(_DATA) :])


def chat_answer(body: bytes) -> ChatEvent:
    """Decode an answer in one piece."""
    return _decoder.decode(body)
