"""Rate decisions without Redis: cached refusals, and a local limiter while Redis is unavailable."""

from dataclasses import dataclass
from uuid import UUID

from core.clock import Clock
from core.errors import RateLimited
from tenants.principal import Limits
from tenants.rate_scopes import SCOPES, Scopes

MAX_ENTRIES = 50_000
"""Entries of each map in this module; a full map is emptied."""
REFUSAL_TTL_S = 1.0
"""Longest life of a cached refusal. Settling a request below its estimate, in any process, frees a limit early."""
TENANT = SCOPES.index("tenant")


@dataclass(frozen=True)
class _Entry:
    error: RateLimited
    retry_at: float
    """Monotonic instant at which the scope conforms if no reservation is returned; the source of Retry-After."""
    expires_at: float
    limits: Limits


class RefusalCache:
    """Scopes that refuse every request for now; for REFUSAL_TTL_S such a refusal needs no call to Redis."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[UUID, _Entry] = {}

    def put(self, scopes: Scopes, index: int, error: RateLimited, blocked_s: float) -> None:
        """Cache that scope number `index` of SCOPES refuses everything for `blocked_s` seconds."""
        if len(self._entries) >= MAX_ENTRIES:
            self._entries.clear()
        now = self._clock.monotonic()
        expires_at = now + min(blocked_s, REFUSAL_TTL_S)
        self._entries[scopes.ids[index]] = _Entry(error, now + blocked_s, expires_at, scopes.limits[index])

    def get(self, scopes: Scopes) -> RateLimited | None:
        """A cached refusal with its remaining time; None without one, or when the scope's limits have changed."""
        if not self._entries:
            return None
        now = self._clock.monotonic()
        for id_, limits in zip(scopes.ids, scopes.limits, strict=True):
            entry = self._entries.get(id_)
            if entry is None:
                continue
            if entry.expires_at <= now or entry.limits != limits:
                del self._entries[id_]
                continue
            error = entry.error
            return RateLimited(error.message, details=error.details, retry_after_s=entry.retry_at - now)
        return None


class LocalLimiter:
    """Leaky buckets of this process for the time that Redis is unavailable.

    They allow `per_s` requests per second to a tenant, and to every scope at most its own requests per minute.
    """

    def __init__(self, clock: Clock, per_s: int) -> None:
        self._clock = clock
        self._per_s = per_s
        self._levels: dict[UUID, tuple[float, float]] = {}

    def admit(self, scopes: Scopes) -> None:
        """Count one request in every scope that has a rate. Raises RateLimited and then counts nothing."""
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
        if len(self._levels) >= MAX_ENTRIES:
            self._levels.clear()
        self._levels.update((id_, (level, now)) for id_, level in after.items())

    def _refusal(self, index: int, burst: int, wait_s: float) -> RateLimited:
        scope = SCOPES[index]
        message = f"the {scope} starts too many requests for now; try again in {wait_s:.3g} s"
        details = {"scope": scope, "kind": "requests_per_min", "limit": burst, "local": True}
        return RateLimited(message, details=details, retry_after_s=max(wait_s, 0.001))
