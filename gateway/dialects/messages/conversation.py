"""The conversation of a request to /v1/messages, written as chat messages.

Anthropic's results of tools are parts of user messages; in chat each is a message of its own, before the user's text.
Neighbouring messages of one role become one, as Anthropic reads them, since chat templates expect the roles in turn.
"""

from core.errors import InvalidRequest
from gateway.dialects.messages.blocks import (
    Block,
    DocumentBlock,
    ImageBlock,
    InputMessage,
    RedactedThinkingBlock,
    SearchResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from gateway.schemas.messages import (
    AssistantMessage,
    CalledFunction,
    FilePart,
    ImagePart,
    MediaPart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)

_ATTRIBUTION = "x-anthropic-billing-header:"
"""How a block of the system prompt begins that Anthropic's clients write for its servers, not for the model. It differs
from request to request, so with it no prompt would be found in a cache."""
_ERROR = "Error: "
"""What the result of a failed tool begins with: chat has no mark for it."""
Parts = list[TextPart | MediaPart]


class ChatMessages:
    """The chat messages of a conversation. `media`: by the kind of part, the place of the first one."""

    def __init__(self, system: str | list[TextBlock] | None, messages: list[InputMessage]) -> None:
        """Raises InvalidRequest for a block that its role cannot have, and for an answer that has already begun."""
        self.messages: list[Message] = []
        self.media: dict[str, str] = {}
        blocks = [TextBlock(system)] if isinstance(system, str) else system or []
        self._add_system([block.text for block in blocks])
        role, turn = "", list[tuple[str, Block]]()
        for position, message in enumerate(messages):
            if message.role != role:
                self._add(role, turn)
                role, turn = message.role, []
            turn += _blocks(message, position)
        self._add(role, turn)
        if role == "assistant":
            raise InvalidRequest(
                "The conversation ends with an assistant message. No model here continues an answer: end with a user "
                "message.",
                param="messages",
            )

    def _add_system(self, texts: list[str]) -> None:
        kept = [text for text in texts if text and not text.startswith(_ATTRIBUTION)]
        if kept:
            self.messages.append(SystemMessage(_content([TextPart(text) for text in kept])))

    def _add(self, role: str, turn: list[tuple[str, Block]]) -> None:
        """Add the blocks of neighbouring messages of one role, each with its place."""
        if role == "system":
            self._add_system([block.text for block in self._only(TextBlock, role, turn)])
        elif role == "assistant":
            self._add_answer(turn)
        elif role == "user":
            self._add_input(turn)

    def _add_input(self, turn: list[tuple[str, Block]]) -> None:
        parts: Parts = []
        results = 0
        for where, block in turn:
            if isinstance(block, ToolResultBlock):
                self.messages.append(ToolMessage(self._result(block, where), block.tool_use_id))
                results += 1
            elif isinstance(block, ToolUseBlock | ThinkingBlock | RedactedThinkingBlock):
                raise _misplaced(where, block, "user")
            else:
                parts += self._parts(block, where)
        if parts or not results:
            self.messages.append(UserMessage(_content(parts)))

    def _add_answer(self, turn: list[tuple[str, Block]]) -> None:
        texts, thoughts, calls = list[str](), list[str](), list[ToolCall]()
        for where, block in turn:
            if isinstance(block, TextBlock):
                texts.append(block.text)
            elif isinstance(block, ThinkingBlock):
                thoughts.append(block.thinking)
            elif isinstance(block, ToolUseBlock):
                calls.append(ToolCall(block.id, CalledFunction(block.name, _arguments(block, where))))
            elif not isinstance(block, RedactedThinkingBlock):
                raise _misplaced(where, block, "assistant")
        text = "".join(texts)
        self.messages.append(
            AssistantMessage(
                content=text if text or not calls else None,
                reasoning="".join(thoughts) or None,
                tool_calls=calls or None,
            )
        )

    def _only(self, kind: type[TextBlock], role: str, turn: list[tuple[str, Block]]) -> list[TextBlock]:
        """The blocks of a turn that may have text only. Raises InvalidRequest."""
        found = []
        for where, block in turn:
            if not isinstance(block, kind):
                raise _misplaced(where, block, role)
            found.append(block)
        return found

    def _result(self, block: ToolResultBlock, where: str) -> str | Parts:
        content = block.content
        parts: Parts = []
        if isinstance(content, str):
            parts = [TextPart(content)]
        else:
            for number, each in enumerate(content or ()):
                parts += self._parts(each, f"{where}.content[{number}]")
        if block.is_error:
            first = parts[0] if parts else None
            if not isinstance(first, TextPart):
                parts.insert(0, TextPart(_ERROR.rstrip(": ")))
            elif not first.text.lower().startswith("error"):
                first.text = _ERROR + first.text
        return _content(parts)

    def _parts(self, block: Block, where: str) -> Parts:
        """The parts of a chat message that a block of the user's stands for."""
        if isinstance(block, TextBlock):
            return [TextPart(block.text)] if block.text else []
        if isinstance(block, SearchResultBlock):
            lines = [f"{block.title} ({block.source})", *(each.text for each in block.content)]
            return [TextPart("\n".join(lines))]
        if isinstance(block, DocumentBlock) and block.source.type == "text":
            lines = [text for text in (block.title, block.context, block.source.data) if text]
            return [TextPart("\n\n".join(lines))]
        ability, part = ("vision", ImagePart()) if isinstance(block, ImageBlock) else ("files", FilePart())
        self.media.setdefault(ability, where)
        return [part]


def _blocks(message: InputMessage, position: int) -> list[tuple[str, Block]]:
    """The blocks of a message, each with its place in the request."""
    if isinstance(message.content, str):
        return [(f"messages[{position}].content", TextBlock(message.content))]
    return [
        (f"messages[{position}].content[{number}]", block) for number, block in enumerate(message.content)
    ]


def _content(parts: Parts) -> str | Parts:
    """The content of a chat message: a text where one suffices."""
    if not parts:
        return ""
    only = parts[0]
    return only.text if len(parts) == 1 and isinstance(only, TextPart) else parts


def _arguments(block: ToolUseBlock, where: str) -> str:
    """The input of a call as JSON text. Raises InvalidRequest when it is no object."""
    try:
        text = bytes(block.input).decode().strip()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}", code="invalid_json") from None
    if not text.startswith("{"):
        raise InvalidRequest(
            f"{where}.input has to be an object, as the tool was given it.", param=f"{where}.input"
        )
    return text


def _misplaced(where: str, block: Block, role: str) -> InvalidRequest:
    return InvalidRequest(
        f"{where} is a block of type '{type(block).__struct_config__.tag}', which a message of the role '{role}' "
        "cannot have.",
        param=where,
    )
