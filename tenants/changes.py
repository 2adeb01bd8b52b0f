"""The feed of tenancy changes: triggers write rows, API processes poll them, and Redis carries hints to poll now.

PostgreSQL is the only source of truth. A message on the Redis channel carries no data, so a lost one delays a change
by at most one poll interval and a forged one has no effect.
"""

import logging
from datetime import timedelta
from uuid import UUID

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy import delete, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from tenants.scoping import platform_wide
from tenants.tables import tenancy_changes

logger = logging.getLogger("penstock.tenants")

CHANNEL = "penstock:tenancy"
"""Redis pub/sub channel of the hints."""

KEEP = timedelta(days=7)
"""Retention of the feed: far longer than any process goes without a poll."""


class Change(msgspec.Struct, frozen=True):
    """A change to one object of an organisation."""

    id: int
    kind: str
    """tenant | project | key | limits"""
    tenant_id: UUID
    object_id: UUID


_HORIZON = text("SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint)")


@platform_wide("every API process follows the changes of all organisations")
async def horizon(connection: AsyncConnection) -> int:
    """The oldest transaction id that may still be in progress: changes below it are visible to this snapshot."""
    value: int = await connection.scalar(_HORIZON)
    return value


@platform_wide("every API process follows the changes of all organisations")
async def changes_since(connection: AsyncConnection, since: int) -> list[Change]:
    """Changes written by transactions from id `since` on, in the order of their ids.

    With `since` the horizon of the previous poll, no change is missed; some are returned twice.
    """
    columns = (
        tenancy_changes.c.id,
        tenancy_changes.c.kind,
        tenancy_changes.c.tenant_id,
        tenancy_changes.c.object_id,
    )
    statement = select(*columns).where(tenancy_changes.c.xact >= since).order_by(tenancy_changes.c.id)
    return [Change(*row) for row in await connection.execute(statement)]


@platform_wide("housekeeping over all organisations")
async def prune_changes(connection: AsyncConnection) -> int:
    """Delete changes older than KEEP; returns the number of rows."""
    result = await connection.execute(delete(tenancy_changes).where(tenancy_changes.c.at < func.now() - KEEP))
    return result.rowcount


async def announce(redis: "Redis") -> None:
    """Publish a hint to poll the feed now. A failing Redis is only logged, because the polls find the change."""
    try:
        await redis.publish(CHANNEL, b"changed")
    except (RedisError, OSError) as error:
        logger.warning("tenancy change not announced, the poll will find it: %s", type(error).__name__)
