"""Admin API: prices, credit, budgets and accounts."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, Field

from admin import accounts as admin_accounts
from admin import credits as admin_credits
from admin import prices as admin_prices
from admin.actor import Actor
from api.admin.deps import WAITS, AdminDeps, Limit, Reason, ReasonBody, RequestBody, ResponseModel

Usd = Annotated[str, Field(pattern=r"^[0-9]{1,15}(\.[0-9]{1,12})?$", max_length=30, examples=["10.00"])]
PerMtok = Annotated[str, Field(pattern=r"^[0-9]{1,9}(\.[0-9]{1,6})?$", examples=["0.50"])]


class PriceOut(ResponseModel):
    """A price version, in decimal dollars per million tokens."""

    id: int
    model: str
    tier: str
    tenant_id: UUID | None = Field(description="The organisation of a contract price; null = list price.")
    input: str
    cached_input: str
    output: str
    reasoning: str
    effective_from: datetime
    effective_to: datetime | None
    created_by: str
    status: Literal["ended", "current", "scheduled", "withdrawn"]
    contract_id: UUID | None = Field(description="The contract whose discount created it.")
    ended_by: str | None = Field(description="Who ended the price book; null when the next price follows.")
    currency: str


class PriceList(BaseModel):
    """Prices by model, tier and tenant."""

    data: list[PriceOut]


class PriceCreate(RequestBody):
    """A new price. It ends the price that is in force at its start."""

    model: str = Field(
        min_length=1,
        max_length=200,
        description="A model, or the public name of an adapter, whose price is that of its organisation.",
        examples=["llama-3.3-70b"],
    )
    tier: Literal["priority", "standard", "batch"] = "standard"
    tenant_id: UUID | None = Field(default=None, description="A contract price of this organisation.")
    input: PerMtok
    cached_input: PerMtok | None = Field(default=None, description="Default: the input price.")
    output: PerMtok
    reasoning: PerMtok | None = Field(default=None, description="Default: the output price.")
    effective_from: datetime | None = Field(default=None, description="Default: now.")
    currency: str = Field(default="USD", max_length=20, description="USD, before tax; no other is supported.")
    below_cost: bool = Field(
        default=False,
        description="Save it although a full host would not be paid for; without it such a price gets 409 "
        "`price_below_cost`.",
    )
    reason: Reason | None = None


class PriceEnd(RequestBody):
    """A price book to end. Afterwards the list or discounted price applies, or requests for the model are refused."""

    model: str = Field(min_length=1, max_length=200)
    tier: Literal["priority", "standard", "batch"] = "standard"
    tenant_id: UUID | None = None
    at: datetime | None = Field(default=None, description="Default: now.")
    reason: Reason


class UnpricedOut(ResponseModel):
    """Traffic without a price."""

    model: str
    tier: str
    tenant_id: UUID | None = Field(description="null: the model is offered and has no list price.")
    requests: int
    first_at: datetime | None
    last_at: datetime | None


class UnpricedList(BaseModel):
    """Models and tiers with traffic and without a price; normally empty."""

    data: list[UnpricedOut]


class AccountOut(ResponseModel):
    """A billing account; amounts are exact decimal dollars."""

    tenant_id: UUID
    mode: Literal["prepaid", "postpaid"]
    balance_usd: str
    held_usd: str
    available_usd: str | None
    open_requests: int
    owed_usd: str
    invoiced_usd: str
    credit_limit_usd: str | None
    budget_usd: str | None
    spent_this_month_usd: str


class GrantOut(ResponseModel):
    """A credit that was granted."""

    id: UUID
    tenant_id: UUID
    amount_usd: str
    reason: str
    created_by: str
    created_at: datetime


class GrantList(BaseModel):
    """Credits, newest first."""

    data: list[GrantOut]


class CreditGrant(RequestBody):
    """A credit to grant. Idempotent by `grant_id`."""

    amount_usd: Usd
    reason: Reason
    grant_id: UUID | None = None
    kind: Literal["promotional", "purchased"] = "promotional"
    expires_at: datetime | None = Field(default=None, description="Default: never.")
    priority: int | None = Field(default=None, description="Lower is used first; default by kind.")
    currency: str = Field(default="USD", max_length=20)


class LotOut(ResponseModel):
    """A credit lot and its remaining amount."""

    id: UUID
    kind: Literal["purchased", "promotional", "sla", "adjustment"]
    priority: int
    amount_usd: str
    remaining_usd: str
    used_usd: str
    expired_usd: str
    returned_usd: str
    expires_at: datetime | None
    created_at: datetime
    reason: str
    created_by: str


class LotList(BaseModel):
    """Credit lots in the order in which they are used."""

    data: list[LotOut]


class BudgetUpdate(RequestBody):
    """A monthly budget; null removes it."""

    budget_usd: Usd | None


class CreditLimitUpdate(RequestBody):
    """The largest amount that a postpaid organisation may owe, unpaid invoices included; null = no limit."""

    credit_limit_usd: Usd | None
    reason: Reason


def router(deps: AdminDeps) -> APIRouter:
    """Routes of prices and accounts."""
    routes = deps.router("billing")
    _price_routes(routes, deps)
    _account_routes(routes, deps)
    return routes


def _price_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/prices", summary="List prices and contract prices")
    async def list_prices(
        actor: Annotated[Actor, auth],
        model: Annotated[str | None, Query(max_length=200)] = None,
        tenant_id: UUID | None = None,
        history: Annotated[bool, Query(description="Include ended versions.")] = False,
    ) -> PriceList:
        rows = await admin_prices.list_prices(
            deps.database, actor, model=model, tenant_id=tenant_id, history=history
        )
        return PriceList(data=[PriceOut.model_validate(row) for row in rows])

    @routes.post("/prices", status_code=201, responses=WAITS, summary="Set or schedule a price")
    async def set_price(actor: Annotated[Actor, auth], body: PriceCreate) -> PriceOut:
        price = await admin_prices.set_price(deps.database, actor, **body.model_dump())
        return PriceOut.model_validate(price)

    @routes.post("/prices/end", responses=WAITS, summary="End a price book")
    async def end_price(actor: Annotated[Actor, auth], body: PriceEnd) -> PriceList:
        rows = await admin_prices.end_price(deps.database, actor, **body.model_dump())
        return PriceList(data=[PriceOut.model_validate(row) for row in rows])

    @routes.post("/prices/{version}/withdraw", responses=WAITS, summary="Withdraw a scheduled price")
    async def withdraw_price(
        actor: Annotated[Actor, auth],
        version: Annotated[int, Path(ge=1, lt=2**63)],
        body: ReasonBody,
    ) -> PriceOut:
        price = await admin_prices.withdraw_price(deps.database, actor, version=version, reason=body.reason)
        return PriceOut.model_validate(price)

    @routes.get("/prices/unpriced", summary="List traffic without a price")
    async def list_unpriced(actor: Annotated[Actor, auth]) -> UnpricedList:
        rows = await admin_prices.unpriced(deps.database, actor)
        return UnpricedList(data=[UnpricedOut.model_validate(row) for row in rows])


def _account_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/tenants/{tenant_id}/account", summary="Balance, held money and budget of an organisation")
    async def get_account(actor: Annotated[Actor, auth], tenant_id: UUID) -> AccountOut:
        return AccountOut.model_validate(
            await admin_accounts.get_account(deps.database, actor, tenant_id=tenant_id)
        )

    @routes.get("/tenants/{tenant_id}/credits", summary="List credits of an organisation")
    async def list_grants(actor: Annotated[Actor, auth], tenant_id: UUID, limit: Limit = 100) -> GrantList:
        rows = await admin_credits.list_grants(deps.database, actor, tenant_id=tenant_id, limit=limit)
        return GrantList(data=[GrantOut.model_validate(row) for row in rows])

    @routes.post(
        "/tenants/{tenant_id}/credits",
        status_code=201,
        responses=WAITS,
        summary="Grant credit; above the approval limit it waits for a second person",
    )
    async def grant_credit(actor: Annotated[Actor, auth], tenant_id: UUID, body: CreditGrant) -> AccountOut:
        account = await admin_credits.grant_credit(
            deps.database,
            actor,
            tenant_id=tenant_id,
            **body.model_dump(),
        )
        return AccountOut.model_validate(account)

    @routes.get("/tenants/{tenant_id}/credits/lots", summary="List credit lots with expiry and priority")
    async def list_lots(
        actor: Annotated[Actor, auth],
        tenant_id: UUID,
        spent: Annotated[bool, Query(description="Include lots with nothing left.")] = False,
    ) -> LotList:
        rows = await admin_credits.list_lots(deps.database, actor, tenant_id=tenant_id, spent=spent)
        return LotList(data=[LotOut.model_validate(row) for row in rows])

    @routes.put("/tenants/{tenant_id}/budget", summary="Set or remove the monthly budget")
    async def set_budget(actor: Annotated[Actor, auth], tenant_id: UUID, body: BudgetUpdate) -> AccountOut:
        account = await admin_accounts.set_budget(
            deps.database, actor, tenant_id=tenant_id, usd=body.budget_usd
        )
        return AccountOut.model_validate(account)

    @routes.put(
        "/tenants/{tenant_id}/credit-limit",
        responses=WAITS,
        summary="Set what a postpaid organisation may owe; a raise above the approval limit waits",
    )
    async def set_credit_limit(
        actor: Annotated[Actor, auth], tenant_id: UUID, body: CreditLimitUpdate
    ) -> AccountOut:
        account = await admin_accounts.set_credit_limit(
            deps.database,
            actor,
            tenant_id=tenant_id,
            usd=body.credit_limit_usd,
            reason=body.reason,
        )
        return AccountOut.model_validate(account)
