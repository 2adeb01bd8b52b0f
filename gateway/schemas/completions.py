"""POST /v1/completions: OpenAI's older text interface as an allow-list."""

from typing import Annotated, Any

import msgspec

from core.errors import InvalidRequest, RequestTooLarge
from gateway.limits import CHOICES_AT_ONCE, MAX_PROMPTS, MAX_TEXT_LOGPROBS
from gateway.schemas.bounds import normalised_bytes
from gateway.schemas.common import PreparedRequest, PromptPart
from gateway.schemas.decoding import RequestDecoder
from gateway.schemas.fields import OPENAI
from gateway.schemas.labels import labels_of
from gateway.schemas.sampling import Choices, TokenId, certain_tokens, sampling_fields
from gateway.schemas.structured import StructuredRequest, structured_fields

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default of max_tokens on this endpoint."""
SPECIAL_TOKENS = 8
"""Special tokens that a tokenizer may add to a text, added per prompt to the upper bound."""


class CompletionRequest(StructuredRequest, kw_only=True):
    """All fields of a text completion. Other fields never reach an engine."""

    prompt: str | list[str | TokenId | list[TokenId]]
    best_of: Choices | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_TEXT_LOGPROBS)] | None = None


_decoder = RequestDecoder(CompletionRequest, OPENAI["text"])


def parse_completion(body: bytes) -> PreparedRequest:
    """Validate the body of a text completion. Raises InvalidRequest, RequestTooLarge or UnsupportedField."""
    request, unknown = _decoder.decode(body)
    sizes = _prompt_tokens(request.prompt)
    prompts, n = len(sizes), request.n or 1
    if request.best_of is not None and request.best_of != n:
        raise InvalidRequest(
            "'best_of' must equal 'n'; candidates that are thrown away are not generated.", param="best_of"
        )
    if prompts * n > MAX_PROMPTS:
        raise RequestTooLarge(
            f"{prompts} prompts times n={n} make {prompts * n} choices; at most {MAX_PROMPTS:,} are accepted.",
            param="n",
        )
    parts = _parts(request.prompt, sizes, n) if prompts * n > CHOICES_AT_ONCE else []
    prompt = parts[0].prompts if parts else msgspec.json.encode(request.prompt)
    max_tokens = request.max_tokens or DEFAULT_MAX_TOKENS
    fields: dict[str, Any] = {"prompt": msgspec.Raw(prompt)}
    fields |= sampling_fields(request, max_tokens)
    constraint = structured_fields(request)
    fields |= constraint
    needs = [("completions", "prompt")]
    if constraint:
        needs.append(("json", next(iter(constraint))))
    if request.logprobs is not None:
        needs.append(("logprobs", "logprobs"))
    options = request.stream_options
    return PreparedRequest(
        endpoint="text",
        model=request.model,
        stream=bool(request.stream),
        include_usage=bool(options and options.include_usage),
        choices=prompts * n,
        choices_per_prompt=n,
        max_tokens=max_tokens,
        prompt_bytes=sum(len(part.prompts) for part in parts) or len(prompt.rstrip(b'"]')),
        body_bytes=len(body),
        max_input_tokens=sum(sizes),
        parts=parts,
        fields=fields,
        logprobs_per_token=0 if request.logprobs is None else 1 + request.logprobs,
        min_tokens=certain_tokens(request, max_tokens),
        needs=tuple(needs),
        labels=labels_of(request),
        service_tier=request.service_tier or "",
        ignored_fields=unknown,
    )


def _parts(prompts: Any, sizes: list[int], choices_per_prompt: int) -> list[PromptPart]:
    """The prompts in the parts that an engine gets at once. `sizes` bound the tokens of each prompt."""
    each = CHOICES_AT_ONCE // choices_per_prompt
    return [
        PromptPart(sum(sizes[first : first + each]), msgspec.json.encode(prompts[first : first + each]))
        for first in range(0, len(sizes), each)
    ]


def _prompt_tokens(prompt: str | list[Any]) -> list[int]:
    """An upper bound of the tokens of each prompt. Raises InvalidRequest or RequestTooLarge."""
    if isinstance(prompt, str):
        return [normalised_bytes(prompt.encode()) + SPECIAL_TOKENS]
    if not prompt:
        raise InvalidRequest("'prompt' is empty.", param="prompt")
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1:
        raise InvalidRequest("'prompt' mixes texts and token ids; use one kind.", param="prompt")
    if kinds == {int}:
        return [len(prompt) + SPECIAL_TOKENS]
    if len(prompt) > MAX_PROMPTS:
        raise RequestTooLarge(
            f"{len(prompt):,} prompts; at most {MAX_PROMPTS:,} are accepted.", param="prompt"
        )
    if kinds == {list} and not all(prompt):
        raise InvalidRequest("'prompt' contains an empty list of tokens.", param="prompt")
    sizes = (normalised_bytes(item.encode()) if isinstance(item, str) else len(item) for item in prompt)
    return [size + SPECIAL_TOKENS for size in sizes]
