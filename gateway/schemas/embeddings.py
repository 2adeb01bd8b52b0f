"""POST /v1/embeddings: OpenAI's request as an allow-list."""

from typing import Annotated, Any, Literal

import msgspec

from core.errors import InvalidRequest, RequestTooLarge
from gateway.limits import MAX_DIMENSIONS, MAX_INPUTS
from gateway.schemas.bounds import normalised_bytes
from gateway.schemas.common import PreparedRequest
from gateway.schemas.completions import SPECIAL_TOKENS
from gateway.schemas.decoding import RequestDecoder
from gateway.schemas.fields import OPENAI
from gateway.schemas.labels import labels_of
from gateway.schemas.sampling import EndUser, Metadata, ModelName, TokenId


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """All fields of a request for embeddings. Other fields never reach an engine."""

    model: ModelName
    input: str | list[str | TokenId | list[TokenId]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=MAX_DIMENSIONS)] | None = None
    user: EndUser | None = None
    safety_identifier: EndUser | None = None
    metadata: Metadata | None = None


_decoder = RequestDecoder(EmbeddingsRequest, OPENAI["embeddings"])


def parse_embeddings(body: bytes) -> PreparedRequest:
    """Validate the body of a request for embeddings. Raises InvalidRequest, RequestTooLarge or UnsupportedField."""
    request, unknown = _decoder.decode(body)
    inputs, bound = _count_inputs(request.input)
    text = msgspec.json.encode(request.input)
    fields: dict[str, Any] = {"input": msgspec.Raw(text)}
    if request.encoding_format is not None:
        fields["encoding_format"] = request.encoding_format
    if request.dimensions is not None:
        fields["dimensions"] = request.dimensions
    return PreparedRequest(
        endpoint="embeddings",
        model=request.model,
        stream=False,
        include_usage=False,
        choices=inputs,
        choices_per_prompt=1,
        max_tokens=0,
        prompt_bytes=len(text.rstrip(b'"]')),
        body_bytes=len(body),
        max_input_tokens=bound,
        fields=fields,
        needs=(("embeddings", "input"),),
        labels=labels_of(request),
        ignored_fields=unknown,
    )


def _count_inputs(given: str | list[Any]) -> tuple[int, int]:
    """The number of inputs and an upper bound of their tokens. Raises InvalidRequest or RequestTooLarge."""
    inputs: list[Any] = [given] if isinstance(given, str) else given
    kinds = {type(each) for each in inputs}
    if len(kinds) > 1:
        raise InvalidRequest("'input' mixes texts and token ids; use one kind.", param="input")
    if kinds == {int}:
        inputs = [inputs]
    if len(inputs) > MAX_INPUTS:
        raise RequestTooLarge(
            f"{len(inputs):,} inputs; at most {MAX_INPUTS:,} are accepted. Send them in several requests.",
            param="input",
        )
    if not inputs or not all(inputs):
        raise InvalidRequest("'input' is empty or contains an empty input.", param="input")
    sizes = (normalised_bytes(each.encode()) if isinstance(each, str) else len(each) for each in inputs)
    return len(inputs), sum(sizes) + SPECIAL_TOKENS * len(inputs)
