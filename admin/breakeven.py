"""At which utilisation a host is paid for, and which price and layout pay: the figures behind a price.

Throughput at full load follows from the fitted figures of each engine profile under the targets of the tier
(scheduler/core/autoscale/full_load.py), money from whole picodollars (billing/economics/breakeven.py).
"""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor
from admin.breakeven_inputs import (
    Choice,
    chosen_mix,
    chosen_profiles,
    chosen_rates,
    parse_dollars,
    parse_share,
)
from admin.transactions import now_of, read
from billing.economics.breakeven import (
    Mix,
    TokenRates,
    breakeven_utilisation,
    paying_rates,
    revenue_per_hour,
    shape_of,
)
from billing.economics.weights import coefficients
from billing.pricing.contracts import list_contracts
from billing.pricing.prices import PriceView, list_prices
from core.db import Database
from core.errors import InvalidRequest
from core.money import pico_per_token_to_per_mtok, pico_to_usd, usd_to_pico
from scheduler.core.autoscale.capacity import Load
from scheduler.core.autoscale.full_load import full_load, saturated_rate
from tenants.roles import PLATFORM_ROLES
from workers.added_models import read_catalog
from workers.catalog import Catalog, EngineProfile, HostKind
from workers.scaling import read_host_prices, read_limits
from workers.service_level import TIERS, Tier, with_stored
from workers.targets import read_targets
from workers.wire import Targets, basis_of

RATE_DIGITS = 1000
"""Requests per hour are counted in thousandths."""
WHOLE_BPS = 10_000
"""Basis points of a whole."""
MAX_NAMED = 5
"""Prices that a warning names."""
SHARE_DIGITS = 4
"""Decimals of shown utilisations."""


class MixView(msgspec.Struct, frozen=True):
    """The request that the calculation assumes."""

    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    source: str


class PriceRates(msgspec.Struct, frozen=True):
    """A price in dollars per million tokens."""

    input: str
    cached_input: str
    output: str


class LayoutView(msgspec.Struct, frozen=True):
    """One profile on one kind of host, per host."""

    profile: str
    layout: str
    """Instances and how each is spread over its GPUs."""
    host_kind: str
    host_usd_per_hour: str | None
    """None when nothing says what the host costs."""
    requests_per_hour: str
    """At full load: the most that keeps the targets of the tier and the margins of the autoscaler."""
    limit: str
    """What more load would miss."""
    revenue_usd_per_hour: str
    """At full load."""
    saturated_usd_per_hour: str
    """With batches always full, whatever its customers wait: what no load exceeds."""
    breakeven_utilisation: str | None
    """Share of full load at which the host is paid for with the margin; above 1 it never is. None = not known, or no
    revenue."""
    cost_usd_per_mtok: str | None
    """Of input and output tokens together, at full load."""
    price: PriceRates | None
    """The lowest price that pays at the given utilisation with the margin."""
    basis: str
    """What its figures are: validated, unvalidated or learnt."""


class BreakevenView(msgspec.Struct, frozen=True):
    """Every layout of a model at one price and mix."""

    model: str
    tier: str
    mix: MixView
    price: PriceRates | None
    """None: the model has no price, and proposed ones follow the GPU time of tokens."""
    price_source: str
    margin: str
    utilisation: str
    layouts: list[LayoutView]
    best: str | None
    """The profile whose tokens cost least; None without a price of a host or without a load that meets the targets."""


class _Figures(msgspec.Struct, frozen=True):
    """What all layouts of one calculation share."""

    mix: Mix
    rates: TokenRates | None
    targets: Targets
    margin: Fraction
    utilisation: Fraction
    hosts: int


async def breakeven(database: Database, actor: Actor, *, choice: Choice) -> BreakevenView:
    """When each layout of a model is paid for, and what price pays. Raises InvalidRequest, PermissionDenied."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await compute(connection, await read_catalog(connection), choice)


async def compute(connection: AsyncConnection, catalog: Catalog, choice: Choice) -> BreakevenView:
    """`breakeven` in an open transaction. Raises InvalidRequest."""
    model = catalog.model(choice.model)
    if choice.tier not in TIERS:
        raise InvalidRequest(f"tier must be one of {', '.join(TIERS)}, not {choice.tier!r}", param="tier")
    if not 1 <= choice.hosts <= 1024:
        raise InvalidRequest(f"hosts must be between 1 and 1024, not {choice.hosts}", param="hosts")
    picked = chosen_profiles(catalog, model, choice)
    mix, mix_source = await chosen_mix(connection, picked, choice)
    rates, price_source = await chosen_rates(connection, model, choice)
    stored = (await read_targets(connection)).get(model.name, {})
    promised = with_stored(model.service_level, stored).of(choice.tier)
    figures = _Figures(
        mix,
        rates,
        Targets(promised.ttft_s, promised.tpot_s),
        parse_share(choice.margin, "margin", below_one=True),
        parse_share(choice.utilisation, "utilisation", above_zero=True),
        choice.hosts,
    )
    known = {kind: usd_to_pico(price.usd_per_hour) for kind, price in catalog.host_prices.items()}
    known |= await read_host_prices(connection)
    given = parse_dollars(choice.host_price, "host_price")
    rows = [
        _layout(profile, kind, host, known.get(kind) if given is None else given, figures)
        for profile, kind, host in picked
    ]
    return BreakevenView(
        model=model.name,
        tier=choice.tier,
        mix=MixView(mix.input, mix.cached, mix.output, mix_source),
        price=None if rates is None else _shown(rates),
        price_source=price_source,
        margin=choice.margin,
        utilisation=choice.utilisation,
        layouts=[row for row, _ in rows],
        best=_best(rows),
    )


class _Layouts(NamedTuple):
    """A calculation, the layout that hosts which are created for the model get, and the other ones."""

    view: BreakevenView
    usual: LayoutView
    others: list[LayoutView]


async def _layouts_of_new_hosts(
    connection: AsyncConnection, catalog: Catalog, model: str, tier: str, rates: PriceRates
) -> _Layouts:
    choice = Choice(
        model=model,
        tier=msgspec.convert(tier, Tier),
        input_price=rates.input,
        cached_price=rates.cached_input,
        output_price=rates.output,
    )
    view = await compute(connection, catalog, choice)
    limits = (await read_limits(connection)).get(model)
    chosen = next((row for row in view.layouts if limits is not None and row.profile == limits.profile), None)
    usual = chosen or view.layouts[0]
    return _Layouts(view, usual, [row for row in view.layouts if row is not usual])


async def loss_warning(
    connection: AsyncConnection, catalog: Catalog, *, model: str, tier: str, rates: PriceRates
) -> str | None:
    """What is wrong with a price at which a host loses money even at full load; None = nothing.

    The host runs the profile that hosts which are created for the model get.

    Nothing is said of a model that the catalog does not have, or whose host has no price.
    """
    if model not in catalog.models:
        return None
    view, usual, others = await _layouts_of_new_hosts(connection, catalog, model, tier, rates)
    if usual.host_usd_per_hour is None or _pays(usual):
        return None
    mix = view.mix
    said = (
        f"below cost: at full load a {usual.host_kind} with {model} {usual.profile} earns "
        f"${usual.revenue_usd_per_hour} an hour and costs ${usual.host_usd_per_hour} (requests of "
        f"{mix.input_tokens:,} tokens, {mix.cached_input_tokens:,} of them cached, and {mix.output_tokens:,} of "
        f"answer: {mix.source})"
    )
    if usual.price is not None:
        said += (
            f"; it pays from ${usual.price.input} input, ${usual.price.cached_input} cached input, "
            f"${usual.price.output} output"
        )
    paying = [row.profile for row in others if row.host_usd_per_hour is not None and _pays(row)]
    return said + (f"; at this price these profiles pay: {', '.join(paying)}" if paying else "")


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
    usual = (await _layouts_of_new_hosts(connection, catalog, model, tier, rates)).usual
    if usual.host_usd_per_hour is None or usual.breakeven_utilisation is None:
        return False
    left = Decimal(WHOLE_BPS - discount_bps) / WHOLE_BPS
    return left < Decimal(usual.breakeven_utilisation) <= 1


def _pays(row: LayoutView) -> bool:
    """Whether a host of known cost is paid for at full load."""
    return row.breakeven_utilisation is not None and Decimal(row.breakeven_utilisation) <= 1


def _layout(
    profile: EngineProfile, kind: str, host: HostKind, cost: int | None, figures: _Figures
) -> tuple[LayoutView, Fraction | None]:
    """The figures of one profile on one kind of host, and picodollars of cost per request at full load."""
    capacity, mix = profile.capacity, figures.mix
    instances = profile.replicas_on(host.gpus)
    load = Load(0.0, mix.input, mix.uncached, mix.output)
    most = full_load(load, instances * figures.hosts, capacity, figures.targets)
    per_hour = _per_hour(most.rate / figures.hosts)
    full = _per_hour(instances * saturated_rate(load, capacity))
    shape = figures.rates or shape_of(coefficients(profile))
    revenue = 0 if figures.rates is None else revenue_per_hour(figures.rates, mix, per_hour)
    even = None if cost is None else breakeven_utilisation(cost, revenue, figures.margin)
    paying = (
        None
        if cost is None
        else paying_rates(
            shape, mix, cost=cost, requests_per_hour=per_hour * figures.utilisation, margin=figures.margin
        )
    )
    each = None if cost is None or not per_hour else cost / per_hour
    tokens = mix.input + mix.output
    row = LayoutView(
        profile=profile.name,
        layout=profile.layout(instances),
        host_kind=kind,
        host_usd_per_hour=None if cost is None else pico_to_usd(cost),
        requests_per_hour=_decimal(per_hour, 3),
        limit=most.limit,
        revenue_usd_per_hour=_cents(revenue),
        saturated_usd_per_hour=_cents(
            0 if figures.rates is None else revenue_per_hour(figures.rates, mix, full)
        ),
        breakeven_utilisation=None if even is None else _decimal(even, SHARE_DIGITS, up=True),
        cost_usd_per_mtok=None if each is None else pico_to_usd(int(each * 10**6 / tokens)),
        price=None if paying is None else _shown(paying),
        basis=basis_of(capacity),
    )
    return row, each


def _best(rows: Sequence[tuple[LayoutView, Fraction | None]]) -> str | None:
    """The profile of the least cost per request."""
    priced = [(each, row.profile) for row, each in rows if each is not None]
    return min(priced)[1] if priced else None


def _per_hour(rate: float) -> Fraction:
    """Requests per hour of a rate per second, rounded down to a thousandth."""
    return Fraction(int(rate * 3600 * RATE_DIGITS), RATE_DIGITS)


def _shown(rates: TokenRates) -> PriceRates:
    return PriceRates(
        **{name: pico_per_token_to_per_mtok(getattr(rates, name)) for name in PriceRates.__struct_fields__}
    )


def _cents(pico: int) -> str:
    """Dollars of an hour's revenue, rounded down to cents."""
    return _decimal(Fraction(pico, 10**12), 2)


def _decimal(value: Fraction, digits: int, *, up: bool = False) -> str:
    """A decimal with at most `digits` decimals, rounded down, or up."""
    scaled = value * 10**digits
    whole = -int(-scaled // 1) if up else int(scaled)
    return f"{Decimal(whole).scaleb(-digits):f}"
