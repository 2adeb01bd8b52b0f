"""What tests of tenancy, the API and billing begin with: an organisation, a project, a key, an actor."""

from uuid import UUID

import msgspec
from sqlalchemy import text

from admin import keys as admin_keys
from admin import projects as admin_projects
from admin import tenants as admin_tenants
from admin.actor import Actor, system_actor
from core.db import Database
from tenants.roles import Role

PEPPER = b"pepper of the tests, 32 bytes or so"
ADMIN = system_actor("test")


class Organisation(msgspec.Struct, frozen=True):
    """One tenant with a project and a live key."""

    tenant_id: UUID
    project_id: UUID
    key_id: UUID
    key: str


async def make_organisation(database: Database, name: str = "Acme") -> Organisation:
    """Create an organisation through the administrative functions."""
    tenant = await admin_tenants.create_tenant(database, ADMIN, name=name)
    (project,) = await admin_projects.list_projects(database, ADMIN, tenant_id=tenant.id)
    created = await admin_keys.create_key(
        database, ADMIN, pepper=PEPPER, tenant_id=tenant.id, project_id=project.id, name="first"
    )
    return Organisation(tenant.id, project.id, created.view.id, created.secret)


def member(tenant_id: UUID, role: Role = "tenant_owner") -> Actor:
    """Somebody signed in to the console with a role in an organisation."""
    return Actor(
        kind="user",
        id="0198c0de-0000-7000-8000-000000000001",
        label="member@example.com",
        role=role,
        tenant_id=tenant_id,
    )


async def audit_actions(database: Database) -> list[str]:
    """The actions in the audit log, oldest first."""
    async with database.read() as connection:
        return list((await connection.execute(text("SELECT action FROM audit_log ORDER BY id"))).scalars())
