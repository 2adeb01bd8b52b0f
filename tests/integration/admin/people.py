"""People with passwords, for tests of the administration."""

from uuid import UUID, uuid4

from admin import users
from admin.actor import Actor
from core.db import Database
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
