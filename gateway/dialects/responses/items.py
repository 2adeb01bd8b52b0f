"""The items of a request's input, and the chat messages that they stand for."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from core.errors import InvalidRequest, UnsupportedField
from gateway.limits import MAX_PARTS_PER_MESSAGE, MAX_TOOL_CALLS
from gateway.schemas.complaints import complaint_of
from gateway.schemas.decoding import invalid
from gateway.schemas.messages import (
    AssistantMessage,
    CalledCustomTool,
    CalledFunction,
    FunctionName,
    Identifier,
    Message,
    RefusalPart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)

ItemId = Annotated[str, msgspec.Meta(max_length=128)]
Status = Annotated[str, msgspec.Meta(max_length=32)]


class InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    """Text of a user, a developer or a tool."""

    text: str


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """Text of an earlier answer. Its annotations are not read."""

    text: str


class Refusal(msgspec.Struct, tag_field="type", tag="refusal"):
    """An earlier refusal."""

    refusal: str


class SummaryText(msgspec.Struct, tag_field="type", tag="summary_text"):
    """A summary of reasoning."""

    text: str


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """Reasoning."""

    text: str


class InputImage(msgspec.Struct, tag_field="type", tag="input_image"):
    """An image. Of this and the other media, nothing is read but what they are."""


class InputFile(msgspec.Struct, tag_field="type", tag="input_file"):
    """A file."""


class InputAudio(msgspec.Struct, tag_field="type", tag="input_audio"):
    """Audio."""


class InputVideo(msgspec.Struct, tag_field="type", tag="input_video"):
    """A video."""


Media = InputImage | InputFile | InputAudio | InputVideo
_MEDIA = (InputImage, InputFile, InputAudio, InputVideo)
Part = InputText | OutputText | Refusal | Media
Parts = Annotated[list[Part], msgspec.Meta(max_length=MAX_PARTS_PER_MESSAGE)]
Summaries = Annotated[list[SummaryText], msgspec.Meta(max_length=MAX_PARTS_PER_MESSAGE)]
Thoughts = Annotated[list[ReasoningText], msgspec.Meta(max_length=MAX_PARTS_PER_MESSAGE)]


class MessageItem(msgspec.Struct, tag_field="type", tag="message", omit_defaults=True):
    """A message."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | Parts
    id: ItemId | None = None
    status: Status | None = None
    phase: Status | None = None


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call", omit_defaults=True):
    """A call of a function that the model made."""

    call_id: Identifier
    name: FunctionName
    arguments: str
    id: ItemId | None = None
    namespace: FunctionName | None = None
    status: Status | None = None


class FunctionOutputItem(msgspec.Struct, tag_field="type", tag="function_call_output", omit_defaults=True):
    """The result of a function."""

    call_id: Identifier
    output: str | Parts
    id: ItemId | None = None
    status: Status | None = None


class CustomCallItem(msgspec.Struct, tag_field="type", tag="custom_tool_call", omit_defaults=True):
    """A call of a custom tool that the model made."""

    call_id: Identifier
    name: FunctionName
    input: str
    id: ItemId | None = None
    namespace: FunctionName | None = None
    status: Status | None = None


class CustomOutputItem(msgspec.Struct, tag_field="type", tag="custom_tool_call_output", omit_defaults=True):
    """The result of a custom tool."""

    call_id: Identifier
    output: str | Parts
    id: ItemId | None = None
    status: Status | None = None


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning", omit_defaults=True):
    """The reasoning before an answer or a call. What another provider has encrypted cannot be read."""

    summary: Summaries = []
    content: Thoughts | None = None
    id: ItemId | None = None
    status: Status | None = None

    @property
    def text(self) -> str:
        """The reasoning, or its summary where there is nothing else."""
        parts: Sequence[ReasoningText | SummaryText] = self.content or self.summary
        return "\n".join(part.text for part in parts)


class ReferenceItem(msgspec.Struct, tag_field="type", tag="item_reference"):
    """A stored item, named by its id."""

    id: ItemId


Call = FunctionCallItem | CustomCallItem
CallOutput = FunctionOutputItem | CustomOutputItem
Item = MessageItem | Call | CallOutput | ReasoningItem
_KINDS: tuple[type[Item | ReferenceItem], ...] = (
    MessageItem, FunctionCallItem, FunctionOutputItem, CustomCallItem, CustomOutputItem, ReasoningItem, ReferenceItem,
)  # fmt: skip
_DECODERS: dict[str, msgspec.json.Decoder[Item | ReferenceItem]] = {
    str(kind.__struct_config__.tag): msgspec.json.Decoder(kind) for kind in _KINDS
}


class _Tag(msgspec.Struct):
    type: str = "message"


_tag_decoder = msgspec.json.Decoder(_Tag)


def chat_name(namespace: str | None, name: str) -> str:
    """Return the name under which the model sees a tool."""
    return f"{namespace}__{name}" if namespace else name


def read_items(raw: Sequence[msgspec.Raw], stored: Mapping[str, Item]) -> list[Item]:
    """Decode the items of a request. `stored`: items by their id, for references.

    Raises InvalidRequest or UnsupportedField, and msgspec.MsgspecError with the item's place before the message.
    """
    return [_read(each, position, stored) for position, each in enumerate(raw)]


def _read(raw: msgspec.Raw, position: int, stored: Mapping[str, Item]) -> Item:
    where = f"input[{position}]"
    try:
        kind = _tag_decoder.decode(raw).type
        decoder = _DECODERS.get(kind)
        if decoder is None:
            raise UnsupportedField(
                f"{where} is of type '{kind}', which is not supported; accepted are {', '.join(_DECODERS)}.",
                param=f"{where}.type",
            )
        item = decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise invalid(complaint_of(error, where)) from None
    if isinstance(item, ReferenceItem):
        found = stored.get(item.id)
        if found is None:
            raise InvalidRequest(
                f"{where} names the item '{item.id}', which is not stored here: it was not kept, has been deleted or "
                "has expired, or belongs to another project. Send the item itself.",
                code="item_not_found",
                param=f"{where}.id",
            )
        return found
    _check_media(item, where)
    return item


def _check_media(item: Item, where: str) -> None:
    if isinstance(item, MessageItem):
        name, parts = "content", item.content
    elif isinstance(item, FunctionOutputItem | CustomOutputItem):
        name, parts = "output", item.output
    else:
        return
    for number, part in enumerate(parts if isinstance(parts, list) else ()):
        if isinstance(part, _MEDIA):
            raise UnsupportedField(
                f"{where}.{name}[{number}] is of type '{part.__struct_config__.tag}'; models here read text only.",
                code="unsupported_content",
                param=f"{where}.{name}[{number}]",
            )


def chat_messages(instructions: str | None, items: Sequence[Item]) -> list[Message]:
    """Return the messages of a conversation. Raises InvalidRequest for calls without results and the reverse.

    Instructions and the system messages right after them become one message: many chat templates take only one.
    What the model produced between two others' turns, its reasoning, text and calls, becomes one message.
    """
    build = _Conversation(instructions)
    for position, item in enumerate(items):
        build.add(item, position)
    return build.end()


class _Conversation:
    """The messages while items are read."""

    def __init__(self, instructions: str | None) -> None:
        self.messages: list[Message] = []
        self._leading = [instructions] if instructions else []
        self._current: AssistantMessage | None = None
        """The answer that further items of the model belong to."""
        self._open: dict[str, int] = {}
        """Places of calls without a result, by the call's id."""

    def add(self, item: Item, position: int) -> None:
        """Add the next item."""
        if isinstance(item, FunctionOutputItem | CustomOutputItem):
            self._add_output(item, position)
        elif isinstance(item, ReasoningItem):
            self._add_reasoning(item)
        elif isinstance(item, FunctionCallItem | CustomCallItem):
            self._add_call(item, position)
        elif item.role == "assistant":
            self._add_answer(item)
        else:
            self._add_turn(item)

    def end(self) -> list[Message]:
        """Return all messages."""
        self._check_answered()
        self._close_answer()
        self._close_leading()
        return self.messages

    def _check_answered(self) -> None:
        if self._open:
            call_id, position = next(iter(self._open.items()))
            raise InvalidRequest(
                f"No tool output found for the call '{call_id}' (item {position} of the conversation); send its output "
                "right after the calls.",
                param="input",
            )

    def _close_answer(self) -> None:
        if self._current is not None:
            answer, self._current = self._current, None
            if answer.content is None and not answer.tool_calls:
                answer.content = ""  # reasoning alone; chat messages have a text
            self.messages.append(answer)

    def _close_leading(self) -> None:
        if self._leading:
            self.messages.insert(0, SystemMessage("\n\n".join(self._leading)))
            self._leading = []

    def _add_turn(self, item: MessageItem) -> None:
        """A message of the user or of the system."""
        self._check_answered()
        self._close_answer()
        if item.role != "user" and not self.messages:
            self._leading.append(_text(item.content))
            return
        self._close_leading()
        if item.role == "user":
            self.messages.append(UserMessage(_chat_content(item.content)))
        else:
            self.messages.append(SystemMessage(_chat_content(item.content)))

    def _answer(self) -> AssistantMessage:
        self._close_leading()
        if self._current is None:
            self._current = AssistantMessage()
        return self._current

    def _add_reasoning(self, item: ReasoningItem) -> None:
        if not item.text:
            return
        answer = self._answer()
        earlier = f"{answer.reasoning_content}\n" if answer.reasoning_content else ""
        answer.reasoning_content = earlier + item.text

    def _add_answer(self, item: MessageItem) -> None:
        if self._current is not None and self._current.content is not None and not self._open:
            self._close_answer()
        answer = self._answer()
        if answer.content is None:
            answer.content = _answer_content(item.content)
        else:
            answer.content = f"{_text(answer.content)}\n{_text(item.content)}"

    def _add_call(self, item: Call, position: int) -> None:
        if self._open and self._current is None:
            self._check_answered()  # a result came between this call and an earlier one that still lacks its own
        if item.call_id in self._open:
            raise InvalidRequest(f"Two calls have the id '{item.call_id}'.", param="input")
        answer = self._answer()
        calls = answer.tool_calls = answer.tool_calls or []
        if len(calls) >= MAX_TOOL_CALLS:
            raise InvalidRequest(f"More than {MAX_TOOL_CALLS} calls follow each other.", param="input")
        name = chat_name(item.namespace, item.name)
        if isinstance(item, FunctionCallItem):
            calls.append(ToolCall(item.call_id, function=CalledFunction(name, item.arguments)))
        else:
            custom = CalledCustomTool(name, item.input)
            calls.append(ToolCall(item.call_id, custom=custom, type="custom"))
        self._open[item.call_id] = position

    def _add_output(self, item: CallOutput, position: int) -> None:
        self._close_answer()
        if self._open.pop(item.call_id, None) is None:
            raise InvalidRequest(
                f"No tool call found for the output of '{item.call_id}' (item {position} of the conversation); send "
                "the call before it, or name its response as 'previous_response_id'.",
                param="input",
            )
        self.messages.append(ToolMessage(_chat_content(item.output), item.call_id))


def _part_text(part: Any) -> str:
    return part.refusal if isinstance(part, Refusal | RefusalPart) else part.text


def _text(content: str | list[Any]) -> str:
    return content if isinstance(content, str) else "\n".join(map(_part_text, content))


def _chat_content(content: str | Parts) -> Any:
    """Text, or text parts where there are several."""
    if isinstance(content, str):
        return content
    if len(content) == 1:
        return _part_text(content[0])
    return [TextPart(_part_text(part)) for part in content] or ""


def _answer_content(content: str | Parts) -> Any:
    if isinstance(content, str):
        return content
    if any(isinstance(part, Refusal) for part in content):
        return [
            RefusalPart(part.refusal) if isinstance(part, Refusal) else TextPart(_part_text(part))
            for part in content
        ]
    return _chat_content(content)
