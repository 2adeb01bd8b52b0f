"""What a process decides by itself: refusals it still remembers, and a small cap while Redis is away."""

from dataclasses import dataclass
from uuid import UUID

from core.clock import Clock
from core.errors import RateLimited
from tenants.principal import Limits
from tenants.rate_scopes import SCOPES, Scopes

MAX_REMEMBERED = 50_000
ASK_AGAIN_S = 1.0
"""A refusal is repeated no longer than this without asking Redis: a limit filled by estimates of what still runs, here
or in another process, has room again as soon as less was used."""
TENANT = SCOPES.index("tenant")


@dataclass(frozen=True)
class _Known:
    error: RateLimited
    until: float
    """When the scope conforms if nothing is given back: what the caller is told."""
    ask_again_at: float
    limits: Limits


class RefusalCache:
    """Scopes that were refused whatever the request: within ASK_AGAIN_S there is no need to ask Redis again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[UUID, _Known] = {}

    def remember(self, scopes: Scopes, index: int, error: RateLimited, for_s: float) -> None:
        """Scope number `index` refuses everything for `for_s`, unless reservations are given back."""
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        now = self._clock.monotonic()
        ask_again_at = now + min(for_s, ASK_AGAIN_S)
        self._known[scopes.ids[index]] = _Known(error, now + for_s, ask_again_at, scopes.limits[index])

    def find(self, scopes: Scopes) -> RateLimited | None:
        """The refusal that still holds, with what remains of its time; a scope whose limits changed is asked anew."""
        if not self._known:
            return None
        now = self._clock.monotonic()
        for id_, limits in zip(scopes.ids, scopes.limits, strict=True):
            known = self._known.get(id_)
            if known is None:
                continue
            if known.ask_again_at <= now or known.limits != limits:
                del self._known[id_]
                continue
            error = known.error
            return RateLimited(error.message, details=error.details, retry_after_s=known.until - now)
        return None


class LocalCap:
    """Leaky buckets of this process, used only while Redis is away: `per_s` requests per tenant, and no scope above
    its own requests per minute."""

    def __init__(self, clock: Clock, per_s: int) -> None:
        self._clock = clock
        self._per_s = per_s
        self._levels: dict[UUID, tuple[float, float]] = {}

    def admit(self, scopes: Scopes) -> None:
        """Count one request in every scope that has a rate. Raises RateLimited, having counted nothing."""
        now = self._clock.monotonic()
        after: dict[UUID, float] = {}
        for index, (id_, limits) in enumerate(zip(scopes.ids, scopes.limits, strict=True)):
            per_min = limits.requests_per_min
            if index == TENANT:
                per_min = min(60 * self._per_s, per_min) if per_min is not None else 60 * self._per_s
            if per_min is None:
                continue
            rate, burst = per_min / 60, min(self._per_s, per_min)
            level, at = self._levels.get(id_, (0.0, now))
            after[id_] = max(0.0, level - (now - at) * rate) + 1.0
            if after[id_] > burst:
                raise self._refusal(index, burst, (after[id_] - burst) / rate if rate else 60.0)
        if len(self._levels) >= MAX_REMEMBERED:
            self._levels.clear()
        self._levels.update((id_, (level, now)) for id_, level in after.items())

    def _refusal(self, index: int, burst: int, wait_s: float) -> RateLimited:
        scope = SCOPES[index]
        message = f"the {scope} starts too many requests for now; try again in {wait_s:.3g} s"
        details = {"scope": scope, "kind": "requests_per_min", "limit": burst, "local": True}
        return RateLimited(message, details=details, retry_after_s=max(wait_s, 0.001))
