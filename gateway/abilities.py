"""What a request needs of its model, checked before anything is reserved for it."""

import msgspec

from core.errors import InvalidRequest, UnsupportedField
from gateway.ports import Model
from gateway.schemas.common import PreparedRequest

_MEDIA = frozenset({"vision", "audio", "video", "files"})
"""Abilities to read content other than text. No model here has them."""
_DOES = {
    "tools": "call tools",
    "json": "follow a constraint of the answer's form",
    "reasoning": "reason",
    "logprobs": "return log-probabilities",
    "chat": "chat",
    "completions": "complete texts",
    "vision": "read images",
    "audio": "read audio",
    "video": "read videos",
    "files": "read files",
}
"""Abilities as the catalog names them, in words."""


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
