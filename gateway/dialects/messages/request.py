"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's requests as an allow-list, prepared as chat requests."""

from hashlib import sha256
from typing import Annotated, Any, Literal

import msgspec

from core.errors import InvalidRequest, UnsupportedField
from gateway.dialects.messages.blocks import ACCEPTED, InputMessage, TextBlock, ToolName
from gateway.dialects.messages.conversation import ChatMessages
from gateway.dialects.messages.fields import COUNT, MESSAGES, NAMES
from gateway.limits import (
    MAX_BLOCK_DESCRIPTION_CHARS,
    MAX_LABEL_CHARS,
    MAX_MESSAGES,
    MAX_PARTS_PER_MESSAGE,
    MAX_TOOLS,
)
from gateway.schemas.chat import ChatRequest, prepare_chat
from gateway.schemas.common import PreparedRequest
from gateway.schemas.decoding import RequestDecoder
from gateway.schemas.sampling import MaxTokens, ModelName, ServiceTier, Share, Stops, StreamOptions, TopK
from gateway.schemas.structured import JsonSchema, JsonSchemaFormat, Schema, check_schema
from gateway.schemas.tools import FunctionChoice, FunctionSpec, FunctionTool, Named, Tool

Effort = Literal["low", "medium", "high", "xhigh", "max"]
Display = Literal["summarized", "omitted"]
SHOWN, OMITTED, HIDDEN = "shown", "omitted", "hidden"
"""What an answer has of the model's thoughts: blocks with their text, blocks without it, or none."""
_EFFORT_BY_BUDGET: tuple[tuple[int, Effort], ...] = ((4096, "low"), (16384, "medium"))
"""Below how many tokens of `budget_tokens` the model is asked for which effort; above, for a high one."""
_CLIENT_TOOL = "custom"


class ClientTool(msgspec.Struct):
    """A tool. Without an input schema it is one that Anthropic runs or describes, of the given type."""

    name: ToolName
    type: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    description: Annotated[str, msgspec.Meta(max_length=MAX_BLOCK_DESCRIPTION_CHARS)] | None = None
    input_schema: Schema = msgspec.UNSET
    strict: bool | None = None


class ToolChoice(msgspec.Struct):
    """Which tools the model may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    display: Display | None = None


class JsonFormat(msgspec.Struct):
    """JSON that conforms to a schema."""

    type: Literal["json_schema"]
    schema: msgspec.Raw


class OutputConfig(msgspec.Struct):
    """The form of the answer and the effort for it."""

    effort: Effort | None = None
    format: JsonFormat | None = None


class Metadata(msgspec.Struct):
    """Who asks."""

    user_id: Annotated[str, msgspec.Meta(max_length=512)] | None = None

    @property
    def end_user(self) -> str | None:
        """The end user as chat names one: the id, or its SHA-256 where chat's bounds do not take it."""
        found = self.user_id
        if not found or (len(found) <= MAX_LABEL_CHARS and found.isprintable()):
            return found
        return sha256(found.encode("utf-8", "surrogatepass")).hexdigest()


class CountRequest(msgspec.Struct, kw_only=True):
    """The fields of a request that make its prompt: all that count_tokens takes."""

    model: ModelName
    messages: Annotated[list[InputMessage], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | Annotated[list[TextBlock], msgspec.Meta(max_length=MAX_PARTS_PER_MESSAGE)] | None = None
    tools: Annotated[list[ClientTool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """All fields of a request for a message. Other fields never reach an engine."""

    max_tokens: MaxTokens
    stream: bool | None = None
    stop_sequences: Stops | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    metadata: Metadata | None = None
    service_tier: ServiceTier | None = None


_messages_decoder = RequestDecoder(MessagesRequest, MESSAGES, ACCEPTED)
_count_decoder = RequestDecoder(CountRequest, COUNT, ACCEPTED)


def parse_messages(body: bytes) -> PreparedRequest:
    """Validate the body of a request for a message. Raises InvalidRequest, RequestTooLarge or UnsupportedField."""
    request, unknown = _messages_decoder.decode(body)
    thinking = request.thinking
    if thinking is not None and (thinking.budget_tokens or 0) >= request.max_tokens:
        raise InvalidRequest(
            f"thinking.budget_tokens is {thinking.budget_tokens:,}, but max_tokens is {request.max_tokens:,}, and "
            "thoughts count towards it; raise 'max_tokens' or lower the budget.",
            param="thinking.budget_tokens",
        )
    prepared = _prepare(
        request,
        len(body),
        unknown,
        max_tokens=request.max_tokens,
        stream=request.stream,
        stream_options=StreamOptions(include_usage=True) if request.stream else None,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k or None,
        stop=request.stop_sequences,
        service_tier=request.service_tier,
        user=request.metadata.end_user if request.metadata is not None else None,
    )
    prepared.limit_yields = True
    prepared.dialect_fields = {"thinking": _shown(thinking), "max_tokens": request.max_tokens}
    return prepared


def parse_count(body: bytes) -> PreparedRequest:
    """Validate the body of count_tokens. Raises InvalidRequest, RequestTooLarge or UnsupportedField."""
    request, unknown = _count_decoder.decode(body)
    return _prepare(request, len(body), unknown)


def _prepare(
    request: CountRequest, body_bytes: int, unknown: tuple[str, ...], **sampling: Any
) -> PreparedRequest:
    """Prepare the chat request that asks for the same. `sampling`: its fields beside those of the prompt."""
    conversation = ChatMessages(request.system, request.messages)
    chosen = request.tool_choice
    chat = ChatRequest(
        model=request.model,
        messages=conversation.messages,
        tools=[_tool(tool, f"tools[{number}]") for number, tool in enumerate(request.tools or ())] or None,
        tool_choice=_tool_choice(request),
        parallel_tool_calls=False if chosen is not None and chosen.disable_parallel_tool_use else None,
        reasoning_effort=_effort(request),
        response_format=_format(request),
        **sampling,
    )
    try:
        prepared = prepare_chat(chat, body_bytes, unknown)
    except InvalidRequest as error:
        raise NAMES.in_invalid(error) from None
    prepared.needs = tuple(
        (ability, conversation.media.get(ability, NAMES.of(field)))
        for ability, field in prepared.needs
        if ability != "reasoning"  # a model that does not reason answers at once
    )
    return prepared


def _tool(tool: ClientTool, where: str) -> Tool:
    """The function that a tool is. Raises UnsupportedField for tools of Anthropic's, and RequestTooLarge."""
    if tool.input_schema is msgspec.UNSET:
        if tool.type in (None, _CLIENT_TOOL):
            raise InvalidRequest(
                f"{where} needs 'input_schema', the JSON schema of its input.", param=f"{where}.input_schema"
            )
        raise UnsupportedField(
            f"The tool type '{tool.type}' is not supported: the platform runs no tools and has no description of this "
            "one. Send it as a tool of your own, with an 'input_schema', and run its calls yourself.",
            param=f"{where}.type",
            code="unsupported_tool",
        )
    schema = check_schema(tool.input_schema, f"{where}.input_schema")
    return FunctionTool(FunctionSpec(tool.name, tool.description, schema, tool.strict))


def _tool_choice(request: CountRequest) -> Literal["none", "auto", "required"] | FunctionChoice | None:
    """Chat's tool_choice. Raises InvalidRequest when it names no tool of the request."""
    chosen = request.tool_choice
    if chosen is None:
        return None
    if chosen.type in ("any", "tool") and not request.tools:
        raise InvalidRequest(
            f"'tool_choice' is of the type '{chosen.type}', but there are no tools.", param="tool_choice"
        )
    if chosen.type != "tool":
        return "required" if chosen.type == "any" else "none" if chosen.type == "none" else "auto"
    if chosen.name is None:
        raise InvalidRequest(
            "A 'tool_choice' of the type 'tool' needs the tool's 'name'.", param="tool_choice.name"
        )
    return FunctionChoice(Named(chosen.name))


def _effort(request: CountRequest) -> Literal["none"] | Effort:
    """Chat's reasoning_effort. A model thinks when it is asked to, as in Anthropic's API."""
    thinking = request.thinking
    if thinking is None or thinking.type == "disabled":
        return "none"
    if request.output_config is not None and request.output_config.effort is not None:
        return request.output_config.effort
    if thinking.budget_tokens is None:
        return "medium"
    return next((effort for below, effort in _EFFORT_BY_BUDGET if thinking.budget_tokens < below), "high")


def _shown(thinking: Thinking | None) -> str:
    if thinking is None or thinking.type == "disabled":
        return HIDDEN
    return OMITTED if thinking.display == "omitted" else SHOWN


def _format(request: CountRequest) -> JsonSchemaFormat | None:
    """Chat's response_format; `output_format` is the older name of `output_config.format`. Raises RequestTooLarge."""
    config = request.output_config
    where, found = "output_format", request.output_format
    if config is not None and config.format is not None:
        where, found = "output_config.format", config.format
    if found is None:
        return None
    return JsonSchemaFormat(
        JsonSchema("answer", schema=check_schema(found.schema, f"{where}.schema"), strict=True)
    )
