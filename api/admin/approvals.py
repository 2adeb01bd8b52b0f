"""Admin API: acts that wait for a second person, their decision, and the approval limit."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from admin import approval_limit, decisions, starter_credit
from admin.actor import Actor, require
from api.admin.billing import Usd
from api.admin.deps import WAITS, AdminDeps, Decision, Reason, RequestBody, ResponseModel
from billing.ledger.starter_credit import MAX_DAYS
from tenants.roles import PLATFORM_ROLES


class ApprovalOut(ResponseModel):
    """An act that one person requested and another must approve."""

    id: UUID
    kind: str
    tenant_id: UUID | None
    facts: dict[str, Any]
    requested_by: str
    requested_by_id: str = Field(description="The user's id, or `shell` for a command without a token.")
    requested_at: datetime
    decided_by: str | None
    decided_at: datetime | None
    decision: str | None


class ApprovalList(BaseModel):
    """Pending approvals, oldest first."""

    data: list[ApprovalOut]


class DecisionOut(ResponseModel):
    """A decided request, and what the act returned."""

    approval: ApprovalOut
    result: dict[str, Any] | None


class LimitOut(ResponseModel):
    """What one person may do alone."""

    limit_usd: str = Field(description="US dollars for one organisation in 30 days, all acts added up.")


class LimitUpdate(RequestBody):
    """Another limit, and why."""

    limit_usd: Usd
    reason: Reason


def router(deps: AdminDeps) -> APIRouter:
    """Routes of approvals and of the limit."""
    routes = deps.router("billing")
    _approval_routes(routes, deps)
    _limit_routes(routes, deps)
    _starter_credit_routes(routes, deps)
    return routes


def _approval_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/approvals", summary="List pending approvals")
    async def list_approvals(
        actor: Annotated[Actor, auth],
        kind: Annotated[str | None, Query(max_length=100)] = None,
        tenant_id: UUID | None = None,
    ) -> ApprovalList:
        rows = await decisions.list_approvals(deps.database, actor, kind=kind, tenant_id=tenant_id)
        return ApprovalList(data=[ApprovalOut.model_validate(row) for row in rows])

    @routes.post(
        "/approvals/{approval_id}/decision",
        summary="Approve an act of another person, which carries it out, or reject it",
    )
    async def decide(actor: Annotated[Actor, auth], approval_id: UUID, body: Decision) -> DecisionOut:
        decided = await decisions.decide(
            deps.database, actor, approval_id=approval_id, approve=body.approve, reason=body.reason
        )
        return DecisionOut.model_validate(decided)


class StarterCreditOut(ResponseModel):
    """What a new prepaid organisation gets."""

    amount_usd: str
    expires_days: int | None


class StarterCreditUpdate(RequestBody):
    """The starter credit of organisations that are made from now on; amount 0 = none."""

    amount_usd: Usd
    expires_days: int | None = Field(default=None, ge=1, le=MAX_DAYS, description="Default: no expiry.")
    reason: Reason


def _starter_credit_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/starter-credit", summary="What a new prepaid organisation gets")
    async def get_starter_credit(actor: Annotated[Actor, auth]) -> StarterCreditOut:
        return StarterCreditOut.model_validate(await starter_credit.get_starter_credit(deps.database, actor))

    @routes.put(
        "/starter-credit",
        responses=WAITS,
        summary="Change it; on a platform with two people this waits for another person",
    )
    async def set_starter_credit(
        actor: Annotated[Actor, auth], body: StarterCreditUpdate
    ) -> StarterCreditOut:
        return StarterCreditOut.model_validate(
            await starter_credit.set_starter_credit(
                deps.database,
                actor,
                amount_usd=body.amount_usd,
                expires_days=body.expires_days,
                reason=body.reason,
            )
        )


def _limit_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/approval-limit", summary="What one person may do alone")
    async def get_limit(actor: Annotated[Actor, auth]) -> LimitOut:
        require(actor, *PLATFORM_ROLES)
        return LimitOut.model_validate(await approval_limit.get_limit(deps.database))

    @routes.put(
        "/approval-limit",
        responses=WAITS,
        summary="Change it; on a platform with two people this waits for another person",
    )
    async def set_limit(actor: Annotated[Actor, auth], body: LimitUpdate) -> LimitOut:
        return LimitOut.model_validate(
            await approval_limit.set_limit(deps.database, actor, usd=body.limit_usd, reason=body.reason)
        )
