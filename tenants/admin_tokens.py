"""Repository of the admin REST's bearer tokens. A token acts with its owner's current role."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Row, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from tenants.tables import admin_tokens, users
from tenants.views import TokenView

TOUCH_EVERY = timedelta(minutes=1)
"""Shortest time between two writes of one token's last_used_at."""

_COLUMNS = (
    admin_tokens.c.id,
    admin_tokens.c.user_id,
    admin_tokens.c.name,
    admin_tokens.c.last4,
    admin_tokens.c.created_at,
    admin_tokens.c.expires_at,
    admin_tokens.c.revoked_at,
    admin_tokens.c.last_used_at,
)


def _view(row: Row[*tuple[Any, ...]]) -> TokenView:
    return TokenView(**row._mapping)


async def insert_token(
    connection: AsyncConnection,
    user_id: UUID,
    token_id: UUID,
    *,
    name: str,
    token_hash: bytes,
    last4: str,
    expires_at: datetime | None = None,
) -> TokenView:
    """Insert a token of a user; only its hash is stored."""
    statement = (
        insert(admin_tokens)
        .values(id=token_id, user_id=user_id, name=name, hash=token_hash, last4=last4, expires_at=expires_at)
        .returning(*_COLUMNS)
    )
    return _view((await connection.execute(statement)).one())


async def get_token(connection: AsyncConnection, token_id: UUID) -> TokenView | None:
    """One token; None when there is none."""
    row = (await connection.execute(select(*_COLUMNS).where(admin_tokens.c.id == token_id))).one_or_none()
    return None if row is None else _view(row)


async def list_tokens(connection: AsyncConnection, user_id: UUID) -> list[TokenView]:
    """All tokens of a user, revoked and expired ones included."""
    statement = select(*_COLUMNS).where(admin_tokens.c.user_id == user_id).order_by(admin_tokens.c.id)
    return [_view(row) for row in await connection.execute(statement)]


async def find_live_token(connection: AsyncConnection, token_hash: bytes) -> TokenView | None:
    """The token with this hash, if it is neither revoked nor expired and its user is active; else None."""
    statement = (
        select(*_COLUMNS)
        .join(users, users.c.id == admin_tokens.c.user_id)
        .where(
            admin_tokens.c.hash == token_hash,
            admin_tokens.c.revoked_at.is_(None),
            or_(admin_tokens.c.expires_at.is_(None), admin_tokens.c.expires_at > func.now()),
            users.c.status == "active",
        )
    )
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _view(row)


async def touch(connection: AsyncConnection, token_id: UUID) -> None:
    """Update last_used_at of a token, at most once per TOUCH_EVERY."""
    await connection.execute(
        update(admin_tokens)
        .where(
            admin_tokens.c.id == token_id,
            or_(
                admin_tokens.c.last_used_at.is_(None),
                admin_tokens.c.last_used_at < func.now() - TOUCH_EVERY,
            ),
        )
        .values(last_used_at=func.now())
    )


async def mark_revoked(connection: AsyncConnection, token_id: UUID) -> bool:
    """Revoke a token permanently; False when it was revoked already or does not exist."""
    result = await connection.execute(
        update(admin_tokens)
        .where(admin_tokens.c.id == token_id, admin_tokens.c.revoked_at.is_(None))
        .values(revoked_at=func.now())
    )
    return result.rowcount == 1


async def revoke_expiring(connection: AsyncConnection, user_id: UUID) -> int:
    """Revoke the live tokens of a user that have an expiry, which are sessions; returns how many."""
    result = await connection.execute(
        update(admin_tokens)
        .where(
            admin_tokens.c.user_id == user_id,
            admin_tokens.c.revoked_at.is_(None),
            admin_tokens.c.expires_at > func.now(),
        )
        .values(revoked_at=func.now())
    )
    return result.rowcount
