"""Console sessions: a random token in a cookie, the session in Redis under an HMAC of the token.

Redis never holds a token, so its content is not enough to sign in. Every sign-in creates a new token.
A session ends on sign-out, after IDLE_TIMEOUT_S without a page or an action, after MAX_AGE_S, when its person is
disabled, and when all sessions of that person are ended (a changed, recovered or confirmed password, or over REST). The
role is read for every page and action, so that a change of role applies at once.
"""

import hashlib
import hmac
import secrets
from datetime import UTC, datetime
from uuid import UUID

import msgspec
from redis.asyncio import Redis

from admin.actor import Actor
from admin.users import current_actor
from core.clock import Clock
from core.db import Database

IDLE_TIMEOUT_S = 3600
"""Seconds without use after which a session ends."""
MAX_AGE_S = 12 * 3600
"""Seconds after sign-in at which a session ends."""
TOKEN_CHARS_MAX = 128
_PREFIX = "penstock:console:session:"


class _Stored(msgspec.Struct, frozen=True):
    """A session as stored in Redis."""

    user_id: UUID
    email: str
    started_at: float
    """Unix seconds."""


class Session(msgspec.Struct, frozen=True):
    """The signed-in person with the present role."""

    actor: Actor
    email: str


class SessionStore:
    """Opens, finds and ends sessions."""

    def __init__(self, redis: Redis, database: Database, secret: bytes, clock: Clock) -> None:
        self._redis = redis
        self._database = database
        self._secret = secret
        self._clock = clock

    def _key(self, token: str) -> str:
        return _PREFIX + hmac.new(self._secret, token.encode(), hashlib.sha256).hexdigest()

    async def open(self, actor: Actor) -> str:
        """Start a session of a user (an actor with a user id) and return its token, the cookie's value."""
        token = secrets.token_urlsafe(32)
        stored = _Stored(UUID(actor.id), actor.label, self._clock.now().timestamp())
        await self._redis.set(self._key(token), msgspec.json.encode(stored), ex=IDLE_TIMEOUT_S)
        return token

    async def is_alive(self, token: str) -> bool:
        """Whether the session of `token` exists; does not restart the idle time."""
        return await self._stored(token) is not None

    async def use(self, token: str) -> Session | None:
        """The session of `token`, or None when it has ended or its person is disabled. Restarts the idle time."""
        found = await self._stored(token)
        if found is None:
            return None
        stored, left_s = found
        since = datetime.fromtimestamp(stored.started_at, UTC)
        actor = await current_actor(self._database, stored.user_id, since=since)
        if actor is None:
            await self.end(token)
            return None
        await self._redis.expire(self._key(token), max(1, min(IDLE_TIMEOUT_S, int(left_s))))
        return Session(actor=actor, email=stored.email)

    async def _stored(self, token: str) -> tuple[_Stored, float] | None:
        if not token or len(token) > TOKEN_CHARS_MAX:
            return None
        raw = await self._redis.get(self._key(token))
        if raw is None:
            return None
        stored = msgspec.json.decode(raw, type=_Stored)
        left_s = stored.started_at + MAX_AGE_S - self._clock.now().timestamp()
        return (stored, left_s) if left_s > 0 else None

    async def end(self, token: str) -> None:
        """Delete the session of `token`."""
        await self._redis.delete(self._key(token))
