"""The errors of the domain. api/errors.py maps them to HTTP statuses.

PenstockError
├── InvalidRequest          the request is malformed or not allowed
│   ├── RequestTooLarge     a body, field or count above its limit
│   └── UnsupportedField    a field of OpenAI's API or an engine that is not accepted here
├── AuthenticationFailed    missing, malformed, unknown, expired or revoked credentials
├── PermissionDenied        the caller may not do this
│   └── TenantSuspended     the organisation is suspended
├── NotFound                no such object, or not visible to the caller
│   └── ModelNotFound       no such model; names the list's address and near matches
│       └── ModelRetired    the model is no longer served; names its replacement
├── WaitsForApproval        nothing is wrong: the act is stored until another person approves it
├── Conflict                the object's state forbids it (duplicate name, overlapping price)
│   └── CalledOff           another command has taken the place of this one
├── PaymentRequired         the balance or a budget does not cover the request
│   ├── InsufficientCredit  prepaid balance less open holds is too small
│   └── BudgetExceeded      a monthly budget is used up
├── RateLimited             a limit of key, project or tenant is reached
├── Refused                 the scheduler's refusal, with reason and prediction
├── Unavailable             a part of the platform is unavailable; retry later
└── EngineFailed            the engine failed after admission; nothing is charged
"""

from typing import Any


class PenstockError(Exception):
    """Base of all domain errors.

    `message` is for people: what was wrong, which value, what to do next. `code` is stable, for programs. `param` names
    the offending field. `details` are further values that JSON can hold. `retry_after_s` is the time until a retry.
    """

    code = "error"
    is_recorded = False
    """Whether the audit log has this refusal (admin/denials.py)."""

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
    """The request is malformed or not allowed."""

    code = "invalid_request"


class RequestTooLarge(InvalidRequest):
    """A body, field or count is above its limit."""

    code = "request_too_large"


class UnsupportedField(InvalidRequest):
    """A field of OpenAI's API or an engine that is not accepted here."""

    code = "unsupported_field"


class AuthenticationFailed(PenstockError):
    """The credentials are missing, malformed, unknown, expired or revoked."""

    code = "invalid_api_key"


class PermissionDenied(PenstockError):
    """The caller is authenticated and may not do this."""

    code = "permission_denied"


class TenantSuspended(PermissionDenied):
    """The caller's organisation is suspended."""

    code = "tenant_suspended"


class NotFound(PenstockError):
    """The object does not exist or is not visible to the caller."""

    code = "not_found"


class ModelNotFound(NotFound):
    """The model does not exist or is not visible to the caller."""

    code = "model_not_found"


class ModelRetired(ModelNotFound):
    """The model was offered and is no longer served."""

    code = "model_retired"


class Conflict(PenstockError):
    """The state of the object forbids the act."""

    code = "conflict"


class CalledOff(Conflict):
    """Another command has taken the place of this one before it was done."""

    code = "called_off"


class WaitsForApproval(PenstockError):
    """The act is above the approval limit: its request is stored, and another person must approve it."""

    code = "waits_for_approval"


class PaymentRequired(PenstockError):
    """The balance or a budget does not cover the request."""

    code = "payment_required"


class InsufficientCredit(PaymentRequired):
    """The prepaid balance less open holds does not cover the request's hold."""

    code = "insufficient_credit"


class BudgetExceeded(PaymentRequired):
    """A monthly budget is used up."""

    code = "budget_exceeded"


class RateLimited(PenstockError):
    """A limit of the key, the project or the tenant is reached."""

    code = "rate_limit_exceeded"


class Refused(PenstockError):
    """The scheduler refused. `status` is 429 when the tenant has used its share, 503 when there is no capacity."""

    code = "no_capacity"

    def __init__(self, message: str, *, status: int = 503, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.status = status


class Unavailable(PenstockError):
    """A part of the platform is unavailable; no work was admitted."""

    code = "service_unavailable"


class EngineFailed(PenstockError):
    """The engine failed after admission. Tokens are recorded, nothing is charged."""

    code = "engine_failed"
