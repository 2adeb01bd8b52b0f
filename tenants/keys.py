"""API keys in an API process: the key ring turns a key into a principal, mostly without leaving the process.

* Found keys and refused ones are cached by the full 32-byte hash; both caches are bounded.
* Every change in tenancy (a trigger writes it, see tenants/changes.py) drops what it touches: within the poll
  interval of 2 s, at once when Redis delivers its hint. Keys that died are reported, so that their streams are cut.
* PostgreSQL away: cached keys keep working, unknown ones get Unavailable, never "wrong key".
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from core.clock import Clock
from core.db import Database
from core.errors import Unavailable
from tenants import changes, key_store, resolve
from tenants.changes import Change
from tenants.key_cache import KeyCache
from tenants.key_format import KeyKind, cache_salt, hash_key, new_key, parse_key
from tenants.principal import Principal
from tenants.resolve import Admission, Refusal

__all__ = ["KeyKind", "KeyRing", "cache_salt", "hash_key", "new_key", "parse_key"]

logger = logging.getLogger("penstock.tenants")

DATABASE_AWAY = (
    SQLAlchemyError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    OSError,
    RuntimeError,
    TimeoutError,
)
"""What a database that is gone, frozen or starting shows itself as; RuntimeError is uvloop's word for a transport that
has just closed (sqlalchemy #8871)."""

POLL_S = 2.0
PUSH_RETRY_S = 1.0
FLUSH_S = 30.0
"""Interval of the last_used_at batches."""
LOOKUP_TIMEOUT_S = 2.0
MAX_LOOKUPS_OPEN = 256
"""Distinct unknown keys waiting for PostgreSQL; more are refused with Unavailable."""
MAX_LOOKUPS_RUNNING = 4
CLOSE_TIMEOUT_S = 5.0


class KeyRing:
    """Authenticates keys for one API process. `start` before use, `close` at the end."""

    def __init__(
        self,
        database: Database,
        redis: "Redis | None",
        pepper: bytes,
        clock: Clock,
        *,
        cache_size: int = 50_000,
        refused_size: int = 10_000,
        poll_s: float = POLL_S,
        flush_s: float = FLUSH_S,
    ) -> None:
        self._database = database
        self._redis = redis
        self._pepper = pepper
        self._clock = clock
        self._poll_s = poll_s
        self._flush_s = flush_s
        self._cache = KeyCache(clock, cache_size, refused_size)
        self._flights: dict[bytes, asyncio.Task[Admission | Refusal | None]] = {}
        self._slots = asyncio.Semaphore(MAX_LOOKUPS_RUNNING)
        self._used: dict[UUID, datetime] = {}
        self._flushed_at = clock.monotonic()
        self._callbacks: list[Callable[[frozenset[UUID]], None]] = []
        self._horizon: int | None = None
        self._seen: set[int] = set()
        self._expiry_checked = clock.now()
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._polling: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take up the change feed. A database that is away at this moment is waited for in the background."""
        await self._follow()
        self._polling = asyncio.create_task(self._poll(), name="keyring-poll")
        if self._redis is not None:
            self._listening = asyncio.create_task(self._listen(self._redis), name="keyring-push")

    async def close(self) -> None:
        """Stop following and write the last batch of last_used_at; gives up on a frozen database after 5 s."""
        self._closing.set()
        self._wake.set()
        if self._listening is not None:
            self._listening.cancel()  # it has nothing to finish, and would wait for Redis for up to a second
        parts = (self._polling, self._listening, *self._flights.values())
        pending: list[asyncio.Task[Any]] = [task for task in parts if task is not None]
        if pending:
            _, late = await asyncio.wait(pending, timeout=CLOSE_TIMEOUT_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def on_revoked(self, callback: Callable[[frozenset[UUID]], None]) -> None:
        """Call `callback` with the ids of keys that died: revoked, expired, project archived or tenant suspended.

        Ids may be reported more than once and need not be in use here.
        """
        self._callbacks.append(callback)

    def authenticate_cached(self, raw: str) -> Principal | None:
        """The principal of a key this process knows to be good; None = ask `authenticate`. Awaits nothing."""
        principal = self._cache.admitted(hash_key(raw, self._pepper))
        if principal is not None:
            self._used[principal.key_id] = self._clock.now()
        return principal

    async def authenticate(self, raw: str) -> Principal:
        """The principal of `raw`.

        Raises AuthenticationFailed (malformed, unknown, revoked, expired), TenantSuspended, or Unavailable when
        the key is not cached and PostgreSQL does not answer.
        """
        principal = self.authenticate_cached(raw)
        if principal is not None:
            return principal
        if not parse_key(raw):
            raise Refusal("malformed").error()
        digest = hash_key(raw, self._pepper)
        refusal = self._cache.refused(digest)
        if refusal is not None:
            raise refusal.error()
        verdict = await self._look_up_once(digest)
        if isinstance(verdict, Refusal):
            raise verdict.error()
        principal = verdict.at(self._clock.now())
        if principal is None:
            raise Refusal("expired").error()
        self._used[principal.key_id] = self._clock.now()
        return principal

    async def _look_up_once(self, digest: bytes) -> Admission | Refusal:
        """One query for all who ask for the same key; callers wait, the query itself is never cancelled."""
        flight = self._flights.get(digest)
        if flight is None:
            if len(self._flights) >= MAX_LOOKUPS_OPEN:
                raise _away()
            flight = asyncio.create_task(self._look_up(digest), name="keyring-lookup")
            self._flights[digest] = flight
            flight.add_done_callback(lambda _: self._flights.pop(digest, None))
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                verdict = await asyncio.shield(flight)
        except TimeoutError:
            raise _away() from None
        if verdict is None:
            raise _away()
        return verdict

    async def _look_up(self, digest: bytes) -> Admission | Refusal | None:
        """The verdict on a key, cached unless changes kept coming in while it was read; None = database away."""
        verdict: Admission | Refusal | None = None
        for _ in range(3):
            generation = self._cache.generation
            try:
                async with self._slots, self._database.system() as connection:
                    verdict = await resolve.resolve_key(connection, digest, self._pepper, self._clock.now())
            except DATABASE_AWAY as error:
                logger.warning("key look-up failed: %s", type(error).__name__)
                return None
            if generation == self._cache.generation:
                self._cache.put(digest, verdict)
                break
        return verdict

    async def _poll(self) -> None:
        """Follow the feed every `poll_s` seconds, or sooner when a hint arrives."""
        while not self._closing.is_set():
            try:
                async with asyncio.timeout(self._poll_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self._follow()
            except Exception:
                # Whatever it is: a process that no longer follows would honour revoked keys for ever.
                logger.exception("tenancy changes not read, cached keys stay")
            if self._closing.is_set() or self._clock.monotonic() - self._flushed_at >= self._flush_s:
                await self._flush_used()

    async def _follow(self) -> None:
        """Apply what changed since the last look. On a database that is away: try again at the next turn."""
        now = self._clock.now()
        try:
            async with self._database.read() as connection:
                horizon = await changes.horizon(connection)
                since = self._horizon
                first = since is None or horizon < since
                feed = await changes.changes_since(connection, horizon if since is None or first else since)
                news = [] if first else [change for change in feed if change.id not in self._seen]
                dead = await self._dead(connection, news)
                dead |= await resolve.expired_between(connection, self._expiry_checked, now)
        except DATABASE_AWAY as error:
            logger.warning("tenancy changes not read, cached keys stay: %s", type(error).__name__)
            return
        self._horizon = horizon
        self._seen = {change.id for change in feed}
        self._expiry_checked = now
        if first:
            # Nothing cached is vouched for; a lower horizon means another cluster behind the same address.
            self._cache.clear()
        if news:
            self._cache.forget_tenants({change.tenant_id for change in news})
        if dead:
            self._report(dead)

    async def _dead(self, connection: AsyncConnection, news: Iterable[Change]) -> set[UUID]:
        """The keys that died by the changes in `news`."""
        ids: dict[str, list[UUID]] = {"key": [], "project": [], "tenant": [], "limits": []}
        for change in news:
            ids[change.kind].append(change.object_id)
        if not (ids["key"] or ids["project"] or ids["tenant"]):
            return set()
        return await resolve.dead_keys(connection, ids["key"], ids["project"], ids["tenant"])

    def _report(self, dead: set[UUID]) -> None:
        """Tell everyone who asked which keys died."""
        for callback in self._callbacks:
            callback(frozenset(dead))

    async def _listen(self, redis: "Redis") -> None:
        """Wake the poll at each hint from Redis; reconnect for ever while it is away."""
        while True:
            try:
                async with redis.pubsub(ignore_subscribe_messages=True) as pubsub:
                    await pubsub.subscribe(changes.CHANNEL)
                    self._wake.set()
                    while True:
                        if await pubsub.get_message(timeout=PUSH_RETRY_S) is not None:
                            self._wake.set()
            except (RedisError, OSError) as error:
                logger.warning("no tenancy hints from Redis, polling only: %s", type(error).__name__)
                await asyncio.sleep(PUSH_RETRY_S)

    async def _flush_used(self) -> None:
        """Write last_used_at of every key used since the last batch; keep the batch when the database is away."""
        self._flushed_at = self._clock.monotonic()
        used, self._used = self._used, {}
        if not used:
            return
        try:
            async with self._database.system() as connection:
                await key_store.touch(connection, used)
        except DATABASE_AWAY as error:
            logger.warning("last use of keys not written, kept for later: %s", type(error).__name__)
            self._used = used | self._used


def _away() -> Unavailable:
    return Unavailable(
        "The API key cannot be checked at the moment; it is not refused. Try again shortly.",
        code="key_lookup_unavailable",
        retry_after_s=1.0,
    )
