"""What routes answer beside their own: refusals of inference, and those that any other route may give.

A client that reads the OpenAPI documents meets no status that they do not name, except 500 for a fault of ours.
"""

from collections.abc import Mapping
from typing import Any

_STRING = {"type": "string"}
KEY = "ApiKey"
"""Name of the security scheme of API keys."""
ERROR_SCHEMA = "InferenceError"
"""Name of `ERROR` among the schemas."""
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": _STRING,
                "type": _STRING,
                "param": {"type": ["string", "null"]},
                "code": _STRING,
                "details": {"type": "object"},
            },
        }
    },
}
INFERENCE = {
    "400": "The request is wrong; `param` names the field.",
    "401": "The API key is missing, unknown, expired or revoked.",
    "402": "The balance or a budget does not cover the request (429 where the key's setting says so).",
    "403": "The key may not do this.",
    "404": "There is no such model.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The Content-Encoding is not accepted.",
    "429": "A limit is reached, or the organisation's share of a busy pool is used; see `retry-after`.",
    "502": "The engine failed; nothing is charged.",
    "503": "There is no capacity now; see `retry-after`.",
}
"""Refusals of the inference routes."""
_ANYWHERE = {
    "400": "A header, a parameter or the body has the wrong shape or value.",
    "415": "A body with a Content-Encoding is not read here.",
    "429": "Too many requests of this credential or address; see `retry-after`.",
    "503": "A service that the answer needs is away; see `retry-after`.",
}
_WITH_CREDENTIAL = {
    "401": "The credential is missing, malformed, unknown, expired or revoked.",
    "403": "The credential may not do this.",
}
_WITH_NAME = {"404": "There is no such object."}
_WITH_BODY = {"408": "The body did not arrive in time.", "413": "The body is too large."}
_KEY_TAGS = {"inference", "generations"}
_KEY_PATHS = ("/v1/models", "/v1/openrouter/models")
_HEALTH = "health"
_NEVER = "422"
"""FastAPI's status of an invalid request, which is 400 here."""


def add(document: dict[str, Any]) -> None:
    """Complete the answers of all operations of a document, and the security of those that need an API key.

    To be called before the inference routes are added, which state their own.
    """
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas[ERROR_SCHEMA] = ERROR
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            tags = set(operation.get("tags", ()))
            if tags & _KEY_TAGS or path.startswith(_KEY_PATHS):
                operation.setdefault("security", [{KEY: []}])
            _complete(operation, path, health=_HEALTH in tags)


def _complete(operation: dict[str, Any], path: str, *, health: bool) -> None:
    answers = operation["responses"]
    answers.pop(_NEVER, None)
    if health:
        answers["503"] = {
            "description": "The process cannot serve now.",
            "content": answers["200"].get("content", {}),
        }
        _refuse(answers, {status: _ANYWHERE[status] for status in ("400", "415")})
        return
    _refuse(answers, _ANYWHERE)
    if operation.get("security"):
        _refuse(answers, _WITH_CREDENTIAL)
    if "{" in path:
        _refuse(answers, _WITH_NAME)
    if "requestBody" in operation:
        _refuse(answers, _WITH_BODY)


def _refuse(answers: dict[str, Any], told: Mapping[str, str]) -> None:
    """Add the refusals that the route does not state itself."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{ERROR_SCHEMA}"}}}
    for status, text in told.items():
        answers.setdefault(status, {"description": text, "content": content})
