"""Repository of invitations of members. Each function runs in the caller's transaction, in a platform session."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Row, case, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from tenants.scoping import platform_wide
from tenants.tables import invitations
from tenants.views import InvitationView

_STATUS = case(
    (invitations.c.accepted_at.is_not(None), "accepted"),
    (invitations.c.revoked_at.is_not(None), "revoked"),
    (invitations.c.expires_at <= func.now(), "expired"),
    else_="open",
).label("status")
_COLUMNS = (
    invitations.c.id,
    invitations.c.tenant_id,
    invitations.c.email,
    invitations.c.role,
    invitations.c.invited_by,
    _STATUS,
    invitations.c.created_at,
    invitations.c.expires_at,
)


def _view(row: Row[*tuple[Any, ...]]) -> InvitationView:
    return InvitationView(**row._mapping)


async def insert_invitation(
    connection: AsyncConnection,
    tenant_id: UUID,
    invitation_id: UUID,
    *,
    email: str,
    role: str,
    secret_hash: bytes,
    invited_by: str,
    life: timedelta,
) -> InvitationView:
    """Insert an open invitation; only the hash of its secret is stored."""
    statement = (
        insert(invitations)
        .values(
            id=invitation_id,
            tenant_id=tenant_id,
            email=email,
            role=role,
            hash=secret_hash,
            invited_by=invited_by,
            expires_at=func.now() + life,
        )
        .returning(*_COLUMNS)
    )
    return _view((await connection.execute(statement)).one())


async def list_invitations(
    connection: AsyncConnection, tenant_id: UUID, *, limit: int, after: UUID | None
) -> list[InvitationView]:
    """Invitations of the organisation, oldest first, at most `limit`, after `after`; closed ones included."""
    statement = (
        select(*_COLUMNS).where(invitations.c.tenant_id == tenant_id).order_by(invitations.c.id).limit(limit)
    )
    if after is not None:
        statement = statement.where(invitations.c.id > after)
    return [_view(row) for row in await connection.execute(statement)]


async def count_since(connection: AsyncConnection, tenant_id: UUID, period: timedelta) -> int:
    """How many invitations the organisation has made within the last `period`."""
    count: int = (
        await connection.execute(
            select(func.count()).where(
                invitations.c.tenant_id == tenant_id, invitations.c.created_at > func.now() - period
            )
        )
    ).scalar_one()
    return count


async def revoke_open(
    connection: AsyncConnection,
    tenant_id: UUID,
    *,
    invitation_id: UUID | None = None,
    email: str | None = None,
) -> list[InvitationView]:
    """Revoke the organisation's open invitations of this id or address; returns them."""
    statement = (
        update(invitations)
        .where(invitations.c.tenant_id == tenant_id, _STATUS == "open")
        .values(revoked_at=func.now())
        .returning(*_COLUMNS)
    )
    if invitation_id is not None:
        statement = statement.where(invitations.c.id == invitation_id)
    if email is not None:
        statement = statement.where(invitations.c.email == email)
    return [_view(row) for row in await connection.execute(statement)]


@platform_wide("the secret alone names the invitation and its organisation")
async def find_open(
    connection: AsyncConnection, secret_hash: bytes, *, lock: bool = False
) -> InvitationView | None:
    """The open invitation with this hash, locked when `lock`; None when there is none."""
    statement = select(*_COLUMNS).where(invitations.c.hash == secret_hash, _STATUS == "open")
    if lock:
        statement = statement.with_for_update()
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _view(row)


async def mark_accepted(connection: AsyncConnection, tenant_id: UUID, invitation_id: UUID) -> None:
    """Note that the person has joined, so that the secret works no more."""
    await connection.execute(
        update(invitations)
        .where(invitations.c.tenant_id == tenant_id, invitations.c.id == invitation_id)
        .values(accepted_at=func.now())
    )
