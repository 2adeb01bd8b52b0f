"""POST /v1/chat/completions: OpenAI's request shape as an allow-list (gateway/schemas/fields.py)."""

from typing import Annotated, Any, Literal

import msgspec

from core.errors import InvalidRequest
from gateway.limits import MAX_MESSAGES, MAX_NAME_CHARS, MAX_TEMPLATE_SWITCHES, MAX_TOP_LOGPROBS
from gateway.schemas.bounds import normalised_bytes, rewritten_growth
from gateway.schemas.common import THINKING_OFF, CallForm, PreparedRequest
from gateway.schemas.decoding import RequestDecoder
from gateway.schemas.fields import OPENAI
from gateway.schemas.labels import labels_of
from gateway.schemas.messages import Conversation, Message
from gateway.schemas.sampling import MaxTokens, certain_tokens, sampling_fields, set_fields
from gateway.schemas.structured import JsonSchemaFormat, Name, TextFormat, structured_fields
from gateway.schemas.tools import Offer, ToolRequest, take_tools

TemplateSwitches = Annotated[
    dict[Name, bool | int | float | Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)] | None],
    msgspec.Meta(max_length=MAX_TEMPLATE_SWITCHES),
]

TEMPLATE_TOKENS = 64
"""Tokens that a chat template may write around the messages, added to the upper bound of the prompt."""
TOOL_TEMPLATE_TOKENS = 512
"""Tokens that a chat template may write around messages and tools, whose use it explains."""
UNSET_MEMBERS_BYTES = 96
"""Bytes that engines write for a tool without description and parameters: null for each, on indented lines."""


class ChatRequest(ToolRequest, kw_only=True):
    """All fields of a chat completion. Other fields never reach an engine."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    chat_template_kwargs: TemplateSwitches | None = None
    enable_thinking: bool | None = None
    modalities: list[str] | None = None


_decoder = RequestDecoder(ChatRequest, OPENAI["chat"])


def parse_chat(body: bytes) -> PreparedRequest:
    """Validate the body of a chat completion. Raises InvalidRequest, RequestTooLarge or UnsupportedField."""
    request, unknown = _decoder.decode(body)
    return prepare_chat(request, len(body), unknown)


def prepare_chat(request: ChatRequest, body_bytes: int, unknown: tuple[str, ...] = ()) -> PreparedRequest:
    """Return the prepared form of a request whose fields have their types; its messages may be replaced.

    `body_bytes`: bytes of the body that it came in. `unknown`: names of that body's fields that are ignored.
    Raises InvalidRequest, RequestTooLarge or UnsupportedField.
    """
    conversation = Conversation(request.messages)
    offer = take_tools(request)
    if request.modalities and request.modalities != ["text"]:
        raise InvalidRequest("'modalities' may only be [\"text\"].", param="modalities")
    if request.top_logprobs and not request.logprobs:
        unknown = (*unknown, "top_logprobs")
    max_tokens = request.max_completion_tokens or request.max_tokens or 0
    fields, size, bound = _prompt(request, offer)
    constraint = structured_fields(request)
    if offer.grammar is not None:
        if constraint:
            raise InvalidRequest(
                f"The input of '{offer.text_call}' follows its grammar and cannot follow another constraint; leave out "
                "one of them.",
                param="tool_choice",
            )
        constraint = {"structured_outputs": msgspec.Raw(msgspec.json.encode(offer.grammar.constraint))}
    if isinstance(request.response_format, JsonSchemaFormat):
        response_format = bytes(constraint["response_format"])
        bound += normalised_bytes(response_format) + rewritten_growth(response_format)
    switches = _template_switches(request)
    bound += sum(normalised_bytes(str(value).encode()) for value in switches.values())
    fields |= sampling_fields(request, max_tokens) | constraint
    if request.logprobs:
        set_fields(fields, request, ("top_logprobs",))
    options = request.stream_options
    return PreparedRequest(
        endpoint="chat",
        model=request.model,
        stream=bool(request.stream),
        include_usage=bool(options and options.include_usage),
        choices=request.n or 1,
        choices_per_prompt=request.n or 1,
        max_tokens=max_tokens,
        prompt_bytes=size,
        body_bytes=body_bytes,
        max_input_tokens=bound + conversation.rewritten,
        fields=fields,
        reasoning_effort=request.reasoning_effort or "",
        logprobs_per_token=1 + (request.top_logprobs or 0) if request.logprobs else 0,
        min_tokens=certain_tokens(request, max_tokens),
        template_switches=switches,
        needs=_needs(request, conversation, offer, constrained=bool(constraint)),
        labels=labels_of(request),
        service_tier=request.service_tier or "",
        ignored_fields=unknown,
        calls=CallForm(offer.legacy, offer.custom, offer.text_call),
    )


def _prompt(request: ChatRequest, offer: Offer) -> tuple[dict[str, Any], int, int]:
    """The fields of the prompt, the bytes of its text, and an upper bound of its tokens."""
    messages = msgspec.json.encode(request.messages)
    fields: dict[str, Any] = {"messages": msgspec.Raw(messages)}
    size = len(messages) - 1  # without the bracket after the last message, which a longer conversation lacks
    bound = normalised_bytes(messages)
    if not offer.tools:
        return fields, size, bound + TEMPLATE_TOKENS
    tools = msgspec.json.encode(offer.tools)
    fields["tools"] = msgspec.Raw(tools)
    if offer.choice is not None:
        fields["tool_choice"] = msgspec.to_builtins(offer.choice)
    if offer.parallel is not None:
        fields["parallel_tool_calls"] = offer.parallel
    bound += normalised_bytes(tools) + rewritten_growth(tools) + TOOL_TEMPLATE_TOKENS
    bound += UNSET_MEMBERS_BYTES * len(offer.tools)
    return fields, size + len(tools), bound


def _needs(
    request: ChatRequest, conversation: Conversation, offer: Offer, *, constrained: bool
) -> tuple[tuple[str, str], ...]:
    """What the model must be able to do, with the fields that ask for it."""
    needs = [("chat", "messages"), *conversation.media.items()]
    if offer.tools:
        needs.append(("tools", "functions" if offer.legacy else "tools"))
    if offer.grammar is not None:
        needs.append(("json", "tools"))
    elif constrained:
        needs.append(("json", "response_format" if _has_format(request) else "structured_outputs"))
    if request.logprobs:
        needs.append(("logprobs", "logprobs"))
    if request.reasoning_effort and request.reasoning_effort not in THINKING_OFF:
        needs.append(("reasoning", "reasoning_effort"))
    return tuple(needs)


def _has_format(request: ChatRequest) -> bool:
    return request.response_format is not None and not isinstance(request.response_format, TextFormat)


def _template_switches(request: ChatRequest) -> dict[str, bool | int | float | str]:
    """The variables of the chat template that the request sets. Raises InvalidRequest when two contradict."""
    named = request.chat_template_kwargs or {}
    switches = {name: value for name, value in named.items() if value is not None}
    thinking = request.enable_thinking
    if thinking is not None and switches.setdefault("enable_thinking", thinking) is not thinking:
        raise InvalidRequest(
            "'enable_thinking' and 'chat_template_kwargs.enable_thinking' differ; send one.",
            param="enable_thinking",
        )
    return switches
