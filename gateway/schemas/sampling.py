"""The fields of both endpoints that say how tokens are drawn and when an answer ends."""

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from core.errors import InvalidRequest
from gateway.limits import (
    MAX_CHOICES,
    MAX_LABEL_CHARS,
    MAX_LOGIT_BIAS,
    MAX_METADATA,
    MAX_MODEL_CHARS,
    MAX_SEED,
    MAX_STOP_CHARS,
    MAX_STOP_TOKENS,
    MAX_STOPS,
    MAX_TOKEN_ID,
    MAX_TOKENS_FIELD,
)

ModelName = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_MODEL_CHARS)]
Choices = Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)]
MaxTokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS_FIELD)]
MinTokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS_FIELD)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
TopK = Annotated[int, msgspec.Meta(ge=-1, le=1_000_000)]
RepetitionPenalty = Annotated[float, msgspec.Meta(gt=0, le=2)]
Seed = Annotated[int, msgspec.Meta(ge=-MAX_SEED, le=MAX_SEED)]
ServiceTier = Annotated[str, msgspec.Meta(max_length=40)]
Stop = Annotated[str, msgspec.Meta(max_length=MAX_STOP_CHARS)]
Stops = Annotated[list[Stop], msgspec.Meta(max_length=MAX_STOPS)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
StopTokens = Annotated[list[TokenId], msgspec.Meta(max_length=MAX_STOP_TOKENS)]
LogitBias = Annotated[
    dict[Annotated[str, msgspec.Meta(pattern=r"^\d{1,9}$")], Annotated[float, msgspec.Meta(ge=-100, le=100)]],
    msgspec.Meta(max_length=MAX_LOGIT_BIAS),
]
EndUser = Annotated[str, msgspec.Meta(max_length=MAX_LABEL_CHARS)]
Metadata = Annotated[dict[str, msgspec.Raw], msgspec.Meta(max_length=MAX_METADATA)]

GREEDY_TEMPERATURE = 1e-5
"""Temperatures below it mean that the likeliest token is taken, as in vLLM (sampling_params.py, _SAMPLING_EPS)."""

_PASSED_ON = (
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
    "stop_token_ids",
)
"""Fields that reach the engine as they are."""
_SWITCHES = {
    "ignore_eos": False,
    "include_stop_str_in_output": False,
    "return_token_ids": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
}
"""Fields that reach the engine when they differ from its default."""


class StreamOptions(msgspec.Struct, omit_defaults=True):
    """The options of a streamed answer."""

    include_usage: bool | None = None


class SamplingRequest(msgspec.Struct, kw_only=True):
    """The fields that chat and text completions share. Other fields never reach an engine."""

    model: ModelName
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: MaxTokens | None = None
    min_tokens: MinTokens | None = None
    ignore_eos: bool | None = None
    n: Choices | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    seed: Seed | None = None
    service_tier: ServiceTier | None = None
    stop: Stop | Stops | None = None
    stop_token_ids: StopTokens | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    user: EndUser | None = None
    safety_identifier: EndUser | None = None
    metadata: Metadata | None = None


def sampling_fields(request: SamplingRequest, max_tokens: int) -> dict[str, Any]:
    """Return the engine's fields of a request. `max_tokens`: its limit of output tokens, 0 = none.

    Raises InvalidRequest when `min_tokens` is larger than the limit.
    """
    fields: dict[str, Any] = {}
    if max_tokens:
        fields["max_tokens"] = max_tokens
    if request.min_tokens:
        if max_tokens and request.min_tokens > max_tokens:
            raise InvalidRequest(
                f"'min_tokens' is {request.min_tokens:,}, but the answer has at most {max_tokens:,} tokens; raise "
                "'max_tokens' or ask for fewer.",
                param="min_tokens",
            )
        fields["min_tokens"] = request.min_tokens
    set_fields(fields, request, _PASSED_ON)
    for name, default in _SWITCHES.items():
        if getattr(request, name) is (not default):
            fields[name] = not default
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if kept := [stop for stop in stops if stop]:
        fields["stop"] = kept
    _take_likeliest(fields, request.n or 1)
    return fields


def certain_tokens(request: SamplingRequest, max_tokens: int) -> int:
    """Return the output tokens that each choice certainly has, unless its request ends early."""
    ends = request.stop or request.stop_token_ids
    return max_tokens if request.ignore_eos and not ends else request.min_tokens or 0


def _take_likeliest(fields: dict[str, Any], choices: int) -> None:
    """Write greedy sampling so that engines take it.

    They refuse a `top_p` of 0, and several choices at temperature 0: those are drawn among the one likeliest token.
    """
    if fields.get("top_p") == 0:
        del fields["top_p"]
        fields["temperature"] = 0.0
    if choices > 1 and fields.get("temperature", 1.0) < GREEDY_TEMPERATURE:
        fields["temperature"] = 1.0
        fields["top_k"] = 1


def set_fields(fields: dict[str, Any], request: msgspec.Struct, names: Iterable[str]) -> None:
    """Copy the named fields of `request` that are set, since a null field means the same as an absent one.

    Empty lists and objects mean the same, too.
    """
    for name in names:
        value = getattr(request, name, None)
        if value is not None and value != [] and value != {}:
            fields[name] = value
