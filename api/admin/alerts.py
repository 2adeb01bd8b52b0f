"""Admin API: budgets and alerts, notification endpoints, notices, and the mail outbox."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from admin import alerts as admin_alerts
from admin.actor import Actor
from api.admin.billing import Usd
from api.admin.deps import AdminDeps, After, Limit, Page, RequestBody, ResponseModel, to_page
from core.public_addresses import parse_hosts

_TENANT = Query(description="The organisation; default: the platform.")


class AlertOut(ResponseModel):
    """A budget or low-balance alert and its current value."""

    id: UUID | None = Field(description="null = the organisation's budget with the usual thresholds.")
    tenant_id: UUID
    kind: Literal["budget", "low_balance"]
    scope: Literal["tenant", "project", "key", "end_user", "tag"]
    scope_id: UUID
    label: str | None = Field(description="The end user or tag, as user=NAME or tag_NAME=VALUE; else null.")
    amount_usd: str | None
    thresholds: list[int]
    current_usd: str = Field(description="Spent this UTC month, or the balance.")
    fired: list[int] = Field(description="Thresholds that fired this month.")


class AlertList(BaseModel):
    """All alerts of an organisation."""

    data: list[AlertOut]


class AlertUpdate(RequestBody):
    """An alert to create or replace."""

    kind: Literal["budget", "low_balance"] = "budget"
    scope: Literal["tenant", "project", "key"] = "tenant"
    scope_id: UUID | None = Field(default=None, description="Project or key; default: the organisation.")
    amount_usd: Usd | None = None
    thresholds: list[Annotated[int, Field(ge=1, le=1000)]] | None = Field(
        default=None, max_length=10, examples=[[50, 80, 100]]
    )


class EndpointOut(ResponseModel):
    """A notification endpoint: a webhook URL or a mail address."""

    id: UUID
    tenant_id: UUID | None
    channel: Literal["webhook", "email"]
    target: str
    kinds: list[str] | None
    created_by: str
    created_at: datetime


class EndpointList(BaseModel):
    """Notification endpoints."""

    data: list[EndpointOut]


class EndpointCreated(BaseModel):
    """A new endpoint. Its secret is returned only in this response."""

    endpoint: EndpointOut
    secret: str | None


class EndpointCreate(RequestBody):
    """A notification endpoint to add."""

    tenant_id: UUID | None = None
    channel: Literal["webhook", "email"]
    target: str = Field(min_length=3, max_length=500, examples=["https://hooks.example.com/penstock"])
    kinds: list[Annotated[str, Field(min_length=1, max_length=100)]] | None = Field(
        default=None, max_length=50
    )


class NoticeOut(ResponseModel):
    """A notice and the state of its deliveries."""

    id: UUID
    tenant_id: UUID | None
    kind: str
    subject: str
    body: str
    facts: dict[str, Any]
    created_at: datetime
    deliveries: list[dict[str, Any]]


class TestNoticeCreate(RequestBody):
    """The organisation whose endpoints get a test notice; null = the platform."""

    tenant_id: UUID | None = None


def router(deps: AdminDeps) -> APIRouter:
    """Routes of alerts."""
    routes = deps.router("alerts")
    _rule_routes(routes, deps)
    _endpoint_routes(routes, deps)
    _notice_routes(routes, deps)
    return routes


def _rule_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/tenants/{tenant_id}/alerts", summary="Budgets and alerts of an organisation")
    async def list_alerts(actor: Annotated[Actor, auth], tenant_id: UUID) -> AlertList:
        rows = await admin_alerts.list_alerts(deps.database, actor, tenant_id=tenant_id)
        return AlertList(data=[AlertOut.model_validate(row) for row in rows])

    @routes.put("/tenants/{tenant_id}/alerts", summary="Create or replace a budget or low-balance alert")
    async def set_alert(actor: Annotated[Actor, auth], tenant_id: UUID, body: AlertUpdate) -> AlertList:
        rows = await admin_alerts.set_alert(deps.database, actor, tenant_id=tenant_id, **body.model_dump())
        return AlertList(data=[AlertOut.model_validate(row) for row in rows])

    @routes.delete("/tenants/{tenant_id}/alerts", status_code=204, summary="Remove an alert")
    async def remove_alert(
        actor: Annotated[Actor, auth],
        tenant_id: UUID,
        kind: Literal["budget", "low_balance"],
        scope_id: UUID | None = None,
    ) -> None:
        await admin_alerts.remove_alert(
            deps.database, actor, tenant_id=tenant_id, kind=kind, scope_id=scope_id
        )


def _endpoint_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/alert-endpoints", summary="List notification endpoints")
    async def list_endpoints(
        actor: Annotated[Actor, auth], tenant_id: Annotated[UUID | None, _TENANT] = None
    ) -> EndpointList:
        rows = await admin_alerts.list_endpoints(deps.database, actor, tenant_id=tenant_id)
        return EndpointList(data=[EndpointOut.model_validate(row) for row in rows])

    @routes.post("/alert-endpoints", status_code=201, summary="Add a webhook URL or a mail address")
    async def add_endpoint(actor: Annotated[Actor, auth], body: EndpointCreate) -> EndpointCreated:
        created = await admin_alerts.add_endpoint(
            deps.database,
            actor,
            pepper=deps.pepper,
            allow_hosts=parse_hosts(deps.settings.webhook_allow_hosts),
            **body.model_dump(),
        )
        return EndpointCreated(endpoint=EndpointOut.model_validate(created.endpoint), secret=created.secret)

    @routes.delete("/alert-endpoints/{endpoint_id}", status_code=204, summary="Remove an endpoint")
    async def remove_endpoint(
        actor: Annotated[Actor, auth],
        endpoint_id: UUID,
        tenant_id: Annotated[UUID | None, _TENANT] = None,
    ) -> None:
        await admin_alerts.remove_endpoint(deps.database, actor, tenant_id=tenant_id, endpoint_id=endpoint_id)


def _notice_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.post("/notices/test", status_code=202, summary="Send a test notice to every endpoint")
    async def send_test(actor: Annotated[Actor, auth], body: TestNoticeCreate) -> None:
        await admin_alerts.send_test(deps.database, actor, tenant_id=body.tenant_id)

    @routes.get("/notices", summary="List notices of an organisation or the platform")
    async def list_notices(
        actor: Annotated[Actor, auth],
        tenant_id: Annotated[UUID | None, _TENANT] = None,
        limit: Limit = 100,
        after: After = None,
    ) -> Page[NoticeOut]:
        rows = await admin_alerts.list_notices(
            deps.database, actor, tenant_id=tenant_id, limit=limit + 1, after=after
        )
        return to_page(rows, limit, NoticeOut)

    @routes.get("/notices/outbox", summary="List mail that was kept because no SMTP server is set")
    async def list_outbox(
        actor: Annotated[Actor, auth], limit: Limit = 100, after: After = None
    ) -> Page[NoticeOut]:
        rows = await admin_alerts.list_outbox(deps.database, actor, limit=limit + 1, after=after)
        return to_page(rows, limit, NoticeOut)
