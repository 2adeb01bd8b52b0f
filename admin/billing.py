"""Money: prices, credit, budgets, the account, and the usage report."""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, readable, require
from admin.approval_limit import Acting, Facts, instant_fact, parse_instant, under_limit
from admin.audit import record
from admin.transactions import page_size, read, read_scoped, write_system
from billing.ledger import accounts, credits
from billing.ledger.accounts import AccountView, GrantView
from billing.ledger.approvals import DEFAULT_LIMIT_USD
from billing.ledger.credits import Lot, LotKind
from billing.pricing import prices
from billing.pricing.prices import PriceView, Rates, Unpriced
from billing.reports.compare import ComparedRow, compare
from billing.reports.usage_report import Totals
from billing.reports.usage_report import totals as report_totals
from billing.reports.usage_report import usage_report as billing_report
from billing.usage.query import ReportQuery, ReportRow
from core.db import Database
from core.errors import InvalidRequest, NotFound
from core.ids import uuid7
from core.money import pico_to_usd, usd_to_pico
from tenants import organisations
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ROLES, READERS, TENANT_MANAGERS

PRICE_SET = "price.set"
PRICE_END = "price.end"
PRICE_WITHDRAW = "price.withdraw"
CREDIT_GRANT = "credit.grant"
CREDIT_LIMIT = "credit_limit.set"
"""Kinds of acts under the approval limit. A change of prices has no bound: it holds for all use from then on."""


async def set_price(
    database: Database,
    actor: Actor,
    *,
    model: str,
    tier: str = "standard",
    tenant_id: UUID | None = None,
    input: str,
    cached_input: str | None = None,
    output: str,
    reasoning: str | None = None,
    effective_from: datetime | None = None,
    currency: str = prices.CURRENCY,
    reason: str | None = None,
) -> PriceView:
    """Set a list price, or a contract price of `tenant_id`, in dollars per million tokens.

    Cached input defaults to the input price, reasoning to the output price. It holds from `effective_from` (None =
    now) until the next scheduled price. The first list price of a model and tier needs one person; every other waits
    for a second one. Raises InvalidRequest, Conflict, NotFound, WaitsForApproval.
    """
    require(actor, *PLATFORM_ROLES)
    prices.check_currency(currency)
    facts = {
        "model": model,
        "tier": tier,
        "input": input,
        "cached_input": input if cached_input is None else cached_input,
        "output": output,
        "reasoning": output if reasoning is None else reasoning,
        "effective_from": instant_fact(effective_from),
        "reason": None if reason is None else clean_reason(reason),
    }

    async def amount(connection: AsyncConnection) -> int | None:
        first = tenant_id is None and not await prices.was_priced(connection, model)
        return 0 if first else None

    return await under_limit(
        database,
        actor,
        apply_price,
        kind=PRICE_SET,
        tenant_id=tenant_id,
        amount=amount,
        facts=facts,
    )


async def apply_price(
    connection: AsyncConnection, acting: Acting, tenant_id: UUID | None, facts: Facts
) -> PriceView:
    """Carry out `set_price`."""
    if tenant_id is not None and await organisations.get_tenant(connection, tenant_id) is None:
        raise NotFound(f"there is no organisation with the id {tenant_id}", param="tenant_id")
    model, tier = facts["model"], facts["tier"]
    before = [
        price
        for price in await prices.list_prices(connection, model=model, tenant_id=tenant_id)
        if price.tier == tier and price.tenant_id == tenant_id
    ]
    price = await prices.set_price(
        connection,
        model=model,
        tier=tier,
        tenant_id=tenant_id,
        rates=Rates(**{name: facts[name] for name in Rates.__struct_fields__}),
        effective_from=parse_instant(facts["effective_from"]),
        created_by=acting.requested_by,
    )
    await record(
        connection,
        acting.actor,
        PRICE_SET,
        tenant_id=tenant_id,
        object_kind="price_version",
        object_id=str(price.id),
        reason=facts["reason"],
        before=None if not before else {"prices": msgspec.to_builtins(before)},
        after=price,
    )
    return price


async def end_price(
    database: Database,
    actor: Actor,
    *,
    model: str,
    tier: str = "standard",
    tenant_id: UUID | None = None,
    at: datetime | None = None,
    reason: str,
) -> list[PriceView]:
    """End a price book at `at` (None = now): afterwards a customer pays the list or discounted price, and without a
    list price the model is refused. Returns the versions that changed.

    Waits for a second person. Raises InvalidRequest, NotFound, WaitsForApproval.
    """
    require(actor, *PLATFORM_ROLES)
    facts = {
        "model": model,
        "tier": tier,
        "at": instant_fact(at),
        "reason": clean_reason(reason),
    }
    return await under_limit(
        database,
        actor,
        apply_price_end,
        kind=PRICE_END,
        tenant_id=tenant_id,
        amount=None,
        facts=facts,
    )


async def apply_price_end(
    connection: AsyncConnection, acting: Acting, tenant_id: UUID | None, facts: Facts
) -> list[PriceView]:
    """Carry out `end_price`."""
    model, tier = facts["model"], facts["tier"]
    ended = await prices.end_price(
        connection,
        model=model,
        tier=tier,
        tenant_id=tenant_id,
        at=parse_instant(facts["at"]),
        ended_by=acting.requested_by,
    )
    await record(
        connection,
        acting.actor,
        PRICE_END,
        tenant_id=tenant_id,
        object_kind="price_book",
        object_id=f"{model} {tier}",
        reason=facts["reason"],
        after={"prices": msgspec.to_builtins(ended)},
    )
    return ended


async def withdraw_price(database: Database, actor: Actor, *, version: int, reason: str) -> PriceView:
    """Take back a scheduled price before it begins. Waits for a second person.

    Raises NotFound, Conflict, WaitsForApproval.
    """
    require(actor, *PLATFORM_ROLES)
    return await under_limit(
        database,
        actor,
        apply_price_withdrawal,
        kind=PRICE_WITHDRAW,
        tenant_id=None,
        amount=None,
        facts={"version": version, "reason": clean_reason(reason)},
    )


async def apply_price_withdrawal(
    connection: AsyncConnection, acting: Acting, tenant_id: UUID | None, facts: Facts
) -> PriceView:
    """Carry out `withdraw_price`; the version names its organisation."""
    del tenant_id
    price = await prices.withdraw_price(connection, facts["version"], withdrawn_by=acting.requested_by)
    await record(
        connection,
        acting.actor,
        PRICE_WITHDRAW,
        tenant_id=price.tenant_id,
        object_kind="price_version",
        object_id=str(price.id),
        reason=facts["reason"],
        after=price,
    )
    return price


async def unpriced(
    database: Database, actor: Actor, *, start: datetime | None = None, end: datetime | None = None
) -> list[Unpriced]:
    """Refused requests of models without a price in [start, end), and offered models without one; normally none."""
    first, last = start or datetime.min.replace(tzinfo=UTC), end or datetime.max.replace(tzinfo=UTC)
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await prices.list_unpriced(connection, first, last)


async def ensure_list_prices(
    database: Database, actor: Actor, rates: Mapping[str, Rates], *, reason: str = "price of the catalog"
) -> list[PriceView]:
    """Set the list price (tier standard) of models in `rates` that never had one; returns the new prices.

    Existing prices are never overwritten.
    """
    async with read(database, actor, PLATFORM_ROLES) as connection:
        known = await prices.list_prices(connection, history=True)
    priced = {price.model for price in known if price.tier == "standard" and price.tenant_id is None}
    made = []
    for model, rate in rates.items():
        if model not in priced:
            amounts = msgspec.structs.asdict(rate)
            made.append(await set_price(database, actor, model=model, **amounts, reason=reason))
    return made


async def list_prices(
    database: Database,
    actor: Actor,
    *,
    model: str | None = None,
    tenant_id: UUID | None = None,
    history: bool = False,
) -> list[PriceView]:
    """Current and scheduled prices. A tenant role sees list prices and its own contract prices."""
    scope = tenant_id if actor.is_platform else actor.tenant_id
    async with read(database, actor, READERS, tenant_id=actor.tenant_id) as connection:
        return await prices.list_prices(connection, model=model, tenant_id=scope, history=history)


async def grant_credit(
    database: Database,
    actor: Actor,
    *,
    tenant_id: UUID,
    amount_usd: str,
    reason: str,
    grant_id: UUID | None = None,
    kind: LotKind = "promotional",
    expires_at: datetime | None = None,
    priority: int | None = None,
    currency: str = prices.CURRENCY,
    limit_usd: Decimal = DEFAULT_LIMIT_USD,
) -> AccountView:
    """Give prepaid credit: `promotional`, or `purchased` for money that came outside of Stripe. Lots with a lower
    `priority` are used first. The same `grant_id` again changes nothing. Above `limit_usd`
    (Settings.approval_limit_usd) it waits for a second person.

    Raises InvalidRequest, Conflict, NotFound, WaitsForApproval.
    """
    require(actor, *PLATFORM_ROLES)
    prices.check_currency(currency)
    if kind not in ("promotional", "purchased"):
        raise InvalidRequest(
            f"kind must be promotional or purchased, not {kind[:40]!r}; corrections are adjustments",
            param="kind",
        )
    grant_id = grant_id or uuid7()
    facts = {
        "grant_id": str(grant_id),
        "amount_usd": amount_usd,
        "kind": kind,
        "expires_at": instant_fact(expires_at),
        "priority": priority,
        "reason": clean_reason(reason),
    }
    return await under_limit(
        database,
        actor,
        apply_grant,
        kind=CREDIT_GRANT,
        tenant_id=tenant_id,
        amount=accounts.parse_usd(amount_usd, "amount_usd"),
        facts=facts,
        limit_usd=limit_usd,
        source_id=grant_id,
    )


async def apply_grant(
    connection: AsyncConnection, acting: Acting, tenant_id: UUID | None, facts: Facts
) -> AccountView:
    """Carry out `grant_credit`."""
    assert tenant_id is not None  # noqa: S101 - requests of this kind always name it
    before = await accounts.get_account(connection, tenant_id, lock=True)
    after = await accounts.grant_credit(
        connection,
        tenant_id,
        facts["amount_usd"],
        facts["reason"],
        acting.requested_by,
        UUID(facts["grant_id"]),
        kind=facts["kind"],
        expires_at=parse_instant(facts["expires_at"]),
        priority=facts["priority"],
    )
    await record(
        connection,
        acting.actor,
        CREDIT_GRANT,
        tenant_id=tenant_id,
        object_kind="billing_account",
        object_id=tenant_id,
        reason=facts["reason"],
        before={"balance_usd": before.balance_usd},
        after={
            "balance_usd": after.balance_usd,
            **{name: facts[name] for name in ("amount_usd", "kind", "expires_at")},
        },
    )
    return after


async def list_lots(database: Database, actor: Actor, *, tenant_id: UUID, spent: bool = False) -> list[Lot]:
    """Credit by lot, in the order in which it is used; `spent` adds lots with nothing left."""
    async with read(database, actor, READERS, tenant_id=tenant_id) as connection:
        return await credits.list_lots(connection, tenant_id, spent=spent)


async def list_grants(
    database: Database, actor: Actor, *, tenant_id: UUID, limit: int = 100
) -> list[GrantView]:
    """The newest credits of an organisation first."""
    async with read(database, actor, READERS, tenant_id=tenant_id) as connection:
        return await accounts.list_grants(connection, tenant_id, page_size(limit))


async def get_account(database: Database, actor: Actor, *, tenant_id: UUID) -> AccountView:
    """Balance, held money, budget and spending of an organisation. Raises NotFound."""
    async with read(database, actor, READERS, tenant_id=tenant_id) as connection:
        return await accounts.get_account(connection, tenant_id)


async def set_budget(database: Database, actor: Actor, *, tenant_id: UUID, usd: str | None) -> AccountView:
    """Set the monthly budget, or lift it with None. New requests beyond it get 402. Raises InvalidRequest, NotFound."""
    require(actor, "platform_admin", "finance", *TENANT_MANAGERS, tenant_id=tenant_id)
    async with write_system(database) as connection:
        before = await accounts.get_account(connection, tenant_id, lock=True)
        after = await accounts.set_budget(connection, tenant_id, usd)
        await record(
            connection,
            actor,
            "budget.set",
            tenant_id=tenant_id,
            object_kind="billing_account",
            object_id=tenant_id,
            before={"budget_usd": before.budget_usd},
            after={"budget_usd": after.budget_usd},
        )
    return after


async def set_credit_limit(
    database: Database,
    actor: Actor,
    *,
    tenant_id: UUID,
    usd: str | None,
    reason: str,
    limit_usd: Decimal = DEFAULT_LIMIT_USD,
) -> AccountView:
    """Set the credit limit of a postpaid organisation in US dollars; None = no limit.

    Raising it by more than `limit_usd` (Settings.approval_limit_usd), or lifting it, waits for a second person. Raises
    InvalidRequest, Conflict, NotFound, WaitsForApproval.
    """
    require(actor, *PLATFORM_ROLES)
    new = None if usd is None else accounts.parse_usd(usd, "credit_limit_usd")

    async def amount(connection: AsyncConnection) -> int | None:
        known = (await accounts.get_account(connection, tenant_id)).credit_limit_usd
        if known is None:
            return 0
        return None if new is None else max(new - usd_to_pico(known), 0)

    return await under_limit(
        database,
        actor,
        apply_credit_limit,
        kind=CREDIT_LIMIT,
        tenant_id=tenant_id,
        amount=amount,
        facts={
            "credit_limit_usd": None if new is None else pico_to_usd(new),
            "reason": clean_reason(reason),
        },
        limit_usd=limit_usd,
    )


async def apply_credit_limit(
    connection: AsyncConnection, acting: Acting, tenant_id: UUID | None, facts: Facts
) -> AccountView:
    """Carry out `set_credit_limit`."""
    assert tenant_id is not None  # noqa: S101 - requests of this kind always name it
    before = await accounts.get_account(connection, tenant_id, lock=True)
    after = await accounts.set_credit_limit(connection, tenant_id, facts["credit_limit_usd"])
    await record(
        connection,
        acting.actor,
        CREDIT_LIMIT,
        tenant_id=tenant_id,
        object_kind="billing_account",
        object_id=tenant_id,
        reason=facts["reason"],
        before={"credit_limit_usd": before.credit_limit_usd},
        after={"credit_limit_usd": after.credit_limit_usd},
    )
    return after


def sees_gpu_cost(actor: Actor) -> bool:
    """Whether the actor's reports contain GPU cost and margin, which customers never see."""
    return actor.is_platform


async def compare_usage(
    database: Database,
    actor: Actor,
    *,
    start: datetime,
    end: datetime,
    before: tuple[datetime, datetime],
    group_by: tuple[str, ...],
    tenant_id: UUID | None = None,
) -> list[ComparedRow]:
    """The usage report of two periods side by side (billing/reports/compare.py), with the rights of `usage_report`.

    Raises InvalidRequest, PermissionDenied.
    """
    scope = readable(actor, tenant_id)
    query = ReportQuery(start, end, group_by, scope, with_gpu=sees_gpu_cost(actor))
    async with database.snapshot(actor.tenant_id) as connection:
        return await compare(connection, query, before)


async def usage_totals(
    database: Database, actor: Actor, *, start: datetime, end: datetime, tenant_id: UUID | None = None
) -> Totals:
    """The report's totals of a period beside the ledger's own sums. Raises InvalidRequest, PermissionDenied."""
    scope = readable(actor, tenant_id)
    query = ReportQuery(start, end, ("tenant",), scope, with_gpu=sees_gpu_cost(actor))
    async with database.snapshot(actor.tenant_id) as connection:
        return await report_totals(connection, query, await billing_report(connection, query))


async def usage_report(
    database: Database,
    actor: Actor,
    *,
    start: datetime,
    end: datetime,
    group_by: tuple[str, ...],
    tenant_id: UUID | None = None,
) -> list[ReportRow]:
    """The usage report (billing/reports/usage_report.py). A tenant role gets its own organisation's, without GPU cost.

    Raises InvalidRequest, PermissionDenied.
    """
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        query = ReportQuery(start, end, group_by, scope, with_gpu=sees_gpu_cost(actor))
        return await billing_report(connection, query)
