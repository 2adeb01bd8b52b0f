"""Projects of an organisation: create, archive, and for how long they keep responses."""

from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.audit import record
from admin.transactions import page_size, read, write
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import uuid7
from tenants import organisations, projects
from tenants.names import clean_name, clean_reason
from tenants.roles import READERS, TENANT_MANAGERS
from tenants.views import ProjectView

RESPONSES_KEPT_DAYS_MAX = 3650
"""Days; the platform's own setting bounds it further."""


async def create_project(database: Database, actor: Actor, *, tenant_id: UUID, name: str) -> ProjectView:
    """Make a project. Raises Conflict when the organisation has one of that name, NotFound, InvalidRequest."""
    require(actor, *TENANT_MANAGERS, tenant_id=tenant_id)
    name = clean_name(name)
    async with write(database, actor) as connection:
        if await organisations.get_tenant(connection, tenant_id) is None:
            raise NotFound(f"there is no organisation with the id {tenant_id}")
        project = await projects.insert_project(connection, tenant_id, uuid7(), name)
        if project is None:
            raise Conflict(f"the organisation has a project named {name!r} already", param="name")
        await record(
            connection,
            actor,
            "project.create",
            tenant_id=tenant_id,
            object_kind="project",
            object_id=project.id,
            after=project,
        )
    return project


async def list_projects(
    database: Database, actor: Actor, *, tenant_id: UUID, limit: int = 1000, after: UUID | None = None
) -> list[ProjectView]:
    """Projects of the organisation from the oldest on, archived ones included. Raises NotFound."""
    async with read(database, actor, READERS, tenant_id=tenant_id) as connection:
        if await organisations.get_tenant(connection, tenant_id) is None:
            raise NotFound(f"there is no organisation with the id {tenant_id}")
        return await projects.list_projects(connection, tenant_id, limit=page_size(limit), after=after)


async def archive_project(
    database: Database, actor: Actor, *, tenant_id: UUID, project_id: UUID, reason: str | None = None
) -> ProjectView:
    """Archive a project: its keys are refused and their streams aborted; its usage stays in reports.

    Raises NotFound, Conflict when it is already archived.
    """
    return await _change_status(database, actor, tenant_id, project_id, "archived", "project.archive", reason)


async def restore_project(
    database: Database, actor: Actor, *, tenant_id: UUID, project_id: UUID, reason: str | None = None
) -> ProjectView:
    """Restore an archived project; its keys that are not revoked work again. Raises NotFound, Conflict."""
    return await _change_status(database, actor, tenant_id, project_id, "active", "project.restore", reason)


async def set_retention(
    database: Database,
    actor: Actor,
    *,
    tenant_id: UUID,
    project_id: UUID,
    days: int | None,
    reason: str | None = None,
) -> ProjectView:
    """Set for how many days stored responses of a project are kept: 0 = none are stored, None = the platform's days.

    What is stored already and older than that is deleted within a day. Raises NotFound, InvalidRequest.
    """
    require(actor, *TENANT_MANAGERS, tenant_id=tenant_id)
    reason = None if reason is None else clean_reason(reason)
    if days is not None and not 0 <= days <= RESPONSES_KEPT_DAYS_MAX:
        raise InvalidRequest(
            f"responses_kept_days must be 0 to {RESPONSES_KEPT_DAYS_MAX:,}, not {days:,}; leave it out for the "
            "platform's days",
            param="responses_kept_days",
        )
    async with write(database, actor) as connection:
        before = await _locked(connection, tenant_id, project_id)
        await projects.set_responses_kept_days(connection, tenant_id, project_id, days)
        return await _read_and_record(connection, actor, "project.set_retention", before, reason)


async def _change_status(
    database: Database,
    actor: Actor,
    tenant_id: UUID,
    project_id: UUID,
    status: str,
    action: str,
    reason: str | None,
) -> ProjectView:
    """Raises NotFound, or Conflict when the project is in that state already."""
    require(actor, *TENANT_MANAGERS, tenant_id=tenant_id)
    reason = None if reason is None else clean_reason(reason)
    async with write(database, actor) as connection:
        before = await _locked(connection, tenant_id, project_id)
        if before.status == status:
            raise Conflict(f"the project {before.name!r} is {status} already")
        await projects.set_status(connection, tenant_id, project_id, status)
        return await _read_and_record(connection, actor, action, before, reason)


async def _read_and_record(
    connection: AsyncConnection, actor: Actor, action: str, before: ProjectView, reason: str | None
) -> ProjectView:
    """Return the changed project, and record the change."""
    after = await _locked(connection, before.tenant_id, before.id)
    await record(
        connection,
        actor,
        action,
        tenant_id=before.tenant_id,
        object_kind="project",
        object_id=before.id,
        reason=reason,
        before=before,
        after=after,
    )
    return after


async def _locked(connection: AsyncConnection, tenant_id: UUID, project_id: UUID) -> ProjectView:
    project = await projects.get_project(connection, tenant_id, project_id, lock=True)
    if project is None:
        raise NotFound(f"the organisation has no project with the id {project_id}")
    return project
