"""The request rate of keys that send invalid requests, estimated in this process before a body is parsed.

An invalid request is answered at once and counted in Redis afterwards (`charge` of rates.lua), also above the limit.
This module keeps the level that Redis reported last, drained since, plus the requests whose count is not confirmed yet.
In one round trip a process therefore parses at most one minute's limit of invalid requests, and what exceeds the
limit is a debt: over a longer time the invalid requests of all processes together do not exceed the limit.
"""

from collections.abc import Sequence
from uuid import UUID

from core.clock import Clock
from core.errors import RateLimited
from tenants.rate_errors import rate_limited
from tenants.rate_scopes import Scopes

MAX_BUCKETS = 50_000
"""Scopes with recent invalid requests; a full map is emptied."""
SLOP = 1e-6
"""Rounding error of a level that should be a whole number."""


class _Bucket:
    """The request level of one scope."""

    __slots__ = ("at", "level", "unconfirmed")

    def __init__(self, now: float) -> None:
        self.level = 0.0
        """Requests in the bucket at the monotonic instant `at`, as Redis reported them."""
        self.at = now
        self.unconfirmed = 0
        """Invalid requests whose count is on its way to Redis."""

    def level_at(self, now: float, limit: int) -> float:
        """The level drained up to `now` at `limit` requests per minute, plus what is unconfirmed."""
        return max(0.0, self.level - (now - self.at) * limit / 60) + self.unconfirmed


class InvalidRequests:
    """The buckets of all scopes with recent invalid requests. Scopes without a request rate have none."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[UUID, _Bucket] = {}

    def refusal(self, scopes: Scopes) -> RateLimited | None:
        """The error for a request of `scopes` that would exceed a request rate, else None."""
        if not self._buckets:
            return None
        now = self._clock.monotonic()
        worst: tuple[float, int] | None = None
        for _, index, id_, limit in scopes.request_limits:
            bucket = self._buckets.get(id_)
            if bucket is None:
                continue
            level = bucket.level_at(now, limit)
            if level <= 0:
                del self._buckets[id_]
            elif level + 1 > limit + SLOP:
                wait_s = (level + 1 - limit) * 60 / limit if limit else 60.0
                worst = max(worst or (wait_s, index), (wait_s, index))
        return None if worst is None else rate_limited(scopes, worst[1], "requests_per_min", worst[0])

    def sent(self, scopes: Scopes) -> None:
        """Count one invalid request whose count is sent to Redis now."""
        for _, _, id_, _ in scopes.request_limits:
            bucket = self._buckets.get(id_)
            if bucket is None:
                if len(self._buckets) >= MAX_BUCKETS:
                    self._buckets.clear()
                bucket = self._buckets[id_] = _Bucket(self._clock.monotonic())
            bucket.unconfirmed += 1

    def confirmed(self, scopes: Scopes, levels: Sequence[float]) -> None:
        """Take over the levels of the scopes passed to Redis that Redis reported after it had counted one request."""
        now = self._clock.monotonic()
        for place, _, id_, _ in scopes.request_limits:
            bucket = self._buckets.get(id_)
            if bucket is not None:
                bucket.level, bucket.at = levels[place], now
                bucket.unconfirmed = max(0, bucket.unconfirmed - 1)

    def lost(self, scopes: Scopes) -> None:
        """Keep counting a request here that Redis could not count."""
        now = self._clock.monotonic()
        for _, _, id_, limit in scopes.request_limits:
            bucket = self._buckets.get(id_)
            if bucket is not None:
                level = bucket.level_at(now, limit)
                bucket.unconfirmed = max(0, bucket.unconfirmed - 1)
                bucket.level, bucket.at = level - bucket.unconfirmed, now

    def granted(self, scopes: Scopes, levels: Sequence[float]) -> None:
        """Lower the levels to those of a request that Redis granted: others may have been refunded meanwhile."""
        if not self._buckets:
            return
        now = self._clock.monotonic()
        for place, _, id_, limit in scopes.request_limits:
            bucket = self._buckets.get(id_)
            if bucket is not None and levels[place] < bucket.level_at(now, limit) - bucket.unconfirmed:
                bucket.level, bucket.at = levels[place], now
