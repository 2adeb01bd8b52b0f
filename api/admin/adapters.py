"""Admin API: LoRA adapters of organisations."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends

from admin.actor import Actor
from admin.adapters import AdapterView, list_adapters, remove_adapter
from api.admin.deps import NO_REASON, AdminDeps, OptionalReasonBody
from api.customer.adapter_views import AdapterOut


class TenantAdapterOut(AdapterOut):
    """A LoRA adapter with its organisation."""

    tenant_id: UUID


def router(deps: AdminDeps) -> APIRouter:
    """The routes of adapters."""
    routes = deps.router("adapters")
    auth = Depends(deps.actor)

    @routes.get("/adapters", summary="LoRA adapters of an organisation, or of all")
    async def list_(actor: Annotated[Actor, auth], tenant_id: UUID | None = None) -> list[TenantAdapterOut]:
        return [_shown(each) for each in await list_adapters(deps.database, actor, tenant_id=tenant_id)]

    @routes.post("/adapters/{adapter_id}/delete", summary="Delete an adapter")
    async def delete(
        adapter_id: UUID, actor: Annotated[Actor, auth], body: OptionalReasonBody = NO_REASON
    ) -> TenantAdapterOut:
        return _shown(await remove_adapter(deps.database, actor, adapter_id=adapter_id, reason=body.reason))

    return routes


def _shown(adapter: AdapterView) -> TenantAdapterOut:
    return TenantAdapterOut.model_validate(adapter, from_attributes=True)
