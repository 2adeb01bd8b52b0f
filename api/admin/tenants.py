"""Admin API: organisations and their projects."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends
from pydantic import Field

from admin import projects as admin_projects
from admin import tenants as admin_tenants
from admin.actor import Actor
from api.admin.deps import (
    NO_REASON,
    WAITS,
    AdminDeps,
    After,
    Limit,
    OptionalReasonBody,
    Page,
    Reason,
    ReasonBody,
    RequestBody,
    ResponseModel,
    to_page,
)
from tenants.principal import default_limits

Tier = Literal["priority", "standard", "batch"]
Name = Annotated[str, Field(min_length=1, max_length=100, examples=["Acme Robotics"])]


class TenantOut(ResponseModel):
    """An organisation."""

    id: UUID
    name: str
    slug: str = Field(description="Short name, derived from the first name; it never changes.")
    status: Literal["active", "suspended"]
    tier: Tier
    highest_tier: Tier | None = Field(
        description="The dearest tier that a request may ask for; null = its tier."
    )
    created_at: datetime
    throttle_until: datetime | None
    throttle_requests_per_min: int | None
    throttle_concurrency: int | None
    share_percent: int = Field(
        description="Its share of a busy pool relative to others of its tier; 100 is the default."
    )


class ProjectOut(ResponseModel):
    """A project of an organisation."""

    id: UUID
    tenant_id: UUID
    name: str
    status: Literal["active", "archived"]
    created_at: datetime
    responses_kept_days: int | None = Field(
        description="Days for which stored responses are kept, at most the platform's; null = the platform's, 0 = none "
        "are stored."
    )


class TenantCreate(RequestBody):
    """An organisation to create, with a project "default", a billing account and the default limits."""

    name: Name
    tier: Tier = "standard"
    billing_mode: Literal["prepaid", "postpaid"] = "prepaid"


class TenantUpdate(RequestBody):
    """The new name of an organisation."""

    name: Name


class TierUpdate(RequestBody):
    """The new tier of an organisation."""

    tier: Tier
    reason: Reason


class HighestTierUpdate(RequestBody):
    """The dearest tier that requests of an organisation may ask for."""

    highest_tier: Tier | None = Field(description="null = its tier.")
    reason: Reason


class ShareUpdate(RequestBody):
    """The new share of an organisation."""

    share_percent: int = Field(
        ge=1,
        le=admin_tenants.SHARE_PERCENT_MAX,
        description="100 is the default; 200 is served twice as much.",
    )
    reason: Reason


class ThrottleUpdate(RequestBody):
    """A temporary limit. It only lowers the organisation's limits."""

    minutes: int = Field(default=60, ge=0, le=admin_tenants.THROTTLE_MINUTES_MAX, description="0 removes it.")
    requests_per_min: int = Field(default=60, ge=1, le=1_000_000)
    concurrency: int = Field(default=4, ge=1, le=1_000_000)
    reason: Reason


class ProjectCreate(RequestBody):
    """A project to create."""

    name: Name


class RetentionUpdate(RequestBody):
    """For how long a project keeps responses."""

    responses_kept_days: int | None = Field(
        ge=0,
        le=admin_projects.RESPONSES_KEPT_DAYS_MAX,
        examples=[0],
        description="Days, at most the platform's. 0 = none are stored; null = the platform's.",
    )
    reason: Reason | None = None


def router(deps: AdminDeps) -> APIRouter:
    """Routes of organisations and projects."""
    routes = deps.router("organisations")
    _tenant_routes(routes, deps)
    _state_routes(routes, deps)
    _project_routes(routes, deps)
    return routes


def _tenant_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/tenants", summary="List organisations, oldest first")
    async def list_tenants(
        actor: Annotated[Actor, auth], limit: Limit = 100, after: After = None
    ) -> Page[TenantOut]:
        rows = await admin_tenants.list_tenants(deps.database, actor, limit=limit + 1, after=after)
        return to_page(rows, limit, TenantOut)

    @routes.post("/tenants", status_code=201, summary="Create an organisation")
    async def create_tenant(actor: Annotated[Actor, auth], body: TenantCreate) -> TenantOut:
        tenant = await admin_tenants.create_tenant(
            deps.database,
            actor,
            name=body.name,
            tier=body.tier,
            billing_mode=body.billing_mode,
            limits=default_limits(deps.settings),
        )
        return TenantOut.model_validate(tenant)

    @routes.get("/tenants/{tenant_id}", summary="Get an organisation")
    async def get_tenant(actor: Annotated[Actor, auth], tenant_id: UUID) -> TenantOut:
        return TenantOut.model_validate(
            await admin_tenants.get_tenant(deps.database, actor, tenant_id=tenant_id)
        )

    @routes.patch("/tenants/{tenant_id}", summary="Rename an organisation")
    async def rename_tenant(actor: Annotated[Actor, auth], tenant_id: UUID, body: TenantUpdate) -> TenantOut:
        tenant = await admin_tenants.rename_tenant(deps.database, actor, tenant_id=tenant_id, name=body.name)
        return TenantOut.model_validate(tenant)

    @routes.post("/tenants/{tenant_id}/tier", responses=WAITS, summary="Move an organisation to another tier")
    async def set_tier(actor: Annotated[Actor, auth], tenant_id: UUID, body: TierUpdate) -> TenantOut:
        tenant = await admin_tenants.set_tier(
            deps.database, actor, tenant_id=tenant_id, tier=body.tier, reason=body.reason
        )
        return TenantOut.model_validate(tenant)

    @routes.post(
        "/tenants/{tenant_id}/highest-tier",
        responses=WAITS,
        summary="Let requests of an organisation ask for a tier above its own",
    )
    async def set_highest_tier(
        actor: Annotated[Actor, auth], tenant_id: UUID, body: HighestTierUpdate
    ) -> TenantOut:
        tenant = await admin_tenants.set_highest_tier(
            deps.database, actor, tenant_id=tenant_id, tier=body.highest_tier, reason=body.reason
        )
        return TenantOut.model_validate(tenant)

    @routes.post("/tenants/{tenant_id}/share", summary="Change its share of busy pools")
    async def set_share(actor: Annotated[Actor, auth], tenant_id: UUID, body: ShareUpdate) -> TenantOut:
        tenant = await admin_tenants.set_share(
            deps.database, actor, tenant_id=tenant_id, percent=body.share_percent, reason=body.reason
        )
        return TenantOut.model_validate(tenant)


def _state_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.post(
        "/tenants/{tenant_id}/suspend",
        summary="Suspend an organisation: refuse its keys and abort its open requests",
    )
    async def suspend_tenant(actor: Annotated[Actor, auth], tenant_id: UUID, body: ReasonBody) -> TenantOut:
        tenant = await admin_tenants.suspend_tenant(
            deps.for_revocations, actor, tenant_id=tenant_id, reason=body.reason
        )
        return TenantOut.model_validate(tenant)

    @routes.post("/tenants/{tenant_id}/resume", summary="Resume a suspended organisation")
    async def resume_tenant(
        actor: Annotated[Actor, auth], tenant_id: UUID, body: OptionalReasonBody = NO_REASON
    ) -> TenantOut:
        tenant = await admin_tenants.resume_tenant(
            deps.database, actor, tenant_id=tenant_id, reason=body.reason
        )
        return TenantOut.model_validate(tenant)

    @routes.post("/tenants/{tenant_id}/throttle", summary="Limit its requests temporarily")
    async def throttle_tenant(
        actor: Annotated[Actor, auth], tenant_id: UUID, body: ThrottleUpdate
    ) -> TenantOut:
        tenant = await admin_tenants.throttle_tenant(
            deps.database,
            actor,
            tenant_id=tenant_id,
            minutes=body.minutes,
            requests_per_min=body.requests_per_min,
            concurrency=body.concurrency,
            reason=body.reason,
        )
        return TenantOut.model_validate(tenant)


def _project_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get(
        "/tenants/{tenant_id}/projects", summary="List projects of an organisation, archived ones included"
    )
    async def list_projects(
        actor: Annotated[Actor, auth], tenant_id: UUID, limit: Limit = 100, after: After = None
    ) -> Page[ProjectOut]:
        rows = await admin_projects.list_projects(
            deps.database, actor, tenant_id=tenant_id, limit=limit + 1, after=after
        )
        return to_page(rows, limit, ProjectOut)

    @routes.post("/tenants/{tenant_id}/projects", status_code=201, summary="Create a project")
    async def create_project(
        actor: Annotated[Actor, auth], tenant_id: UUID, body: ProjectCreate
    ) -> ProjectOut:
        project = await admin_projects.create_project(
            deps.database, actor, tenant_id=tenant_id, name=body.name
        )
        return ProjectOut.model_validate(project)

    @routes.post(
        "/tenants/{tenant_id}/projects/{project_id}/archive", summary="Archive a project and refuse its keys"
    )
    async def archive_project(
        actor: Annotated[Actor, auth],
        tenant_id: UUID,
        project_id: UUID,
        body: OptionalReasonBody = NO_REASON,
    ) -> ProjectOut:
        project = await admin_projects.archive_project(
            deps.database, actor, tenant_id=tenant_id, project_id=project_id, reason=body.reason
        )
        return ProjectOut.model_validate(project)

    @routes.post(
        "/tenants/{tenant_id}/projects/{project_id}/restore",
        summary="Restore an archived project",
    )
    async def restore_project(
        actor: Annotated[Actor, auth],
        tenant_id: UUID,
        project_id: UUID,
        body: OptionalReasonBody = NO_REASON,
    ) -> ProjectOut:
        project = await admin_projects.restore_project(
            deps.database, actor, tenant_id=tenant_id, project_id=project_id, reason=body.reason
        )
        return ProjectOut.model_validate(project)

    @routes.put(
        "/tenants/{tenant_id}/projects/{project_id}/retention",
        summary="Set for how long a project's responses are kept",
    )
    async def set_retention(
        actor: Annotated[Actor, auth], tenant_id: UUID, project_id: UUID, body: RetentionUpdate
    ) -> ProjectOut:
        project = await admin_projects.set_retention(
            deps.database,
            actor,
            tenant_id=tenant_id,
            project_id=project_id,
            days=body.responses_kept_days,
            reason=body.reason,
        )
        return ProjectOut.model_validate(project)
