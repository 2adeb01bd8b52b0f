"""Repository of organisations. Each function runs in the caller's transaction."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert as pg_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from tenants.scoping import platform_wide
from tenants.tables import tenants
from tenants.views import TenantView

_COLUMNS = (
    tenants.c.id,
    tenants.c.name,
    tenants.c.slug,
    tenants.c.status,
    tenants.c.tier,
    tenants.c.created_at,
    tenants.c.throttle_until,
    tenants.c.throttle_requests_per_min,
    tenants.c.throttle_concurrency,
    tenants.c.share_percent,
    tenants.c.highest_tier,
)


def _view(row: Row[*tuple[Any, ...]]) -> TenantView:
    return TenantView(**row._mapping)


async def insert_tenant(
    connection: AsyncConnection, tenant_id: UUID, name: str, slug: str, tier: str
) -> TenantView | None:
    """Insert an active organisation; None when its slug is taken."""
    statement = (
        pg_insert(tenants)
        .values(id=tenant_id, name=name, slug=slug, tier=tier)
        .on_conflict_do_nothing(index_elements=["slug"])
        .returning(*_COLUMNS)
    )
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _view(row)


async def get_tenant(
    connection: AsyncConnection, tenant_id: UUID, *, lock: bool = False
) -> TenantView | None:
    """One organisation, locked when `lock`; None when there is none."""
    statement = select(*_COLUMNS).where(tenants.c.id == tenant_id)
    if lock:
        statement = statement.with_for_update()
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _view(row)


@platform_wide("platform roles look organisations up by name")
async def find_tenants(connection: AsyncConnection, text: str) -> list[TenantView]:
    """At most 10 organisations whose short name or name is `text`, ignoring case; the short name's first."""
    statement = (
        select(*_COLUMNS)
        .where(or_(tenants.c.slug == text.lower(), func.lower(tenants.c.name) == text.lower()))
        .order_by(tenants.c.slug != text.lower(), tenants.c.id)
        .limit(10)
    )
    return [_view(row) for row in await connection.execute(statement)]


@platform_wide("the list of all organisations; a tenant's own session sees one row by row-level security")
async def list_tenants(connection: AsyncConnection, *, limit: int, after: UUID | None) -> list[TenantView]:
    """Organisations, oldest first, at most `limit`, after the organisation `after`."""
    statement = select(*_COLUMNS).order_by(tenants.c.id).limit(limit)
    if after is not None:
        statement = statement.where(tenants.c.id > after)
    return [_view(row) for row in await connection.execute(statement)]


async def set_name(connection: AsyncConnection, tenant_id: UUID, name: str) -> None:
    """Change the name; the short name stays, because links and scripts use it."""
    await connection.execute(update(tenants).where(tenants.c.id == tenant_id).values(name=name))


async def set_status(connection: AsyncConnection, tenant_id: UUID, status: str) -> None:
    """Set `active` or `suspended`."""
    await connection.execute(update(tenants).where(tenants.c.id == tenant_id).values(status=status))


async def set_tier(connection: AsyncConnection, tenant_id: UUID, tier: str) -> None:
    """Set the tier: priority, standard or batch. It decides the band its requests queue in, and its prices."""
    await connection.execute(update(tenants).where(tenants.c.id == tenant_id).values(tier=tier))


async def set_highest_tier(connection: AsyncConnection, tenant_id: UUID, tier: str | None) -> None:
    """Set the dearest tier that a request may ask for; None = its tier."""
    await connection.execute(update(tenants).where(tenants.c.id == tenant_id).values(highest_tier=tier))


async def set_share(connection: AsyncConnection, tenant_id: UUID, percent: int) -> None:
    """Set its weight in a busy pool relative to others of its tier, in percent of the usual."""
    await connection.execute(update(tenants).where(tenants.c.id == tenant_id).values(share_percent=percent))


async def set_throttle(
    connection: AsyncConnection,
    tenant_id: UUID,
    until: datetime | None,
    requests_per_min: int | None,
    concurrency: int | None,
) -> None:
    """Cap the organisation's requests until `until`; None in all three removes the cap."""
    await connection.execute(
        update(tenants)
        .where(tenants.c.id == tenant_id)
        .values(
            throttle_until=until,
            throttle_requests_per_min=requests_per_min,
            throttle_concurrency=concurrency,
        )
    )
