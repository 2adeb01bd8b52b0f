"""Console sessions: a random token in a cookie, a row of the database under an HMAC of the token.

The database never holds a token, so its content is not enough to sign in. Every sign-in creates a new token.
A session ends on sign-out, after an hour without a page or an action, after twelve hours, when its person is
disabled, gets another role or another password, and when it is revoked (admin/sessions.py). The role is read for every
page and action.
"""

import hashlib
import hmac
import secrets
from uuid import UUID

import msgspec

from admin import sessions as admin_sessions
from admin.actor import Actor
from admin.denials import record_denial
from admin.logins import SignIn
from core.clock import Clock
from core.db import Database
from core.errors import PenstockError
from tenants.admin_tokens import NOT_KNOWN, Opened

TOKEN_CHARS_MAX = 128


class Session(msgspec.Struct, frozen=True):
    """The signed-in person with the present role."""

    id: UUID
    actor: Actor
    email: str


class SessionStore:
    """Opens, finds and ends sessions."""

    def __init__(self, database: Database, secret: bytes, clock: Clock) -> None:
        self._database = database
        self._secret = secret
        self._clock = clock

    async def record_denial(self, actor: Actor, act: str, error: PenstockError, address: str) -> None:
        """Record that an act of the console was refused, if this is a denial."""
        await record_denial(self._database, actor, f"console {act}", error, address=address)

    def _hash(self, token: str) -> bytes:
        return hmac.new(self._secret, token.encode(), hashlib.sha256).digest()

    async def open(self, signed_in: SignIn, opened: Opened = NOT_KNOWN) -> str:
        """Start a session of a person who has just signed in and return its token, the cookie's value.

        Raises AuthenticationFailed when the person was disabled or the password changed meanwhile.
        """
        token = secrets.token_urlsafe(32)
        await admin_sessions.open_console_session(
            self._database, signed_in, token_hash=self._hash(token), opened=opened, now=self._clock.now()
        )
        return token

    async def is_alive(self, token: str) -> bool:
        """Whether the session of `token` is open; does not restart the idle time."""
        return await self._find(token, use=False) is not None

    async def use(self, token: str) -> Session | None:
        """The session of `token`, or None when it has ended. Restarts the idle time."""
        return await self._find(token, use=True)

    async def _find(self, token: str, *, use: bool) -> Session | None:
        if not token or len(token) > TOKEN_CHARS_MAX:
            return None
        found = await admin_sessions.find_console_session(
            self._database, self._hash(token), now=self._clock.now(), use=use
        )
        return None if found is None else Session(found[1].id, found[0], found[0].label)

    async def end(self, token: str) -> None:
        """End the session of `token`, if it is open."""
        session = await self._find(token, use=False)
        if session is not None:
            try:
                await admin_sessions.revoke_session(self._database, session.actor, session_id=session.id)
            except PenstockError:  # it ended meanwhile
                return
