"""Fault injection: rules that make the next matching calls fail."""

import re

from sim.stripe.errors import Obj, StripeError, invalid
from sim.stripe.store import Store

KINDS = ("429", "500", "500_after", "timeout", "reset", "reset_after", "hold")
"""Kinds of faults.

429, 500 and reset occur before the call has any effect. *_after and timeout apply the effect and withhold the
response (timeout keeps the connection open). hold suspends the request until it is released.
"""

_MAX_RULES = 100


def add(store: Store, given: Obj) -> Obj:
    """Add a rule and return it: after `skip` good calls, the next `times` calls that match method and path fail
    by `kind`.

    Raises StripeError (400) for an invalid rule or too many rules.
    """
    kind, path = str(given.get("kind")), given.get("path", ".*")
    if kind not in KINDS:
        raise invalid(f"Invalid kind: must be one of {', '.join(KINDS)}", param="kind")
    try:
        re.compile(path)
    except (re.error, TypeError):
        raise invalid(f"Invalid path: {path!r} is no regular expression", param="path") from None
    numbers = {"times": 1, "skip": 0, "retry_after": 1}
    for name, default in numbers.items():
        numbers[name] = given.get(name, default)
        if not isinstance(numbers[name], int) or not 0 <= numbers[name] <= 1_000_000:
            raise invalid(f"Invalid integer: {name}", param=name)
    if len(store.all("fault")) >= _MAX_RULES:
        raise invalid(f"There are {_MAX_RULES} rules already; DELETE /_sim/faults removes them")
    id = str(store.count("fault"))
    return store.put(
        "fault", id, {"id": id, "kind": kind, "path": path, "method": given.get("method"), **numbers}
    )


def take(store: Store, method: str, path: str) -> Obj | None:
    """Return the rule that applies to this call and decrement its count; None when no rule applies."""
    for rule in store.all("fault"):
        if rule["method"] not in (None, method) or not re.fullmatch(rule["path"], path):
            continue
        if rule["skip"]:
            rule["skip"] -= 1
            store.put("fault", rule["id"], rule)
            continue
        rule["times"] -= 1
        if rule["times"] <= 0:
            store.drop("fault", rule["id"])
        else:
            store.put("fault", rule["id"], rule)
        store.count(f"faults {rule['kind']}")
        return rule
    return None


def rate_limited(retry_after: int) -> StripeError:
    """Return a 429: https://docs.stripe.com/rate-limits."""
    return StripeError(
        "Request rate limit exceeded. Learn more about rate limits here https://stripe.com/docs/rate-limits.",
        status=429, code="rate_limit", kept=False, headers={"Retry-After": str(retry_after)},
    )  # fmt: skip


def broken() -> StripeError:
    """Return a 500."""
    return StripeError("An unknown error occurred", status=500, type="api_error")
