"""The messages of a chat completion, and the checks of a conversation."""

from typing import Annotated, Any, Literal

import msgspec

from core.errors import InvalidRequest, RequestTooLarge
from gateway.limits import (
    MAX_ARGUMENTS_DEPTH,
    MAX_ID_CHARS,
    MAX_PARTS_PER_MESSAGE,
    MAX_TOOL_CALLS,
)
from gateway.schemas.bounds import rewritten_growth
from gateway.schemas.guard import nests_deeper
from gateway.schemas.structured import Name

FunctionName = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
CUSTOM_INPUT = "input"
"""The one argument of the function that stands for a custom tool."""
Identifier = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_CHARS)]


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    """A piece of text of a message."""

    text: str


class RefusalPart(msgspec.Struct, tag_field="type", tag="refusal"):
    """An earlier refusal by the assistant."""

    refusal: str


class ImagePart(msgspec.Struct, tag_field="type", tag="image_url"):
    """An image. Of this and the other media, nothing is read but what they are: no model here takes them."""


class AudioPart(msgspec.Struct, tag_field="type", tag="input_audio"):
    """Audio."""


class VideoPart(msgspec.Struct, tag_field="type", tag="video_url"):
    """A video."""


class FilePart(msgspec.Struct, tag_field="type", tag="file"):
    """A file."""


MediaPart = ImagePart | AudioPart | VideoPart | FilePart
_MEDIA_ABILITIES: dict[type, str] = {
    ImagePart: "vision",
    AudioPart: "audio",
    VideoPart: "video",
    FilePart: "files",
}
"""What a model must be able to do to read a part."""
TextParts = Annotated[
    list[TextPart | MediaPart], msgspec.Meta(min_length=1, max_length=MAX_PARTS_PER_MESSAGE)
]
AnswerParts = Annotated[list[TextPart | RefusalPart], msgspec.Meta(max_length=MAX_PARTS_PER_MESSAGE)]


class CalledFunction(msgspec.Struct):
    """The function of a tool call and its arguments as JSON text."""

    name: FunctionName
    arguments: str


class CalledCustomTool(msgspec.Struct):
    """The custom tool of a call and its input, any text."""

    name: FunctionName
    input: str


class ToolCall(msgspec.Struct):
    """A tool call that the assistant has made. Engines know functions only."""

    id: Identifier
    function: CalledFunction | msgspec.UnsetType = msgspec.UNSET
    custom: CalledCustomTool | msgspec.UnsetType = msgspec.UNSET
    type: Literal["function", "custom"] = "function"


class SystemMessage(msgspec.Struct, tag_field="role", tag="system", omit_defaults=True):
    """A system message: instructions."""

    content: str | TextParts
    name: Name | None = None


class DeveloperMessage(msgspec.Struct, tag_field="role", tag="developer"):
    """OpenAI's newer name for a system message, as which it reaches the engine: chat templates know only `system`."""

    content: str | TextParts
    name: Name | None = None


class UserMessage(msgspec.Struct, tag_field="role", tag="user", omit_defaults=True):
    """A message of the user."""

    content: str | TextParts
    name: Name | None = None


class AssistantMessage(msgspec.Struct, tag_field="role", tag="assistant", omit_defaults=True):
    """An earlier answer of the model. Clients send its reasoning back between tool calls.

    Without tool calls, a content of null becomes an empty text, since chat templates expect one.
    """

    content: str | AnswerParts | None = None
    refusal: str | None = None
    name: Name | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ToolCall], msgspec.Meta(max_length=MAX_TOOL_CALLS)] | None = None
    function_call: CalledFunction | None = None


class ToolMessage(msgspec.Struct, tag_field="role", tag="tool"):
    """The result of a tool call. A content of null becomes an empty text, since chat templates expect one."""

    content: str | TextParts | None
    tool_call_id: Identifier


class FunctionMessage(msgspec.Struct, tag_field="role", tag="function"):
    """OpenAI's older form of a tool message: the result of the function call before it."""

    content: str | TextParts | None
    name: FunctionName


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage


class Conversation:
    """Checks messages one after the other, and writes older and newer forms as those that engines know.

    `rewritten`: bytes that a template may add to the arguments of the tool calls. `media`: the abilities that parts of
    messages need, with the places of the parts; the first of each kind.
    """

    def __init__(self, messages: list[Message]) -> None:
        """Check `messages` and replace some of them. Raises InvalidRequest or RequestTooLarge."""
        self.rewritten = 0
        self.media: dict[str, str] = {}
        self._open: dict[str, str] = {}
        """Names of called functions by the id of their call, for calls without a result."""
        for position, message in enumerate(messages):
            messages[position] = self._check(message, position)
        if self._open:
            raise InvalidRequest(f"These tool calls have no answer: {self._missing}.", param="messages")

    @property
    def _missing(self) -> str:
        return ", ".join(sorted(self._open))

    def _check(self, message: Message, position: int) -> Message:
        """Return the message as engines know it. Raises InvalidRequest or RequestTooLarge."""
        if isinstance(message.content, list):
            self._find_media(message.content, position)
        if isinstance(message, FunctionMessage):
            message = self._as_tool_message(message, position)
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in self._open:
                raise InvalidRequest(
                    f"messages[{position}] answers the call '{message.tool_call_id}', but no assistant message "
                    "before it made it.",
                    param=f"messages[{position}].tool_call_id",
                )
            del self._open[message.tool_call_id]
            message.content = "" if message.content is None else message.content
            return message
        if self._open:
            raise InvalidRequest(
                f"These tool calls have no answer before messages[{position}]: {self._missing}.",
                param=f"messages[{position}]",
            )
        if isinstance(message, DeveloperMessage):
            return SystemMessage(content=message.content, name=message.name)
        if isinstance(message, AssistantMessage):
            self._take_calls(message, position)
        return message

    def _find_media(self, parts: list[Any], position: int) -> None:
        for number, part in enumerate(parts):
            ability = _MEDIA_ABILITIES.get(type(part))
            if ability is not None:
                self.media.setdefault(ability, f"messages[{position}].content[{number}]")

    def _as_tool_message(self, message: FunctionMessage, position: int) -> ToolMessage:
        """The result of an older function call. Raises InvalidRequest when that call is not the one before it."""
        made = [call for call, name in self._open.items() if name == message.name]
        if not made:
            raise InvalidRequest(
                f"messages[{position}] answers the function '{message.name}', but the assistant message before it did "
                "not call it.",
                param=f"messages[{position}].name",
            )
        return ToolMessage(content=message.content, tool_call_id=made[0])

    def _take_calls(self, message: AssistantMessage, position: int) -> None:
        """Note the calls of an answer, written as calls of functions with ids."""
        if message.function_call is not None:
            if message.tool_calls:
                raise InvalidRequest(
                    f"messages[{position}] has 'tool_calls' and the older 'function_call'; send one.",
                    param=f"messages[{position}].function_call",
                )
            message.tool_calls = [ToolCall(id=f"call_{position}", function=message.function_call)]
            message.function_call = None
        message.tool_calls = message.tool_calls or None
        if message.content is None and not message.tool_calls:
            message.content = ""  # an answer that was cut while the model reasoned comes back like this
        for number, call in enumerate(message.tool_calls or ()):
            where = f"messages[{position}].tool_calls[{number}]"
            if call.type == "custom" and call.custom is not msgspec.UNSET:
                arguments = msgspec.json.encode({CUSTOM_INPUT: call.custom.input}).decode()
                call.function = CalledFunction(call.custom.name, arguments)
                call.custom, call.type = msgspec.UNSET, "function"
            if call.function is msgspec.UNSET or call.type == "custom":
                raise InvalidRequest(f"{where} needs '{call.type}'.", param=f"{where}.{call.type}")
            self.rewritten += _arguments_growth(call.id, call.function, where)
            self._open[call.id] = call.function.name


def _arguments_growth(call_id: str, function: CalledFunction, param: str) -> int:
    """Bound the nesting of a tool call's arguments, which chat templates parse as JSON and write again.

    Returns the bytes that this may add. Raises RequestTooLarge.
    """
    arguments = function.arguments.encode()
    if nests_deeper(arguments, MAX_ARGUMENTS_DEPTH):
        raise RequestTooLarge(
            f"The arguments of call '{call_id}' nest deeper than {MAX_ARGUMENTS_DEPTH} levels.", param=param
        )
    return rewritten_growth(arguments)
