"""Which person a shell user of a platform host is.

`penstock` on the command line acts as the user of the operating system. A mapping names the platform's person behind
it, so that the four-eyes principle compares people and not names.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from tenants.roles import PLATFORM_ROLES
from tenants.scoping import platform_wide
from tenants.tables import memberships, shell_users, users


class ShellUser(msgspec.Struct, frozen=True):
    """A shell user and the person behind it."""

    name: str
    """User name in the operating system of a platform host."""
    user_id: UUID
    email: str
    mapped_at: datetime


async def map_shell_user(connection: AsyncConnection, name: str, user_id: UUID) -> bool:
    """Map `name` to a person; False when it is mapped already, to whomever."""
    made = await connection.execute(
        insert(shell_users)
        .values(name=name, user_id=user_id)
        .on_conflict_do_nothing()
        .returning(shell_users.c.name)
    )
    return made.one_or_none() is not None


@platform_wide("shell users belong to the platform")
async def unmap_shell_user(connection: AsyncConnection, name: str) -> None:
    """Remove the mapping of `name`, if there is one."""
    await connection.execute(delete(shell_users).where(shell_users.c.name == name))


@platform_wide("shell users belong to the platform")
async def get_shell_user(connection: AsyncConnection, name: str) -> ShellUser | None:
    """The mapping of `name`, or None."""
    row = (await connection.execute(_SELECT.where(shell_users.c.name == name))).one_or_none()
    return None if row is None else _view(row)


@platform_wide("shell users belong to the platform")
async def list_shell_users(connection: AsyncConnection) -> list[ShellUser]:
    """Every mapping by name."""
    return [_view(row) for row in await connection.execute(_SELECT.order_by(shell_users.c.name))]


@platform_wide("shell users belong to the platform")
async def person_of(connection: AsyncConnection, name: str) -> UUID | None:
    """The id of the active person of the platform behind the shell user `name`; None when there is none."""
    found: UUID | None = await connection.scalar(
        select(users.c.id)
        .join(shell_users, shell_users.c.user_id == users.c.id)
        .join(memberships, memberships.c.user_id == users.c.id)
        .where(shell_users.c.name == name, users.c.status == "active", memberships.c.role.in_(PLATFORM_ROLES))
    )
    return found


_SELECT = select(shell_users.c.name, shell_users.c.user_id, users.c.email, shell_users.c.mapped_at).join(
    users, users.c.id == shell_users.c.user_id
)


def _view(row: Row[*tuple[Any, ...]]) -> ShellUser:
    return ShellUser(row.name, row.user_id, row.email, row.mapped_at)
