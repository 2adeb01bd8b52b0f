"""The error of a request above a limit."""

from core.errors import RateLimited
from tenants.rate_scopes import SCOPES, Scopes

MIN_WAIT_S = 0.001
"""Shortest time that an error names."""


def rate_limited(scopes: Scopes, index: int, kind: str, wait_s: float) -> RateLimited:
    """The error of a request above the limit `kind` (a field of Limits) of scope number `index` of SCOPES.

    `wait_s` is the time until the request conforms.
    """
    limit = getattr(scopes.limits[index], kind)
    scope = SCOPES[index]
    words = kind.replace("_per_min", " per minute").replace("_per_day", " per day").replace("_", " ")
    wait_s = max(wait_s, MIN_WAIT_S)
    message = f"the {scope}'s limit of {limit} {words} is reached; try again in {wait_s:.3g} s"
    if kind == "concurrency":
        message = f"the {scope}'s limit of {limit} requests at a time is reached; wait for one to finish"
    return RateLimited(message, details={"scope": scope, "kind": kind, "limit": limit}, retry_after_s=wait_s)
