"""Stripe's error objects: https://docs.stripe.com/api/errors."""

from typing import Any, NoReturn

Obj = dict[str, Any]

_DOCS = "https://stripe.com/docs/error-codes/"


class StripeError(Exception):
    """An error response in Stripe's format. `kept`: whether an idempotency key stores it (validation errors are
    not).
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        kept: bool = True,
        headers: dict[str, str] | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kept = kept
        self.headers = headers or {}
        self.error: Obj = {"message": message, "type": type}
        if code:
            self.error |= {"code": code, "doc_url": _DOCS + code.replace("_", "-")}
        if param:
            self.error["param"] = param
        self.error |= facts

    @property
    def body(self) -> Obj:
        """The JSON body of the response."""
        return {"error": self.error}


def missing(param: str) -> StripeError:
    """Return a 400 for a missing required parameter."""
    return StripeError(f"Missing required param: {param}.", code="parameter_missing", param=param, kept=False)


def unknown(param: str) -> StripeError:
    """Return a 400 for a parameter that the operation does not have."""
    return StripeError(
        f"Received unknown parameter: {param}", code="parameter_unknown", param=param, kept=False
    )


def invalid(message: str, param: str | None = None, code: str | None = None) -> StripeError:
    """Return a 400 for an invalid parameter value; an idempotency key does not store it."""
    return StripeError(message, code=code, param=param, kept=False)


def no_such(kind: str, id: str, param: str = "id") -> StripeError:
    """Return a 404 for an id that no object has."""
    return StripeError(f"No such {kind}: '{id}'", status=404, code="resource_missing", param=param)


def state(message: str, code: str | None = None, param: str | None = None) -> StripeError:
    """Return a 400 for an operation that the object's state does not allow."""
    return StripeError(message, code=code, param=param)


def card_error(message: str, code: str, decline_code: str | None = None, **facts: Any) -> StripeError:
    """Return a 402 for a charge that the card's issuer declined."""
    extra: Obj = {"decline_code": decline_code} if decline_code else {}
    return StripeError(message, status=402, type="card_error", code=code, **extra, **facts)


def not_simulated(what: str) -> NoReturn:
    """Raise StripeError (400) for a parameter or value of Stripe's API that the stand-in does not support."""
    raise StripeError(
        f"penstock stripe-sim does not simulate {what}", code="not_simulated", param=what, kept=False
    )
