"""Admin API: API keys and limits."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Response
from pydantic import Field

from admin import keys as admin_keys
from admin import limits as admin_limits
from admin.actor import Actor
from api.admin.deps import (
    NO_REASON,
    AdminDeps,
    After,
    Limit,
    OptionalReasonBody,
    Page,
    RequestBody,
    ResponseModel,
    to_page,
)
from tenants.client_settings import MAX_ORIGINS
from tenants.names import MAX_PLACES
from tenants.principal import Limits

ScopeKind = Literal["tenant", "project", "key"]


class KeyOut(ResponseModel):
    """An API key without its secret."""

    id: UUID
    tenant_id: UUID
    project_id: UUID
    project: str = Field(description="The project's name.")
    name: str
    kind: Literal["live", "test"]
    last4: str = Field(description="The key's last four characters.")
    status: Literal["active", "revoked", "expired"]
    allowed_models: list[str] | None = Field(description="null = every model.")
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="Written in batches, with a delay of up to 30 s.")
    networks: list[str] | None = Field(description="Where it may be used from (CIDR); null = everywhere.")
    scopes: list[str] | None = Field(description="What it may be used for; null = everything.")
    regions: list[str] | None = Field(description="Regions that its requests run in; null = any.")
    gpus: list[str] | None = Field(description="Classes of GPU that they run on; null = any.")
    previous_until: datetime | None = Field(
        description="Until when the secret from before the last rotation works."
    )
    quota_status: Literal[402, 429] = Field(description="Status of answers that money refuses.")
    cors_origins: list[str] | None = Field(description="Origins of browsers that may use it; null = none.")


class CreatedKeyOut(KeyOut):
    """A new key. Its secret is returned only in this response."""

    secret: str = Field(examples=["pen_live_4fZ0yqv8cT7JH2nKpW1sXe5RbGd3LmAu2sK9Qx"])


class KeyCreate(RequestBody):
    """A key to create in a project."""

    project_id: UUID
    name: str = Field(min_length=1, max_length=100, examples=["production"])
    kind: Literal["live", "test"] = Field(
        default="live",
        description="`test` is answered without a model and never billed.",
    )
    expires_at: datetime | None = Field(default=None, examples=["2027-01-01T00:00:00Z"])
    allowed_models: list[str] | None = Field(
        default=None, max_length=100, description="Default: every model."
    )
    regions: list[str] | None = Field(
        default=None, max_length=MAX_PLACES, examples=[["tor1"]], description="Default: any."
    )
    gpus: list[str] | None = Field(
        default=None, max_length=MAX_PLACES, examples=[["B300"]], description="Default: any."
    )


class ClientSettings(RequestBody):
    """A key's settings for its clients; both are replaced."""

    quota_status: Literal[402, 429] = Field(
        default=402, description="429 for clients that take no other status for a used-up quota."
    )
    cors_origins: list[str] | None = Field(
        default=None,
        max_length=MAX_ORIGINS,
        examples=[["https://app.example.com"]],
        description="Origins of browsers that may use the key; null or empty = none.",
    )


class KeySearch(RequestBody):
    """A key whose owner is looked for."""

    key: str = Field(max_length=200)


_LIMIT = Field(default=None, ge=1, le=admin_limits.MAX_LIMIT)


class LimitsBody(RequestBody):
    """All limits of a scope. A limit that is null or absent is removed."""

    requests_per_min: int | None = _LIMIT
    input_tokens_per_min: int | None = _LIMIT
    output_tokens_per_min: int | None = _LIMIT
    concurrency: int | None = Field(
        default=None, ge=1, le=admin_limits.MAX_LIMIT, description="Requests open at the same time."
    )
    tokens_per_day: int | None = Field(
        default=None, ge=1, le=admin_limits.MAX_LIMIT, description="Input plus output per UTC day."
    )


class LimitsOut(ResponseModel):
    """The limits of a scope; null = no limit."""

    requests_per_min: int | None
    input_tokens_per_min: int | None
    output_tokens_per_min: int | None
    concurrency: int | None
    tokens_per_day: int | None


class ScopedLimitsOut(ResponseModel):
    """A scope with its limits."""

    scope_kind: ScopeKind
    scope_id: UUID
    limits: LimitsOut


def router(deps: AdminDeps) -> APIRouter:
    """Routes of keys and limits."""
    routes = deps.router("keys and limits")
    _key_routes(routes, deps)
    _limit_routes(routes, deps)
    return routes


def _key_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get(
        "/tenants/{tenant_id}/keys", summary="List keys of an organisation, revoked and expired ones included"
    )
    async def list_keys(
        actor: Annotated[Actor, auth], tenant_id: UUID, limit: Limit = 100, after: After = None
    ) -> Page[KeyOut]:
        rows = await admin_keys.list_keys(
            deps.database, actor, tenant_id=tenant_id, limit=limit + 1, after=after
        )
        return to_page(rows, limit, KeyOut)

    @routes.post(
        "/tenants/{tenant_id}/keys", status_code=201, summary="Create a key; its secret is returned only once"
    )
    async def create_key(
        actor: Annotated[Actor, auth], tenant_id: UUID, body: KeyCreate, response: Response
    ) -> CreatedKeyOut:
        created = await admin_keys.create_key(
            deps.database,
            actor,
            pepper=deps.pepper,
            tenant_id=tenant_id,
            project_id=body.project_id,
            name=body.name,
            kind=body.kind,
            expires_at=body.expires_at,
            allowed_models=body.allowed_models,
            regions=body.regions,
            gpus=body.gpus,
        )
        return with_secret(created, response)

    @routes.get("/keys/{key_id}", summary="One key")
    async def get_key(actor: Annotated[Actor, auth], key_id: UUID) -> KeyOut:
        return KeyOut.model_validate(await admin_keys.get_key(deps.database, actor, key_id=key_id))

    @routes.put("/keys/{key_id}/client-settings", summary="Replace a key's settings for its clients")
    async def set_client_settings(
        actor: Annotated[Actor, auth], key_id: UUID, body: ClientSettings
    ) -> KeyOut:
        changed = await admin_keys.set_client_settings(
            deps.database,
            actor,
            key_id=key_id,
            quota_status=body.quota_status,
            cors_origins=body.cors_origins,
        )
        return KeyOut.model_validate(changed)

    @routes.post("/keys/{key_id}/revoke", summary="Revoke a key and abort its open requests")
    async def revoke_key(
        actor: Annotated[Actor, auth], key_id: UUID, body: OptionalReasonBody = NO_REASON
    ) -> KeyOut:
        return KeyOut.model_validate(
            await admin_keys.revoke_key(deps.for_revocations, actor, key_id=key_id, reason=body.reason)
        )

    @routes.post("/key-search", summary="Find the owner of a key that was leaked")
    async def find_key(actor: Annotated[Actor, auth], body: KeySearch) -> KeyOut:
        return KeyOut.model_validate(
            await admin_keys.find_key(deps.database, actor, pepper=deps.pepper, raw=body.key)
        )


def with_secret(created: admin_keys.CreatedKey, response: Response) -> CreatedKeyOut:
    """Return a new key with its secret, in a response that no cache keeps."""
    response.headers["cache-control"] = "no-store"
    view = KeyOut.model_validate(created.view)
    return CreatedKeyOut(**view.model_dump(), secret=created.secret)


def _limit_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/tenants/{tenant_id}/limits", summary="List the scopes of an organisation that have limits")
    async def list_limits(actor: Annotated[Actor, auth], tenant_id: UUID) -> list[ScopedLimitsOut]:
        rows = await admin_limits.list_limits(deps.database, actor, tenant_id=tenant_id)
        return [ScopedLimitsOut.model_validate(row) for row in rows]

    @routes.get("/tenants/{tenant_id}/limits/{scope_kind}/{scope_id}", summary="Limits of one scope")
    async def get_limits(
        actor: Annotated[Actor, auth], tenant_id: UUID, scope_kind: ScopeKind, scope_id: UUID
    ) -> LimitsOut:
        limits = await admin_limits.get_limits(
            deps.database, actor, tenant_id=tenant_id, scope_kind=scope_kind, scope_id=scope_id
        )
        return LimitsOut.model_validate(limits)

    @routes.put(
        "/tenants/{tenant_id}/limits/{scope_kind}/{scope_id}", summary="Replace all limits of one scope"
    )
    async def set_limits(
        actor: Annotated[Actor, auth],
        tenant_id: UUID,
        scope_kind: ScopeKind,
        scope_id: UUID,
        body: LimitsBody,
    ) -> LimitsOut:
        limits = await admin_limits.set_limits(
            deps.database,
            actor,
            tenant_id=tenant_id,
            scope_kind=scope_kind,
            scope_id=scope_id,
            limits=Limits(**body.model_dump()),
        )
        return LimitsOut.model_validate(limits)
