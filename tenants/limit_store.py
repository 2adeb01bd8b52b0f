"""Repository of limits. Each function runs in the caller's transaction and is scoped to one organisation."""

from uuid import UUID

import msgspec
from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from tenants.principal import NO_LIMITS, Limits
from tenants.tables import api_keys, limits, projects

LIMIT_NAMES = tuple(field.name for field in msgspec.structs.fields(Limits))
_VALUES = tuple(limits.c[name] for name in LIMIT_NAMES)


class ScopedLimits(msgspec.Struct, frozen=True):
    """The limits set on one scope of an organisation."""

    scope_kind: str
    """tenant | project | key"""
    scope_id: UUID
    limits: Limits


async def scope_exists(connection: AsyncConnection, tenant_id: UUID, scope_kind: str, scope_id: UUID) -> bool:
    """Whether the project or key belongs to the organisation, or the scope is the organisation itself.

    `scope_kind` is tenant, project or key.
    """
    if scope_kind == "tenant":
        return scope_id == tenant_id
    table = projects if scope_kind == "project" else api_keys
    found = await connection.scalar(
        select(table.c.id).where(table.c.tenant_id == tenant_id, table.c.id == scope_id)
    )
    return found is not None


async def get_limits(connection: AsyncConnection, tenant_id: UUID, scope_kind: str, scope_id: UUID) -> Limits:
    """The limits of a scope; NO_LIMITS when none are set."""
    statement = select(*_VALUES).where(
        limits.c.tenant_id == tenant_id, limits.c.scope_kind == scope_kind, limits.c.scope_id == scope_id
    )
    row = (await connection.execute(statement)).one_or_none()
    return NO_LIMITS if row is None else Limits(*row)


async def list_limits(connection: AsyncConnection, tenant_id: UUID) -> list[ScopedLimits]:
    """All scopes of the organisation that have limits; the organisation itself first."""
    statement = (
        select(limits.c.scope_kind, limits.c.scope_id, *_VALUES)
        .where(limits.c.tenant_id == tenant_id)
        .order_by(limits.c.scope_kind.desc(), limits.c.scope_id)
    )
    return [
        ScopedLimits(scope_kind=row[0], scope_id=row[1], limits=Limits(*row[2:]))
        for row in await connection.execute(statement)
    ]


async def put_limits(
    connection: AsyncConnection, tenant_id: UUID, scope_kind: str, scope_id: UUID, value: Limits
) -> None:
    """Replace all limits of a scope; NO_LIMITS deletes its row."""
    if value == NO_LIMITS:
        await connection.execute(
            delete(limits).where(
                limits.c.tenant_id == tenant_id,
                limits.c.scope_kind == scope_kind,
                limits.c.scope_id == scope_id,
            )
        )
        return
    values = msgspec.structs.asdict(value)
    await connection.execute(
        insert(limits)
        .values(tenant_id=tenant_id, scope_kind=scope_kind, scope_id=scope_id, **values)
        .on_conflict_do_update(index_elements=["scope_kind", "scope_id"], set_=values)
    )
