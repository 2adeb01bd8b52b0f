"""Members upload, import, list and delete the LoRA adapters of their organisation."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from admin.adapter_hub import import_adapter
from admin.adapter_upload import FORM_BYTES, Transfers
from admin.adapters import list_adapters, remove_adapter
from api.admin.deps import (
    ERROR_RESPONSES,
    NO_REASON,
    OptionalReasonBody,
    RequestBody,
    ResponseModel,
    SizeLimitedRoute,
)
from api.customer.adapter_views import AdapterOut, shown
from api.customer.member_deps import PREFIX, Member, MemberDeps


class UploadRoute(SizeLimitedRoute):
    """A route that takes the files of an adapter."""

    max_body_bytes = FORM_BYTES


class AdaptersOut(ResponseModel):
    """The adapters of an organisation."""

    data: list[AdapterOut]


class AdapterImport(RequestBody):
    """An adapter to fetch from the model hub."""

    model: str = Field(min_length=1, max_length=200, examples=["llama-3.3-70b"])
    name: str = Field(min_length=1, max_length=40, examples=["support"])
    repository: str = Field(min_length=3, max_length=200, examples=["acme/support-lora"])
    revision: str = Field(default="main", max_length=200)


_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["model", "name", "config", "weights"],
                    "properties": {
                        "model": {"type": "string"},
                        "name": {"type": "string"},
                        "config": {
                            "type": "string",
                            "format": "binary",
                            "description": "adapter_config.json",
                        },
                        "weights": {
                            "type": "string",
                            "format": "binary",
                            "description": "adapter_model.safetensors",
                        },
                    },
                }
            }
        },
    }
}


def router(deps: MemberDeps) -> APIRouter:
    """The routes of adapters."""
    routes = APIRouter(
        prefix=PREFIX,
        tags=["organization: adapters"],
        dependencies=[Depends(deps.member)],
        responses=ERROR_RESPONSES,
        route_class=SizeLimitedRoute,
    )
    auth, transfers = Depends(deps.member), Transfers()

    @routes.get("/adapters", summary="List the adapters")
    async def list_(member: Annotated[Member, auth]) -> AdaptersOut:
        found = await list_adapters(deps.database, member.actor, tenant_id=member.tenant_id)
        return AdaptersOut(data=[shown(each) for each in found])

    async def upload(member: Annotated[Member, auth], request: Request) -> AdapterOut:
        made = await transfers.upload(
            deps.database, member.actor, deps.admin.settings, tenant_id=member.tenant_id, request=request
        )
        return shown(made)

    routes.add_api_route(
        "/adapters",
        upload,
        methods=["POST"],
        status_code=201,
        summary="Upload an adapter (owners, developers)",
        openapi_extra=_FORM,
        route_class_override=UploadRoute,
    )

    @routes.post(
        "/adapters/import",
        status_code=201,
        summary="Import an adapter from the model hub (owners, developers)",
    )
    async def import_(member: Annotated[Member, auth], body: AdapterImport) -> AdapterOut:
        async with transfers.slot(deps.admin.settings) as limits:
            made = await import_adapter(
                deps.database,
                member.actor,
                tenant_id=member.tenant_id,
                model=body.model,
                name=body.name,
                repository=body.repository,
                revision=body.revision,
                limits=limits,
            )
        return shown(made)

    @routes.post("/adapters/{adapter_id}/delete", summary="Delete an adapter (owners, developers)")
    async def delete(
        adapter_id: UUID, member: Annotated[Member, auth], body: OptionalReasonBody = NO_REASON
    ) -> AdapterOut:
        return shown(
            await remove_adapter(
                deps.database,
                member.actor,
                adapter_id=adapter_id,
                tenant_id=member.tenant_id,
                reason=body.reason,
            )
        )

    return routes
