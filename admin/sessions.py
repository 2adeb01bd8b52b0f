"""Sessions over REST: a token of twelve hours for the right password, listed and revoked like the own tokens."""

from datetime import timedelta

from admin.actor import Actor, user_id_of
from admin.audit import record
from admin.logins import CreatedToken, verify_login
from admin.transactions import write_system
from core.clock import Clock, SystemClock
from core.db import Database
from core.errors import AuthenticationFailed
from core.ids import uuid7
from tenants import admin_tokens, members
from tenants.key_format import hash_key, new_key

SESSION_LIFE = timedelta(hours=12)
SESSION_NAME = "session"


async def open_session(
    database: Database, *, pepper: bytes, email: str, password: str, address: str, clock: Clock | None = None
) -> CreatedToken:
    """Sign a member of an organisation in.

    Raises AuthenticationFailed, the same for an unknown address, a wrong password, a disabled person and a person of
    the platform, and RateLimited after too many failures (admin.logins.verify_login).
    """
    actor = await verify_login(database, email, password, address=address)
    if actor is None or actor.tenant_id is None:
        raise AuthenticationFailed("The mail address or the password is wrong.", code="wrong_credentials")
    secret = new_key("admin", pepper)
    async with write_system(database) as connection:
        view = await admin_tokens.insert_token(
            connection,
            user_id_of(actor),
            uuid7(),
            name=SESSION_NAME,
            token_hash=hash_key(secret, pepper),
            last4=secret[-4:],
            expires_at=(clock or SystemClock()).now() + SESSION_LIFE,
        )
        await record(
            connection,
            actor,
            "session.open",
            tenant_id=actor.tenant_id,
            object_kind="token",
            object_id=view.id,
            after=view,
        )
    return CreatedToken(view, secret)


async def end_sessions(database: Database, actor: Actor) -> int:
    """End all sessions of the actor, over REST and of the console; returns how many there were over REST.

    Lasting tokens stay.
    """
    user_id = user_id_of(actor)
    async with write_system(database) as connection:
        ended = await admin_tokens.revoke_expiring(connection, user_id)
        await members.end_sessions(connection, user_id)
        await record(
            connection,
            actor,
            "session.end_all",
            tenant_id=actor.tenant_id,
            object_kind="user",
            object_id=actor.id,
            after={"sessions": ended},
        )
    return ended
