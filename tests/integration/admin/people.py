"""People with passwords, for tests of the administration."""

from datetime import UTC, datetime
from uuid import UUID, uuid4

from admin import sessions, users
from admin.actor import Actor
from admin.logins import SignIn
from core.db import Database
from tenants import members
from tenants.admin_tokens import Opened
from tenants.roles import Role
from tests.support.tenancy import ADMIN

PASSWORD = "correct horse battery"


async def person(database: Database, role: Role, tenant_id: UUID | None = None) -> Actor:
    """Somebody real, signed in."""
    email = f"{role}-{uuid4().hex[:8]}@example.com"
    await users.create_user(database, ADMIN, email=email, password=PASSWORD, role=role, tenant_id=tenant_id)
    actor = await users.verify_login(database, email, PASSWORD, address="192.0.2.1")
    assert actor is not None
    return actor


async def signed_in(database: Database, actor: Actor) -> SignIn:
    """The person as one who has just given the present password."""
    async with database.read() as connection:
        login = await members.find_login(connection, actor.label)
    assert login is not None
    return SignIn(actor, login.password_hash)


async def console_session(database: Database, actor: Actor) -> bytes:
    """The hash of a session of the console that the person has just opened."""
    token_hash = uuid4().bytes
    await sessions.open_console_session(
        database,
        await signed_in(database, actor),
        token_hash=token_hash,
        opened=Opened("192.0.2.1", "Firefox"),
        now=datetime.now(UTC),
    )
    return token_hash


async def is_open(database: Database, token_hash: bytes) -> bool:
    """Whether the session of the console is open."""
    found = await sessions.find_console_session(database, token_hash, now=datetime.now(UTC), use=True)
    return found is not None
