"""Repository of users and their roles.

Users span organisations, so these functions run in platform sessions only; a call for one organisation passes its id.
"""

from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, Select, exists, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as pg_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from tenants.admin_tokens import SESSION_KINDS, revoke_all
from tenants.roles import PLATFORM_ADMIN, TENANT_OWNER
from tenants.scoping import platform_wide
from tenants.tables import memberships, second_factors, tenants, users
from tenants.views import UserView

_ADMINISTRATORS_LOCK = 0x70656E5F68656164
"""Key of the advisory lock: "pen_head" in ASCII."""


class Login(msgspec.Struct, frozen=True):
    """A user with the password hash that a sign-in is checked against."""

    user: UserView
    password_hash: str


_SECOND_FACTOR = (
    exists()
    .where(second_factors.c.user_id == users.c.id, second_factors.c.confirmed_at.is_not(None))
    .label("second_factor")
)


def _select_views(*more: Any) -> Select[*tuple[Any, ...]]:
    return (
        select(
            users.c.id,
            users.c.email,
            users.c.status,
            memberships.c.role,
            memberships.c.tenant_id,
            tenants.c.name.label("tenant"),
            users.c.created_at,
            _SECOND_FACTOR,
            *more,
        )
        .join(memberships, memberships.c.user_id == users.c.id)
        .outerjoin(tenants, tenants.c.id == memberships.c.tenant_id)
    )


def _view(row: Row[*tuple[Any, ...]]) -> UserView:
    return UserView(
        id=row.id,
        email=row.email,
        status=row.status,
        role=row.role,
        tenant_id=row.tenant_id,
        tenant=row.tenant,
        created_at=row.created_at,
        second_factor=row.second_factor,
    )


async def insert_user(
    connection: AsyncConnection,
    tenant_id: UUID | None,
    user_id: UUID,
    email: str,
    password_hash: str,
    role: str,
) -> bool:
    """Insert an active user with a role in the organisation (None: on the platform); False = email taken."""
    inserted = await connection.scalar(
        pg_insert(users)
        .values(id=user_id, email=email, password_hash=password_hash)
        .on_conflict_do_nothing(index_elements=["email"])
        .returning(users.c.id)
    )
    if inserted is None:
        return False
    await connection.execute(insert(memberships).values(user_id=user_id, tenant_id=tenant_id, role=role))
    return True


@platform_wide("a user id alone names its organisation; the caller checks that it may see the person")
async def get_user(connection: AsyncConnection, user_id: UUID, *, lock: bool = False) -> UserView | None:
    """One user with the role, locked when `lock`; None when there is none."""
    statement = _select_views().where(users.c.id == user_id)
    if lock:
        statement = statement.with_for_update(of=[users, memberships])
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _view(row)


@platform_wide("signing in: the email address alone identifies the user")
async def find_login(connection: AsyncConnection, email: str) -> Login | None:
    """The user with this email address and the password hash, or None."""
    statement = _select_views(users.c.password_hash).where(users.c.email == email)
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else Login(_view(row), row.password_hash)


@platform_wide("with tenant_id None it lists the people of the whole platform, which only platform roles may")
async def list_users(
    connection: AsyncConnection,
    tenant_id: UUID | None,
    *,
    limit: int,
    after: UUID | None,
    platform_only: bool = False,
) -> list[UserView]:
    """Users, oldest first, at most `limit`, after the user `after`: of one organisation, or all with None.

    `platform_only`: only those of the platform.
    """
    statement = _select_views().order_by(users.c.id).limit(limit)
    if tenant_id is not None:
        statement = statement.where(memberships.c.tenant_id == tenant_id)
    if platform_only:
        statement = statement.where(memberships.c.tenant_id.is_(None))
    if after is not None:
        statement = statement.where(users.c.id > after)
    return [_view(row) for row in await connection.execute(statement)]


@platform_wide("by user id; the caller has checked that it may change the person")
async def set_role(connection: AsyncConnection, user_id: UUID, role: str) -> None:
    """Change the role within the same organisation, or on the platform."""
    await connection.execute(update(memberships).where(memberships.c.user_id == user_id).values(role=role))


async def set_status(connection: AsyncConnection, user_id: UUID, status: str) -> None:
    """Set `active` or `disabled`; a disabled user can neither sign in nor use tokens."""
    await connection.execute(update(users).where(users.c.id == user_id).values(status=status))


async def set_password_hash(connection: AsyncConnection, user_id: UUID, password_hash: str) -> None:
    """Replace the password hash."""
    await connection.execute(update(users).where(users.c.id == user_id).values(password_hash=password_hash))


@platform_wide("a lock, no rows")
async def lock_administrators(connection: AsyncConnection) -> None:
    """Wait for other changes of roles to commit, so that two administrators cannot remove each other at once."""
    await connection.execute(select(func.pg_advisory_xact_lock(_ADMINISTRATORS_LOCK)))


async def mark_unconfirmed(connection: AsyncConnection, user_id: UUID, change_id: UUID, *, new: bool) -> None:
    """Note that one person gave this person's credentials in the change `change_id`, which made the person if `new`."""
    values = {"unconfirmed_change": change_id} | ({"ever_confirmed": False} if new else {})
    await connection.execute(update(users).where(users.c.id == user_id).values(values))


async def mark_confirmed(connection: AsyncConnection, user_id: UUID) -> None:
    """Note that this person's credentials need no confirmation any more."""
    await connection.execute(
        update(users).where(users.c.id == user_id).values(unconfirmed_change=None, ever_confirmed=True)
    )


async def unconfirmed_change(connection: AsyncConnection, user_id: UUID) -> UUID | None:
    """The change of a person's credentials that another person has not confirmed; None when there is none."""
    found: UUID | None = await connection.scalar(
        select(users.c.unconfirmed_change).where(users.c.id == user_id)
    )
    return found


async def recovery_hash(connection: AsyncConnection, user_id: UUID) -> str | None:
    """The hash of a person's recovery code; None without one."""
    found: str | None = await connection.scalar(select(users.c.recovery_hash).where(users.c.id == user_id))
    return found


async def set_recovery_hash(connection: AsyncConnection, user_id: UUID, code_hash: str | None) -> None:
    """Store the hash of a person's recovery code; None = no code."""
    await connection.execute(update(users).where(users.c.id == user_id).values(recovery_hash=code_hash))


async def end_older_sessions(connection: AsyncConnection, user_id: UUID) -> None:
    """End the console sessions that processes of the release before keep, during a rolling upgrade."""
    await connection.execute(
        update(users).where(users.c.id == user_id).values(sessions_from=func.clock_timestamp())
    )


async def end_access(connection: AsyncConnection, user_id: UUID) -> None:
    """End all sessions and tokens of a person, also the console sessions of processes of the release before."""
    await end_older_sessions(connection, user_id)
    await revoke_all(connection, user_id, ("token", *SESSION_KINDS))


@platform_wide("people of the platform")
async def has_two_people(connection: AsyncConnection) -> bool:
    """Whether two people of the platform were ever confirmed, disabled ones included."""
    statement = (
        select(func.count())
        .select_from(memberships)
        .join(users, users.c.id == memberships.c.user_id)
        .where(memberships.c.tenant_id.is_(None), users.c.ever_confirmed)
    )
    count: int = (await connection.execute(statement)).scalar_one()
    return count > 1


async def count_other_administrators(
    connection: AsyncConnection, tenant_id: UUID | None, user_id: UUID
) -> int:
    """The number of active owners of the organisation besides this user; with None, of platform admins."""
    statement = (
        select(func.count())
        .select_from(memberships)
        .join(users, users.c.id == memberships.c.user_id)
        .where(
            memberships.c.tenant_id.is_not_distinct_from(tenant_id),
            memberships.c.role == (PLATFORM_ADMIN if tenant_id is None else TENANT_OWNER),
            users.c.status == "active",
            users.c.id != user_id,
        )
    )
    count: int = (await connection.execute(statement)).scalar_one()
    return count
