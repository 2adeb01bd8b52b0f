"""Errors in Anthropic's form."""

from typing import Any
from uuid import UUID

from core.errors import PaymentRequired, PenstockError, Refused

OVERLOADED = 529
"""Anthropic's status for a request that there is no capacity for."""
_TYPE_BY_STATUS = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
"""Anthropic's `type` of an error; invalid_request_error for other statuses below 500, api_error for the rest."""


def status_of(status: int, error: PenstockError) -> int:
    """Return the status of an error that has `status` in OpenAI's form: 529 when no replica takes the request."""
    return OVERLOADED if isinstance(error, Refused) and status == 503 else status


def error_document(request_id: UUID | str | None, status: int, error: PenstockError) -> dict[str, Any]:
    """Return Anthropic's error object for an answer with `status`, with our own code and field beside its members."""
    kind = _TYPE_BY_STATUS.get(status, "invalid_request_error" if status < 500 else "api_error")
    if isinstance(error, PaymentRequired):
        kind = "billing_error"
    message = error.message
    if error.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"  # by these words agents know that they have to shorten it
    described: dict[str, Any] = {"type": kind, "message": message, "code": error.code}
    if error.param is not None:
        described["param"] = error.param
    if error.details:
        described["details"] = error.details
    return {
        "type": "error",
        "error": described,
        "request_id": None if request_id is None else str(request_id),
    }
