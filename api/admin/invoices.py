"""Admin API: invoices and accounting months."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, Field

from admin import invoices as admin_invoices
from admin import periods as admin_periods
from admin.actor import Actor
from api.admin import corrections
from api.admin.deps import (
    WAITS,
    AdminDeps,
    After,
    Limit,
    MonthFilter,
    OptionalReasonBody,
    Page,
    ReasonBody,
    RequestBody,
    ResponseModel,
    to_page,
)
from billing.ledger.months import parse_month

MonthPath = Annotated[str, Path(max_length=7, description="A month such as 2026-11.")]
InvoiceRef = Annotated[str, Path(max_length=80, description="Id or number of the invoice.")]


class InvoiceOut(ResponseModel):
    """An invoice. Amounts are decimal dollars."""

    id: UUID
    tenant_id: UUID
    tenant: str
    month: str
    number: str | None
    kind: Literal["postpaid", "prepaid"]
    status: Literal["draft", "open", "paid", "void", "uncollectible", "settled"]
    currency: str
    exact_usd: str = Field(description="The exact sum of the lines.")
    total_usd: str = Field(description="The sum of the lines' cents.")
    credited_usd: str
    open_usd: str = Field(
        description="What is neither paid nor credited; of an open or uncollectible invoice."
    )
    carried_usd: str = Field(description="Amount carried over to the next invoice.")
    due_at: datetime | None
    finalized_at: datetime | None
    paid_at: datetime | None
    stripe_invoice_id: str | None


class InvoiceLineOut(ResponseModel):
    """A line: usage by model, token class, tier and price version, or another movement of the month."""

    id: UUID
    position: int
    kind: Literal["usage", "late_usage", "adjustment", "commit", "sla", "carried"]
    description: str
    model: str
    token_class: str
    tier: str
    price_version: int | None
    tokens: int
    price_per_mtok_usd: str | None
    exact_usd: str
    amount_usd: str = Field(description="The exact amount rounded once to cents, half away from zero.")
    adjustment_id: UUID | None
    stripe_item_id: str | None


class CreditNoteOut(ResponseModel):
    """A credit note for a finalised invoice."""

    id: UUID
    invoice_id: UUID
    reason: str
    exact_usd: str
    amount_usd: str
    pays: Literal["invoice", "balance", "refund"]
    balance_usd: str = Field(
        description="The part on the customer's balance, known when Stripe has the note."
    )
    refund_usd: str = Field(description="The part that is paid back, known when Stripe has the note.")
    status: str
    correction_id: UUID | None
    stripe_credit_note_id: str | None
    created_at: datetime


class InvoiceDetailOut(ResponseModel):
    """An invoice with its lines and credit notes."""

    invoice: InvoiceOut
    lines: list[InvoiceLineOut]
    credit_notes: list[CreditNoteOut]


class TraceRowOut(ResponseModel):
    """A request of an invoice line."""

    request_id: UUID
    ended_at: datetime
    used_at: datetime
    project_id: UUID
    key_id: UUID
    tokens: int
    exact_usd: str


class TraceOut(ResponseModel):
    """A page of a line's requests. The next page begins after the id `next`; null at the end."""

    line: InvoiceLineOut
    rows: list[TraceRowOut]
    next: UUID | None


class InvoiceRunOut(ResponseModel):
    """The result of an invoice run."""

    month: str
    tenants: int
    made: int
    lines: int
    total_cents: int


class MonthBody(RequestBody):
    """A month."""

    month: str = Field(max_length=7, examples=["2026-11"])


class PeriodOut(ResponseModel):
    """An accounting month."""

    month: str
    status: Literal["open", "closed"]
    starts_at: datetime
    ends_at: datetime
    invoiced_at: datetime | None
    closed_at: datetime | None
    closed_by: str | None


class PeriodList(BaseModel):
    """Accounting months since the first booking, newest first."""

    data: list[PeriodOut]


class CheckOut(ResponseModel):
    """The result of one check. `detail` says what to do when it fails."""

    name: str
    ok: bool
    detail: str


class ChecklistOut(ResponseModel):
    """The checks of a month, which must all pass before it can be closed."""

    month: str
    ok: bool
    checks: list[CheckOut]


def router(deps: AdminDeps) -> APIRouter:
    """Routes of invoices, periods and corrections."""
    routes = deps.router("invoices")
    _invoice_routes(routes, deps)
    _period_routes(routes, deps)
    corrections.add_routes(routes, deps)
    return routes


def _invoice_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/invoices", summary="List invoices, newest month first")
    async def list_invoices(
        actor: Annotated[Actor, auth],
        month: MonthFilter = None,
        tenant_id: UUID | None = None,
        status: Annotated[str | None, Query(max_length=20)] = None,
        limit: Limit = 100,
        after: After = None,
    ) -> Page[InvoiceOut]:
        rows = await admin_invoices.list_invoices(
            deps.database,
            actor,
            month=None if month is None else parse_month(month),
            tenant_id=tenant_id,
            status=status,
            limit=limit + 1,
            after=after,
        )
        return to_page(rows, limit, InvoiceOut)

    @routes.post("/invoices/make", summary="Create the missing invoices of a month")
    async def make_invoices(actor: Annotated[Actor, auth], body: MonthBody) -> InvoiceRunOut:
        done = await admin_invoices.make_invoices(deps.database, actor, month=parse_month(body.month))
        return InvoiceRunOut.model_validate(done)

    @routes.get("/invoices/{ref}", summary="An invoice with its lines and credit notes")
    async def show_invoice(actor: Annotated[Actor, auth], ref: InvoiceRef) -> InvoiceDetailOut:
        return InvoiceDetailOut.model_validate(
            await admin_invoices.show_invoice(deps.database, actor, ref=ref)
        )

    @routes.get("/invoice-lines/{line_id}/requests", summary="List the requests of a line")
    async def trace_line(
        actor: Annotated[Actor, auth], line_id: UUID, limit: Limit = 100, after: After = None
    ) -> TraceOut:
        found = await admin_invoices.trace_line(
            deps.database, actor, line_id=line_id, limit=limit, after=after
        )
        return TraceOut.model_validate(found)

    @routes.post("/invoices/{ref}/void", summary="Void an open invoice")
    async def void_invoice(actor: Annotated[Actor, auth], ref: InvoiceRef, body: ReasonBody) -> InvoiceOut:
        done = await admin_invoices.void_invoice(deps.database, actor, ref=ref, reason=body.reason)
        return InvoiceOut.model_validate(done)

    @routes.post(
        "/invoices/{ref}/write-off", responses=WAITS, summary="Write off the open amount of an invoice"
    )
    async def write_off_invoice(
        actor: Annotated[Actor, auth], ref: InvoiceRef, body: ReasonBody
    ) -> InvoiceOut:
        done = await admin_invoices.write_off_invoice(
            deps.database,
            actor,
            ref=ref,
            reason=body.reason,
        )
        return InvoiceOut.model_validate(done)


def _period_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/periods", summary="List accounting months")
    async def list_periods(actor: Annotated[Actor, auth]) -> PeriodList:
        rows = await admin_periods.list_periods(deps.database, actor)
        return PeriodList(data=[PeriodOut.model_validate(row) for row in rows])

    @routes.get("/periods/{month}/checks", summary="The close checklist of a month")
    async def check_period(actor: Annotated[Actor, auth], month: MonthPath) -> ChecklistOut:
        found = await admin_periods.check_period(deps.database, actor, month=parse_month(month))
        return ChecklistOut.model_validate(found)

    @routes.post(
        "/periods/{month}/close", responses=WAITS, summary="Create the invoices of a month and close it"
    )
    async def close_period(
        actor: Annotated[Actor, auth], month: MonthPath, body: OptionalReasonBody
    ) -> ChecklistOut:
        closed = await admin_periods.close_period(
            deps.database, actor, month=parse_month(month), reason=body.reason
        )
        return ChecklistOut.model_validate(closed)

    @routes.post(
        "/parked-records/{request_id}/write-off",
        status_code=204,
        responses=WAITS,
        summary="Write off a usage record that could not be billed",
    )
    async def write_off_parked(actor: Annotated[Actor, auth], request_id: UUID, body: ReasonBody) -> None:
        await admin_periods.write_off_parked(deps.database, actor, request_id=request_id, reason=body.reason)
