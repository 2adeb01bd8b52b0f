"""Members manage the projects, keys and limits of their organisation."""

from datetime import datetime, timedelta
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Response
from pydantic import Field

from admin import keys as admin_keys
from admin import limits as admin_limits
from admin import projects as admin_projects
from api.admin.deps import (
    NO_REASON,
    After,
    Limit,
    OptionalReasonBody,
    Page,
    RequestBody,
    to_page,
)
from api.admin.keys import (
    ClientSettings,
    CreatedKeyOut,
    KeyOut,
    LimitsBody,
    LimitsOut,
    ScopedLimitsOut,
    with_secret,
)
from api.admin.tenants import ProjectCreate, ProjectOut, RetentionUpdate
from api.customer.member_deps import Member, MemberDeps
from tenants.names import MAX_NETWORKS, MAX_PLACES
from tenants.principal import Limits

KeyScope = Literal["inference", "models", "generations"]


class MemberKeyCreate(RequestBody):
    """A key to create in a project of the organisation."""

    project_id: UUID
    name: str = Field(min_length=1, max_length=100, examples=["production"])
    kind: Literal["live", "test"] = Field(
        default="live", description="A test key gets made-up answers, which are never billed."
    )
    expires_at: datetime | None = Field(default=None, examples=["2027-01-01T00:00:00Z"])
    allowed_models: list[str] | None = Field(
        default=None, max_length=100, description="Default: every model."
    )
    networks: list[str] | None = Field(
        default=None,
        max_length=MAX_NETWORKS,
        examples=[["203.0.113.0/24"]],
        description="Default: everywhere.",
    )
    scopes: list[KeyScope] | None = Field(default=None, description="Default: everything.")
    regions: list[str] | None = Field(
        default=None, max_length=MAX_PLACES, examples=[["tor1"]], description="Default: any."
    )
    gpus: list[str] | None = Field(
        default=None, max_length=MAX_PLACES, examples=[["B300"]], description="Default: any."
    )


class KeyUpdate(RequestBody):
    """What to change about a key. A field that is absent stays; null lifts the restriction."""

    name: str = Field(default="", min_length=1, max_length=100)
    expires_at: datetime | None = None
    allowed_models: list[str] | None = Field(default=None, max_length=100)
    networks: list[str] | None = Field(default=None, max_length=MAX_NETWORKS)
    scopes: list[KeyScope] | None = None
    regions: list[str] | None = Field(default=None, max_length=MAX_PLACES)
    gpus: list[str] | None = Field(default=None, max_length=MAX_PLACES)


class KeyRotation(RequestBody):
    """How long the present secret works beside the new one."""

    overlap_s: int = Field(default=86_400, ge=0, le=int(admin_keys.MAX_OVERLAP.total_seconds()))


DAY_OF_OVERLAP = KeyRotation()
"""The default of an optional body."""


def router(deps: MemberDeps) -> APIRouter:
    """Routes of projects, keys and limits."""
    routes = deps.router("keys and limits")
    _project_routes(routes, deps)
    _key_routes(routes, deps)
    _secret_routes(routes, deps)
    _limit_routes(routes, deps)
    return routes


def _project_routes(routes: APIRouter, deps: MemberDeps) -> None:
    auth = Depends(deps.member)

    @routes.get("/projects", summary="List projects, archived ones included")
    async def list_projects(
        member: Annotated[Member, auth], limit: Limit = 100, after: After = None
    ) -> Page[ProjectOut]:
        rows = await admin_projects.list_projects(
            deps.database, member.actor, tenant_id=member.tenant_id, limit=limit + 1, after=after
        )
        return to_page(rows, limit, ProjectOut)

    @routes.post("/projects", status_code=201, summary="Create a project (owners)")
    async def create_project(member: Annotated[Member, auth], body: ProjectCreate) -> ProjectOut:
        return ProjectOut.model_validate(
            await admin_projects.create_project(
                deps.database, member.actor, tenant_id=member.tenant_id, name=body.name
            )
        )

    @routes.post("/projects/{project_id}/archive", summary="Archive a project and refuse its keys (owners)")
    async def archive_project(
        member: Annotated[Member, auth], project_id: UUID, body: OptionalReasonBody = NO_REASON
    ) -> ProjectOut:
        return ProjectOut.model_validate(
            await admin_projects.archive_project(
                deps.admin.for_revocations,
                member.actor,
                tenant_id=member.tenant_id,
                project_id=project_id,
                reason=body.reason,
            )
        )

    @routes.put("/projects/{project_id}/retention", summary="Set for how long responses are kept (owners)")
    async def set_retention(
        member: Annotated[Member, auth], project_id: UUID, body: RetentionUpdate
    ) -> ProjectOut:
        return ProjectOut.model_validate(
            await admin_projects.set_retention(
                deps.database,
                member.actor,
                tenant_id=member.tenant_id,
                project_id=project_id,
                days=body.responses_kept_days,
                reason=body.reason,
            )
        )

    @routes.post("/projects/{project_id}/restore", summary="Restore an archived project (owners)")
    async def restore_project(
        member: Annotated[Member, auth], project_id: UUID, body: OptionalReasonBody = NO_REASON
    ) -> ProjectOut:
        return ProjectOut.model_validate(
            await admin_projects.restore_project(
                deps.database,
                member.actor,
                tenant_id=member.tenant_id,
                project_id=project_id,
                reason=body.reason,
            )
        )


def _key_routes(routes: APIRouter, deps: MemberDeps) -> None:
    auth = Depends(deps.member)

    @routes.get("/keys", summary="List keys, revoked and expired ones included")
    async def list_keys(
        member: Annotated[Member, auth], limit: Limit = 100, after: After = None
    ) -> Page[KeyOut]:
        rows = await admin_keys.list_keys(
            deps.database, member.actor, tenant_id=member.tenant_id, limit=limit + 1, after=after
        )
        return to_page(rows, limit, KeyOut)

    @routes.post(
        "/keys",
        status_code=201,
        summary="Create a key; its secret is returned only once (owners, developers)",
    )
    async def create_key(
        member: Annotated[Member, auth], body: MemberKeyCreate, response: Response
    ) -> CreatedKeyOut:
        created = await admin_keys.create_key(
            deps.database,
            member.actor,
            pepper=deps.admin.pepper,
            tenant_id=member.tenant_id,
            project_id=body.project_id,
            name=body.name,
            kind=body.kind,
            expires_at=body.expires_at,
            allowed_models=body.allowed_models,
            networks=body.networks,
            regions=body.regions,
            gpus=body.gpus,
            scopes=None if body.scopes is None else list(body.scopes),
        )
        return with_secret(created, response)

    @routes.get("/keys/{key_id}", summary="One key")
    async def get_key(member: Annotated[Member, auth], key_id: UUID) -> KeyOut:
        return KeyOut.model_validate(await admin_keys.get_key(deps.database, member.actor, key_id=key_id))

    @routes.patch("/keys/{key_id}", summary="Change name, expiry or restrictions (owners, developers)")
    async def update_key(member: Annotated[Member, auth], key_id: UUID, body: KeyUpdate) -> KeyOut:
        return KeyOut.model_validate(
            await admin_keys.update_key(
                deps.database, member.actor, key_id=key_id, changes=body.model_dump(exclude_unset=True)
            )
        )

    @routes.put(
        "/keys/{key_id}/client-settings",
        summary="Replace a key's settings for its clients (owners, developers)",
    )
    async def set_client_settings(
        member: Annotated[Member, auth], key_id: UUID, body: ClientSettings
    ) -> KeyOut:
        changed = await admin_keys.set_client_settings(
            deps.database,
            member.actor,
            key_id=key_id,
            quota_status=body.quota_status,
            cors_origins=body.cors_origins,
        )
        return KeyOut.model_validate(changed)


def _secret_routes(routes: APIRouter, deps: MemberDeps) -> None:
    """Routes that end a key's secret."""
    auth = Depends(deps.member)

    @routes.post(
        "/keys/{key_id}/rotate",
        summary="Replace the secret; the old one works on for the overlap (owners, developers)",
    )
    async def rotate_key(
        member: Annotated[Member, auth],
        key_id: UUID,
        response: Response,
        body: KeyRotation = DAY_OF_OVERLAP,
    ) -> CreatedKeyOut:
        created = await admin_keys.rotate_key(
            deps.admin.for_revocations,
            member.actor,
            pepper=deps.admin.pepper,
            key_id=key_id,
            overlap=timedelta(seconds=body.overlap_s),
        )
        return with_secret(created, response)

    @routes.post(
        "/keys/{key_id}/revoke", summary="Revoke a key and abort its open requests (owners, developers)"
    )
    async def revoke_key(
        member: Annotated[Member, auth], key_id: UUID, body: OptionalReasonBody = NO_REASON
    ) -> KeyOut:
        return KeyOut.model_validate(
            await admin_keys.revoke_key(
                deps.admin.for_revocations, member.actor, key_id=key_id, reason=body.reason
            )
        )


def _limit_routes(routes: APIRouter, deps: MemberDeps) -> None:
    auth = Depends(deps.member)

    @routes.get("/limits", summary="Limits of the organisation, its projects and keys")
    async def list_limits(member: Annotated[Member, auth]) -> list[ScopedLimitsOut]:
        rows = await admin_limits.list_limits(deps.database, member.actor, tenant_id=member.tenant_id)
        return [ScopedLimitsOut.model_validate(row) for row in rows]

    @routes.put("/limits/{scope_kind}/{scope_id}", summary="Replace all limits of a project or key (owners)")
    async def set_limits(
        member: Annotated[Member, auth],
        scope_kind: Literal["project", "key"],
        scope_id: UUID,
        body: LimitsBody,
    ) -> LimitsOut:
        return LimitsOut.model_validate(
            await admin_limits.set_limits(
                deps.database,
                member.actor,
                tenant_id=member.tenant_id,
                scope_kind=scope_kind,
                scope_id=scope_id,
                limits=Limits(**body.model_dump()),
            )
        )
