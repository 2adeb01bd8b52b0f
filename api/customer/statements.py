"""Signed documents for customers: receipts of requests, monthly statements, and the public keys that verify them."""

import time
from typing import Annotated, Any, Literal, Protocol
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.security import HTTPAuthorizationCredentials

from admin import statements as admin_statements
from admin.actor import Actor
from api.admin.deps import ERROR_RESPONSES, AdminDeps, SizeLimitedRoute
from api.credentials import sent_key
from api.customer.organization import member_actor, member_bearer
from api.key_restrictions import KeyRestrictions
from billing.ledger.months import parse_month
from billing.statements.issue import Statement
from core.client_address import ClientAddresses
from core.errors import InvalidRequest
from tenants.principal import Principal

KEYS_PATH = "/.well-known/penstock-keys.json"
DOWNLOAD: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {}, "application/pdf": {}}}
}
"""The argument `responses` of routes that return a statement."""
PUBLIC_KEYS_CACHE_S = 30.0
"""Seconds that the public keys are cached, since the endpoint needs no authentication."""


class Keys(Protocol):
    """The methods of tenants.keys.KeyRing that receipts use."""

    async def authenticate(self, raw: str) -> Principal:
        """Return the principal of a key. Raises AuthenticationFailed or TenantSuspended."""


def routers(deps: AdminDeps, keys: Keys) -> list[APIRouter]:
    """The routers of public keys (no authentication), receipts (API key) and statements (admin token)."""
    return [_key_routes(deps), _receipt_routes(deps, keys), _statement_routes(deps)]


def _key_routes(deps: AdminDeps) -> APIRouter:
    routes = APIRouter(tags=["statements"], responses=ERROR_RESPONSES)
    seen: dict[str, Any] = {}

    @routes.get(KEYS_PATH, summary="Public keys of statements and receipts", response_model=None)
    async def public_keys() -> Response | dict[str, Any]:
        """Every Ed25519 key that was ever used; retired ones stay, so that old documents can be verified."""
        if not seen or time.monotonic() - seen["read_at"] > PUBLIC_KEYS_CACHE_S:
            rows = await admin_statements.public_keys(deps.for_customers)
            seen["keys"] = [
                {
                    "key_id": row.key_id,
                    "alg": row.alg,
                    "public_key": row.public_key,
                    "created_at": row.created_at,
                    "retired_at": row.retired_at,
                }
                for row in rows
            ]
            seen["read_at"] = time.monotonic()
        return {"keys": seen["keys"]}

    return routes


def _receipt_routes(deps: AdminDeps, keys: Keys) -> APIRouter:
    restrictions = KeyRestrictions(ClientAddresses(deps.settings.trusted_proxies))
    routes = APIRouter(
        prefix="/v1", tags=["generations"], responses=ERROR_RESPONSES, route_class=SizeLimitedRoute
    )

    async def caller(request: Request) -> Principal:
        key = sent_key(request.headers.raw)
        return restrictions.check(await keys.authenticate(key), request.scope, "generations")

    @routes.get("/generations/{id}", summary="Tokens, cost and times of one request", response_model=None)
    async def generation(id: UUID, request: Request) -> dict[str, Any]:
        """Of a settled request of the key's own project: tokens by class, exact cost, outcome, times."""
        principal = await caller(request)
        return await admin_statements.generation(
            deps.for_customers,
            tenant_id=principal.tenant_id,
            request_id=id,
            project_id=principal.project_id,
        )

    @routes.get("/generations/{id}/receipt", summary="Signed receipt of one request", response_model=None)
    async def receipt(id: UUID, request: Request) -> Response:
        """Usage, cost, prices and transfers of one request of the key's own project."""
        principal = await caller(request)
        document = await admin_statements.signed_receipt(
            deps.for_customers,
            settings=deps.settings,
            tenant_id=principal.tenant_id,
            request_id=id,
            project_id=principal.project_id,
        )
        return Response(document, media_type="application/json")

    return routes


def _statement_routes(deps: AdminDeps) -> APIRouter:
    routes = APIRouter(
        prefix="/v1/organization",
        tags=["organization"],
        responses=ERROR_RESPONSES,
        route_class=SizeLimitedRoute,
    )

    async def actor_and_tenant(
        request: Request,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(member_bearer)] = None,
        organization: Annotated[str | None, Header(alias="OpenAI-Organization", max_length=100)] = None,
    ) -> tuple[Actor, UUID]:
        actor = await member_actor(deps, credentials, request)
        try:
            named = None if organization is None else UUID(organization)
        except ValueError:
            named = None
        tenant_id = named or actor.tenant_id
        if tenant_id is None:
            raise InvalidRequest(
                "name the organisation's id in the header OpenAI-Organization", param="OpenAI-Organization"
            )
        return actor, tenant_id

    @routes.get("/statements", summary="Final statements of the organisation", response_model=None)
    async def list_statements(
        scope: Annotated[tuple[Actor, UUID], Depends(actor_and_tenant)],
    ) -> dict[str, Any]:
        rows = await admin_statements.list_statements(deps.for_customers, scope[0], tenant_id=scope[1])
        return {
            "data": [
                {
                    "month": row.month,
                    "revision": row.revision,
                    "body_sha256": row.body_sha256,
                    "key_id": row.key_id,
                }
                for row in rows
            ]
        }

    @routes.get(
        "/statements/{month}", summary="A month's signed statement", response_model=None, responses=DOWNLOAD
    )
    async def get_statement(
        scope: Annotated[tuple[Actor, UUID], Depends(actor_and_tenant)],
        month: str,
        format: Literal["json", "pdf"] = "json",
    ) -> Response:
        """The statement as JSON or PDF; a draft while the month is open."""
        statement = await admin_statements.get_statement(
            deps.for_customers, scope[0], settings=deps.settings, tenant_id=scope[1], month=parse_month(month)
        )
        return as_download(statement, format)

    return routes


def as_download(statement: Statement, format: Literal["json", "pdf"]) -> Response:
    """Return a statement as a file to download."""
    name = f"statement-{statement.month}{'' if statement.final else '-draft'}.{format}"
    return Response(
        statement.document if format == "json" else statement.pdf,
        media_type="application/json" if format == "json" else "application/pdf",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )
