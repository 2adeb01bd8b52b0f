"""Rates: requests and tokens per minute, concurrency and tokens per day of a key, its project and its tenant.

All three scopes are decided by one atomic script in Redis (rates.lua). Requests and concurrency are exact across
processes; tokens reserve an estimate, are corrected on settling, and a shortfall is carried as debt. Nothing here is
money: a Redis that is away or emptied changes no balance, and a small local cap holds until it is back.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from enum import IntEnum
from secrets import token_hex
from uuid import UUID

import msgspec
from redis.asyncio import Redis

from core.clock import Clock
from core.errors import RateLimited, Unavailable
from tenants.principal import Limits, Principal
from tenants.rate_headers import Header, rate_headers
from tenants.rate_local import LocalCap, RefusalCache
from tenants.rate_pipe import Answer, RatePipe, RedisAway
from tenants.rate_scopes import KINDS, SCOPES, Args, Scopes, command, scopes_of

LEASE_US = 30_000_000
"""A concurrency lease not renewed for this long is free again: its process died."""
RENEW_S = 10.0
DAY_S = 86_400
MAX_SEEDS = 3
"""Rounds of seeding before giving up; more than one is needed only at midnight or while Redis is being emptied."""
MAX_SCOPES_CACHED = 10_000


class _Answer(IntEnum):
    """First element of what the script returns to `acquire`; 0 is a refusal."""

    GRANTED = 1
    NEED_SEED = 2


log = logging.getLogger(__name__)
Seed = Callable[[UUID, datetime], Awaitable[dict[UUID, int]]]


class RateGrant(msgspec.Struct):
    """Leave to go on; give it back exactly once, with `settle` or `refund`."""

    request_id: str
    headers: list[Header]
    """x-ratelimit-{limit,remaining,reset}-{requests,tokens} of the tightest scope."""
    input_estimate: int
    output_estimate: int
    scopes: Scopes | None = None
    """None = nothing is reserved anywhere: no limits, or Redis was away."""
    epoch: str = ""
    day: int = 0


class RateLimiter:
    """Decides for one API process.

    `seed(tenant_id, day)` reads tokens used per scope id on a UTC day from PostgreSQL. `local_cap_per_s` is what a
    tenant may start per second in this process while Redis is away.
    """

    def __init__(self, redis: Redis, clock: Clock, seed: Seed, local_cap_per_s: int = 20) -> None:
        self._clock = clock
        self._seed = seed
        self._pipe = RatePipe(redis, clock)
        self._local = LocalCap(clock, local_cap_per_s)
        self._refused = RefusalCache(clock)
        self._open: dict[str, RateGrant] = {}
        self._seeding: dict[UUID, asyncio.Task[None]] = {}
        self._scopes: dict[Principal, Scopes | None] = {}
        self._renewer: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to run calls and to renew leases."""
        await self._pipe.start()
        self._renewer = asyncio.create_task(self._renew_forever())

    async def close(self) -> None:
        """Send what is still to be settled, then stop."""
        if self._renewer is not None:
            self._renewer.cancel()
            await asyncio.gather(self._renewer, *self._seeding.values(), return_exceptions=True)
        await self._pipe.close()

    async def acquire(
        self, request_id: str, principal: Principal, input_estimate: int, output_estimate: int
    ) -> RateGrant:
        """Reserve one request, its estimated tokens and a concurrency lease in every scope, or nothing at all.

        Raises RateLimited with `retry_after_s` and `details` (scope, kind, limit), and Unavailable when today's
        tokens must be read from PostgreSQL and cannot.
        """
        grant = RateGrant(request_id, [], max(1, input_estimate), max(1, output_estimate))
        scopes = self._scopes_of(principal)
        if scopes is None:
            return grant
        if (known := self._refused.find(scopes)) is not None:
            raise known
        for _ in range(MAX_SEEDS):
            try:
                answer = await self._ask(grant, scopes)
            except RedisAway:
                self._local.admit(scopes)
                return grant
            match answer[0]:
                case _Answer.GRANTED:
                    return self._granted(grant, scopes, answer)
                case _Answer.NEED_SEED:
                    await self._seeded(scopes, int(answer[1]))
                case _:
                    raise self._refusal(scopes, answer)
        raise Unavailable("today's tokens are being counted anew; try again in a second", retry_after_s=1.0)

    def settle(self, grant: RateGrant, input_tokens: int, output_tokens: int) -> None:
        """The request is over: correct the reservation to what was used and return the lease."""
        self._give_back(grant, 0, input_tokens, output_tokens)

    def refund(self, grant: RateGrant) -> None:
        """The request was refused after all: it counts for nothing."""
        self._give_back(grant, -1, 0, 0)

    # Inside

    def _scopes_of(self, principal: Principal) -> Scopes | None:
        """Cached by the whole principal, so that changed limits make a new entry."""
        try:
            return self._scopes[principal]
        except KeyError:
            if len(self._scopes) >= MAX_SCOPES_CACHED:
                self._scopes.clear()
            scopes = self._scopes[principal] = scopes_of(principal)
            return scopes

    async def _ask(self, grant: RateGrant, scopes: Scopes) -> Answer:
        reserve = (grant.request_id, LEASE_US, grant.input_estimate, grant.output_estimate)

        def undo(answer: Answer) -> None:
            """The caller has gone: what was granted in the meantime is given back."""
            if answer[0] == _Answer.GRANTED:
                self.refund(self._granted(grant, scopes, answer))

        return await self._pipe.call(command(scopes.call, "acquire", token_hex(8), *reserve), undo)

    def _granted(self, grant: RateGrant, scopes: Scopes, answer: Answer) -> RateGrant:
        epoch = answer[1]
        grant.epoch = epoch.decode() if isinstance(epoch, bytes) else str(epoch)
        grant.day = int(answer[2])
        grant.scopes = scopes
        grant.headers = rate_headers(scopes.limits, [int(level) for level in answer[3:12]])
        if scopes.leased:
            self._open[grant.request_id] = grant
        return grant

    def _refusal(self, scopes: Scopes, answer: Answer) -> RateLimited:
        index, kind = int(answer[1]) - 1, bytes(answer[2]).decode() if isinstance(answer[2], bytes) else ""
        wait_s, blocked_s = int(answer[3]) / 1e6, int(answer[4]) / 1e6
        error = rate_limited(scopes, index, KINDS[kind], wait_s)
        if blocked_s > 0:
            self._refused.remember(scopes, index, error, blocked_s)
        return error

    def _give_back(self, grant: RateGrant, requests: int, input_tokens: int, output_tokens: int) -> None:
        self._open.pop(grant.request_id, None)
        scopes, grant.scopes = grant.scopes, None
        if scopes is None:
            return
        deltas = [requests, input_tokens - grant.input_estimate, output_tokens - grant.output_estimate]
        used = input_tokens + output_tokens
        self._pipe.tell(
            command(scopes.call, "settle", grant.epoch, grant.request_id, grant.day, *deltas, used)
        )

    async def _seeded(self, scopes: Scopes, day: int) -> None:
        """Have the tenant's day counters read from PostgreSQL, once however many requests ask."""
        tenant_id = scopes.ids[2]
        task = self._seeding.get(tenant_id)
        if task is None:
            task = self._seeding[tenant_id] = asyncio.create_task(self._seed_tenant(scopes, day))
            task.add_done_callback(lambda _: self._seeding.pop(tenant_id, None))
        await asyncio.shield(task)

    async def _seed_tenant(self, scopes: Scopes, day: int) -> None:
        try:
            used = await self._seed(scopes.ids[2], datetime.fromtimestamp(day * DAY_S, UTC))
        except Exception as error:
            log.warning("today's tokens of a tenant cannot be read: %s", error)
            text = "today's tokens cannot be counted now; try again in a few seconds"
            raise Unavailable(text, retry_after_s=2.0) from error
        counts = {**dict.fromkeys(scopes.daily, 0), **used}
        pairs: Args = [part for id_, tokens in counts.items() for part in (str(id_), int(tokens))]
        try:
            await self._pipe.call(command(scopes.call, "seed", token_hex(8), day, *pairs))
        except RedisAway:
            log.warning("redis went away while today's tokens were being stored")

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            self.renew()

    def renew(self) -> None:
        """Renew the leases of every open grant, one call per key."""
        by_key: dict[UUID, list[RateGrant]] = {}
        for grant in self._open.values():
            if grant.scopes is not None:
                by_key.setdefault(grant.scopes.ids[0], []).append(grant)
        for grants in by_key.values():
            scopes = grants[-1].scopes
            if scopes is not None:
                leases = [grant.request_id for grant in grants]
                self._pipe.tell(command(scopes.call, "renew", LEASE_US, *leases))


def rate_limited(scopes: Scopes, index: int, kind: str, wait_s: float) -> RateLimited:
    """The error of a request over the limit `kind` of scope number `index`."""
    limits: Limits = scopes.limits[index]
    limit = getattr(limits, kind)
    scope = SCOPES[index]
    words = kind.replace("_per_min", " per minute").replace("_per_day", " per day").replace("_", " ")
    message = f"the {scope}'s limit of {limit} {words} is reached; try again in {max(wait_s, 0.001):.3g} s"
    if kind == "concurrency":
        message = f"the {scope}'s limit of {limit} requests at a time is reached; wait for one to finish"
    return RateLimited(
        message, details={"scope": scope, "kind": kind, "limit": limit}, retry_after_s=max(wait_s, 0.001)
    )
