"""Every top-level field of a completion request that a known API defines, and what the gateway does with it.

Known are OpenAI's and vLLM's requests, and the fields that clients of other engines and providers send. The table is
shown in docs/api.md (`python -m tests.architecture.request_fields --write`).

* accepted: checked, and used or passed on. These are exactly the fields of the request types.
* ignored: has no effect here and the answer is right without it.
* refused: changes the answer, its price or the isolation between tenants, and is not supported. Setting it is an error,
  because an answer that ignored it would be wrong. Values that mean "off" are taken.

A field that is not in the table is unknown: it is ignored and named in the header `x-penstock-ignored-fields`, unless
its name is within two edits of an accepted one.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from core.errors import InvalidRequest, RequestTooLarge, UnsupportedField
from gateway.limits import MAX_BODY_FIELDS, MAX_IGNORED_FIELDS_BYTES

Endpoint = Literal["chat", "text", "responses", "embeddings"]

OFF_VALUES = frozenset({b"null", b"false", b"0", b'""', b"[]", b"{}"})
"""Values of refused fields that mean "off" in every API."""
MAX_EDITS = 2
"""Edits up to which an unknown name is taken for a misspelt one."""
MIN_MISSPELT_CHARS = 3
"""Characters of the shortest accepted name that others are compared with: every short word is near to `n`."""


class Refused(msgspec.Struct, frozen=True):
    """Why a field is refused."""

    reason: str
    """What to do instead; the end of a sentence that begins with the name."""
    harmless: frozenset[bytes] = OFF_VALUES
    """JSON values with which the answer is right without the field."""


OTHER_ROUTE: dict[Endpoint, frozenset[str]] = {
    "chat": frozenset(("prompt", "best_of")),
    "text": frozenset(
        (
            "messages",
            "max_completion_tokens",
            "top_logprobs",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "reasoning_effort",
            "modalities",
            "chat_template_kwargs",
            "enable_thinking",
            "functions",
            "function_call",
        )
    ),
    "responses": frozenset(
        (
            "best_of",
            "chat_template_kwargs",
            "enable_thinking",
            "function_call",
            "functions",
            "guided_choice",
            "guided_grammar",
            "guided_json",
            "guided_regex",
            "guided_whitespace_pattern",
            "include_stop_str_in_output",
            "logit_bias",
            "logprobs",
            "max_completion_tokens",
            "max_tokens",
            "messages",
            "modalities",
            "n",
            "reasoning_effort",
            "response_format",
            "return_token_ids",
            "skip_special_tokens",
            "spaces_between_special_tokens",
            "stop",
            "stop_token_ids",
            "structured_outputs",
        )
    ),
    "embeddings": frozenset(("messages", "prompt", "return_token_ids")),
}
"""Fields that only other endpoints accept."""

IGNORED: dict[str, str] = {
    "disable_fallbacks": "there are no fallbacks",
    "guided_decoding_backend": "the engine chooses",
    "keep_alive": "models stay loaded",
    "moderation": "nothing is moderated",
    "prediction": "only makes answers faster",
    "prompt_cache_key": "prompts are cached without it",
    "prompt_cache_options": "prompts are cached without it",
    "prompt_cache_retention": "prompts are cached without it",
    "request_id": "the server makes its own",
    "session_id": "prompts are cached without it",
    "store": "prompts and answers are not stored",
    "stream_interval": "the platform chooses the size of events",
    "usage": "streams have it with `stream_options.include_usage`, other answers always",
}
"""Fields without effect, and why."""

_TEMPLATE = "templates belong to the model; `chat_template_kwargs` takes the model's switches"
_MEDIA = "models here read text"
_CACHE = "isolation between organisations is the platform's"
_SHAPE = "answers have OpenAI's shape"
_TOKENS = "use `logit_bias`"
_ROUTING = "the platform chooses replicas, and `model` names one model"
_NULL = frozenset({b"null"})
_TRUE = frozenset({b"null", b"true"})
_AT_THE_CONTEXT = OFF_VALUES | {b"-1"}  # a prompt above the context is refused, so -1 leaves nothing to cut
_SAMPLER = "this sampler is not available"
_DISTRIBUTED = "it belongs to the engine's operator"
REFUSED: dict[str, Refused] = {
    "add_generation_prompt": Refused(_TEMPLATE, _TRUE),
    "add_special_tokens": Refused(_TEMPLATE, _NULL),
    "allowed_token_ids": Refused(_TOKENS),
    "audio": Refused(_MEDIA),
    "bad_words": Refused(_TOKENS),
    "cache_salt": Refused(_CACHE),
    "chat_template": Refused(_TEMPLATE),
    "continue_final_message": Refused("an answer is a new message"),
    "data_parallel_rank": Refused(_ROUTING),
    "documents": Refused("put them into a message"),
    "dry_multiplier": Refused(_SAMPLER),
    "ebnf": Refused("use `structured_outputs.grammar`"),
    "echo": Refused("the prompt is not part of the answer"),
    "ec_transfer_params": Refused(_DISTRIBUTED),
    "grammar": Refused("use `structured_outputs.grammar`"),
    "include_reasoning": Refused(_SHAPE, _TRUE),
    "json_schema": Refused("use `response_format` or `structured_outputs.json`"),
    "kv_transfer_params": Refused(_DISTRIBUTED),
    "length_penalty": Refused("it belongs to beam search", OFF_VALUES | {b"1", b"1.0"}),
    "logits_processors": Refused(_SAMPLER),
    "logprob_token_ids": Refused("use `logprobs` and `top_logprobs`"),
    "lora_path": Refused(_ROUTING),
    "media_io_kwargs": Refused(_MEDIA),
    "min_new_tokens": Refused("use `min_tokens`"),
    "mirostat": Refused(_SAMPLER),
    "mm_payload": Refused(_MEDIA, OFF_VALUES | {b'"tensors"'}),
    "mm_processor_kwargs": Refused(_MEDIA),
    "models": Refused(_ROUTING),
    "num_ctx": Refused("the context length is the model's"),
    "num_predict": Refused("use `max_tokens`"),
    "n_predict": Refused("use `max_tokens`"),
    "options": Refused("write the options as fields of the request"),
    "plugins": Refused("the platform runs no tools"),
    "priority": Refused("use `service_tier`"),
    "prompt_embeds": Refused("a prompt is text or token ids"),
    "prompt_logprobs": Refused("log-probabilities are those of the answer"),
    "provider": Refused(_ROUTING),
    "random_seed": Refused("use `seed`"),
    "reasoning": Refused("use `reasoning_effort`"),
    "regex": Refused("use `structured_outputs.regex`"),
    "repetition_detection": Refused("use `repetition_penalty` or `stop`"),
    "return_mm_kwargs": Refused(_MEDIA),
    "return_prompt_text": Refused(_SHAPE),
    "return_token_offsets": Refused(_SHAPE),
    "return_tokens_as_token_ids": Refused(_SHAPE),
    "route": Refused(_ROUTING),
    "routed_experts_prompt_start": Refused(_SHAPE),
    "safe_prompt": Refused("put it into a message"),
    "separate_reasoning": Refused(_SHAPE, _TRUE),
    "structural_tag": Refused("use `structured_outputs`"),
    "suffix": Refused("no model here fills a gap"),
    "thinking": Refused("use `enable_thinking` or `reasoning_effort`"),
    "thinking_budget": Refused("use `reasoning_effort`", _NULL),
    "thinking_token_budget": Refused("use `reasoning_effort`", _NULL | {b"-1"}),
    "transforms": Refused("a prompt is never changed"),
    "truncate_prompt_tokens": Refused("a prompt is never cut", _AT_THE_CONTEXT),
    "truncation_side": Refused("a prompt is never cut"),
    "typical_p": Refused(_SAMPLER, OFF_VALUES | {b"1", b"1.0"}),
    "use_beam_search": Refused("answers are sampled"),
    "verbosity": Refused("ask for it in a message", OFF_VALUES | {b'"medium"'}),
    "vllm_xargs": Refused(_DISTRIBUTED),
    "watermarking": Refused(_SAMPLER),
    "web_search_options": Refused("the platform runs no tools"),
}
"""Fields that are refused unless their value is harmless."""


_OPTIONS = "stream_options"
_members_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)


class KnownFields(msgspec.Struct, frozen=True):
    """The fields that a route knows beside those that it accepts."""

    ignored: Mapping[str, str]
    """Why each has no effect."""
    refused: Mapping[str, Refused]
    other_route: frozenset[str] = frozenset()
    """Fields of other routes."""


OPENAI: dict[Endpoint, KnownFields] = {
    endpoint: KnownFields(IGNORED, REFUSED, others) for endpoint, others in OTHER_ROUTE.items()
}
"""The fields of OpenAI's routes."""


def check_fields(
    known: KnownFields, accepted: frozenset[str], body: dict[str, msgspec.Raw]
) -> tuple[str, ...]:
    """Return the names of a body's fields and stream options that are ignored, each in their order.

    `accepted`: the fields of the route's request type. Raises UnsupportedField for a refused field that is set,
    InvalidRequest for a misspelt one, and RequestTooLarge for more than MAX_BODY_FIELDS fields.
    """
    others = body.keys() - accepted
    options = _ignored_options(body[_OPTIONS]) if _OPTIONS in body and _OPTIONS in accepted else ()
    if not others:
        return options
    if len(body) > MAX_BODY_FIELDS:
        raise RequestTooLarge(f"The body has {len(body):,} fields; at most {MAX_BODY_FIELDS} are accepted.")
    unknown = []
    for name, value in body.items():
        if name not in others or name in known.ignored:
            continue
        refused = known.refused.get(name)
        if refused is not None:
            if bytes(value).strip() not in refused.harmless:
                _refuse(name, refused.reason)
        elif name in known.other_route:
            if bytes(value).strip() not in OFF_VALUES:
                _refuse(name, "it belongs to another route")
        else:
            _check_spelling(name, accepted)
            unknown.append(name)
    return (*unknown, *options)


def _ignored_options(value: msgspec.Raw) -> tuple[str, ...]:
    """The members of `stream_options` that are set and have no effect; only the decoder refuses what is no object."""
    try:
        members = _members_decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ()
    return tuple(
        f"{_OPTIONS}.{name}"
        for name, given in (members or {}).items()
        if name != "include_usage" and bytes(given).strip() not in OFF_VALUES
    )


def _refuse(name: str, reason: str) -> None:
    raise UnsupportedField(
        f"'{name}' is not supported by this API: {reason}. Remove it from the request.", param=name
    )


def _check_spelling(name: str, accepted: Iterable[str]) -> None:
    """Raise InvalidRequest when `name` is within MAX_EDITS of an accepted name."""
    longest = max(map(len, accepted)) + MAX_EDITS
    if len(name) > longest:
        return
    near = min(
        ((distance, each) for each in accepted if (distance := _distance_to(name, each)) <= MAX_EDITS),
        default=None,
    )
    if near is not None:
        raise InvalidRequest(
            f"There is no field '{name}'. Did you mean '{near[1]}'?", param=name, code="unknown_field"
        )


def _distance_to(name: str, accepted: str) -> int:
    """Edits from `name` to an accepted name; more than MAX_EDITS for a name too short to compare with."""
    if len(accepted) < MIN_MISSPELT_CHARS or abs(len(name) - len(accepted)) > MAX_EDITS:
        return MAX_EDITS + 1
    return edits(name, accepted)


def edits(one: str, other: str) -> int:
    """Return how many insertions, deletions and replacements of a character make one text of the other."""
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, 1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(other, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
    return row[-1]


def ignored_header(names: Iterable[str]) -> bytes:
    """Return the value of `x-penstock-ignored-fields`: printable ASCII, at most MAX_IGNORED_FIELDS_BYTES.

    Other characters than printable ASCII, commas and backslashes are escaped as in JSON. Names that do not fit are left
    out, and `...` stands for them.
    """
    value, rest = b"", b", ..."
    for name in names:
        text = b"".join(_escaped(character) for character in name[:MAX_IGNORED_FIELDS_BYTES])
        longer = value + b", " + text if value else text
        if len(longer) + len(rest) > MAX_IGNORED_FIELDS_BYTES:
            return value + rest if value else b"..."
        value = longer
    return value


def _escaped(character: str) -> bytes:
    if "!" <= character <= "~" and character not in ",\\":
        return character.encode()
    units = character.encode("utf-16-be", "surrogatepass")
    return b"".join(b"\\u%02x%02x" % (units[i], units[i + 1]) for i in range(0, len(units), 2))
