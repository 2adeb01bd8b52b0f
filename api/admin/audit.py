"""Admin API: the audit log."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query

from admin import audit as admin_audit
from admin.actor import Actor
from api.admin.deps import AdminDeps, After, Limit, Page, ResponseModel, to_page


class AuditOut(ResponseModel):
    """An administrative action: actor, time, object, reason, and the state before and after."""

    id: UUID
    at: datetime
    actor_kind: str
    actor_id: str
    actor_label: str
    action: str
    tenant_id: UUID | None
    object_kind: str
    object_id: str
    reason: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def router(deps: AdminDeps) -> APIRouter:
    """Routes of the audit log."""
    routes = deps.router("audit")
    auth = Depends(deps.actor)

    @routes.get("/audit", summary="List administrative actions, newest first")
    async def list_audit(
        actor: Annotated[Actor, auth],
        tenant_id: Annotated[UUID | None, Query()] = None,
        action: Annotated[
            str | None, Query(max_length=100, examples=["key."], description="The beginning of the action.")
        ] = None,
        object_id: Annotated[str | None, Query(max_length=200)] = None,
        limit: Limit = 100,
        after: After = None,
    ) -> Page[AuditOut]:
        rows = await admin_audit.list_audit(
            deps.database,
            actor,
            tenant_id=tenant_id,
            action=action,
            object_id=object_id,
            limit=limit + 1,
            after=after,
        )
        return to_page(rows, limit, AuditOut)

    return routes
