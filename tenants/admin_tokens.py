"""Repository of tokens of the admin REST and of sessions. Each acts with its owner's current role."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import DateTime, Row, cast, func, insert, literal, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from tenants.proofs import PROOFS, Proof
from tenants.tables import admin_tokens, users
from tenants.token_scopes import ALL_SCOPES, Scope
from tenants.views import TokenView

TOUCH_EVERY = timedelta(minutes=1)
"""Shortest time between two writes of one token's last_used_at."""
CONSOLE_IDLE = timedelta(hours=1)
"""Time without use after which a session of the console ends."""
SESSION_KINDS = ("session", "console")

_COLUMNS = tuple(admin_tokens.c[name] for name in TokenView.__struct_fields__)
_LAST_USE = func.coalesce(admin_tokens.c.last_used_at, admin_tokens.c.created_at)


class Opened(msgspec.Struct, frozen=True):
    """Where a session was opened."""

    address: str = ""
    """Network address of the client; empty = not known."""
    client: str = ""
    """What the client calls itself (the header User-Agent)."""


NOT_KNOWN = Opened()


def _view(row: Row[*tuple[Any, ...]]) -> TokenView:
    return TokenView(**dict(row._mapping) | {"scopes": tuple(row.scopes)})


def _live(now: ColumnElement[datetime]) -> ColumnElement[bool]:
    """Whether a token is neither revoked nor past its time, and a session of the console in use."""
    return (
        admin_tokens.c.revoked_at.is_(None)
        & (admin_tokens.c.expires_at > now)
        & or_(admin_tokens.c.kind != "console", now - CONSOLE_IDLE < _LAST_USE)
    )


async def insert_token(
    connection: AsyncConnection,
    user_id: UUID,
    token_id: UUID,
    *,
    token_hash: bytes,
    expires_at: datetime,
    created_at: datetime,
    kind: str = "token",
    name: str,
    last4: str = "",
    scopes: Sequence[Scope] = ALL_SCOPES,
    opened: Opened = NOT_KNOWN,
    proved_by: Proof = "password",
) -> TokenView:
    """Insert a token or session of a user; only its hash is stored."""
    values = {
        "id": token_id,
        "user_id": user_id,
        "kind": kind,
        "name": name,
        "hash": token_hash,
        "last4": last4,
        "scopes": list(scopes),
        "address": opened.address[:64],
        "client": opened.client[:200],
        "created_at": created_at,
        "expires_at": expires_at,
        "proved_by": proved_by,
    }
    statement = insert(admin_tokens).values(values).returning(*_COLUMNS)
    return _view((await connection.execute(statement)).one())


async def get_token(connection: AsyncConnection, token_id: UUID) -> TokenView | None:
    """One token or session; None when there is none."""
    row = (await connection.execute(select(*_COLUMNS).where(admin_tokens.c.id == token_id))).one_or_none()
    return None if row is None else _view(row)


async def list_tokens(connection: AsyncConnection, user_id: UUID) -> list[TokenView]:
    """All tokens of a user, revoked and expired ones included; without sessions."""
    statement = (
        select(*_COLUMNS)
        .where(admin_tokens.c.user_id == user_id, admin_tokens.c.kind == "token")
        .order_by(admin_tokens.c.id)
    )
    return [_view(row) for row in await connection.execute(statement)]


async def list_sessions(connection: AsyncConnection, user_id: UUID, now: datetime) -> list[TokenView]:
    """The sessions of a user that are open at `now`, the newest first."""
    statement = (
        select(*_COLUMNS)
        .where(admin_tokens.c.user_id == user_id, admin_tokens.c.kind.in_(SESSION_KINDS), _live(_at(now)))
        .order_by(admin_tokens.c.id.desc())
    )
    return [_view(row) for row in await connection.execute(statement)]


async def count_live_tokens(connection: AsyncConnection, user_id: UUID) -> int:
    """How many tokens of a user are neither revoked nor expired; sessions do not count."""
    statement = (
        select(func.count())
        .select_from(admin_tokens)
        .where(admin_tokens.c.user_id == user_id, admin_tokens.c.kind == "token", _live(func.now()))
    )
    count: int = (await connection.execute(statement)).scalar_one()
    return count


async def is_live(connection: AsyncConnection, token_id: UUID) -> bool:
    """Whether a token or session is neither revoked nor expired. The idle time of a console session does not count."""
    statement = select(admin_tokens.c.id).where(
        admin_tokens.c.id == token_id,
        admin_tokens.c.revoked_at.is_(None),
        admin_tokens.c.expires_at > func.now(),
    )
    return await connection.scalar(statement) is not None


async def find_live_token(connection: AsyncConnection, token_hash: bytes) -> TokenView | None:
    """The token or REST session with this hash, if it is neither revoked nor expired and its user is active."""
    return await _find(connection, token_hash, ("token", "session"), func.now())


async def find_console_session(
    connection: AsyncConnection, token_hash: bytes, now: datetime
) -> TokenView | None:
    """The session of the console with this hash, if it is open at `now` and its user is active."""
    return await _find(connection, token_hash, ("console",), _at(now))


async def _find(
    connection: AsyncConnection, token_hash: bytes, kinds: Sequence[str], now: ColumnElement[datetime]
) -> TokenView | None:
    statement = (
        select(*_COLUMNS)
        .join(users, users.c.id == admin_tokens.c.user_id)
        .where(
            admin_tokens.c.hash == token_hash,
            admin_tokens.c.kind.in_(kinds),
            _live(now),
            users.c.status == "active",
        )
    )
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _view(row)


async def touch(connection: AsyncConnection, token_id: UUID, now: datetime | None = None) -> None:
    """Set last_used_at of a token to `now` (None = the database's), at most once per TOUCH_EVERY."""
    at = func.now() if now is None else _at(now)
    await connection.execute(
        update(admin_tokens)
        .where(admin_tokens.c.id == token_id, at - TOUCH_EVERY >= _LAST_USE)
        .values(last_used_at=at)
    )


async def mark_revoked(connection: AsyncConnection, token_id: UUID) -> bool:
    """Revoke a token permanently; False when it was revoked already or does not exist."""
    result = await connection.execute(
        update(admin_tokens)
        .where(admin_tokens.c.id == token_id, admin_tokens.c.revoked_at.is_(None))
        .values(revoked_at=func.clock_timestamp())
    )
    return result.rowcount == 1


async def revoke_all(
    connection: AsyncConnection,
    user_id: UUID,
    kinds: Sequence[str],
    *,
    but: UUID | None = None,
    proved_by: Sequence[Proof] = PROOFS,
) -> int:
    """Revoke all tokens and sessions of a user that are of `kinds`, except `but`; returns how many were open.

    `proved_by`: only those that were opened so.
    """
    result = await connection.execute(
        update(admin_tokens)
        .where(
            admin_tokens.c.user_id == user_id,
            admin_tokens.c.kind.in_(kinds),
            admin_tokens.c.id.is_distinct_from(but),
            admin_tokens.c.proved_by.in_(proved_by),
            admin_tokens.c.revoked_at.is_(None),
            admin_tokens.c.expires_at > func.now(),
        )
        .values(revoked_at=func.clock_timestamp())
    )
    return result.rowcount


def _at(moment: datetime) -> ColumnElement[datetime]:
    """`moment` as a value of SQL with its type, from which intervals can be taken."""
    return cast(literal(moment), DateTime(timezone=True))
