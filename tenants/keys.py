"""Authenticates API keys in an API process, mostly from its cache.

* Admitted and refused keys are cached by a 32-byte hash under a secret; both caches are bounded. It is not the stored
  hash: BLAKE2b takes less than half the time of HMAC-SHA256, which is computed only for a look-up.
* A change of tenancy (tenants/changes.py) invalidates what it touches: within the poll interval of 2 s, or at once when
  Redis delivers its hint. Keys that became inactive are reported, so that their streams are aborted.
* Made-up keys are refused without a look-up, because they have no tag (tenants/key_format.py).
* While PostgreSQL is unavailable, cached keys keep working and unknown keys get Unavailable, never "wrong key".
"""

import asyncio
import hmac
import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from hashlib import blake2b
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
from core.supervise import note_failure, supervise
from tenants import changes, client_settings, key_store, resolve
from tenants.changes import Change
from tenants.key_cache import KeyCache
from tenants.key_format import KeyKind, cache_salt, has_tag, hash_key, new_key, parse_key
from tenants.principal import Principal
from tenants.resolve import Admission, Refusal
from tenants.untagged_keys import UntaggedKeys

__all__ = ["KeyKind", "KeyRing", "cache_salt", "hash_key", "new_key", "parse_key"]

logger = logging.getLogger("penstock.tenants")

DATABASE_ERRORS = (
    SQLAlchemyError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    OSError,
    RuntimeError,
    TimeoutError,
)
"""Errors of a database that is down, frozen or starting. uvloop raises RuntimeError for a transport that has just
closed (sqlalchemy #8871)."""

POLL_S = 2.0
"""Seconds between polls of the change feed."""
PUSH_RETRY_S = 1.0
"""Seconds between attempts to subscribe to Redis; also the timeout of one read."""
FLUSH_S = 30.0
"""Seconds between batches of last_used_at."""
LOOKUP_TIMEOUT_S = 2.0
"""Longest time that a request waits for the look-up of its key."""
MAX_LOOKUPS_OPEN = 256
"""Distinct keys whose look-up is queued or running; further ones are refused with Unavailable."""
MAX_LOOKUPS_RUNNING = 4
"""Look-ups that use a database connection at the same time."""
CLOSE_TIMEOUT_S = 5.0
"""Seconds that `close` waits for running tasks before it cancels them."""


class KeyRing:
    """Authenticates the keys of one API process. `start` it before use and `close` it at the end.

    Keys are looked up in `database`; changes, revocations among them, are read through `feed`, which waits for no
    look-up.
    """

    def __init__(
        self,
        database: Database,
        feed: Database,
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
        self._feed = feed
        self._redis = redis
        self._pepper = pepper
        self._clock = clock
        self._poll_s = poll_s
        self._flush_s = flush_s
        self._cache = KeyCache(clock, cache_size, refused_size)
        self._cache_secret = hmac.digest(pepper, b"key-cache", "sha256")
        self._last_hashed: tuple[str | None, bytes] = (None, b"")
        """The key that was hashed last, and its hash: a request asks before and after its body."""
        self._untagged = UntaggedKeys()
        self.origins: frozenset[str] = frozenset()
        """Every origin of browsers that some key allows."""
        self._lookups: dict[bytes, asyncio.Task[Admission | Refusal | None]] = {}
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
        """Begin to follow the change feed; an unavailable database is retried in the background."""
        await self._follow()
        self._polling = supervise("keyring-poll", self._poll)
        if self._redis is not None:
            self._listening = supervise("keyring-push", partial(self._listen, self._redis))

    async def close(self) -> None:
        """Stop following and write the last batch of last_used_at, within CLOSE_TIMEOUT_S."""
        self._closing.set()
        self._wake.set()
        if self._listening is not None:
            self._listening.cancel()  # it has nothing to finish, and may wait PUSH_RETRY_S for Redis
        parts = (self._polling, self._listening, *self._lookups.values())
        pending: list[asyncio.Task[Any]] = [task for task in parts if task is not None]
        if pending:
            _, late = await asyncio.wait(pending, timeout=CLOSE_TIMEOUT_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def on_revoked(self, callback: Callable[[frozenset[UUID]], None]) -> None:
        """Call `callback` with the ids of keys that became inactive.

        A key is inactive when it is revoked or expired, its project archived or its tenant suspended. An id may be
        reported more than once and need not be in use here.
        """
        self._callbacks.append(callback)

    def authenticate_cached(self, raw: str) -> Principal | None:
        """The principal of a key with a cached admission; None = use `authenticate`. Does not wait."""
        now = self._clock.now()
        principal = self._cache.admitted(self._cache_key(raw), now)
        if principal is not None:
            self._used[principal.key_id] = now
        return principal

    async def authenticate(self, raw: str) -> Principal:
        """The principal of `raw`.

        Raises AuthenticationFailed (malformed, unknown, revoked, expired), TenantSuspended, or Unavailable when the key
        is not cached and PostgreSQL does not answer.
        """
        principal = self.authenticate_cached(raw)
        if principal is not None:
            return principal
        if not parse_key(raw):
            raise Refusal("malformed").error()
        cache_key = self._cache_key(raw)
        refusal = self._cache.refused(cache_key)
        if refusal is not None:
            raise refusal.error()
        if not has_tag(raw, self._pepper) and not self._untagged.may_contain(hash_key(raw, self._pepper)):
            raise Refusal("unknown").error()
        verdict = await self._look_up_once(raw, cache_key)
        if isinstance(verdict, Refusal):
            raise verdict.error()
        principal = verdict.at(self._clock.now())
        if principal is None:
            raise Refusal("expired").error()
        self._used[principal.key_id] = self._clock.now()
        return principal

    def _cache_key(self, raw: str) -> bytes:
        """The hash by which `raw` is cached."""
        last, hashed = self._last_hashed
        if last is not raw:  # by identity, since comparing text would take longer the more characters agree
            text = raw.encode("utf-8", "surrogatepass")
            hashed = blake2b(text, key=self._cache_secret, digest_size=32).digest()
            self._last_hashed = (raw, hashed)
        return hashed

    async def _look_up_once(self, raw: str, cache_key: bytes) -> Admission | Refusal:
        """Look a key up; concurrent requests with the same key share one query, which is never cancelled."""
        lookup = self._lookups.get(cache_key)
        if lookup is None:
            if len(self._lookups) >= MAX_LOOKUPS_OPEN:
                raise _lookup_unavailable()
            lookup = asyncio.create_task(self._look_up(raw, cache_key), name="keyring-lookup")
            self._lookups[cache_key] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop(cache_key, None))
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                verdict = await asyncio.shield(lookup)
        except TimeoutError:
            raise _lookup_unavailable() from None
        if verdict is None:
            raise _lookup_unavailable()
        return verdict

    async def _look_up(self, raw: str, cache_key: bytes) -> Admission | Refusal | None:
        """The verdict on a key; None = database unavailable. Cached unless it changed during each of three reads."""
        digest = hash_key(raw, self._pepper)
        verdict: Admission | Refusal | None = None
        for _ in range(3):
            generation = self._cache.generation
            try:
                async with self._slots, self._database.system() as connection:
                    verdict = await resolve.resolve_key(connection, digest, self._pepper, self._clock.now())
            except DATABASE_ERRORS as error:
                logger.warning("key look-up failed: %s", type(error).__name__)
                return None
            if generation == self._cache.generation:
                self._cache.put(cache_key, verdict)
                break
        return verdict

    async def _poll(self) -> None:
        """Read the feed every `poll_s` seconds, or sooner when a hint arrives."""
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
                # The loop must survive any error: without it this process would accept revoked keys for ever.
                logger.exception("tenancy changes not read, cached keys stay")
                note_failure("keyring-poll")
            if self._closing.is_set() or self._clock.monotonic() - self._flushed_at >= self._flush_s:
                await self._flush_used()

    async def _follow(self) -> None:
        """Apply the changes since the last poll; an unavailable database is retried at the next poll."""
        now = self._clock.now()
        try:
            async with self._feed.read() as connection:
                horizon = await changes.horizon(connection)
                since = self._horizon
                first = since is None or horizon < since
                feed = await changes.changes_since(connection, horizon if since is None or first else since)
                news = [] if first else [change for change in feed if change.id not in self._seen]
                inactive = await self._find_inactive(connection, news)
                inactive |= await resolve.expired_between(connection, self._expiry_checked, now)
                if first or any(change.kind == "key" for change in news):
                    self.origins = await client_settings.all_origins(connection)
                if first:
                    await self._untagged.load(connection)
                elif keys := [change.object_id for change in news if change.kind == "key"]:
                    await self._untagged.add(connection, keys)
        except DATABASE_ERRORS as error:
            logger.warning("tenancy changes not read, cached keys stay: %s", type(error).__name__)
            return
        self._horizon = horizon
        self._seen = {change.id for change in feed}
        self._expiry_checked = now
        if first:
            # Cached keys may be stale; a lower horizon means another cluster behind the same address.
            self._cache.clear()
        if news:
            self._cache.invalidate_tenants({change.tenant_id for change in news})
        if inactive:
            self._notify_revoked(inactive)

    async def _find_inactive(self, connection: AsyncConnection, news: Iterable[Change]) -> set[UUID]:
        """The keys that the changes in `news` made inactive."""
        ids: dict[str, list[UUID]] = {"key": [], "project": [], "tenant": [], "limits": []}
        for change in news:
            ids[change.kind].append(change.object_id)
        if not (ids["key"] or ids["project"] or ids["tenant"]):
            return set()
        return await resolve.inactive_keys(connection, ids["key"], ids["project"], ids["tenant"])

    def _notify_revoked(self, inactive: set[UUID]) -> None:
        """Call every callback with the inactive keys."""
        for callback in self._callbacks:
            callback(frozenset(inactive))

    async def _listen(self, redis: "Redis") -> None:
        """Start a poll at each hint from Redis; reconnect for ever while Redis is unavailable."""
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
        """Write last_used_at of the keys used since the last batch; keep the batch when the database fails."""
        self._flushed_at = self._clock.monotonic()
        used, self._used = self._used, {}
        if not used:
            return
        try:
            async with self._feed.system() as connection:
                await key_store.touch(connection, used)
        except DATABASE_ERRORS as error:
            logger.warning("last use of keys not written, kept for later: %s", type(error).__name__)
            self._used = used | self._used


def _lookup_unavailable() -> Unavailable:
    return Unavailable(
        "The API key cannot be checked at the moment; it is not refused. Try again shortly.",
        code="key_lookup_unavailable",
        retry_after_s=1.0,
    )
