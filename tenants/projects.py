"""Repository of projects. Each function runs in the caller's transaction and is scoped to one organisation."""

from typing import Any
from uuid import UUID

from sqlalchemy import Row, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from tenants.tables import projects
from tenants.views import ProjectView

_COLUMNS = (
    projects.c.id,
    projects.c.tenant_id,
    projects.c.name,
    projects.c.status,
    projects.c.created_at,
    projects.c.responses_kept_days,
)


def _view(row: Row[*tuple[Any, ...]]) -> ProjectView:
    return ProjectView(**row._mapping)


async def insert_project(
    connection: AsyncConnection, tenant_id: UUID, project_id: UUID, name: str
) -> ProjectView | None:
    """Insert an active project; None when the organisation has a project with that name."""
    statement = (
        insert(projects)
        .values(id=project_id, tenant_id=tenant_id, name=name)
        .on_conflict_do_nothing(index_elements=["tenant_id", "name"])
        .returning(*_COLUMNS)
    )
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _view(row)


async def get_project(
    connection: AsyncConnection, tenant_id: UUID, project_id: UUID, *, lock: bool = False
) -> ProjectView | None:
    """One project of the organisation, locked when `lock`; None when it has no project with that id."""
    statement = select(*_COLUMNS).where(projects.c.tenant_id == tenant_id, projects.c.id == project_id)
    if lock:
        statement = statement.with_for_update()
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _view(row)


async def list_projects(
    connection: AsyncConnection, tenant_id: UUID, *, limit: int, after: UUID | None
) -> list[ProjectView]:
    """Projects of the organisation, oldest first, at most `limit`, after `after`; archived ones included."""
    statement = (
        select(*_COLUMNS).where(projects.c.tenant_id == tenant_id).order_by(projects.c.id).limit(limit)
    )
    if after is not None:
        statement = statement.where(projects.c.id > after)
    return [_view(row) for row in await connection.execute(statement)]


async def set_status(connection: AsyncConnection, tenant_id: UUID, project_id: UUID, status: str) -> None:
    """Set `active` or `archived`; keys of an archived project are refused."""
    await connection.execute(
        update(projects)
        .where(projects.c.tenant_id == tenant_id, projects.c.id == project_id)
        .values(status=status)
    )


async def set_responses_kept_days(
    connection: AsyncConnection, tenant_id: UUID, project_id: UUID, days: int | None
) -> None:
    """Set for how long responses are kept; None = as long as the platform does, 0 = none are stored."""
    await connection.execute(
        update(projects)
        .where(projects.c.tenant_id == tenant_id, projects.c.id == project_id)
        .values(responses_kept_days=days)
    )
