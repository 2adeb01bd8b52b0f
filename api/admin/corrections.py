"""Admin API: corrections of past months."""

from datetime import date, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from admin import corrections as admin_corrections
from admin.actor import Actor
from api.admin.deps import (
    AdminDeps,
    Decision,
    Limit,
    MonthFilter,
    Reason,
    ReasonBody,
    RequestBody,
    ResponseModel,
)
from billing.ledger.months import parse_month


class CorrectionDryRun(RequestBody):
    """A month to rate again, with other prices or with the prices as of another instant."""

    month: str = Field(max_length=7, examples=["2026-11"])
    spec: dict[str, Any] = Field(
        description="`rates` (model, input, output, optionally cached_input, reasoning, tier, tenant_id; dollars per "
        "million tokens) or `as_of` (an instant); optionally `tenant_id`, `model`, `refund`.",
        examples=[{"rates": [{"model": "llama-3.3-70b", "input": "0.40", "output": "1.20"}]}],
    )


class CorrectionCreate(CorrectionDryRun):
    """A correction to request."""

    reason: Reason


class TenantDeltaOut(ResponseModel):
    """The change for one organisation. A negative amount is in its favour."""

    tenant_id: UUID
    lines: int
    delta_usd: str


class CorrectionLineOut(ResponseModel):
    """An invoice line before and after the correction."""

    tenant_id: UUID
    kind: str
    model: str
    token_class: str
    tier: str
    price_version: int
    used_in: date | None = Field(
        description="Of late usage, and of the committed spend that it meets: the first day of the month it belongs to."
    )
    tokens: int
    old_price_per_mtok_usd: str | None
    new_price_per_mtok_usd: str | None
    old_usd: str
    new_usd: str
    delta_usd: str


class DryRunOut(ResponseModel):
    """The changes that a correction would make."""

    month: str
    until: datetime
    delta_usd: str
    tenants: list[TenantDeltaOut]
    lines: list[CorrectionLineOut]


class CorrectionOut(ResponseModel):
    """A stored correction."""

    id: UUID
    month: str
    status: Literal["requested", "applying", "approved", "rejected", "expired"]
    spec: dict[str, Any]
    reason: str
    reverses: UUID | None
    reversed_by: UUID | None
    approval_id: UUID
    delta_usd: str
    tenants: list[TenantDeltaOut]
    requested_by: str
    requested_at: datetime
    decided_by: str | None
    decided_at: datetime | None


class CorrectionList(BaseModel):
    """Corrections, newest first."""

    data: list[CorrectionOut]


class CorrectionDetail(BaseModel):
    """A correction and its lines."""

    correction: CorrectionOut
    lines: list[CorrectionLineOut]


def add_routes(routes: APIRouter, deps: AdminDeps) -> None:
    """Add the routes of corrections to those of invoices."""
    auth = Depends(deps.actor)

    @routes.get("/corrections", summary="List corrections of past months")
    async def list_corrections(
        actor: Annotated[Actor, auth], month: MonthFilter = None, limit: Limit = 100
    ) -> CorrectionList:
        rows = await admin_corrections.list_corrections(
            deps.database, actor, month=None if month is None else parse_month(month), limit=limit
        )
        return CorrectionList(data=[CorrectionOut.model_validate(row) for row in rows])

    @routes.post("/corrections/dry-run", summary="What a month would cost under other prices")
    async def dry_run(actor: Annotated[Actor, auth], body: CorrectionDryRun) -> DryRunOut:
        result = await admin_corrections.dry_run(
            deps.database, actor, month=parse_month(body.month), spec=body.spec
        )
        return DryRunOut.model_validate(result)

    @routes.post("/corrections", status_code=201, summary="Request a correction")
    async def request_correction(actor: Annotated[Actor, auth], body: CorrectionCreate) -> CorrectionOut:
        requested = await admin_corrections.request_correction(
            deps.database, actor, month=parse_month(body.month), spec=body.spec, reason=body.reason
        )
        return CorrectionOut.model_validate(requested)

    @routes.get("/corrections/{correction_id}", summary="A correction and its lines")
    async def show_correction(actor: Annotated[Actor, auth], correction_id: UUID) -> CorrectionDetail:
        found, lines = await admin_corrections.show_correction(
            deps.database, actor, correction_id=correction_id
        )
        return CorrectionDetail(
            correction=CorrectionOut.model_validate(found),
            lines=[CorrectionLineOut.model_validate(line) for line in lines],
        )

    @routes.post("/corrections/{correction_id}/decision", summary="Approve or reject a correction")
    async def decide(actor: Annotated[Actor, auth], correction_id: UUID, body: Decision) -> CorrectionOut:
        decided = await admin_corrections.decide_correction(
            deps.database, actor, correction_id=correction_id, approve=body.approve, reason=body.reason
        )
        return CorrectionOut.model_validate(decided)

    @routes.post(
        "/corrections/{correction_id}/reversal",
        status_code=201,
        summary="Request the reversal of a correction",
    )
    async def reverse(actor: Annotated[Actor, auth], correction_id: UUID, body: ReasonBody) -> CorrectionOut:
        requested = await admin_corrections.request_reversal(
            deps.database, actor, correction_id=correction_id, reason=body.reason
        )
        return CorrectionOut.model_validate(requested)
