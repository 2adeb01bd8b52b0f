"""Admin API: statements and receipts of all organisations, signing keys, and SLA credits."""

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Response
from pydantic import Field

from admin import statements as admin_statements
from admin.actor import Actor
from api.admin.deps import AdminDeps, ReasonBody, RequestBody
from api.customer.statements import DOWNLOAD, as_download
from billing.ledger.months import parse_month


class SlaRun(RequestBody):
    """The month to measure. Credits are granted unless `dry_run`."""

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

    @routes.get("/tenants/{tenant_id}/statements", summary="List final statements", response_model=None)
    async def list_statements(actor: Annotated[Actor, auth], tenant_id: UUID) -> dict[str, Any]:
        rows = await admin_statements.list_statements(deps.database, actor, tenant_id=tenant_id)
        return {"data": msgspec.to_builtins(rows)}

    @routes.get(
        "/tenants/{tenant_id}/statements/{month}",
        summary="Get a signed statement",
        response_model=None,
        responses=DOWNLOAD,
    )
    async def get_statement(
        actor: Annotated[Actor, auth],
        tenant_id: UUID,
        month: str,
        format: Literal["json", "pdf"] = "json",
    ) -> Response:
        statement = await admin_statements.get_statement(
            deps.database, actor, settings=deps.settings, tenant_id=tenant_id, month=parse_month(month)
        )
        return as_download(statement, format)

    @routes.post(
        "/tenants/{tenant_id}/statements/{month}", summary="Issue a statement again", response_model=None
    )
    async def reissue_statement(actor: Annotated[Actor, auth], tenant_id: UUID, month: str) -> Response:
        """Create a new revision when the contents of a closed month have changed; else return the last revision."""
        statement = await admin_statements.get_statement(
            deps.database,
            actor,
            settings=deps.settings,
            tenant_id=tenant_id,
            month=parse_month(month),
            again=True,
        )
        return as_download(statement, "json")

    @routes.get(
        "/tenants/{tenant_id}/receipts/{request_id}", summary="Get a signed receipt", response_model=None
    )
    async def get_receipt(actor: Annotated[Actor, auth], tenant_id: UUID, request_id: UUID) -> Response:
        receipt = await admin_statements.get_receipt(
            deps.database, actor, settings=deps.settings, tenant_id=tenant_id, request_id=request_id
        )
        return Response(receipt, media_type="application/json")

    @routes.post("/sla", summary="Measure service levels and credit misses", response_model=None)
    async def run_sla(actor: Annotated[Actor, auth], body: SlaRun) -> dict[str, Any]:
        results = await admin_statements.run_sla(
            deps.database, actor, month=parse_month(body.month), dry_run=body.dry_run
        )
        return {"data": msgspec.to_builtins(results)}


def _key_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.post(
        "/signing-keys/rotate", summary="Create a signing key and retire the old one", response_model=None
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
