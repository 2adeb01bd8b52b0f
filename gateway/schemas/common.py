"""Shared parts of both endpoints: decoding with precise errors, refused fields, and the prepared request."""

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from core.errors import InvalidRequest, RequestTooLarge, UnsupportedField
from gateway.limits import (
    MAX_CHOICES,
    MAX_LOGIT_BIAS,
    MAX_MODEL_CHARS,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    MAX_SEED,
    MAX_STOP_CHARS,
    MAX_STOPS,
    MAX_TOKENS_FIELD,
)
from gateway.schemas.guard import nests_deeper, refuse_nul

T = TypeVar("T")

ModelName = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_MODEL_CHARS)]
Choices = Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)]
MaxTokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS_FIELD)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
TopP = Annotated[float, msgspec.Meta(gt=0, le=1)]
MinP = Annotated[float, msgspec.Meta(ge=0, le=1)]
TopK = Annotated[int, msgspec.Meta(ge=-1, le=1_000_000)]
RepetitionPenalty = Annotated[float, msgspec.Meta(gt=0, le=2)]
Seed = Annotated[int, msgspec.Meta(ge=-MAX_SEED, le=MAX_SEED)]
Stop = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_STOP_CHARS)]
Stops = Annotated[list[Stop], msgspec.Meta(max_length=MAX_STOPS)]
LogitBias = Annotated[
    dict[Annotated[str, msgspec.Meta(pattern=r"^\d{1,9}$")], Annotated[float, msgspec.Meta(ge=-100, le=100)]],
    msgspec.Meta(max_length=MAX_LOGIT_BIAS),
]

SAMPLING_FIELDS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "seed",
    "stop",
)
"""Fields of both endpoints that reach the engine as they are."""

REFUSED_FIELDS = (
    "add_generation_prompt",
    "add_special_tokens",
    "allowed_token_ids",
    "audio",
    "bad_words",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "data_parallel_rank",
    "documents",
    "echo",
    "function_call",
    "functions",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "ignore_eos",
    "include_stop_str_in_output",
    "kv_transfer_params",
    "length_penalty",
    "logits_processors",
    "logprob_token_ids",
    "media_io_kwargs",
    "min_tokens",
    "mm_processor_kwargs",
    "prompt_embeds",
    "prompt_logprobs",
    "return_prompt_text",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "stop_token_ids",
    "structural_tag",
    "structured_outputs",
    "suffix",
    "truncate_prompt_tokens",
    "use_beam_search",
    "vllm_xargs",
    "web_search_options",
)
"""Fields that change what is generated or returned and that customers may not set. Setting one is an error, because an
answer that ignores it would be wrong. A value that means "off" (null, false, 0, empty) is accepted and dropped, since
SDKs send such defaults."""

_OFF_VALUES = frozenset({b"null", b"false", b"0", b'""', b"[]", b"{}"})
Forbidden = msgspec.defstruct(
    "Forbidden", [(name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for name in REFUSED_FIELDS]
)
"""Finds refused fields in one pass over the body that skips all others.

Fields that would break the isolation between tenants in an engine (cache_salt, priority, request_id, session_id) are
skipped, too: they do not change the answer.
"""
_forbidden_decoder = msgspec.json.Decoder(Forbidden)
_NONE_FORBIDDEN = Forbidden()
_ERROR_PATH = re.compile(r" - at `(?:key in )?\$?\.?(.*)`$")


class StreamOptions(msgspec.Struct, omit_defaults=True):
    """The options of a streamed answer."""

    include_usage: bool | None = None


class Extras(msgspec.Struct, frozen=True):
    """Members of an answer that the customer gets only when the request asks for them."""

    stop_reason: bool = False
    """Which stop string ended a choice."""
    logprobs: bool = False


class PreparedRequest(msgspec.Struct):
    """A validated request with the allow-listed fields of its engine body."""

    endpoint: str
    """chat or text: selects the engine's path and the form of the answer."""
    model: str
    """The model's name as the client wrote it."""
    stream: bool
    include_usage: bool
    choices: int
    """Number of generations: n, times the number of prompts."""
    choices_per_prompt: int
    max_tokens: int
    """Output tokens per choice; 0 = no limit was given."""
    prompt_bytes: int
    """Bytes of the prompt's text: tools, then messages, in the order of the template."""
    body_bytes: int
    """Bytes of the body as it was received."""
    max_input_tokens: int
    """Upper bound of the prompt's tokens, without a tokenizer (gateway/schemas/bounds.py)."""
    fields: dict[str, Any]
    """Allow-listed engine fields, without model, salt and stream options; empty after `drop_body`.

    They contain the only copy of the prompt.
    """
    reasoning_effort: str = ""
    logprobs_per_token: int = 0
    """Log-probabilities that the request asks for, per output token."""

    @property
    def tools_in_one_piece(self) -> bool:
        """Whether the answer may contain tool calls and is not streamed: engines parse such answers better whole.

        The size of log-probabilities has no useful bound, so answers with them are read as they grow.
        """
        tools = "tools" in self.fields and self.fields.get("tool_choice") != "none"
        return tools and not self.stream and not self.logprobs_per_token

    @property
    def extras(self) -> Extras:
        """The extras that the request asks for, until `drop_body`."""
        return Extras("stop" in self.fields, self.logprobs_per_token > 0)

    @property
    def has_logit_bias(self) -> bool:
        """Whether the request biases tokens, until `drop_body`. A bias may leave the end as the only token."""
        return "logit_bias" in self.fields

    def prompt_prefix(self, limit: int) -> bytes:
        """Return the first bytes of the prompt's text, at most `limit`, for prefix hashes."""
        limit = min(limit, self.prompt_bytes)
        text = b""
        for name in ("tools", "messages", "prompt"):
            if name in self.fields and len(text) < limit:
                text += memoryview(self.fields[name])[: limit - len(text)]
        return text

    def drop_body(self) -> None:
        """Free the prompt: no further attempt will be made. `engine_body` and `prompt_prefix` are useless then."""
        self.fields = {}

    def engine_body(
        self,
        model: str,
        cache_salt: str,
        *,
        reasoning: bool = False,
        interval: int = 0,
        max_tokens: int = 0,
        whole: bool = False,
    ) -> bytes:
        """Return the body for the engine: a stream with running counts (gateway/relay.py explains why), or `whole`.

        `model`: the name under which the engine serves the model. `cache_salt`: the tenant's; empty = none.
        `reasoning`: whether the model's chat template has a switch for thinking. `interval`: tokens per event; 0 = the
        engine's own. `max_tokens`: the limit when the request names none; 0 = none.
        """
        body = dict(self.fields)
        body["model"] = model
        body["stream"] = not whole
        if not whole:
            body["stream_options"] = _STREAM_OPTIONS
        if interval:
            body["stream_interval"] = interval
        if max_tokens:
            body.setdefault("max_tokens", max_tokens)
        if cache_salt:
            body["cache_salt"] = cache_salt
        if switches := self.template_kwargs(reasoning=reasoning):
            body["chat_template_kwargs"] = switches
        return msgspec.json.encode(body)

    def template_kwargs(self, *, reasoning: bool) -> dict[str, bool]:
        """Return the variables of the chat template, which switch thinking; empty for the template's defaults."""
        if not (reasoning and self.reasoning_effort):
            return {}
        thinking = self.reasoning_effort not in _THINKING_OFF
        return {"thinking": thinking, "enable_thinking": thinking}


Parse = Callable[[bytes], PreparedRequest]
"""Validates a body. Raises InvalidRequest or a subclass of it."""
_THINKING_OFF = ("none", "minimal")
"""Values of reasoning_effort that switch thinking off."""
_STREAM_OPTIONS = {"include_usage": True, "continuous_usage_stats": True}


class RequestDecoder(Generic[T]):
    """Decodes bodies of one request type, with errors that name the field and the remedy."""

    def __init__(self, request_type: type[T]) -> None:
        self._decoder = msgspec.json.Decoder(request_type)

    def decode(self, body: bytes) -> T:
        """Return the typed request. Raises InvalidRequest, RequestTooLarge or UnsupportedField."""
        refuse_nul(body)
        try:
            forbidden = _forbidden_decoder.decode(body)
            request = self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise _to_error(str(error)) from None
        except RecursionError:
            raise RequestTooLarge("The body nests too deep; flatten it.", code="body_too_deep") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"The body is not valid JSON: {error}", code="invalid_json") from None
        if forbidden != _NONE_FORBIDDEN:
            _refuse_forbidden(forbidden)
        return request


def _refuse_forbidden(forbidden: Any) -> None:
    """Raise UnsupportedField for the first refused field whose value is not "off"."""
    for name in REFUSED_FIELDS:
        value = getattr(forbidden, name)
        if value is not msgspec.UNSET and bytes(value).strip() not in _OFF_VALUES:
            raise UnsupportedField(
                f"'{name}' is not supported by this API; remove it from the request.",
                param=name,
                code="unsupported_field",
            )


def _to_error(message: str) -> InvalidRequest:
    """The error for a decoder's message, with the field as `param`."""
    match = _ERROR_PATH.search(message)
    param = match.group(1) if match else None
    text = message[: match.start()] if match else message
    if param and ".content" in param and param.endswith("type"):
        return UnsupportedField(
            f"{text} at '{param}': only parts of type 'text' are accepted; this model reads no images, audio or files.",
            param=param,
            code="unsupported_content",
        )
    where = f" at '{param}'" if param else ""
    kind = RequestTooLarge if "of length <=" in text else InvalidRequest
    return kind(f"{text}{where}.", param=param)


def check_schema(schema: msgspec.Raw | msgspec.UnsetType, param: str) -> msgspec.Raw | msgspec.UnsetType:
    """Return a JSON schema, which an engine compiles into a grammar; UNSET for null.

    It is passed on as the client wrote it, since decoding and encoding it costs more than the rest of the request.
    Raises InvalidRequest when it is not an object or not UTF-8, and RequestTooLarge above the limits.
    """
    if schema is msgspec.UNSET:
        return schema
    text = bytes(schema)
    if text == b"null":
        return msgspec.UNSET
    if not text.startswith(b"{"):
        raise InvalidRequest(f"The JSON schema at '{param}' must be an object.", param=param)
    if len(text) > MAX_SCHEMA_BYTES:
        raise RequestTooLarge(
            f"The JSON schema at '{param}' is {len(text):,} bytes; at most {MAX_SCHEMA_BYTES:,} are accepted.",
            param=param,
        )
    if nests_deeper(text, MAX_SCHEMA_DEPTH):
        raise RequestTooLarge(
            f"The JSON schema at '{param}' nests deeper than {MAX_SCHEMA_DEPTH} levels.", param=param
        )
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}", code="invalid_json") from None
    return schema


def set_fields(fields: dict[str, Any], request: msgspec.Struct, names: Iterable[str]) -> None:
    """Copy the named fields of `request` that are set, since a null field means the same as an absent one.

    Empty lists and objects mean the same, too.
    """
    for name in names:
        value = getattr(request, name)
        if value is not None and value != [] and value != {}:
            fields[name] = value
