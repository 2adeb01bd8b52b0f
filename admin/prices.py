"""Prices: list prices and contract prices, and requests and models without one."""

from collections.abc import Mapping
from datetime import UTC, datetime
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.approval_limit import Acting, Facts, instant_fact, parse_instant, under_limit
from admin.audit import record
from admin.breakeven import PriceRates
from admin.price_losses import discounted_loss, loss_warning
from admin.transactions import read
from billing.pricing import prices
from billing.pricing.prices import PriceView, Rates, Unpriced
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound
from tenants import organisations
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ROLES, READERS
from workers.adapters import find_adapter
from workers.added_models import read_catalog

PRICE_BELOW_COST = "price_below_cost"
"""Code of the error that asks for a confirmation."""
PRICE_SET = "price.set"
PRICE_END = "price.end"
PRICE_WITHDRAW = "price.withdraw"
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
    below_cost: bool = False,
) -> PriceView:
    """Set a list price, or a contract price of `tenant_id`, in dollars per million tokens.

    `model` may be the public name of an adapter: its price is its organisation's, which `tenant_id` need not name.
    Cached input defaults to the input price, reasoning to the output price. It holds from `effective_from` (None =
    now) until the next scheduled price. The first list price of a model and tier needs one person; every other waits
    for a second one. A price at which a host loses money at full load is only saved with `below_cost`. Raises
    InvalidRequest, Conflict (code PRICE_BELOW_COST without that confirmation), NotFound, WaitsForApproval.
    """
    require(actor, *PLATFORM_ROLES)
    prices.check_currency(currency)
    base, tenant_id = await _whose(database, actor, model, tenant_id)
    rates = Rates(
        input,
        input if cached_input is None else cached_input,
        output,
        output if reasoning is None else reasoning,
    )
    warning = await _loss(database, actor, base, tier, rates, listed=tenant_id is None)
    if warning is not None and not below_cost:
        raise Conflict(
            f"this price is {warning}; confirm with below_cost (--below-cost) to save it",
            code=PRICE_BELOW_COST,
            param="below_cost",
        )
    facts = {
        "model": model,
        "tier": tier,
        **msgspec.structs.asdict(rates),
        "effective_from": instant_fact(effective_from),
        "reason": None if reason is None else clean_reason(reason),
    } | ({} if warning is None else {"below_cost": warning})

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


async def _whose(
    database: Database, actor: Actor, model: str, tenant_id: UUID | None
) -> tuple[str, UUID | None]:
    """The model that serves what a price is of, and the organisation whose price it is; None = it is a list price.

    Raises InvalidRequest for an adapter of another organisation than `tenant_id`.
    """
    async with read(database, actor, PLATFORM_ROLES) as connection:
        adapter = await find_adapter(connection, model)
    if adapter is None:
        return model, tenant_id
    if tenant_id not in (None, adapter.tenant_id):
        raise InvalidRequest(
            f"{model!r} is an adapter of the organisation {adapter.tenant_id}, not of {tenant_id}; leave the "
            "organisation out",
            param="tenant_id",
        )
    return adapter.model, adapter.tenant_id


async def _loss(
    database: Database, actor: Actor, model: str, tier: str, rates: Rates, *, listed: bool
) -> str | None:
    """Of what a price warns; None for one that is in no range, which is refused later. List prices are discounted."""
    try:
        rates.to_pico()
    except InvalidRequest:
        return None
    if tier not in prices.TIERS:
        return None
    shown = PriceRates(rates.input, rates.cached_input, rates.output)
    async with read(database, actor, PLATFORM_ROLES) as connection:
        catalog = await read_catalog(connection)
        warning = await loss_warning(connection, catalog, model=model, tier=tier, rates=shown)
        if warning is None and listed:
            warning = await discounted_loss(connection, catalog, model=model, tier=tier, rates=shown)
        return warning


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
    """End a price book at `at` (None = now): afterwards a customer pays the list or discounted price, for an adapter
    that of its model, and without a list price the model is refused. Returns the versions that changed.

    Waits for a second person. Raises InvalidRequest, NotFound, WaitsForApproval.
    """
    require(actor, *PLATFORM_ROLES)
    _, tenant_id = await _whose(database, actor, model, tenant_id)
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
    reason = clean_reason(reason)
    async with read(database, actor, PLATFORM_ROLES) as connection:
        price = await prices.get_version(connection, version)
    shown = ("model", "tier", *Rates.__struct_fields__, "effective_from", "effective_to")
    return await under_limit(
        database,
        actor,
        apply_price_withdrawal,
        kind=PRICE_WITHDRAW,
        tenant_id=price.tenant_id,
        amount=None,
        facts={"version": version, "reason": reason} | {name: getattr(price, name) for name in shown},
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
            made.append(
                await set_price(database, actor, model=model, **amounts, reason=reason, below_cost=True)
            )
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
