"""Maps domain errors to HTTP responses in OpenAI's shape."""

import math
from typing import Any

import msgspec

from core import errors
from core.errors import PenstockError
from gateway.answers import error_body
from gateway.ports import Headers
from tenants.rate_headers import refusal_headers

STATUS_BY_ERROR: dict[type[PenstockError], tuple[int, str]] = {
    errors.InvalidRequest: (400, "invalid_request_error"),
    errors.RequestTooLarge: (400, "invalid_request_error"),
    errors.UnsupportedField: (400, "invalid_request_error"),
    errors.AuthenticationFailed: (401, "invalid_request_error"),
    errors.PermissionDenied: (403, "permission_error"),
    errors.TenantSuspended: (403, "permission_error"),
    errors.NotFound: (404, "invalid_request_error"),
    errors.ModelNotFound: (404, "invalid_request_error"),
    errors.ModelRetired: (404, "invalid_request_error"),
    errors.Conflict: (409, "conflict_error"),
    errors.CalledOff: (409, "conflict_error"),
    errors.WaitsForApproval: (202, "approval_required"),
    errors.PaymentRequired: (402, "insufficient_quota"),
    errors.InsufficientCredit: (402, "insufficient_quota"),
    errors.BudgetExceeded: (402, "insufficient_quota"),
    errors.RateLimited: (429, "requests"),
    errors.Refused: (503, "server_error"),
    errors.Unavailable: (503, "server_error"),
    errors.EngineFailed: (502, "server_error"),
}
"""HTTP status and OpenAI `type` of each error class. `Refused` has a status of its own, 429 or 503."""

_BODY_TOO_LARGE = "body_too_large"
_UNSUPPORTED_ENCODING = "unsupported_content_encoding"
_STATUS_BY_CODE = {
    _BODY_TOO_LARGE: 413,
    _UNSUPPORTED_ENCODING: 415,
    "method_not_allowed": 405,
    "body_timeout": 408,
    "headers_timeout": 408,
    "headers_too_large": 431,
    "internal_error": 500,
    "api_key_revoked": 401,
}
"""HTTP statuses of error codes that are more specific than the status of their class."""
_MAX_RETRY_S = 86_400
"""Largest value of the header retry-after, in seconds."""
_SDK_RETRY_S = 60.0
"""Longest wait that OpenAI's SDKs take from retry-after; for a longer one they would come back too early, in vain."""
_QUOTA = "insufficient_quota"
"""OpenAI's type and code of a request that money refuses."""

TOO_SLOW = errors.Unavailable(
    "the database took too long, or other work holds what this needs; nothing was changed, try again",
    code="database_busy",
    retry_after_s=2.0,
)
"""The answer when PostgreSQL has ended a statement by its timeout."""

INTERNAL = errors.EngineFailed(
    "Something broke on our side; nothing is charged. Please try again.", code="internal_error"
)
"""The error that is sent for an unexpected exception."""


def status_of(error: PenstockError) -> tuple[int, str]:
    """Return HTTP status and OpenAI error type. Raises KeyError for an error class that is not in STATUS_BY_ERROR."""
    status, kind = STATUS_BY_ERROR[type(error)]
    if isinstance(error, errors.Refused) and error.status == 429:
        return 429, "requests"
    if isinstance(error, errors.RateLimited) and "tokens" in str((error.details or {}).get("kind")):
        return status, "tokens"
    return _STATUS_BY_CODE.get(error.code, status), kind


def to_document(error: PenstockError) -> dict[str, Any]:
    """Return OpenAI's error object; for an act that waits, which is no failure, what it waits for.

    Our own code of an error of money is the detail `reason`.
    """
    if isinstance(error, errors.WaitsForApproval):
        return {"status": "waiting", **error.details, "message": error.message}
    document = error_body(error, status_of(error)[1])
    if isinstance(error, errors.PaymentRequired):
        document["error"]["code"] = _QUOTA
        document["error"]["details"] = {"reason": error.code, **error.details}
    return document


def to_response(error: PenstockError, quota_status: int = 402) -> tuple[int, bytes, Headers]:
    """Return status, body and headers of an error's response, without the headers that every response has.

    `quota_status`: the status of an error of money, 402 or 429.
    """
    status, _ = status_of(error)
    if isinstance(error, errors.PaymentRequired):
        status = quota_status
    headers = _retry_headers(error, status)
    if isinstance(error, errors.RateLimited):
        headers += refusal_headers(error.details or {}, error.retry_after_s or 0.0)
    if status in (408, 413):
        headers.append((b"connection", b"close"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 405:
        headers.append((b"allow", b"POST"))
    if status == 415:
        headers.append((b"accept-encoding", ", ".join(error.details.get("accepted", [])).encode()))
    return status, msgspec.json.encode(to_document(error)), headers


def _retry_headers(error: PenstockError, status: int) -> Headers:
    """When to come back, and `x-should-retry: false` where an SDK that comes back by itself would come in vain."""
    if isinstance(error, (errors.PaymentRequired, errors.Conflict)):
        return [(b"x-should-retry", b"false")]
    headers: Headers = []
    retry_after_s = error.retry_after_s
    if retry_after_s is None and status in (429, 503):
        retry_after_s = 1.0
    if retry_after_s is not None:
        seconds = min(max(1, math.ceil(retry_after_s)), _MAX_RETRY_S)
        headers.append((b"retry-after", b"%d" % seconds))
        headers.append(
            (b"retry-after-ms", b"%d" % min(max(1, int(retry_after_s * 1000)), _MAX_RETRY_S * 1000))
        )
        if retry_after_s > _SDK_RETRY_S:
            headers.append((b"x-should-retry", b"false"))
    return headers


def with_limits(headers: Headers, limits: Headers) -> Headers:
    """Return a refusal's `headers` with those of the key's limits that it does not have itself."""
    names = {name for name, _ in headers}
    return headers + [header for header in limits if header[0] not in names]


def body_too_large(limit: int) -> errors.RequestTooLarge:
    """Return the error for a body of more than `limit` bytes, which has status 413."""
    return errors.RequestTooLarge(
        f"The body is larger than {limit:,} bytes; send less.", code=_BODY_TOO_LARGE
    )


def unsupported_encoding(encoding: bytes, *, gzip: bool) -> errors.InvalidRequest:
    """Return the error for a body with a Content-Encoding that is not read, which has status 415.

    `gzip`: whether the route reads gzip.
    """
    accepted = "plain or with gzip" if gzip else "plain"
    return errors.InvalidRequest(
        f"The Content-Encoding {encoding[:40].decode('latin-1')!r} is not accepted here; send the body {accepted}.",
        code=_UNSUPPORTED_ENCODING,
        details={"accepted": ["gzip", "identity"] if gzip else ["identity"]},
    )


def to_event(error: PenstockError) -> bytes:
    """Return the error as the last events of a stream that has begun."""
    return b"data: " + msgspec.json.encode(to_document(error)) + b"\n\ndata: [DONE]\n\n"
