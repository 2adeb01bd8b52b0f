"""The principal of a request: what the gateway, the rate limiter and billing need to know about its key."""

from functools import cached_property
from ipaddress import IPv4Network, IPv6Network
from uuid import UUID

import msgspec

from core.settings import Settings


class Limits(msgspec.Struct, frozen=True):
    """Limits of one scope; None = no limit of that kind."""

    requests_per_min: int | None = None
    input_tokens_per_min: int | None = None
    output_tokens_per_min: int | None = None
    concurrency: int | None = None
    """Requests in progress at the same time."""
    tokens_per_day: int | None = None
    """Input plus output tokens per UTC day."""

    def capped(self, requests_per_min: int | None, concurrency: int | None) -> "Limits":
        """These limits with two of them lowered to at most the given values (a throttle); None lowers nothing."""
        return msgspec.structs.replace(
            self,
            requests_per_min=_lower(self.requests_per_min, requests_per_min),
            concurrency=_lower(self.concurrency, concurrency),
        )


NO_LIMITS = Limits()


def default_limits(settings: Settings) -> Limits:
    """The limits that an organisation gets when it is created; 0 in a setting = no limit of that kind."""
    return Limits(
        requests_per_min=settings.default_requests_per_min or None,
        input_tokens_per_min=settings.default_input_tokens_per_min or None,
        output_tokens_per_min=settings.default_output_tokens_per_min or None,
        concurrency=settings.default_concurrency or None,
        tokens_per_day=settings.default_tokens_per_day or None,
    )


def _lower(one: int | None, other: int | None) -> int | None:
    """The smaller of two limits; None = no limit."""
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)


class Principal(msgspec.Struct, frozen=True, dict=True):
    """An authenticated API key with everything that admission needs; cached by every API process."""

    key_id: UUID
    project_id: UUID
    tenant_id: UUID
    tenant: str
    """The organisation's display name."""
    last4: str
    kind: str
    """live | test"""
    tier: str
    key_limits: Limits
    project_limits: Limits
    tenant_limits: Limits
    """With the throttle in force applied."""
    allowed_models: frozenset[str] | None
    """None = every model."""
    cache_salt: str
    """Secret of the tenant: prevents other tenants from probing its prefix cache."""
    share_percent: int = 100
    """Weight of its organisation in a busy pool relative to others of its tier, in percent."""
    quota_status: int = 402
    """HTTP status of answers that money refuses: 402 | 429."""
    cors_origins: frozenset[str] = frozenset()
    """Origins of browsers that may use the key; empty = CORS is off."""
    responses_kept_days: int | None = None
    """Days for which its project keeps responses; None = the platform's, 0 = none are stored."""
    highest_tier: str = ""
    """The dearest tier that a request may ask for; empty = the organisation's."""
    networks: tuple[IPv4Network | IPv6Network, ...] | None = None
    """Networks that the key may be used from; None = every one."""
    scopes: frozenset[str] | None = None
    """What the key may be used for, of tenants.names.KEY_SCOPES; None = everything."""
    regions: tuple[str, ...] = ()
    """Regions in one of which its requests have to run, in lower case; empty = any."""
    gpus: tuple[str, ...] = ()
    """Classes of GPU on one of which they have to run, in lower case; empty = any."""

    def responses_kept(self, platform_days: int) -> int:
        """Days for which a response of the key is stored, at most those of the platform; 0 = it is not."""
        own = self.responses_kept_days
        return platform_days if own is None else min(own, platform_days)

    @cached_property
    def tenant_text(self) -> str:
        """`tenant_id` as text, formatted once per principal."""
        return str(self.tenant_id)
