"""POST /v1/chat/completions: OpenAI's request shape as an allow-list.

OpenAI's fields that have no effect here (store, metadata, user, service_tier, verbosity, safety_identifier,
prompt_cache_key, prediction) are accepted and ignored like unknown fields.
"""

from typing import Annotated, Any, Literal

import msgspec

from core.errors import InvalidRequest, RequestTooLarge
from gateway.limits import (
    MAX_ARGUMENTS_DEPTH,
    MAX_DESCRIPTION_CHARS,
    MAX_ID_CHARS,
    MAX_MESSAGES,
    MAX_NAME_CHARS,
    MAX_PARTS_PER_MESSAGE,
    MAX_TOOL_CALLS,
    MAX_TOOLS,
    MAX_TOP_LOGPROBS,
)
from gateway.schemas.bounds import normalised_bytes, rewritten_growth
from gateway.schemas.common import (
    SAMPLING_FIELDS,
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
from gateway.schemas.guard import nests_deeper

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


class DeveloperMessage(msgspec.Struct, tag_field="role", tag="developer"):
    """OpenAI's newer name for a system message, as which it reaches the engine: chat templates know only `system`."""

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
    parameters: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
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
    schema: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
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
    rewritten = _check_conversation(request.messages)
    _check_tools(request)
    if request.modalities and request.modalities != ["text"]:
        raise InvalidRequest("'modalities' may only be [\"text\"].", param="modalities")
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequest("'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
    return _prepare(request, len(body), rewritten)


_PASSED_ON = (*SAMPLING_FIELDS, "top_logprobs")
"""Fields that reach the engine as they are."""


def _prepare(request: ChatRequest, body_bytes: int, rewritten: int) -> PreparedRequest:
    """The prepared request: the fields of the engine body, and what the gateway itself uses.

    `rewritten`: bytes that a template may add to the arguments of tool calls.
    """
    messages = msgspec.json.encode(request.messages)
    fields: dict[str, Any] = {"messages": msgspec.Raw(messages)}
    size = len(messages)
    bound = normalised_bytes(messages) + rewritten
    if request.tools:
        tools = msgspec.json.encode(request.tools)
        fields["tools"] = msgspec.Raw(tools)
        set_fields(fields, request, ("tool_choice", "parallel_tool_calls"))
        size += len(tools)
        bound += normalised_bytes(tools) + rewritten_growth(tools) + TOOL_TEMPLATE_TOKENS
    else:
        bound += TEMPLATE_TOKENS
    max_tokens = request.max_completion_tokens or request.max_tokens or 0
    if max_tokens:
        fields["max_tokens"] = max_tokens
    set_fields(fields, request, _PASSED_ON)
    if request.response_format is not None and not isinstance(request.response_format, TextFormat):
        response_format = msgspec.json.encode(request.response_format)
        fields["response_format"] = msgspec.Raw(response_format)
        if isinstance(request.response_format, JsonSchemaFormat):
            bound += normalised_bytes(response_format) + rewritten_growth(response_format)
    options = request.stream_options
    return PreparedRequest(
        endpoint="chat",
        model=request.model,
        stream=bool(request.stream),
        include_usage=bool(options and options.include_usage),
        choices=request.n or 1,
        choices_per_prompt=request.n or 1,
        max_tokens=max_tokens,
        prompt_bytes=size
        - 1,  # without the bracket after the last message, which a longer conversation lacks
        body_bytes=body_bytes,
        max_input_tokens=bound,
        fields=fields,
        reasoning_effort=request.reasoning_effort or "",
        logprobs_per_token=1 + (request.top_logprobs or 0) if request.logprobs else 0,
    )


def _check_conversation(messages: list[Message]) -> int:
    """Check OpenAI's order of messages: results of tool calls directly follow the calls. Raises InvalidRequest.

    Replaces developer messages by system messages. Returns the bytes that a template may add to the arguments of the
    tool calls.
    """
    open_calls: set[str] = set()
    rewritten = 0
    for position, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_calls:
                raise InvalidRequest(
                    f"messages[{position}] answers the call '{message.tool_call_id}', but no assistant message "
                    "before it made it.",
                    param=f"messages[{position}].tool_call_id",
                )
            open_calls.discard(message.tool_call_id)
            continue
        if open_calls:
            missing = ", ".join(sorted(open_calls))
            raise InvalidRequest(
                f"These tool calls have no answer before messages[{position}]: {missing}.",
                param=f"messages[{position}]",
            )
        if isinstance(message, DeveloperMessage):
            messages[position] = SystemMessage(content=message.content, name=message.name)
        elif isinstance(message, AssistantMessage):
            if message.content is None and not message.tool_calls and message.refusal is None:
                raise InvalidRequest(
                    f"messages[{position}] needs 'content' or 'tool_calls'.",
                    param=f"messages[{position}].content",
                )
            for call in message.tool_calls or ():
                rewritten += _check_arguments(call, position)
                open_calls.add(call.id)
    if open_calls:
        raise InvalidRequest(
            f"These tool calls have no answer: {', '.join(sorted(open_calls))}.", param="messages"
        )
    return rewritten


def _check_arguments(call: ToolCall, position: int) -> int:
    """Bound the nesting of a tool call's arguments, which chat templates parse as JSON and write again.

    Returns the bytes that this may add. Raises RequestTooLarge.
    """
    arguments = call.function.arguments.encode()
    if nests_deeper(arguments, MAX_ARGUMENTS_DEPTH):
        raise RequestTooLarge(
            f"The arguments of call '{call.id}' nest deeper than {MAX_ARGUMENTS_DEPTH} levels.",
            param=f"messages[{position}].tool_calls",
        )
    return rewritten_growth(arguments)


def _check_tools(request: ChatRequest) -> None:
    """Check that schemas are within bounds, names are unique, and a forced function exists."""
    if not (request.tools or request.tool_choice or request.response_format):
        return
    names = set()
    for position, tool in enumerate(request.tools or ()):
        where = f"tools[{position}].function"
        if tool.function.name in names:
            raise InvalidRequest(f"Two tools are named '{tool.function.name}'.", param=f"{where}.name")
        names.add(tool.function.name)
        tool.function.parameters = check_schema(tool.function.parameters, f"{where}.parameters")
    if isinstance(request.tool_choice, ToolChoice) and request.tool_choice.function.name not in names:
        raise InvalidRequest(
            f"'tool_choice' names '{request.tool_choice.function.name}', which is not among the tools.",
            param="tool_choice",
        )
    if request.tool_choice == "required" and not names:
        raise InvalidRequest("'tool_choice' is 'required' but there are no tools.", param="tool_choice")
    if isinstance(request.response_format, JsonSchemaFormat):
        answer = request.response_format.json_schema
        answer.schema = check_schema(answer.schema, "response_format.json_schema.schema")
