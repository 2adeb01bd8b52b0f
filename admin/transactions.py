"""Transactions of administrative acts, with the actor's or the platform's rights."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import datetime
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, readable, require, require_scope
from core.db import Database
from core.errors import InvalidRequest
from tenants.roles import Role

MAX_PAGE = 1000
"""Limit of rows per list."""


@asynccontextmanager
async def write(database: Database, actor: Actor) -> AsyncIterator[AsyncConnection]:
    """One transaction with the actor's rights: a tenant role sees its organisation alone (row-level security).

    Calls `database.after_change` after the commit, so that processes read the changed tenancy at once. Raises
    PermissionDenied for a token that may only read.
    """
    require_scope(actor, "write")
    session = database.system() if actor.tenant_id is None else database.tenant(actor.tenant_id)
    async with session as connection:
        yield connection
    if database.after_change is not None:
        await database.after_change()


@asynccontextmanager
async def write_system(database: Database) -> AsyncIterator[AsyncConnection]:
    """One transaction with the platform's rights, whoever acts: for people and money, which no tenant role may write.

    Row-level security protects nothing here: the caller checks role and organisation with `require` first. Calls
    `database.after_change` after the commit.
    """
    async with database.system() as connection:
        yield connection
    if database.after_change is not None:
        await database.after_change()


@asynccontextmanager
async def read(
    database: Database, actor: Actor, roles: Collection[Role], *, tenant_id: UUID | None = None
) -> AsyncIterator[AsyncConnection]:
    """A read-only transaction with the actor's rights, for one of `roles` and, if a tenant role, for `tenant_id`.

    Raises PermissionDenied as `require` does.
    """
    require(actor, *roles, tenant_id=tenant_id)
    async with database.read(actor.tenant_id) as connection:
        yield connection


@asynccontextmanager
async def read_scoped(
    database: Database, actor: Actor, tenant_id: UUID | None
) -> AsyncIterator[tuple[AsyncConnection, UUID | None]]:
    """A read-only transaction with the actor's rights, and the organisation it is about: see `readable`.

    Raises PermissionDenied.
    """
    scope = readable(actor, tenant_id)
    async with database.read(actor.tenant_id) as connection:
        yield connection, scope


async def now_of(connection: AsyncConnection) -> datetime:
    """The database's time, to which the instants that it stores are compared."""
    now: datetime = (await connection.execute(select(func.clock_timestamp()))).scalar_one()
    return now


def page_size(limit: int) -> int:
    """`limit` when it is a sensible number of rows; raises InvalidRequest otherwise."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidRequest(f"limit must be 1 to {MAX_PAGE}, not {limit}", param="limit")
    return limit
