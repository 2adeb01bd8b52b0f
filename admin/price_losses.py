"""Prices at which a full host is not paid for: said before one is saved, and of those that the catalog brings."""

from collections.abc import Collection
from datetime import datetime
from decimal import Decimal
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor
from admin.breakeven import BreakevenView, Loss, PriceRates, compute, loss_of, usual_layout
from admin.breakeven_inputs import Choice
from admin.models import list_models
from admin.transactions import now_of, read
from billing.pricing.contracts import list_contracts
from billing.pricing.prices import PriceView, list_prices
from core.db import Database
from core.money import per_mtok_to_pico_per_token
from tenants.roles import PLATFORM_ROLES
from workers.added_models import read_catalog
from workers.catalog import Catalog
from workers.service_level import Tier

WHOLE_BPS = 10_000
"""Basis points of a whole."""
MAX_NAMED = 5
"""Prices that a warning names."""


async def catalog_losses(
    database: Database, actor: Actor, *, models: Collection[str] | None = None
) -> list[Loss]:
    """List prices in force that the catalog brought, of offered models, at which a full host is not paid for.

    Models that run without GPUs only are left out: they are for demonstrations, and are not sold. No person confirmed
    these prices, as one does with a price of their own. `models` (None = all) narrows them.
    """
    offered = {model.name for model in await list_models(database, actor) if model.status != "retired"}
    async with read(database, actor, PLATFORM_ROLES) as connection:
        catalog = await read_catalog(connection)
        found = []
        for price in await list_prices(connection):
            listed = price.tenant_id is None and price.status == "current" and price.tier == "standard"
            wanted = price.model in offered and (models is None or price.model in models)
            if listed and wanted and _is_of_catalog(catalog, price) and _runs_on_gpus(catalog, price.model):
                rates = PriceRates(price.input, price.cached_input, price.output)
                loss = await _loss(connection, catalog, price.model, price.tier, rates)
                found += [] if loss is None else [loss]
        return found


def _is_of_catalog(catalog: Catalog, price: PriceView) -> bool:
    model = catalog.models.get(price.model)
    if model is None or model.list_price is None:
        return False
    return all(
        per_mtok_to_pico_per_token(getattr(price, name))
        == per_mtok_to_pico_per_token(getattr(model.list_price, name))
        for name in ("input", "cached_input", "output", "reasoning")
    )


def _runs_on_gpus(catalog: Catalog, model: str) -> bool:
    return any(profile.gpus for profile in catalog.models[model].profiles.values())


async def loss_warning(
    connection: AsyncConnection, catalog: Catalog, *, model: str, tier: str, rates: PriceRates
) -> str | None:
    """What is wrong with a price at which a host loses money even at full load; None = nothing.

    The host runs the profile that hosts which are created for the model get.

    Nothing is said of a model that the catalog does not have, or whose host has no price.
    """
    if model not in catalog.models:
        return None
    loss = await _loss(connection, catalog, model, tier, rates)
    return None if loss is None else loss.message


async def _loss(
    connection: AsyncConnection, catalog: Catalog, model: str, tier: str, rates: PriceRates
) -> Loss | None:
    view = await _judged(connection, catalog, model, tier, rates)
    return loss_of(view, await usual_layout(connection, view))


async def _judged(
    connection: AsyncConnection, catalog: Catalog, model: str, tier: str, rates: PriceRates
) -> BreakevenView:
    choice = Choice(
        model=model,
        tier=msgspec.convert(tier, Tier),
        input_price=rates.input,
        cached_price=rates.cached_input,
        output_price=rates.output,
    )
    return await compute(connection, catalog, choice)


async def discount_warning(
    connection: AsyncConnection,
    catalog: Catalog,
    discount_bps: int,
    *,
    tenant_id: UUID,
    start: datetime | None,
    end: datetime | None,
) -> str | None:
    """Which list prices that pay for a full host a discount in basis points puts below cost; None = none.

    The discount is one of a contract of `tenant_id` from `start` (None = now) to `end` (None = open). Prices of the
    customer's own are not discounted, and prices that are below cost without it were confirmed when they were set.
    """
    if not 0 < discount_bps <= WHOLE_BPS:
        return None
    every = await list_prices(connection, tenant_id=tenant_id)
    own = {(price.model, price.tier) for price in every if price.tenant_id and price.contract_id is None}
    found: dict[str, None] = {}
    for price in every:
        mine = price.tenant_id is None and (price.model, price.tier) not in own
        if not mine or not _overlaps(price, start, end) or price.model not in catalog.models:
            continue
        rates = PriceRates(price.input, price.cached_input, price.output)
        if await _loses(connection, catalog, price.model, price.tier, rates, discount_bps):
            found[price.model if price.tier == "standard" else f"{price.model} ({price.tier})"] = None
    if not found:
        return None
    named = ", ".join(list(found)[:MAX_NAMED]) + (" and others" if len(found) > MAX_NAMED else "")
    return (
        f"below cost: with {discount_bps / 100:g} % off, a host at full load is not paid for any more by the price of "
        f"{named}"
    )


async def discounted_loss(
    connection: AsyncConnection, catalog: Catalog, *, model: str, tier: str, rates: PriceRates
) -> str | None:
    """What is wrong with a list price that pays, but not with the largest discount of a contract; None = nothing."""
    if model not in catalog.models:
        return None
    now = await now_of(connection)
    most = max(
        (
            contract.discount_bps
            for contract in await list_contracts(connection)
            if contract.effective_to is None or contract.effective_to > now
        ),
        default=0,
    )
    if not most or not await _loses(connection, catalog, model, tier, rates, most):
        return None
    return f"below cost with the {most / 100:g} % off of a contract: at full load a host is not paid for by it any more"


def _overlaps(price: PriceView, start: datetime | None, end: datetime | None) -> bool:
    """Whether a price holds at some time between two instants."""
    begins, ends = datetime.fromisoformat(price.effective_from), price.effective_to
    late = end is not None and begins >= end
    over = start is not None and ends is not None and datetime.fromisoformat(ends) <= start
    return not late and not over


async def _loses(
    connection: AsyncConnection, catalog: Catalog, model: str, tier: str, rates: PriceRates, discount_bps: int
) -> bool:
    """Whether a price that pays for a full host does not with a discount, which is a part of the revenue."""
    usual = await usual_layout(connection, await _judged(connection, catalog, model, tier, rates))
    if usual.host_usd_per_hour is None or usual.breakeven_utilisation is None:
        return False
    left = Decimal(WHOLE_BPS - discount_bps) / WHOLE_BPS
    return left < Decimal(usual.breakeven_utilisation) <= 1
