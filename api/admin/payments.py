"""Admin API: purchases of credit, automatic top-ups, refunds, disputes, Stripe's events and comparisons."""

from datetime import date, datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from admin import payments as admin_payments
from admin.actor import Actor
from api.admin.billing import Usd
from api.admin.deps import AdminDeps, Decision, Limit, Reason, RequestBody, ResponseModel
from billing.payments.stripe_gateway import open_gateway

Month = Annotated[str, Field(pattern=r"^[0-9]{4}-(0[1-9]|1[0-2])$", examples=["2026-10"])]
TenantFilter = Annotated[UUID | None, Query(description="Only of this organisation.")]


class CustomerOut(ResponseModel):
    """An organisation as a customer of Stripe."""

    tenant_id: UUID
    name: str
    customer_id: str | None
    tax_id: str | None
    card: str | None
    dunning: Literal["current", "past_due", "suspended"]
    dunning_since: datetime | None


class TopupOut(ResponseModel):
    """A purchase of credit."""

    id: UUID
    tenant_id: UUID
    kind: Literal["checkout", "auto"]
    amount_usd: str
    status: Literal["pending", "succeeded", "failed", "expired"]
    payment_intent: str | None
    error: str | None
    created_by: str
    created_at: datetime
    url: str | None


class TopupStartedOut(ResponseModel):
    """A purchase that is paid at `url`."""

    id: UUID
    amount_usd: str
    url: str


class TopupCreate(RequestBody):
    """A purchase to start. Idempotent by `topup_id`."""

    amount_usd: Usd
    return_url: str = Field(
        min_length=8, max_length=1000, pattern=r"^https?://", examples=["https://example.com"]
    )
    topup_id: UUID | None = None


class AutoTopupOut(ResponseModel):
    """The automatic top-up of an organisation."""

    tenant_id: UUID
    enabled: bool
    threshold_usd: str
    amount_usd: str
    monthly_cap_usd: str
    bought_this_month_usd: str
    failures: int
    disabled_reason: str | None


class AutoTopupUpdate(RequestBody):
    """Buy `amount_usd` when the balance falls below `threshold_usd`, at most `monthly_cap_usd` in a UTC month."""

    enabled: bool = True
    threshold_usd: Usd
    amount_usd: Usd
    monthly_cap_usd: Usd


class TaxIdUpdate(RequestBody):
    """A tax id; `kind` is one of Stripe's types."""

    kind: str = Field(min_length=2, max_length=20, examples=["eu_vat"])
    value: str = Field(min_length=1, max_length=40, examples=["DE123456789"])


class PaymentOut(ResponseModel):
    """A payment that was received."""

    payment_intent: str
    tenant_id: UUID
    purpose: Literal["topup", "invoice"]
    amount_usd: str
    invoice_id: UUID | None
    paid_at: datetime


class RefundOut(ResponseModel):
    """A refund."""

    id: UUID
    tenant_id: UUID
    payment_intent: str
    amount_usd: str
    status: Literal["requested", "pending", "succeeded", "failed"]
    reason: str
    error: str | None
    created_by: str
    created_at: datetime


class RefundCreate(RequestBody):
    """Purchased credit to refund; without an amount, all that is left of the purchase."""

    payment_intent: str = Field(min_length=3, max_length=100, examples=["pi_123"])
    amount_usd: Usd | None = None
    reason: Reason
    refund_id: UUID | None = None


class RefundRequestOut(ResponseModel):
    """A requested refund. While it waits for approval, `id` is that of the approval."""

    id: UUID
    tenant_id: UUID
    amount_usd: str
    payment_intent: str
    status: Literal["requested", "waiting", "rejected"]


class DisputeOut(ResponseModel):
    """A chargeback."""

    id: str
    tenant_id: UUID
    payment_intent: str
    amount_usd: str
    fee_usd: str
    clawed_back_usd: str
    reason: str
    status: str
    evidence_due_at: datetime | None
    opened_at: datetime


class EventOut(ResponseModel):
    """An event of Stripe and its outcome."""

    id: str
    type: str
    object_id: str
    found_by: Literal["webhook", "list"]
    outcome: str | None
    attempts: int
    error: str | None
    created_at: datetime
    applied_at: datetime | None


class ComparisonOut(ResponseModel):
    """A month compared with Stripe; equal when `problems` is empty."""

    month: date
    began_at: datetime
    at: datetime
    ok: bool
    invoices: int
    invoiced_usd: str
    paid_usd: str
    movements: int
    metered_tokens: int
    problems: list[str]


class TopupList(BaseModel):
    """Purchases, newest first."""

    data: list[TopupOut]


class CustomerList(BaseModel):
    """Customers."""

    data: list[CustomerOut]


class PaymentList(BaseModel):
    """Payments, newest first."""

    data: list[PaymentOut]


class RefundList(BaseModel):
    """Refunds, newest first."""

    data: list[RefundOut]


class DisputeList(BaseModel):
    """Disputes, newest first."""

    data: list[DisputeOut]


class EventList(BaseModel):
    """Events, newest first."""

    data: list[EventOut]


class RefundRequestList(BaseModel):
    """Refunds that wait for approval, oldest first."""

    data: list[RefundRequestOut]


class ComparisonList(BaseModel):
    """Comparisons, newest first."""

    data: list[ComparisonOut]


def router(deps: AdminDeps) -> APIRouter:
    """Routes of payments."""
    routes = deps.router("payments")
    _list_routes(routes, deps)
    _topup_routes(routes, deps)
    _refund_routes(routes, deps)
    return routes


def _list_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/payments/customers", summary="List customers with Stripe id, card and dunning state")
    async def list_customers(
        actor: Annotated[Actor, auth], tenant_id: TenantFilter = None, limit: Limit = 100
    ) -> CustomerList:
        rows = await admin_payments.list_customers(deps.database, actor, tenant_id=tenant_id, limit=limit)
        return CustomerList(data=[CustomerOut.model_validate(row) for row in rows])

    @routes.get("/payments/topups", summary="List purchases of credit")
    async def list_topups(
        actor: Annotated[Actor, auth], tenant_id: TenantFilter = None, limit: Limit = 100
    ) -> TopupList:
        rows = await admin_payments.list_topups(deps.database, actor, tenant_id=tenant_id, limit=limit)
        return TopupList(data=[TopupOut.model_validate(row) for row in rows])

    @routes.get("/payments", summary="List payments")
    async def list_payments(
        actor: Annotated[Actor, auth], tenant_id: TenantFilter = None, limit: Limit = 100
    ) -> PaymentList:
        rows = await admin_payments.list_payments(deps.database, actor, tenant_id=tenant_id, limit=limit)
        return PaymentList(data=[PaymentOut.model_validate(row) for row in rows])

    @routes.get("/payments/refunds", summary="List refunds")
    async def list_refunds(
        actor: Annotated[Actor, auth], tenant_id: TenantFilter = None, limit: Limit = 100
    ) -> RefundList:
        rows = await admin_payments.list_refunds(deps.database, actor, tenant_id=tenant_id, limit=limit)
        return RefundList(data=[RefundOut.model_validate(row) for row in rows])

    @routes.get("/payments/disputes", summary="List disputes")
    async def list_disputes(
        actor: Annotated[Actor, auth], tenant_id: TenantFilter = None, limit: Limit = 100
    ) -> DisputeList:
        rows = await admin_payments.list_disputes(deps.database, actor, tenant_id=tenant_id, limit=limit)
        return DisputeList(data=[DisputeOut.model_validate(row) for row in rows])

    @routes.get("/payments/events", summary="List Stripe's events and their outcomes")
    async def list_events(actor: Annotated[Actor, auth], open: bool = False, limit: Limit = 100) -> EventList:
        rows = await admin_payments.list_events(deps.database, actor, only_open=open, limit=limit)
        return EventList(data=[EventOut.model_validate(row) for row in rows])

    @routes.get("/payments/comparisons", summary="List comparisons with Stripe")
    async def list_comparisons(actor: Annotated[Actor, auth], limit: Limit = 20) -> ComparisonList:
        rows = await admin_payments.list_comparisons(deps.database, actor, limit=limit)
        return ComparisonList(data=[ComparisonOut.model_validate(row) for row in rows])


def _topup_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.post("/tenants/{tenant_id}/topups", status_code=201, summary="Start a purchase of credit")
    async def start_topup(
        actor: Annotated[Actor, auth], tenant_id: UUID, body: TopupCreate
    ) -> TopupStartedOut:
        async with open_gateway(deps.settings) as gateway:
            started = await admin_payments.start_topup(
                deps.database, actor, gateway, tenant_id=tenant_id, **body.model_dump()
            )
        return TopupStartedOut.model_validate(started)

    @routes.get("/tenants/{tenant_id}/auto-topup", summary="Get the automatic top-up")
    async def get_auto_topup(actor: Annotated[Actor, auth], tenant_id: UUID) -> AutoTopupOut | None:
        rule = await admin_payments.get_auto_topup(deps.database, actor, tenant_id=tenant_id)
        return None if rule is None else AutoTopupOut.model_validate(rule)

    @routes.put("/tenants/{tenant_id}/auto-topup", summary="Set the automatic top-up")
    async def set_auto_topup(
        actor: Annotated[Actor, auth], tenant_id: UUID, body: AutoTopupUpdate
    ) -> AutoTopupOut:
        rule = await admin_payments.set_auto_topup(
            deps.database, actor, tenant_id=tenant_id, **body.model_dump()
        )
        return AutoTopupOut.model_validate(rule)

    @routes.put("/tenants/{tenant_id}/tax-id", status_code=204, summary="Set the tax id on invoices")
    async def set_tax_id(actor: Annotated[Actor, auth], tenant_id: UUID, body: TaxIdUpdate) -> None:
        async with open_gateway(deps.settings) as gateway:
            await admin_payments.set_tax_id(
                deps.database, actor, gateway, tenant_id=tenant_id, **body.model_dump()
            )


def _refund_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.post(
        "/tenants/{tenant_id}/refunds",
        status_code=201,
        summary="Refund purchased credit; above the approval limit it waits for a second person",
    )
    async def request_refund(
        actor: Annotated[Actor, auth], tenant_id: UUID, body: RefundCreate
    ) -> RefundRequestOut:
        made = await admin_payments.refund(
            deps.database,
            actor,
            tenant_id=tenant_id,
            **body.model_dump(),
        )
        return RefundRequestOut.model_validate(made)

    @routes.get("/payments/refunds/waiting", summary="List refunds that wait for approval")
    async def list_waiting_refunds(
        actor: Annotated[Actor, auth], tenant_id: TenantFilter = None
    ) -> RefundRequestList:
        rows = await admin_payments.list_waiting_refunds(deps.database, actor, tenant_id=tenant_id)
        return RefundRequestList(data=[RefundRequestOut.model_validate(row) for row in rows])

    @routes.post("/payments/refunds/{approval_id}/decision", summary="Approve or reject a refund")
    async def decide_refund(
        actor: Annotated[Actor, auth], approval_id: UUID, body: Decision
    ) -> RefundRequestOut:
        decided = await admin_payments.decide_refund(
            deps.database, actor, approval_id=approval_id, approve=body.approve, reason=body.reason
        )
        return RefundRequestOut.model_validate(decided)

    @routes.post("/payments/comparisons/{month}", status_code=201, summary="Compare a month with Stripe")
    async def compare_month(actor: Annotated[Actor, auth], month: Month) -> ComparisonOut:
        first = date.fromisoformat(f"{month}-01")
        async with open_gateway(deps.settings) as gateway:
            found = await admin_payments.compare(deps.database, actor, gateway, month=first)
        return ComparisonOut.model_validate(found)
