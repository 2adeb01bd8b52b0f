"""The errors of the domain. api/errors.py holds the one table from these to HTTP statuses.

PenstockError
├── InvalidRequest          the request is malformed or asks for what is not allowed
│   ├── RequestTooLarge     a body, field or count above its cap
│   └── UnsupportedField    a field that exists elsewhere and is refused here
├── AuthenticationFailed    no, malformed, unknown, expired or revoked credentials
├── PermissionDenied        known caller, not allowed to do this
│   └── TenantSuspended     the organisation is suspended
├── NotFound                no such object, or not visible to the caller
│   └── ModelNotFound       no such model; names the list's address and near matches
├── Conflict                the object's state forbids it (duplicate name, overlapping price)
├── PaymentRequired         money refuses
│   ├── InsufficientCredit  prepaid balance less open holds is too small
│   └── BudgetExceeded      a budget that somebody set is used up
├── RateLimited             a limit of key, project or tenant
├── Refused                 the scheduler's refusal, with reason and prediction
├── Unavailable             a part of the platform is away; retry later
└── EngineFailed            the engine broke after admission; nothing is charged
"""

from typing import Any


class PenstockError(Exception):
    """Base of all domain errors.

    `message` is for people: what was wrong, which value, what to do next. `code` is for programs and stable.
    `param` names the offending field. `details` are extra JSON-safe facts. `retry_after_s` says when to come back.
    """

    code = "error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        details: dict[str, Any] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.param = param
        self.details = details or {}
        self.retry_after_s = retry_after_s


class InvalidRequest(PenstockError):
    """The request cannot be understood or asks for what is not allowed."""

    code = "invalid_request"


class RequestTooLarge(InvalidRequest):
    """A body, field or count is above its cap."""

    code = "request_too_large"


class UnsupportedField(InvalidRequest):
    """A field that some engine knows and customers may not set."""

    code = "unsupported_field"


class AuthenticationFailed(PenstockError):
    """No credentials, or ones that are malformed, unknown, expired or revoked."""

    code = "invalid_api_key"


class PermissionDenied(PenstockError):
    """The caller is known and may not do this."""

    code = "permission_denied"


class TenantSuspended(PermissionDenied):
    """The caller's organisation is suspended."""

    code = "tenant_suspended"


class NotFound(PenstockError):
    """No such object, or none the caller may see."""

    code = "not_found"


class ModelNotFound(NotFound):
    """No such model for this caller."""

    code = "model_not_found"


class Conflict(PenstockError):
    """The state of things forbids the act."""

    code = "conflict"


class PaymentRequired(PenstockError):
    """Money refuses the request."""

    code = "payment_required"


class InsufficientCredit(PaymentRequired):
    """The prepaid balance less open holds does not cover the request's hold."""

    code = "insufficient_credit"


class BudgetExceeded(PaymentRequired):
    """A monthly budget that somebody set is used up."""

    code = "budget_exceeded"


class RateLimited(PenstockError):
    """A limit of the key, the project or the tenant is reached."""

    code = "rate_limit_exceeded"


class Refused(PenstockError):
    """The scheduler refused: `status` 429 = the caller's share is used up, 503 = no capacity for anyone."""

    code = "no_capacity"

    def __init__(self, message: str, *, status: int = 503, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.status = status


class Unavailable(PenstockError):
    """A part of the platform is away; no work was admitted."""

    code = "service_unavailable"


class EngineFailed(PenstockError):
    """The engine broke after admission. Tokens are recorded, nothing is charged."""

    code = "engine_failed"
