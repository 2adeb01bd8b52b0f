"""A second person for tests: approves everything that waits, as the console's or the REST's route would."""

from uuid import UUID

from sqlalchemy import text

from admin import decisions
from admin.actor import Actor
from cli.context import os_user
from core.db import Database
from core.ids import uuid7

SECOND = Actor(kind="user", id=str(UUID(int=2)), label="second@example.com", role="finance")
"""The person who approves; no test signs in as this one."""


async def map_shell(database: Database, name: str | None = None) -> UUID:
    """Map a shell user (None = this process's) to a new person, as `penstock users claim-shell` does.

    Returns the person's id.
    """
    user_id = uuid7()
    async with database.system() as connection:
        await connection.execute(
            text("INSERT INTO users (id, email, password_hash) VALUES (:id, :email, 'x')"),
            {"id": user_id, "email": f"shell-{user_id}@example.com"},
        )
        await connection.execute(
            text("INSERT INTO memberships (user_id, role) VALUES (:id, 'platform_admin')"), {"id": user_id}
        )
        await connection.execute(
            text("INSERT INTO shell_users (name, user_id) VALUES (:name, :id) ON CONFLICT DO NOTHING"),
            {"name": name or os_user(), "id": user_id},
        )
    return user_id


async def approve_all(database: Database, kind: str | None = None) -> list[decisions.Decision]:
    """Approve every open request of others, or those of one kind, as SECOND, the oldest first."""
    return [
        await decisions.decide(database, SECOND, approval_id=one.id, approve=True)
        for one in await decisions.list_approvals(database, SECOND)
        if one.requested_by != SECOND.label and kind in (None, one.kind)
    ]


async def approve_requests(pg_url: str, kind: str | None = None) -> None:
    """Approve what waits, for tests of a running platform."""
    database = Database(pg_url)
    try:
        await approve_all(database, kind)
    finally:
        await database.close()


async def approve_shell_requests(pg_url: str) -> None:
    """Map the shell user and approve what it requested, for tests of commands."""
    database = Database(pg_url)
    try:
        await map_shell(database)
        await approve_all(database)
    finally:
        await database.close()
