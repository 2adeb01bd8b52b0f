"""Repository of the audit log. Rows are only added; the database refuses updates and deletes."""

from typing import Any
from uuid import UUID

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from tenants.scoping import platform_wide
from tenants.tables import audit_log
from tenants.views import AuditEntry


async def insert_entry(
    connection: AsyncConnection,
    *,
    entry_id: UUID,
    actor_kind: str,
    actor_id: str,
    actor_label: str,
    action: str,
    tenant_id: UUID | None,
    object_kind: str,
    object_id: str,
    reason: str | None,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
) -> None:
    """Add one row; the database sets its time."""
    await connection.execute(
        insert(audit_log).values(
            id=entry_id,
            actor_kind=actor_kind,
            actor_id=actor_id,
            actor_label=actor_label,
            action=action,
            tenant_id=tenant_id,
            object_kind=object_kind,
            object_id=object_id,
            reason=reason,
            before=before,
            after=after,
        )
    )


@platform_wide("platform roles read the whole log; with tenant_id it is scoped to one organisation")
async def list_entries(
    connection: AsyncConnection,
    *,
    tenant_id: UUID | None,
    action: str | None,
    object_id: str | None,
    limit: int,
    before_id: UUID | None,
) -> list[AuditEntry]:
    """Rows, newest first, at most `limit`; `before_id` continues after that row. `action` matches as a prefix."""
    statement = select(*audit_log.c).order_by(audit_log.c.id.desc()).limit(limit)
    if tenant_id is not None:
        statement = statement.where(audit_log.c.tenant_id == tenant_id)
    if action is not None:
        statement = statement.where(audit_log.c.action.startswith(action, autoescape=True))
    if object_id is not None:
        statement = statement.where(audit_log.c.object_id == object_id)
    if before_id is not None:
        statement = statement.where(audit_log.c.id < before_id)
    return [AuditEntry(**row._mapping) for row in await connection.execute(statement)]
