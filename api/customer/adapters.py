"""Members upload, import, list and delete the LoRA adapters of their organisation."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Request
from pydantic import Field
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from admin.actor import require
from admin.adapter_hub import import_adapter
from admin.adapters import (
    AdapterLimits,
    Upload,
    create_adapter,
    list_adapters,
    remove_adapter,
)
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
from api.errors import body_too_large
from core.errors import InvalidRequest, Unavailable
from tenants.roles import KEY_MANAGERS
from workers.adapter_files import MAX_CONFIG_BYTES

FORM_REST_BYTES = 2**20
FORM_BYTES = 2**30 + FORM_REST_BYTES
"""Largest form: the largest adapter that a setting allows, and the rest of the form."""
RETRY_S = 10.0

UPLOAD_S = 900.0
"""Seconds for a form to arrive."""
AT_A_TIME = 2
"""Uploads and imports of one process at a time: their files lie in its temporary directory."""


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
    auth, slots = Depends(deps.member), asyncio.Semaphore(AT_A_TIME)

    @asynccontextmanager
    async def slot() -> AsyncIterator[AdapterLimits]:
        """One of the process's transfers. Raises Unavailable while there is none."""
        if slots.locked():
            raise Unavailable(
                "Other adapters are being transferred; try again shortly.",
                code="uploads_busy",
                retry_after_s=RETRY_S,
            )
        async with slots:
            yield AdapterLimits.of(deps.admin.settings)

    @routes.get("/adapters", summary="List the adapters")
    async def list_(member: Annotated[Member, auth]) -> AdaptersOut:
        found = await list_adapters(deps.database, member.actor, tenant_id=member.tenant_id)
        return AdaptersOut(data=[shown(each) for each in found])

    async def upload(member: Annotated[Member, auth], request: Request) -> AdapterOut:
        require(member.actor, *KEY_MANAGERS, tenant_id=member.tenant_id)  # before its body is read
        async with slot() as limits, _form(request, limits.bytes) as form:
            weights = _file(form, "weights")
            made = await create_adapter(
                deps.database,
                member.actor,
                tenant_id=member.tenant_id,
                model=_text(form, "model"),
                name=_text(form, "name"),
                upload=Upload(
                    await _file(form, "config").read(MAX_CONFIG_BYTES + 1), weights.file, weights.size or 0
                ),
                limits=limits,
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
        async with slot() as limits:
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


@asynccontextmanager
async def _form(request: Request, most_bytes: int) -> AsyncIterator[FormData]:
    """The form of an upload; its files are kept on disk until the end of the block.

    Raises InvalidRequest, and RequestTooLarge before it is read when its length is stated and too large.
    """
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > most_bytes + FORM_REST_BYTES:
        raise body_too_large(most_bytes)
    try:
        form = await request.form(max_files=2, max_fields=8, max_part_size=4096)
    except HTTPException as error:
        raise InvalidRequest(f"the form cannot be read: {error.detail}", param="body") from None
    try:
        yield form
    finally:
        await form.close()


def _file(form: FormData, name: str) -> UploadFile:
    found = form.get(name)
    if not isinstance(found, UploadFile):
        raise InvalidRequest(f"the form needs the file '{name}' (multipart/form-data)", param=name)
    return found


def _text(form: FormData, name: str) -> str:
    found = form.get(name)
    if not isinstance(found, str) or not found or "\x00" in found:
        raise InvalidRequest(f"the form needs the text '{name}' (multipart/form-data)", param=name)
    return found
