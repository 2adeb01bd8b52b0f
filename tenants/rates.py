"""Limits of a key, its project and its tenant: requests and tokens per minute, concurrency, tokens per day.

One atomic script in Redis (rates.lua) decides all three scopes. Requests and concurrency are exact across processes.
Tokens are reserved by an estimate and corrected when the request settles; a shortfall is carried as debt. No money
depends on these counters: while Redis is unavailable a local limiter applies, and balances are not affected.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from enum import IntEnum
from secrets import token_hex
from typing import cast
from uuid import UUID

import msgspec
from redis.asyncio import Redis

from core.clock import Clock
from core.errors import RateLimited, Unavailable
from core.supervise import supervise
from tenants.principal import Principal
from tenants.rate_errors import rate_limited
from tenants.rate_headers import Header
from tenants.rate_invalid import InvalidRequests
from tenants.rate_local import LocalLimiter, RefusalCache
from tenants.rate_pipeline import RatePipeline, RedisUnavailable, Reply
from tenants.rate_scopes import KINDS, Args, Scopes, acquire_command, command, scopes_of, settle_command

LEASE_US = 30_000_000
"""Microseconds after which a concurrency lease that is not renewed expires: its process has died."""
RENEW_S = 10.0
"""Seconds between renewals of the open leases."""
DAY_S = 86_400
MAX_SEED_ROUNDS = 3
"""Attempts to seed the day's counters. More than one is needed at midnight, or when Redis is flushed meanwhile."""
MAX_SCOPES_CACHED = 10_000
"""Principals with cached scopes; a full cache is emptied."""


class _ReplyCode(IntEnum):
    """First element of the script's reply to `acquire`; 0 is a refusal."""

    GRANTED = 1
    NEED_SEED = 2


log = logging.getLogger(__name__)
TokensToday = Callable[[UUID, datetime], Awaitable[dict[UUID, int]]]
"""(tenant id, UTC day) -> tokens used on that day by scope id."""


class RateGrant(msgspec.Struct):
    """The reservation of one request; return it exactly once, with `settle` or `refund`."""

    request_id: str
    headers: list[Header]
    """x-ratelimit-{limit,remaining,reset}-{requests,tokens} of the tightest scope."""
    input_estimate: int
    output_estimate: int
    scopes: Scopes | None = None
    """None = nothing is reserved: the principal has no limits, or Redis was unavailable."""
    epoch: bytes = b""
    day: int = 0


class RateLimiter:
    """Rate limits of one API process.

    `tokens_today` reads the day's tokens from PostgreSQL. `local_limit_per_s` is the number of requests per second
    that a tenant may start in this process while Redis is unavailable.
    """

    def __init__(
        self, redis: Redis, clock: Clock, tokens_today: TokensToday, local_limit_per_s: int = 20
    ) -> None:
        self._clock = clock
        self._tokens_today = tokens_today
        self._pipeline = RatePipeline(redis, clock)
        self._local = LocalLimiter(clock, local_limit_per_s)
        self._refused = RefusalCache(clock)
        self._invalid = InvalidRequests(clock)
        self._open: dict[str, RateGrant] = {}
        self._seeding: dict[UUID, asyncio.Task[None]] = {}
        self._scopes: dict[int, tuple[Principal, Scopes | None]] = {}
        """Scopes by the `id` of a principal, which is kept with them so that the number stays its own."""
        self._renewer: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to run calls and to renew leases."""
        await self._pipeline.start()
        self._renewer = supervise("rate-leases", self._renew_forever)

    async def close(self) -> None:
        """Send the queued settlements, then stop."""
        if self._renewer is not None:
            self._renewer.cancel()
            await asyncio.gather(self._renewer, *self._seeding.values(), return_exceptions=True)
        await self._pipeline.close()

    def check(self, principal: Principal) -> None:
        """Refuse a request before its body is parsed, from what this process knows. Does not wait.

        Raises RateLimited when a scope of `principal` refuses every request for now, or has used its request rate and
        sent invalid requests lately.
        """
        scopes = self._scopes_of(principal)
        if scopes is not None:
            self._refuse_known(scopes)

    def known_headers(self, principal: Principal) -> list[Header]:
        """The x-ratelimit-* headers of an answer that refuses a request, from what this process knows."""
        scopes = self._scopes_of(principal)
        return [] if scopes is None else scopes.headers.format_known(self._clock.monotonic())

    def charge_invalid(self, principal: Principal) -> None:
        """Count one invalid request, which was never acquired, in the request rates of `principal`. Does not wait.

        `check` refuses the next ones: at once when this process alone has sent as many as the limit, and from the
        reply on when all processes together have.
        """
        scopes = self._scopes_of(principal)
        if scopes is None or not scopes.request_limits:
            return

        def count(reply: Reply) -> None:
            self._invalid.confirmed(scopes, [int(level) / 1000 for level in reply[1:]])

        self._invalid.sent(scopes)
        self._pipeline.send(command(scopes, "charge"), count, lambda: self._invalid.lost(scopes))

    async def acquire(
        self, request_id: str, principal: Principal, input_estimate: int, output_estimate: int
    ) -> RateGrant:
        """Reserve one request, its estimated tokens and a concurrency lease in every scope, or nothing at all.

        Estimates are tokens; below 1 they count as 1. Raises RateLimited with `retry_after_s` and `details` (scope,
        kind, limit), and Unavailable when today's tokens must be read from PostgreSQL and cannot be.
        """
        grant = RateGrant(request_id, [], max(1, input_estimate), max(1, output_estimate))
        scopes = self._scopes_of(principal)
        if scopes is None:
            return grant
        self._refuse_known(scopes)
        for _ in range(MAX_SEED_ROUNDS):
            try:
                reply = await self._request(grant, scopes)
            except RedisUnavailable:
                self._local.admit(scopes)
                return grant
            match reply[0]:
                case _ReplyCode.GRANTED:
                    return self._grant(grant, scopes, reply)
                case _ReplyCode.NEED_SEED:
                    await self._seed_once(scopes, int(reply[1]))
                case _:
                    raise self._refusal(scopes, reply)
        raise Unavailable("today's tokens are being counted anew; try again in a second", retry_after_s=1.0)

    def settle(self, grant: RateGrant, input_tokens: int, output_tokens: int) -> None:
        """Correct the reservation of a finished request to the tokens it used, and return its lease."""
        self._release(grant, 0, input_tokens, output_tokens)

    def refund(self, grant: RateGrant) -> None:
        """Return the whole reservation of a request that the platform refused later."""
        self._release(grant, -1, 0, 0)

    def _refuse_known(self, scopes: Scopes) -> None:
        refusal = self._refused.get(scopes) or self._invalid.refusal(scopes)
        if refusal is not None:
            raise refusal

    def _scopes_of(self, principal: Principal) -> Scopes | None:
        """Cached by the principal object, which stays the same while its key is cached: changed limits make another."""
        cached = self._scopes.get(id(principal))
        if cached is None:
            if len(self._scopes) >= MAX_SCOPES_CACHED:
                self._scopes.clear()
            cached = self._scopes[id(principal)] = (principal, scopes_of(principal))
        return cached[1]

    async def _request(self, grant: RateGrant, scopes: Scopes) -> Reply:
        def refund_unclaimed(reply: Reply) -> None:
            """Return what was granted after the caller was cancelled."""
            if reply[0] == _ReplyCode.GRANTED:
                self.refund(self._grant(grant, scopes, reply))

        return await self._pipeline.call(
            acquire_command(scopes, grant.request_id, LEASE_US, grant.input_estimate, grant.output_estimate),
            refund_unclaimed,
        )

    def _grant(self, grant: RateGrant, scopes: Scopes, reply: Reply) -> RateGrant:
        _, epoch, day, *levels = cast(tuple[int, bytes, int, *tuple[int, ...]], reply)
        grant.epoch, grant.day, grant.scopes = epoch, day, scopes
        self._invalid.granted(scopes, levels[::3])
        grant.headers = scopes.headers.format(levels)
        scopes.headers.remember(levels, self._clock.monotonic())
        if scopes.concurrent:
            self._open[grant.request_id] = grant
        return grant

    def _refusal(self, scopes: Scopes, reply: Reply) -> RateLimited:
        index, kind = int(reply[1]) - 1, bytes(reply[2]).decode() if isinstance(reply[2], bytes) else ""
        wait_s, blocked_s = int(reply[3]) / 1e6, int(reply[4]) / 1e6
        error = rate_limited(scopes, index, KINDS[kind], wait_s)
        if blocked_s > 0:
            self._refused.put(scopes, index, error, blocked_s)
        return error

    def _release(self, grant: RateGrant, requests: int, input_tokens: int, output_tokens: int) -> None:
        self._open.pop(grant.request_id, None)
        scopes, grant.scopes = grant.scopes, None
        if scopes is None:
            return
        deltas = (requests, input_tokens - grant.input_estimate, output_tokens - grant.output_estimate)
        used = input_tokens + output_tokens
        self._pipeline.send(settle_command(scopes, grant.epoch, grant.request_id, grant.day, deltas, used))

    async def _seed_once(self, scopes: Scopes, day: int) -> None:
        """Seed the tenant's day counters from PostgreSQL; concurrent requests share one read."""
        tenant_id = scopes.ids[2]
        task = self._seeding.get(tenant_id)
        if task is None:
            task = self._seeding[tenant_id] = asyncio.create_task(self._seed_tenant(scopes, day))
            task.add_done_callback(lambda _: self._seeding.pop(tenant_id, None))
        await asyncio.shield(task)

    async def _seed_tenant(self, scopes: Scopes, day: int) -> None:
        try:
            used = await self._tokens_today(scopes.ids[2], datetime.fromtimestamp(day * DAY_S, UTC))
        except Exception as error:
            log.warning("today's tokens of a tenant cannot be read: %s", error)
            text = "today's tokens cannot be counted now; try again in a few seconds"
            raise Unavailable(text, retry_after_s=2.0) from error
        counts = {**dict.fromkeys(scopes.daily_ids, 0), **used}
        pairs: Args = [part for id_, tokens in counts.items() for part in (str(id_), int(tokens))]
        try:
            await self._pipeline.call(command(scopes, "seed", token_hex(8), day, *pairs))
        except RedisUnavailable:
            log.warning("redis went away while today's tokens were being stored")

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            self.renew()

    def renew(self) -> None:
        """Renew the leases of all open grants, with one call per key."""
        by_key: dict[UUID, list[RateGrant]] = {}
        for grant in self._open.values():
            if grant.scopes is not None:
                by_key.setdefault(grant.scopes.ids[0], []).append(grant)
        for grants in by_key.values():
            scopes = grants[-1].scopes
            if scopes is not None:
                leases = [grant.request_id for grant in grants]
                self._pipeline.send(command(scopes, "renew", LEASE_US, *leases))
