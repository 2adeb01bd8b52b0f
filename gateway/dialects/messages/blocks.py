"""The content blocks of Anthropic's messages. Members that change nothing here, such as cache_control, are not read."""

from typing import Annotated, Literal

import msgspec

from gateway.limits import MAX_PARTS_PER_MESSAGE
from gateway.schemas.messages import Identifier

ToolName = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_.-]{1,200}$")]
"""The name of a tool. Anthropic's are longer than OpenAI's, and agents build theirs from two names."""
Texts = Annotated[list["TextBlock"], msgspec.Meta(max_length=MAX_PARTS_PER_MESSAGE)]


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """A piece of text."""

    text: str


class ImageBlock(msgspec.Struct, tag_field="type", tag="image"):
    """An image, of which nothing is read but that it is one."""


class DocumentSource(msgspec.Struct):
    """Where a document is. Of other types than text nothing else is read."""

    type: str
    data: str = ""


class DocumentBlock(msgspec.Struct, tag_field="type", tag="document"):
    """A document."""

    source: DocumentSource
    title: str | None = None
    context: str | None = None


class SearchResultBlock(msgspec.Struct, tag_field="type", tag="search_result"):
    """A passage that a search of the client's has found."""

    content: Texts
    source: str
    title: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """What the model thought earlier. Its signature is taken as it is."""

    thinking: str
    signature: str = ""


class RedactedThinkingBlock(msgspec.Struct, tag_field="type", tag="redacted_thinking"):
    """Thoughts that only their author can read; they are left out."""

    data: str = ""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call of a tool that the model has made."""

    id: Identifier
    name: ToolName
    input: msgspec.Raw


class ToolResultBlock(msgspec.Struct, tag_field="type", tag="tool_result"):
    """The result of a call."""

    tool_use_id: Identifier
    content: (
        str
        | Annotated[
            list[TextBlock | ImageBlock | DocumentBlock | SearchResultBlock],
            msgspec.Meta(max_length=MAX_PARTS_PER_MESSAGE),
        ]
        | None
    ) = None
    is_error: bool | None = None


Block = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
)
ACCEPTED = (
    "accepted are the types text, tool_use, tool_result, thinking, redacted_thinking, search_result and documents of "
    "plain text; the platform runs no tools itself"
)
"""The content that is accepted, for errors."""


class InputMessage(msgspec.Struct):
    """A message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], msgspec.Meta(max_length=MAX_PARTS_PER_MESSAGE)]
