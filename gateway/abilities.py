"""What a request needs of its model, checked before anything is reserved for it."""

import msgspec

from core.errors import InvalidRequest, PermissionDenied, RequestTooLarge, UnsupportedField
from gateway.limits import (
    EMBEDDED_ENTRY_BYTES,
    EMBEDDED_NUMBER_BYTES,
    MAX_ANSWER_BYTES,
    MAX_TAGS,
    body_limit,
)
from gateway.ports import Model, Models
from gateway.schemas.common import PreparedRequest
from gateway.schemas.labels import ADAPTER_TAG
from tenants.principal import Principal

_MEDIA = frozenset({"vision", "audio", "video", "files"})
"""Abilities to read content other than text. No model here has them."""
_DOES = {
    "tools": "call tools",
    "json": "follow a constraint of the answer's form",
    "reasoning": "reason",
    "logprobs": "return log-probabilities",
    "chat": "chat",
    "completions": "complete texts",
    "embeddings": "embed texts",
    "vision": "read images",
    "audio": "read audio",
    "video": "read videos",
    "files": "read files",
}
"""Abilities as the catalog names them, in words."""


def permitted_model(models: Models, principal: Principal, prepared: PreparedRequest) -> Model:
    """Return the model that a request names.

    Raises ModelNotFound, Unavailable when the list of models is too old, PermissionDenied when the key may not use the
    model, and RequestTooLarge when the body is longer than the model's context can be, or has as many tags as a usage
    row takes beside the tag of an adapter.
    """
    model = models.resolve_for(prepared.model, principal.tenant_id, principal.allowed_models)
    if principal.allowed_models is not None and model.name not in principal.allowed_models:
        raise PermissionDenied(
            f"This key may not use the model '{model.name}'.", param="model", code="model_not_allowed"
        )
    named = prepared.labels.tags.keys() - {ADAPTER_TAG} if prepared.labels is not None else ()
    if model.adapter and len(named) >= MAX_TAGS:
        raise RequestTooLarge(
            f"'metadata' has {len(named)} tags; with an adapter, which is a tag itself, at most {MAX_TAGS - 1} are "
            "accepted.",
            param="metadata",
        )
    limit = body_limit(model.context_len, prepared.choices // prepared.choices_per_prompt)
    if prepared.body_bytes > limit:
        raise RequestTooLarge(
            f"The body has {prepared.body_bytes:,} bytes; '{model.name}' holds {model.context_len:,} tokens of "
            f"prompt and answer together and accepts at most {limit:,} bytes. Send a shorter prompt.",
            code="body_too_large",
        )
    return model


def check_abilities(prepared: PreparedRequest, model: Model) -> None:
    """Check that the model has the abilities and template switches that a request uses.

    Raises UnsupportedField with the model's capabilities, and InvalidRequest for a switch with another value.
    """
    for ability, param in prepared.needs:
        if ability in _MEDIA or ability not in model.capabilities:
            raise UnsupportedField(
                f"'{model.name}' does not {_DOES[ability]}, which '{param}' asks for. Its capabilities are: "
                f"{', '.join(model.capabilities)}. GET /v1/models lists those of all models.",
                param=param,
                code="unsupported_content" if ability in _MEDIA else "unsupported_by_model",
                details={"capabilities": list(model.capabilities)},
            )
    _check_switches(prepared, model)


def check_embeddings_size(prepared: PreparedRequest, model: Model) -> None:
    """Check that an answer with the vectors of all inputs is not above the gateway's bound.

    Of a model whose number of dimensions is not known, nothing is checked unless the request names it. Raises
    RequestTooLarge with the number of inputs that fit.
    """
    known = (prepared.fields.get("dimensions"), model.embedding_dimensions)
    size = min(filter(None, known), default=0)
    if prepared.endpoint != "embeddings" or not size:
        return
    packed = prepared.fields.get("encoding_format") == "base64"
    vector = 4 * -(-4 * size // 3) if packed else size * EMBEDDED_NUMBER_BYTES
    fits = MAX_ANSWER_BYTES // (vector + EMBEDDED_ENTRY_BYTES)
    if prepared.choices > fits:
        raise too_many_inputs(prepared.choices, max(1, fits), f"vectors of {size:,} numbers", packed=packed)


def too_many_inputs(inputs: int, fits: int, what: str, *, packed: bool) -> RequestTooLarge:
    """The error for embeddings whose answer is too large; `fits`: inputs for which it is not; `what` it consists of."""
    other = "" if packed else ", ask for 'encoding_format': 'base64'"
    return RequestTooLarge(
        f"{inputs:,} inputs; of {what}, {fits:,} fit into one answer of at most {MAX_ANSWER_BYTES:,} bytes. Send them "
        f"in several requests{other}, or for fewer 'dimensions'.",
        param="input",
        code="answer_too_large",
        details={"inputs_that_fit": fits},
    )


def _check_switches(prepared: PreparedRequest, model: Model) -> None:
    """Check the variables of the chat template, and pass on `reasoning_effort` where the template has a switch for it.

    Raises as `check_abilities` does.
    """
    known = model.template_switches
    for name, value in prepared.template_switches.items():
        if name not in known:
            listed = f"It has: {', '.join(known)}." if known else "It has none."
            raise UnsupportedField(
                f"The chat template of '{model.name}' has no switch '{name}'. {listed}",
                param=f"chat_template_kwargs.{name}",
                details={"switches": {each: list(values) for each, values in known.items()}},
            )
        if not _is_among(value, known[name]):
            values = ", ".join(_as_json(each) for each in known[name])
            raise InvalidRequest(
                f"The switch '{name}' of '{model.name}' may be {values}, but is {_as_json(value)}.",
                param=f"chat_template_kwargs.{name}",
            )
    effort = prepared.reasoning_effort
    if effort and _is_among(effort, known.get("reasoning_effort", ())):
        prepared.template_switches = {"reasoning_effort": effort, **prepared.template_switches}


def _is_among(value: object, values: tuple[bool | int | str, ...]) -> bool:
    """Whether a JSON value is one of `values`; 1 is not true."""
    return any(type(value) is type(each) and value == each for each in values)


def _as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
