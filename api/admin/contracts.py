"""Admin API: contracts and manual adjustments."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from admin import adjustments as admin_adjustments
from admin import contracts as admin_contracts
from admin.actor import Actor
from api.admin.billing import Usd
from api.admin.deps import WAITS, AdminDeps, Decision, Limit, Reason, RequestBody, ResponseModel

Month = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}$", examples=["2026-11"])]


class SlaBody(RequestBody):
    """A service level: its metric, its threshold, and the credit for missing it."""

    metric: Literal["ttft", "availability"]
    percentile: int | None = Field(
        default=None, description="Percentile of the times to first token: 50, 75, 90, 95 or 99."
    )
    threshold: int | str = Field(
        description='ttft: whole milliseconds; availability: a percentage such as "99.9".'
    )
    credit_percent: int = Field(description="Percentage of the month's charges credited for a miss.")


class ContractOut(ResponseModel):
    """A contract. Its discount is applied in the organisation's prices."""

    id: UUID
    tenant_id: UUID
    effective_from: datetime
    effective_to: datetime | None
    discount_bps: int
    commit_monthly_usd: str | None
    payment_days: int
    automatic_payment: bool
    sla: dict[str, Any] | None
    reason: str
    created_by: str
    ended_by: str | None


class EndedContractOut(ContractOut):
    """A contract that was ended, and what remains due of its committed spend."""

    commitment_due_usd: str | None = Field(
        description="For the month inside which the contract ends; null: nothing."
    )
    warning: str | None


class ContractList(BaseModel):
    """Contracts by organisation and start."""

    data: list[ContractOut]


class ContractCreate(RequestBody):
    """A contract to create."""

    effective_from: datetime | None = Field(default=None, description="Default: now.")
    effective_to: datetime | None = None
    discount_bps: int = Field(default=0, description="Basis points off the list price: 1500 = 15 %.")
    commit_monthly_usd: Usd | None = Field(default=None, description="Minimum charge of a month.")
    payment_days: int = 30
    automatic_payment: bool = Field(
        default=False,
        description="Charge the saved card for invoices instead of mailing them with their due date.",
    )
    sla: SlaBody | None = None
    currency: str = Field(default="USD", max_length=20)
    below_cost: bool = Field(
        default=False,
        description="Save it although its discount puts prices below cost; without it the answer is then 409 "
        "`price_below_cost`.",
    )
    reason: Reason


class ContractEnd(RequestBody):
    """The end of a contract."""

    at: datetime | None = Field(default=None, description="Default: now.")
    reason: Reason


class AdjustmentOut(ResponseModel):
    """A booked adjustment. A positive amount is in the customer's favour."""

    id: UUID
    tenant_id: UUID
    amount_usd: str
    uncollectible_usd: str
    reason: str
    corrects: str | None
    facts: dict[str, Any] | None
    created_by: str
    approved_by: str | None
    created_at: datetime


class AdjustmentList(BaseModel):
    """Adjustments, newest first."""

    data: list[AdjustmentOut]


class AdjustmentCreate(RequestBody):
    """An adjustment to request."""

    amount_usd: Annotated[str, Field(pattern=r"^-?[0-9]{1,15}(\.[0-9]{1,12})?$", examples=["12.50", "-3"])]
    reason: Reason
    corrects: Month | None = Field(default=None, description="The month that is corrected.")
    adjustment_id: UUID | None = Field(default=None, description="Makes the request idempotent.")


class AdjustmentRequestOut(ResponseModel):
    """A requested adjustment and its state."""

    id: UUID
    tenant_id: UUID
    amount_usd: str
    reason: str
    corrects: str | None
    requested_by: str
    status: Literal["booked", "waiting", "rejected"]
    decided_by: str | None


class AdjustmentRequestList(BaseModel):
    """Adjustments that wait for approval, oldest first."""

    data: list[AdjustmentRequestOut]


def router(deps: AdminDeps) -> APIRouter:
    """Routes of contracts and adjustments."""
    routes = deps.router("billing")
    _contract_routes(routes, deps)
    _adjustment_routes(routes, deps)
    return routes


def _contract_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/contracts", summary="Contracts of organisations")
    async def list_contracts(actor: Annotated[Actor, auth], tenant_id: UUID | None = None) -> ContractList:
        rows = await admin_contracts.list_contracts(deps.database, actor, tenant_id=tenant_id)
        return ContractList(data=[ContractOut.model_validate(row) for row in rows])

    @routes.post(
        "/tenants/{tenant_id}/contracts", status_code=201, responses=WAITS, summary="Create a contract"
    )
    async def add_contract(
        actor: Annotated[Actor, auth], tenant_id: UUID, body: ContractCreate
    ) -> ContractOut:
        facts = body.model_dump()
        facts["sla"] = None if body.sla is None else body.sla.model_dump(exclude_none=True)
        contract = await admin_contracts.add_contract(deps.database, actor, tenant_id=tenant_id, **facts)
        return ContractOut.model_validate(contract)

    @routes.post("/contracts/{contract_id}/end", responses=WAITS, summary="End a contract and its prices")
    async def end_contract(
        actor: Annotated[Actor, auth], contract_id: UUID, body: ContractEnd
    ) -> EndedContractOut:
        contract = await admin_contracts.end_contract(
            deps.database, actor, contract_id=contract_id, **body.model_dump()
        )
        return EndedContractOut.model_validate(contract)


def _adjustment_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/adjustments", summary="Booked adjustments")
    async def list_adjustments(
        actor: Annotated[Actor, auth],
        tenant_id: UUID | None = None,
        month: Annotated[
            str | None, Query(max_length=7, description="The month in which they were booked.")
        ] = None,
        limit: Limit = 100,
    ) -> AdjustmentList:
        rows = await admin_adjustments.list_adjustments(
            deps.database, actor, tenant_id=tenant_id, month=month, limit=limit
        )
        return AdjustmentList(data=[AdjustmentOut.model_validate(row) for row in rows])

    @routes.post(
        "/tenants/{tenant_id}/adjustments",
        status_code=201,
        summary="Request an adjustment; above the approval limit it waits for a second person",
    )
    async def request_adjustment(
        actor: Annotated[Actor, auth], tenant_id: UUID, body: AdjustmentCreate
    ) -> AdjustmentRequestOut:
        made = await admin_adjustments.request_adjustment(
            deps.database,
            actor,
            tenant_id=tenant_id,
            **body.model_dump(),
        )
        return AdjustmentRequestOut.model_validate(made)

    @routes.get("/adjustments/waiting", summary="List adjustments that wait for approval")
    async def list_requests(
        actor: Annotated[Actor, auth], tenant_id: UUID | None = None
    ) -> AdjustmentRequestList:
        rows = await admin_adjustments.list_requests(deps.database, actor, tenant_id=tenant_id)
        return AdjustmentRequestList(data=[AdjustmentRequestOut.model_validate(row) for row in rows])

    @routes.post("/adjustments/{approval_id}/decision", summary="Approve or reject an adjustment")
    async def decide_adjustment(
        actor: Annotated[Actor, auth], approval_id: UUID, body: Decision
    ) -> AdjustmentRequestOut:
        decided = await admin_adjustments.decide_adjustment(
            deps.database, actor, approval_id=approval_id, approve=body.approve, reason=body.reason
        )
        return AdjustmentRequestOut.model_validate(decided)
