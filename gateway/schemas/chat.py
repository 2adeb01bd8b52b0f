"""POST /v1/chat/completions: OpenAI's request shape as an allow-list.

OpenAI's fields that have no effect here (store, metadata, user, service_tier, verbosity, safety_identifier,
prompt_cache_key, prediction) are accepted and ignored like unknown fields.
"""

from typing import Annotated, Any, Literal

import msgspec

from core.errors import InvalidRequest, RequestTooLarge
from gateway.limits import (
    MAX_DESCRIPTION_CHARS,
    MAX_ID_CHARS,
    MAX_JSON_DEPTH,
    MAX_MESSAGES,
    MAX_NAME_CHARS,
    MAX_PARTS_PER_MESSAGE,
    MAX_TOOL_CALLS,
    MAX_TOOLS,
    MAX_TOP_LOGPROBS,
)
from gateway.schemas.common import (
    Choices,
    LogitBias,
    MaxTokens,
    MinP,
    ModelName,
    Penalty,
    PreparedRequest,
    RepetitionPenalty,
    RequestDecoder,
    Seed,
    Stop,
    Stops,
    StreamOptions,
    Temperature,
    TopK,
    TopP,
    check_schema,
    set_fields,
)
from gateway.schemas.guard import nesting_depth

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_CHARS)]
FunctionName = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
Identifier = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_CHARS)]

TEMPLATE_TOKENS = 64
"""Tokens that a chat template may write around the messages, added to the upper bound of the prompt."""
TOOL_TEMPLATE_TOKENS = 512
"""Tokens that a chat template may write around messages and tools, whose use it explains."""


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    """A piece of text of a message."""

    text: str


class RefusalPart(msgspec.Struct, tag_field="type", tag="refusal"):
    """An earlier refusal by the assistant."""

    refusal: str


TextParts = Annotated[list[TextPart], msgspec.Meta(min_length=1, max_length=MAX_PARTS_PER_MESSAGE)]
AnswerParts = Annotated[list[TextPart | RefusalPart], msgspec.Meta(max_length=MAX_PARTS_PER_MESSAGE)]


class CalledFunction(msgspec.Struct):
    """The function of a tool call and its arguments as JSON text."""

    name: FunctionName
    arguments: str


class ToolCall(msgspec.Struct):
    """A tool call that the assistant has made."""

    id: Identifier
    function: CalledFunction
    type: Literal["function"] = "function"


class SystemMessage(msgspec.Struct, tag_field="role", tag="system", omit_defaults=True):
    """A system message: instructions."""

    content: str | TextParts
    name: Name | None = None


class DeveloperMessage(msgspec.Struct, tag_field="role", tag="developer", omit_defaults=True):
    """OpenAI's newer name for a system message; chat templates know only `system`."""

    content: str | TextParts
    name: Name | None = None


class UserMessage(msgspec.Struct, tag_field="role", tag="user", omit_defaults=True):
    """A message of the user."""

    content: str | TextParts
    name: Name | None = None


class AssistantMessage(msgspec.Struct, tag_field="role", tag="assistant", omit_defaults=True):
    """An earlier answer of the model. Clients send its reasoning back between tool calls."""

    content: str | AnswerParts | None = None
    refusal: str | None = None
    name: Name | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ToolCall], msgspec.Meta(max_length=MAX_TOOL_CALLS)] | None = None


class ToolMessage(msgspec.Struct, tag_field="role", tag="tool", omit_defaults=True):
    """The result of a tool call."""

    content: str | TextParts
    tool_call_id: Identifier


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class FunctionSpec(msgspec.Struct, omit_defaults=True):
    """A function that the model may call."""

    name: FunctionName
    description: Annotated[str, msgspec.Meta(max_length=MAX_DESCRIPTION_CHARS)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    """A tool; only functions are supported."""

    type: Literal["function"]
    function: FunctionSpec


class ChosenFunction(msgspec.Struct):
    """The name of a function that the model must call."""

    name: FunctionName


class ToolChoice(msgspec.Struct):
    """A tool_choice that forces one function."""

    type: Literal["function"]
    function: ChosenFunction


class JsonSchema(msgspec.Struct, omit_defaults=True):
    """The JSON schema of a structured answer."""

    name: Name
    description: Annotated[str, msgspec.Meta(max_length=MAX_DESCRIPTION_CHARS)] | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextFormat(msgspec.Struct, tag_field="type", tag="text"):
    """Plain text."""


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema"):
    """JSON that conforms to a schema."""

    json_schema: JsonSchema


class ChatRequest(msgspec.Struct):
    """All fields of a chat completion. Other fields never reach an engine."""

    model: ModelName
    messages: Annotated[list[Message], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    n: Choices | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    seed: Seed | None = None
    stop: Stop | Stops | None = None
    tools: Annotated[list[Tool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    modalities: list[str] | None = None


_decoder = RequestDecoder(ChatRequest)


def parse_chat(body: bytes) -> PreparedRequest:
    """Validate the body of a chat completion. Raises InvalidRequest, RequestTooLarge or UnsupportedField."""
    request = _decoder.decode(body)
    _check_conversation(request.messages)
    _check_tools(request)
    if request.modalities and request.modalities != ["text"]:
        raise InvalidRequest("'modalities' may only be [\"text\"].", param="modalities")
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequest("'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
    return _prepare(request)


def _prepare(request: ChatRequest) -> PreparedRequest:
    """The prepared request: the fields of the engine body, and what the gateway itself uses."""
    messages = msgspec.json.encode([_for_engine(message) for message in request.messages])
    tools = msgspec.json.encode(request.tools) if request.tools else b""
    max_tokens = request.max_completion_tokens or request.max_tokens or 0
    fields: dict[str, Any] = {"messages": msgspec.Raw(messages)}
    if tools:
        fields["tools"] = msgspec.Raw(tools)
        set_fields(fields, tool_choice=request.tool_choice, parallel_tool_calls=request.parallel_tool_calls)
    set_fields(
        fields,
        max_tokens=max_tokens or None,
        n=request.n,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        logit_bias=request.logit_bias or None,
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs,
        seed=request.seed,
        stop=request.stop or None,
    )
    if not isinstance(request.response_format, TextFormat):
        set_fields(fields, response_format=request.response_format)
    options = request.stream_options
    bound = len(messages) + len(tools) + (TOOL_TEMPLATE_TOKENS if tools else TEMPLATE_TOKENS)
    if isinstance(request.response_format, JsonSchemaFormat):
        bound += len(msgspec.json.encode(request.response_format))
    return PreparedRequest(
        endpoint="chat",
        model=request.model,
        stream=bool(request.stream),
        include_usage=bool(options and options.include_usage),
        choices=request.n or 1,
        max_tokens=max_tokens,
        prompt_text=tools + messages[:-1],
        max_input_tokens=bound,
        fields=fields,
        reasoning_effort=request.reasoning_effort or "",
    )


def _for_engine(message: Message) -> Message:
    """The message with a role that chat templates know."""
    if isinstance(message, DeveloperMessage):
        return SystemMessage(content=message.content, name=message.name)
    return message


def _check_conversation(messages: list[Message]) -> None:
    """Check OpenAI's order of messages: results of tool calls directly follow the calls. Raises InvalidRequest."""
    open_calls: set[str] = set()
    for position, message in enumerate(messages):
        where = f"messages[{position}]"
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_calls:
                raise InvalidRequest(
                    f"{where} answers the call '{message.tool_call_id}', but no assistant message before it made it.",
                    param=f"{where}.tool_call_id",
                )
            open_calls.discard(message.tool_call_id)
            continue
        if open_calls:
            missing = ", ".join(sorted(open_calls))
            raise InvalidRequest(f"These tool calls have no answer before {where}: {missing}.", param=where)
        if isinstance(message, AssistantMessage):
            if message.content is None and not message.tool_calls and message.refusal is None:
                raise InvalidRequest(f"{where} needs 'content' or 'tool_calls'.", param=f"{where}.content")
            for call in message.tool_calls or ():
                _check_arguments(call, where)
                open_calls.add(call.id)
    if open_calls:
        raise InvalidRequest(
            f"These tool calls have no answer: {', '.join(sorted(open_calls))}.", param="messages"
        )


def _check_arguments(call: ToolCall, where: str) -> None:
    """Bound the nesting of a tool call's arguments, which chat templates parse as JSON. Raises RequestTooLarge."""
    arguments = call.function.arguments
    if arguments.count("[") + arguments.count("{") > MAX_JSON_DEPTH and (
        nesting_depth(arguments.encode(), MAX_JSON_DEPTH) > MAX_JSON_DEPTH
    ):
        raise RequestTooLarge(
            f"The arguments of call '{call.id}' nest too deep.", param=f"{where}.tool_calls"
        )


def _check_tools(request: ChatRequest) -> None:
    """Check that schemas are within bounds, names are unique, and a forced function exists."""
    names = set()
    for position, tool in enumerate(request.tools or ()):
        where = f"tools[{position}].function"
        if tool.function.name in names:
            raise InvalidRequest(f"Two tools are named '{tool.function.name}'.", param=f"{where}.name")
        names.add(tool.function.name)
        check_schema(tool.function.parameters, f"{where}.parameters")
    if isinstance(request.tool_choice, ToolChoice) and request.tool_choice.function.name not in names:
        raise InvalidRequest(
            f"'tool_choice' names '{request.tool_choice.function.name}', which is not among the tools.",
            param="tool_choice",
        )
    if request.tool_choice == "required" and not names:
        raise InvalidRequest("'tool_choice' is 'required' but there are no tools.", param="tool_choice")
    if isinstance(request.response_format, JsonSchemaFormat):
        check_schema(request.response_format.json_schema.schema, "response_format.json_schema.schema")
