"""The fields of POST /v1/responses as an allow-list, and the chat request that they stand for."""

from typing import Annotated, Literal

import msgspec

from core.errors import RequestTooLarge, UnsupportedField
from gateway.dialects.responses.items import ItemId, chat_name
from gateway.limits import MAX_MESSAGES, MAX_NAME_CHARS, MAX_TOOLS, MAX_TOP_LOGPROBS
from gateway.schemas.messages import FunctionName
from gateway.schemas.sampling import (
    EndUser,
    MaxTokens,
    MinTokens,
    ModelName,
    Penalty,
    RepetitionPenalty,
    Seed,
    ServiceTier,
    Share,
    Temperature,
    TopK,
)
from gateway.schemas.structured import JsonSchema, Schema
from gateway.schemas.tools import (
    Allowed,
    AllowedChoice,
    CustomChoice,
    CustomSpec,
    CustomTool,
    Definition,
    Description,
    FreeText,
    FunctionChoice,
    FunctionSpec,
    FunctionTool,
    GrammarFormat,
    Named,
    Tool,
)

NAMESPACE = "namespace"
_SEARCHES = ("web_search", "web_search_preview")
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Label = Annotated[str, msgspec.Meta(max_length=512)]
Metadata = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=64)], Label],
    msgspec.Meta(max_length=16),
]
Items = Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]


class TextFormat(msgspec.Struct, tag_field="type", tag="text"):
    """Plain text."""


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchemaFormat(JsonSchema, tag_field="type", tag="json_schema"):
    """JSON that conforms to a schema."""


class TextOptions(msgspec.Struct):
    """The form of the answer's text."""

    format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(msgspec.Struct):
    """Whether the model thinks. There are no summaries: reasoning is returned as it is."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class StreamOptions(msgspec.Struct):
    """The options of a streamed answer. Events are never padded."""

    include_obfuscation: bool | None = None


class GrammarForm(Definition, tag_field="type", tag="grammar"):
    """The grammar of a custom tool's input, which chat nests deeper."""


class ToolSpec(msgspec.Struct):
    """A tool. `function` and `custom` are supported, and `namespace`, which is a group of them."""

    type: Annotated[str, msgspec.Meta(max_length=64)]
    name: FunctionName | None = None
    description: Description | None = None
    parameters: Schema = msgspec.UNSET
    strict: bool | None = None
    format: FreeText | GrammarForm | None = None
    tools: Annotated[list["ToolSpec"], msgspec.Meta(min_length=1, max_length=MAX_TOOLS)] | None = None
    """The members of a namespace."""
    external_web_access: bool | None = None

    @property
    def has_no_effect(self) -> bool:
        """Whether it is a search that may not leave the platform, which has no pages of its own to find."""
        return self.type in _SEARCHES and self.external_web_access is False


class FunctionRef(msgspec.Struct, tag_field="type", tag="function"):
    """The name of a function."""

    name: FunctionName


class CustomRef(msgspec.Struct, tag_field="type", tag="custom"):
    """The name of a custom tool."""

    name: FunctionName


class AllowedNames(msgspec.Struct, tag_field="type", tag="allowed_tools"):
    """The tools that the model may use."""

    tools: Annotated[list[FunctionRef | CustomRef], msgspec.Meta(min_length=1, max_length=MAX_TOOLS)]
    mode: Literal["auto", "required", "none"] = "auto"


ToolChoice = Literal["none", "auto", "required"] | FunctionRef | CustomRef | AllowedNames


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """All fields of a request. Other fields never reach an engine."""

    model: ModelName
    input: str | Items | None = None
    instructions: str | None = None
    previous_response_id: ItemId | None = None
    tools: Annotated[list[ToolSpec], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    seed: Seed | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    ignore_eos: bool | None = None
    min_tokens: MinTokens | None = None
    max_output_tokens: MaxTokens | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    include: Annotated[list[Label], msgspec.Meta(max_length=16)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    service_tier: ServiceTier | None = None
    user: EndUser | None = None
    safety_identifier: EndUser | None = None
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Label | None = None
    conversation: msgspec.Raw | None = None
    prompt: msgspec.Raw | None = None


def chat_tools(specs: list[ToolSpec]) -> list[Tool]:
    """Return the tools of a chat request; those of a namespace have its name before theirs.

    Raises UnsupportedField for a tool that the platform would have to run, and RequestTooLarge for too many.
    """
    tools = []
    for position, spec in enumerate(specs):
        where = f"tools[{position}]"
        if spec.type != NAMESPACE:
            tools += [] if spec.has_no_effect else [_chat_tool(spec, where, "")]
            continue
        if spec.name is None or not spec.tools:
            raise UnsupportedField(f"{where} needs 'name' and 'tools'.", code="missing_field", param=where)
        tools += [
            _chat_tool(each, f"{where}.tools[{place}]", spec.name) for place, each in enumerate(spec.tools)
        ]
    if len(tools) > MAX_TOOLS:
        raise RequestTooLarge(
            f"'tools' has {len(tools)} tools, those of namespaces included; at most {MAX_TOOLS} are accepted.",
            param="tools",
        )
    return tools


def namespaces(specs: list[ToolSpec]) -> dict[str, tuple[str, str]]:
    """Return namespace and own name of each tool of a namespace, by the name that the model sees."""
    return {
        chat_name(spec.name, each.name): (spec.name, each.name)
        for spec in specs if spec.type == NAMESPACE and spec.name
        for each in spec.tools or () if each.name
    }  # fmt: skip


def _chat_tool(spec: ToolSpec, where: str, namespace: str) -> Tool:
    if spec.type not in ("function", "custom"):
        raise UnsupportedField(
            f"{where} is of type '{spec.type}', which is not supported: the platform runs no tools. Use 'function' or "
            "'custom' and run the tool in the client.",
            code="unsupported_tool",
            param=f"{where}.type",
        )
    if spec.name is None:
        raise UnsupportedField(f"{where} needs 'name'.", code="missing_field", param=f"{where}.name")
    name = chat_name(namespace, spec.name)
    if len(name) > MAX_NAME_CHARS:
        raise RequestTooLarge(
            f"The model sees {where} as '{name}', which has more than {MAX_NAME_CHARS} characters; shorten the names.",
            param=f"{where}.name",
        )
    if spec.type == "custom":
        form = spec.format
        chat_form = GrammarFormat(form) if isinstance(form, GrammarForm) else form
        return CustomTool(CustomSpec(name, spec.description, chat_form))
    return FunctionTool(FunctionSpec(name, spec.description, spec.parameters, spec.strict))


def chat_choice(
    choice: ToolChoice | None,
) -> Literal["none", "auto", "required"] | FunctionChoice | CustomChoice | AllowedChoice | None:
    """Return the tool_choice of a chat request."""
    if choice is None or isinstance(choice, str):
        return choice
    if isinstance(choice, AllowedNames):
        if choice.mode == "none":
            return "none"
        return AllowedChoice(Allowed(choice.mode, [_named(each) for each in choice.tools]))
    return _named(choice)


def _named(choice: FunctionRef | CustomRef) -> FunctionChoice | CustomChoice:
    if isinstance(choice, CustomRef):
        return CustomChoice(Named(choice.name))
    return FunctionChoice(Named(choice.name))
