"""Admin REST: statements and receipts of every organisation, signing keys, SLA credits."""

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Response
from pydantic import Field

from admin import statements as admin_statements
from admin.actor import Actor
from api.admin.deps import AdminDeps, ReasonBody, RequestBody
from api.customer.statements import as_download
from billing.ledger.months import parse_month


class SlaRun(RequestBody):
    """Which month to measure, and whether to credit what was missed."""

    month: str = Field(pattern=r"^[0-9]{4}-[0-9]{2}$", examples=["2026-10"])
    dry_run: bool = True


def router(deps: AdminDeps) -> APIRouter:
    """Routes of statements."""
    routes = deps.router("statements")
    _statement_routes(routes, deps)
    _key_routes(routes, deps)
    return routes


def _statement_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/tenants/{tenant_id}/statements", summary="Final statements", response_model=None)
    async def list_statements(actor: Annotated[Actor, auth], tenant_id: UUID) -> dict[str, Any]:
        rows = await admin_statements.list_statements(deps.database, actor, tenant_id=tenant_id)
        return {"data": msgspec.to_builtins(rows)}

    @routes.get("/tenants/{tenant_id}/statements/{month}", summary="A signed statement", response_model=None)
    async def get_statement(
        actor: Annotated[Actor, auth],
        tenant_id: UUID,
        month: str,
        format: Literal["json", "pdf"] = "json",
    ) -> Response:
        made = await admin_statements.get_statement(
            deps.database, actor, settings=deps.settings, tenant_id=tenant_id, month=parse_month(month)
        )
        return as_download(made, format)

    @routes.post(
        "/tenants/{tenant_id}/statements/{month}", summary="Issue a statement again", response_model=None
    )
    async def reissue_statement(actor: Annotated[Actor, auth], tenant_id: UUID, month: str) -> Response:
        """A new revision when what the statement of a closed month says has changed; else the kept one."""
        made = await admin_statements.get_statement(
            deps.database,
            actor,
            settings=deps.settings,
            tenant_id=tenant_id,
            month=parse_month(month),
            again=True,
        )
        return as_download(made, "json")

    @routes.get("/tenants/{tenant_id}/receipts/{request_id}", summary="A signed receipt", response_model=None)
    async def get_receipt(actor: Annotated[Actor, auth], tenant_id: UUID, request_id: UUID) -> Response:
        paper = await admin_statements.get_receipt(
            deps.database, actor, settings=deps.settings, tenant_id=tenant_id, request_id=request_id
        )
        return Response(paper, media_type="application/json")

    @routes.post("/sla", summary="Measure service levels, credit what was missed", response_model=None)
    async def run_sla(actor: Annotated[Actor, auth], body: SlaRun) -> dict[str, Any]:
        results = await admin_statements.run_sla(
            deps.database, actor, month=parse_month(body.month), dry_run=body.dry_run
        )
        return {"data": msgspec.to_builtins(results)}


def _key_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.post(
        "/signing-keys/rotate", summary="A new signing key; the old one retires", response_model=None
    )
    async def rotate_key(actor: Annotated[Actor, auth], body: ReasonBody) -> dict[str, Any]:
        rows = await admin_statements.rotate_key(
            deps.database, actor, settings=deps.settings, reason=body.reason
        )
        return {"keys": msgspec.to_builtins(rows)}

    @routes.post("/signing-keys/{key_id}/retire", summary="Retire a signing key", response_model=None)
    async def retire_key(actor: Annotated[Actor, auth], key_id: str, body: ReasonBody) -> dict[str, Any]:
        rows = await admin_statements.retire_key(deps.database, actor, key_id=key_id, reason=body.reason)
        return {"keys": msgspec.to_builtins(rows)}
