"""Errors of requests for which no money could be reserved."""

from core.errors import BudgetExceeded, InsufficientCredit, PenstockError, Unavailable
from core.money import pico_to_usd

MAX_COUNTED_END_USERS = 100_000
"""End users that the budget of every end user counts (penstock_admit_end_user)."""


def hold_refusal(
    verdict: str,
    *,
    model: str,
    tier: str,
    funds: int,
    held: int,
    needed: int,
    open_requests: int,
    top_up_url: str,
    budget_scope: str = "tenant",
    budget_label: str | None = None,
) -> PenstockError:
    """The error for a `verdict` of `penstock_hold` other than `granted`; amounts are picodollars.

    `funds` is the balance, or the rest of the monthly budget, before open holds (`held`) are subtracted.
    `budget_scope`: whose budget is exceeded, and for an end user or tag `budget_label`, as NAME=VALUE.
    """
    if verdict == "unpriced":
        return Unavailable(
            f"the model {model} has no price for the tier {tier} yet; nothing runs without a price",
            code="model_unpriced",
            param="model",
        )
    if verdict == "no_account":
        return Unavailable("this organisation has no billing account yet", code="no_billing_account")
    if verdict == "duplicate":
        return Unavailable(
            "the request id is in use already; send the request again", code="duplicate_request"
        )
    if verdict == "too_many_end_users":
        return BudgetExceeded(
            f"the monthly budget of every end user covers at most {MAX_COUNTED_END_USERS:,} end users, and this "
            "request names a further one. Name one of those, or remove that budget.",
            details={"budget_scope": "end_user", "top_up_url": top_up_url},
        )
    details = {
        "balance_usd": pico_to_usd(funds),
        "held_usd": pico_to_usd(held),
        "needed_usd": pico_to_usd(needed),
        "open_requests": open_requests,
        "top_up_url": top_up_url,
    }
    facts = (
        f"it needs up to ${details['needed_usd']}; ${pico_to_usd(max(funds, 0))} are left, of which "
        f"${details['held_usd']} are held by open requests (the organisation has {open_requests})"
    )
    if verdict == "budget_exceeded":
        return BudgetExceeded(
            f"the monthly budget{_whose(budget_scope, budget_label)} does not cover this request: {facts}. "
            "Raise the budget or ask for fewer tokens.",
            details=details | _budget_of(budget_scope, budget_label),
        )
    return InsufficientCredit(
        f"the credit does not cover this request: {facts}. Add credit or ask for fewer tokens.",
        details=details,
    )


def _budget_of(scope: str, label: str | None) -> dict[str, str]:
    """Whose budget it is, in the details of the error."""
    if label is None:
        return {"budget_scope": scope}
    return {"budget_scope": scope, scope: label.removeprefix("user=") if scope == "end_user" else label}


def _whose(scope: str, label: str | None) -> str:
    if scope == "tenant":
        return ""
    if label is None:
        return f" of the {scope}"
    name, _, value = label.partition("=")
    return (
        f" of the end user {value!r}"
        if scope == "end_user"
        else f" of the tag {name} with the value {value!r}"
    )


def billing_unavailable() -> Unavailable:
    """The error when money cannot be reserved or recorded now; it asks the client to retry after 2 s."""
    return Unavailable(
        "billing does not answer, so no work is admitted; nothing was charged, try again shortly",
        code="billing_unavailable",
        retry_after_s=2.0,
    )


def billing_overloaded() -> Unavailable:
    """The error when too many requests wait for their hold; it asks the client to retry after 1 s."""
    return Unavailable(
        "too many requests wait for billing, so this one is not admitted; nothing was charged, try again shortly",
        code="billing_overloaded",
        retry_after_s=1.0,
    )


def account_locked() -> Unavailable:
    """The error when the organisation's billing account stayed locked until the request's deadline."""
    return Unavailable(
        "your organisation's billing account is being changed and did not become free in time; nothing was charged, "
        "try again shortly",
        code="billing_account_busy",
        retry_after_s=1.0,
    )
