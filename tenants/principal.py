"""Who a request acts for: what the gateway, the rate limiter and billing need to know about a key, in one value."""

from uuid import UUID

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """Limits of one scope; None = no limit of that kind."""

    requests_per_min: int | None = None
    input_tokens_per_min: int | None = None
    output_tokens_per_min: int | None = None
    concurrency: int | None = None
    """Requests open at the same time."""
    tokens_per_day: int | None = None
    """Input plus output tokens per UTC day."""

    def capped(self, requests_per_min: int | None, concurrency: int | None) -> "Limits":
        """The same limits with two of them lowered to at most the given figures (a throttle)."""
        return msgspec.structs.replace(
            self,
            requests_per_min=_lower(self.requests_per_min, requests_per_min),
            concurrency=_lower(self.concurrency, concurrency),
        )


NO_LIMITS = Limits()


def _lower(one: int | None, other: int | None) -> int | None:
    """The smaller of two limits, where None is no limit."""
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)


class Principal(msgspec.Struct, frozen=True):
    """An authenticated API key with everything admission needs; immutable, cached by every API process."""

    key_id: UUID
    project_id: UUID
    tenant_id: UUID
    tenant: str
    """The organisation's name, for people."""
    last4: str
    kind: str
    """live | test"""
    tier: str
    key_limits: Limits
    project_limits: Limits
    tenant_limits: Limits
    """With a throttle in force already applied."""
    allowed_models: frozenset[str] | None
    """None = every model."""
    cache_salt: str
    """Secret per tenant: keeps one tenant's prefix cache from being probed by another."""
    share_percent: int = 100
    """What its organisation gets of a busy pool beside others of its tier."""
