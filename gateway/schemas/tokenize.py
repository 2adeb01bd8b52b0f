"""POST /v1/tokenize and /v1/detokenize: vLLM's requests as allow-lists. Nothing of them reaches an engine."""

from typing import Annotated, Any, Literal

import msgspec

from core.errors import InvalidRequest
from gateway.limits import MAX_DETOKENIZED_TOKENS, MAX_MESSAGES, MAX_TOOLS
from gateway.schemas.chat import ChatRequest, TemplateSwitches, prepare_chat
from gateway.schemas.common import PreparedRequest, PromptForm
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.decoding import RequestDecoder
from gateway.schemas.fields import IGNORED, REFUSED, KnownFields
from gateway.schemas.messages import Message
from gateway.schemas.sampling import ModelName, TokenId
from gateway.schemas.tools import Tool
from workers.token_blocks import TOKEN_BYTES


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """What is tokenized: `prompt`, or `messages` as chat takes them."""

    model: ModelName
    prompt: str | None = None
    messages: Annotated[list[Message], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[Tool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: TemplateSwitches | None = None
    enable_thinking: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """The tokens whose text is asked for."""

    model: ModelName
    tokens: Annotated[list[TokenId], msgspec.Meta(max_length=MAX_DETOKENIZED_TOKENS)]


_OF_MESSAGES = (
    "tools", "add_generation_prompt", "chat_template_kwargs", "enable_thinking", "reasoning_effort",
)  # fmt: skip
"""Fields that mean nothing without `messages`."""
_NO_ABILITY = frozenset({"chat", "tools", "reasoning"})
"""Abilities that a prompt needs to be answered, but not to be tokenized."""
_NOT_PROMPT = "not part of the prompt"
_REFUSED = {
    name: REFUSED[name]
    for name in (
        "chat_template", "continue_final_message", "documents", "media_io_kwargs", "mm_processor_kwargs",
        "truncate_prompt_tokens", "truncation_side",
    )
}  # fmt: skip
_TOKENIZE = KnownFields(
    {
        **IGNORED,
        **dict.fromkeys((*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__), _NOT_PROMPT),
    },
    _REFUSED,
)
"""A body of chat or of a text completion may be tokenized as it is."""
_tokenize_decoder = RequestDecoder(TokenizeRequest, _TOKENIZE)
_detokenize_decoder = RequestDecoder(DetokenizeRequest, KnownFields({}, {}))


def parse_tokenize(body: bytes) -> PreparedRequest:
    """Validate the body of tokenize. Raises InvalidRequest, RequestTooLarge or UnsupportedField."""
    request, unknown = _tokenize_decoder.decode(body)
    if (request.prompt is None) is (request.messages is None):
        raise InvalidRequest(
            "Send either 'prompt', a text, or 'messages'.",
            param="prompt" if request.messages is None else "messages",
        )
    if request.messages is not None:
        prepared = _chat(request, request.messages, len(body), unknown)
    else:
        for name in _OF_MESSAGES:
            if getattr(request, name) is not None:
                raise InvalidRequest(f"'{name}' goes with 'messages', not with 'prompt'.", param=name)
        prepared = _plain("text", request.model, "prompt", request.prompt, len(body), unknown)
    prepared.form = PromptForm(request.add_generation_prompt is not False, request.add_special_tokens)
    prepared.dialect_fields = {"strings": bool(request.return_token_strs)}
    return prepared


def parse_detokenize(body: bytes) -> PreparedRequest:
    """Validate the body of detokenize. Raises InvalidRequest, RequestTooLarge or UnsupportedField."""
    request, unknown = _detokenize_decoder.decode(body)
    prepared = _plain("detokenize", request.model, "tokens", request.tokens, len(body), unknown)
    prepared.prompt_bytes = len(request.tokens) * TOKEN_BYTES
    return prepared


def _chat(
    request: TokenizeRequest, messages: list[Message], body_bytes: int, unknown: tuple[str, ...]
) -> PreparedRequest:
    """The prepared chat whose prompt is asked for."""
    chat = ChatRequest(
        model=request.model,
        messages=messages,
        tools=request.tools or None,
        chat_template_kwargs=request.chat_template_kwargs,
        enable_thinking=request.enable_thinking,
        reasoning_effort=request.reasoning_effort,
    )
    prepared = prepare_chat(chat, body_bytes, unknown)
    prepared.needs = tuple(need for need in prepared.needs if need[0] not in _NO_ABILITY)
    return prepared


def _plain(
    endpoint: str, model: str, name: str, value: Any, body_bytes: int, unknown: tuple[str, ...]
) -> PreparedRequest:
    """A prepared request with one field, which no engine gets."""
    text = msgspec.json.encode(value)
    return PreparedRequest(
        endpoint=endpoint,
        model=model,
        stream=False,
        include_usage=False,
        choices=1,
        choices_per_prompt=1,
        max_tokens=0,
        prompt_bytes=len(text),
        body_bytes=body_bytes,
        max_input_tokens=0,
        fields={name: msgspec.Raw(text)},
        ignored_fields=unknown,
    )
