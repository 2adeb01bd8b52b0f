"""At which utilisation a host is paid for, and which price and layout pay: the figures behind a price.

Throughput at full load follows from the fitted figures of each engine profile under the targets of the tier
(scheduler/core/autoscale/full_load.py), money from whole picodollars (billing/economics/breakeven.py).
"""

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

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
from admin.transactions import read
from billing.economics.breakeven import (
    Mix,
    TokenRates,
    breakeven_utilisation,
    paying_rates,
    revenue_per_hour,
    shape_of,
)
from billing.economics.weights import coefficients
from core.db import Database
from core.errors import InvalidRequest
from core.money import pico_per_token_to_per_mtok, pico_to_usd, usd_to_pico
from scheduler.core.autoscale.capacity import Load
from scheduler.core.autoscale.full_load import full_load, saturated_rate
from tenants.roles import PLATFORM_ROLES
from workers.added_models import read_catalog
from workers.catalog import Catalog, EngineProfile, HostKind
from workers.scaling import read_host_prices, read_limits
from workers.service_level import TIERS, with_stored
from workers.targets import read_targets
from workers.wire import Targets, basis_of

RATE_DIGITS = 1000
"""Requests per hour are counted in thousandths."""
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
    loss: "Loss | None" = None
    """What is wrong with the price on the hosts that are created for the model; None = it pays."""


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
        view = await compute(connection, await read_catalog(connection), choice)
        if choice.profile is not None or choice.host_kind is not None:
            return view  # of a layout that is not the one of new hosts
        return msgspec.structs.replace(view, loss=loss_of(view, await usual_layout(connection, view)))


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


class Loss(msgspec.Struct, frozen=True):
    """A price at which the host of a model's usual layout is not paid for even at full load."""

    model: str
    tier: str
    price: PriceRates
    profile: str
    host_kind: str
    revenue_usd_per_hour: str
    host_usd_per_hour: str
    message: str
    command: str
    """What mends it: the lowest price that pays."""


async def usual_layout(connection: AsyncConnection, view: BreakevenView) -> LayoutView:
    """The layout that hosts which are created for the model get."""
    limits = (await read_limits(connection)).get(view.model)
    return next(
        (row for row in view.layouts if limits is not None and row.profile == limits.profile), view.layouts[0]
    )


def loss_of(view: BreakevenView, usual: LayoutView) -> Loss | None:
    """What is wrong with the price of a calculation; None = it pays, or nothing says what the host costs."""
    if view.price is None or usual.host_usd_per_hour is None or _pays(usual):
        return None
    mix = view.mix
    said = (
        f"below cost: at full load a {usual.host_kind} with {view.model} {usual.profile} earns "
        f"${usual.revenue_usd_per_hour} an hour and costs ${usual.host_usd_per_hour} (requests of "
        f"{mix.input_tokens:,} tokens, {mix.cached_input_tokens:,} of them cached, and {mix.output_tokens:,} of "
        f"answer: {mix.source})"
    )
    command = f"penstock economics breakeven --model {view.model} --tier {view.tier}"
    if (pays := usual.price) is not None:
        said += (
            f"; it pays from ${pays.input} input, ${pays.cached_input} cached input, ${pays.output} output"
        )
        command = (
            f"penstock prices set {view.model} --tier {view.tier} --input {pays.input} "
            f"--cached-input {pays.cached_input} --output {pays.output}"
        )
    paying = [row.profile for row in view.layouts if row is not usual and _pays(row)]
    return Loss(
        model=view.model,
        tier=view.tier,
        price=view.price,
        profile=usual.profile,
        host_kind=usual.host_kind,
        revenue_usd_per_hour=usual.revenue_usd_per_hour,
        host_usd_per_hour=usual.host_usd_per_hour,
        message=said + (f"; at this price these profiles pay: {', '.join(paying)}" if paying else ""),
        command=command,
    )


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
