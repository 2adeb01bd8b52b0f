"""Sessions over REST and of the console: opened by a password, listed, and ended one by one or all at once."""

from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from admin.actor import Actor, actor_of, require, user_id_of, visible_user
from admin.audit import record
from admin.factor_codes import GivenCode
from admin.logins import (
    CreatedToken,
    SignIn,
    check_password,
    check_rule,
    check_still_signed_in,
    complete,
    wrong_credentials,
)
from admin.transactions import write_system
from core.clock import Clock, SystemClock
from core.db import Database
from core.errors import Conflict, NotFound
from core.ids import uuid7
from tenants import admin_tokens, members
from tenants.admin_tokens import SESSION_KINDS, TOUCH_EVERY, Opened
from tenants.key_format import hash_key, new_key
from tenants.roles import TENANT_MANAGERS
from tenants.views import TokenView, UserView

SESSION_LIFE = timedelta(hours=12)
SESSION_NAME = "session"


async def open_session(
    database: Database,
    *,
    pepper: bytes,
    email: str,
    password: str,
    opened: Opened,
    code: str = "",
    clock: Clock | None = None,
) -> CreatedToken:
    """Sign a member of an organisation in over REST; `opened.address` counts for the throttle of failures.

    `code` is one of the second factor. Raises AuthenticationFailed, the same for an unknown address, a wrong password,
    a disabled person and a person of the platform, with other codes when the second factor's is missing or wrong; and
    RateLimited after too many failures (admin.logins.check_password).
    """
    now = (clock or SystemClock()).now()
    right = await check_password(database, email, password, address=opened.address)
    signed_in = None
    if right is not None and right.tenant_id is not None:
        given = GivenCode(code, pepper, now)
        signed_in = await complete(database, right, address=opened.address, code=given)
    if signed_in is None:
        raise wrong_credentials()
    secret = new_key("admin", pepper)
    view = await _open(
        database,
        signed_in,
        "session",
        hash_key(secret, pepper),
        opened,
        now,
        secret[-4:],
    )
    return CreatedToken(view, secret)


async def open_console_session(
    database: Database, signed_in: SignIn, *, token_hash: bytes, opened: Opened, now: datetime
) -> TokenView:
    """Open a session of the console for a person who has just signed in.

    Raises AuthenticationFailed when the person was disabled or the password changed meanwhile.
    """
    return await _open(database, signed_in, "console", token_hash, opened, now)


async def _open(
    database: Database,
    signed_in: SignIn,
    kind: str,
    token_hash: bytes,
    opened: Opened,
    now: datetime,
    last4: str = "",
) -> TokenView:
    actor = signed_in.actor
    async with write_system(database) as connection:
        await check_still_signed_in(connection, actor, user_id_of(actor), signed_in.password_hash)
        await check_rule(connection, actor.tenant_id, signed_in.proved_by)
        view = await admin_tokens.insert_token(
            connection,
            user_id_of(actor),
            uuid7(),
            kind=kind,
            name=SESSION_NAME,
            token_hash=token_hash,
            last4=last4,
            opened=opened,
            created_at=now,
            expires_at=now + SESSION_LIFE,
            proved_by=signed_in.proved_by,
        )
        await record(
            connection,
            actor,
            "session.open",
            tenant_id=actor.tenant_id,
            object_kind="session",
            object_id=view.id,
            after=view,
        )
    return view


async def find_console_session(
    database: Database, token_hash: bytes, *, now: datetime, use: bool
) -> tuple[Actor, TokenView] | None:
    """The open session of the console with this hash and its person in the present role; None = it has ended.

    With `use` its idle time begins again.
    """
    async with database.read() as connection:
        found = await admin_tokens.find_console_session(connection, token_hash, now)
        user = None if found is None else await members.get_user(connection, found.user_id)
    if found is None or user is None:
        return None
    if use and (found.last_used_at or found.created_at) <= now - TOUCH_EVERY:
        async with database.system() as connection:
            await admin_tokens.touch(connection, found.id, now)
    return msgspec.structs.replace(actor_of("user", user), token=found), found


async def list_sessions(
    database: Database, actor: Actor, *, user_id: UUID, now: datetime | None = None
) -> list[TokenView]:
    """The open sessions of oneself, or of a person whom the actor manages. Raises NotFound, PermissionDenied."""
    async with database.read() as connection:
        _manageable(actor, user_id, await members.get_user(connection, user_id))
        return await admin_tokens.list_sessions(connection, user_id, now or SystemClock().now())


async def revoke_session(database: Database, actor: Actor, *, session_id: UUID) -> TokenView:
    """End one session of oneself, or of a person whom the actor manages.

    Raises Conflict when it was ended already, NotFound, PermissionDenied.
    """
    async with write_system(database) as connection:
        before = await admin_tokens.get_token(connection, session_id)
        if before is None or before.kind not in SESSION_KINDS:
            raise _no_session(session_id)
        user = await members.get_user(connection, before.user_id)
        try:
            user = _manageable(actor, before.user_id, user)
        except NotFound:  # of another organisation: it does not exist for the actor
            raise _no_session(session_id) from None
        if not await admin_tokens.mark_revoked(connection, session_id):
            raise Conflict(f"the session {session_id} was ended already")
        after = await admin_tokens.get_token(connection, session_id)
        await record(
            connection,
            actor,
            "session.revoke",
            tenant_id=user.tenant_id,
            object_kind="session",
            object_id=session_id,
            before=before,
            after=after,
            scope="write" if _is_self(actor, before.user_id) else None,
        )
    return after or before


async def end_sessions(
    database: Database, actor: Actor, *, user_id: UUID | None = None, but: UUID | None = None
) -> int:
    """End all sessions of oneself (None), or of a person whom the actor manages, except `but`; returns their number.

    Tokens stay. Raises NotFound, PermissionDenied.
    """
    whom = user_id_of(actor) if user_id is None else user_id
    async with write_system(database) as connection:
        user = _manageable(actor, whom, await members.get_user(connection, whom))
        ended = await admin_tokens.revoke_all(connection, whom, SESSION_KINDS, but=but)
        await members.end_older_sessions(connection, whom)
        await record(
            connection,
            actor,
            "session.end_all",
            tenant_id=user.tenant_id,
            object_kind="user",
            object_id=whom,
            after={"sessions": ended},
            scope="write" if _is_self(actor, whom) else None,
        )
    return ended


def _manageable(actor: Actor, user_id: UUID, user: UserView | None) -> UserView:
    """`user` when it is the actor, or the actor manages it. Raises NotFound, PermissionDenied."""
    user = visible_user(actor, user_id, user)
    if not _is_self(actor, user_id):
        require(actor, *TENANT_MANAGERS, tenant_id=user.tenant_id)
    return user


def _is_self(actor: Actor, user_id: UUID) -> bool:
    """Whether the actor is this person, who may end the own sessions with the scope `write`."""
    return actor.kind in ("user", "token") and actor.id == str(user_id)


def _no_session(session_id: UUID) -> NotFound:
    return NotFound(f"there is no session with the id {session_id}")
