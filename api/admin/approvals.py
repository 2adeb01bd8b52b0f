"""Admin API: acts that wait for a second person, their decision, and the rules about money."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from admin import decisions, money_rules, starter_credit
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
    decision: str | None = Field(
        description="approved, rejected, expired or within_limit; null while it waits."
    )
    expires_at: datetime | None


class ApprovalList(BaseModel):
    """Pending approvals, or expired ones, oldest first."""

    data: list[ApprovalOut]


class DecisionOut(ResponseModel):
    """A decided request, and what the act returned."""

    approval: ApprovalOut
    result: dict[str, Any] | None


class RulesOut(ResponseModel):
    """The platform's rules about money."""

    approval_limit_usd: str = Field(
        description="US dollars that one person may move alone for one organisation in 30 days, all acts added up."
    )
    approval_days: int = Field(description="Days that an act may wait for another person.")
    default_credit_limit_usd: str = Field(
        description="US dollars that a new postpaid organisation may owe, unpaid invoices included."
    )


class RulesUpdate(RequestBody):
    """The rules to change, and why."""

    approval_limit_usd: Usd | None = None
    approval_days: Annotated[int, Field(ge=1, le=money_rules.MAX_DAYS)] | None = None
    default_credit_limit_usd: Usd | None = None
    reason: Reason


def router(deps: AdminDeps) -> APIRouter:
    """Routes of approvals and of the rules about money."""
    routes = deps.router("billing")
    _approval_routes(routes, deps)
    _rule_routes(routes, deps)
    _starter_credit_routes(routes, deps)
    return routes


def _approval_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/approvals", summary="List pending approvals")
    async def list_approvals(
        actor: Annotated[Actor, auth],
        kind: Annotated[str | None, Query(max_length=100)] = None,
        tenant_id: UUID | None = None,
        expired: Annotated[
            bool, Query(description="Those that expired in the last 30 days instead.")
        ] = False,
    ) -> ApprovalList:
        rows = await decisions.list_approvals(
            deps.database, actor, kind=kind, tenant_id=tenant_id, expired=expired
        )
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


def _rule_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/money-rules", summary="The approval limit, how long acts wait, the default credit limit")
    async def get_rules(actor: Annotated[Actor, auth]) -> RulesOut:
        require(actor, *PLATFORM_ROLES)
        return RulesOut.model_validate(await money_rules.get_rules(deps.database))

    @routes.patch(
        "/money-rules",
        responses=WAITS,
        summary="Change them; on a platform with two people this waits for another person",
    )
    async def set_rules(actor: Annotated[Actor, auth], body: RulesUpdate) -> RulesOut:
        changed = await money_rules.set_rules(
            deps.database,
            actor,
            reason=body.reason,
            approval_limit_usd=body.approval_limit_usd,
            approval_days=body.approval_days,
            default_credit_limit_usd=body.default_credit_limit_usd,
        )
        return RulesOut.model_validate(changed)
