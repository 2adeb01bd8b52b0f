"""What a break-even calculation is made for: the request, the price, the layouts, each with where it is from."""

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.economics.breakeven import Mix, TokenRates
from billing.pricing import prices
from billing.usage.typical import DAYS, typical_request
from core.errors import InvalidRequest
from core.money import per_mtok_to_pico_per_token, usd_to_pico
from workers.catalog import Catalog, CatalogModel, EngineProfile, HostKind
from workers.service_level import Tier

STAND_IN_INPUT, STAND_IN_OUTPUT = 8_000, 1_000
"""Tokens of a request where usage says nothing: the longer of the two shapes of the published sweeps (8k/1k)."""
MAX_DECIMALS = 12
"""Decimals of a ratio at most."""

Placed = tuple[EngineProfile, str, HostKind]
"""A profile, and the kind of host that it is calculated on."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What a calculation is made for; None = as the platform has it."""

    model: str
    tier: Tier = "standard"
    profile: str | None = None
    """None = every profile of the model."""
    host_kind: str | None = None
    """None = the kind of host of each profile."""
    host_price: str | None = None
    """Dollars per hour; None = the price in force, else the catalog's."""
    input_price: str | None = None
    cached_price: str | None = None
    output_price: str | None = None
    """Dollars per million tokens; None = the list price in force, else the catalog's."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_share: str | None = None
    """Share of the input that prefix caches have; None = as in the model's usage of the last DAYS days."""
    margin: str = "0"
    """Share of revenue that the proposed price leaves."""
    utilisation: str = "1"
    """Share of full load for which the price is proposed."""
    hosts: int = 1
    """Hosts of the pool: prompts wait less where several hosts share them."""


def chosen_profiles(catalog: Catalog, model: CatalogModel, choice: Choice) -> list[Placed]:
    """The chosen profiles, each with its kind of host: the given one where its GPUs are the same."""
    profiles = [model.profile(choice.profile)] if choice.profile else list(model.profiles.values())
    if choice.host_kind is None:
        return [(each, each.host_kind, catalog.hosts[each.host_kind]) for each in profiles]
    host = catalog.hosts.get(choice.host_kind)
    if host is None:
        raise InvalidRequest(
            f"there is no kind of host {choice.host_kind[:80]!r}; there are: {', '.join(catalog.hosts)}",
            param="host_kind",
        )
    fitting = [each for each in profiles if _runs_on(each, catalog.hosts[each.host_kind], host)]
    if not fitting:
        known = ", ".join(f"{each.name} ({each.host_kind})" for each in profiles)
        raise InvalidRequest(
            f"no profile of {model.name} has figures of the GPUs of {choice.host_kind}; there are: {known}",
            param="host_kind",
        )
    return [(each, choice.host_kind, host) for each in fitting]


def _runs_on(profile: EngineProfile, own: HostKind, host: HostKind) -> bool:
    """Whether the profile's figures hold on `host`: the same kind of GPU, and enough of them."""
    same = (own.gpu, own.gpu_memory_gb) == (host.gpu, host.gpu_memory_gb)
    return same and profile.gpus <= host.gpus


async def chosen_mix(
    connection: AsyncConnection, picked: Sequence[Placed], choice: Choice
) -> tuple[Mix, str]:
    """The request that is assumed, and where it is from; it fits into the context of every picked profile.

    Raises InvalidRequest for one that does not fit.
    """
    context = min(profile.max_model_len for profile, _, _ in picked)
    usual, source = await _usual_mix(connection, choice.model, context)
    prompt = usual.input if choice.input_tokens is None else choice.input_tokens
    answer = usual.output if choice.output_tokens is None else choice.output_tokens
    if prompt < 1 or answer < 0 or prompt + answer > context:
        raise InvalidRequest(
            f"a request of {prompt:,} and {answer:,} tokens does not fit: input_tokens must be at least 1, "
            f"and both together at most the context of {context:,}",
            param="input_tokens",
        )
    if choice.cached_share is None:
        share = Fraction(usual.cached, usual.input)
    else:
        share = parse_share(choice.cached_share, "cached_share")
    given = (choice.input_tokens, choice.output_tokens, choice.cached_share)
    return Mix(prompt, int(prompt * share + Fraction(1, 2)), answer), _source(given, source)


async def _usual_mix(connection: AsyncConnection, model: str, context: int) -> tuple[Mix, str]:
    """The mean request of the model, or the stand-in, made smaller where `context` tokens do not hold it."""
    seen = await typical_request(connection, model)
    if seen is not None:
        return (
            Mix(seen.input, seen.cached, seen.output),
            f"mean of {seen.requests:,} requests of the last {DAYS} days",
        )
    whole = STAND_IN_INPUT + STAND_IN_OUTPUT
    size = min(whole, context)
    answer = size * STAND_IN_OUTPUT // whole
    return Mix(size - answer, 0, answer), "a stand-in of 8 to 1, nothing cached: too few requests for a mean"


def _source(given: Sequence[object], usual: str) -> str:
    """Where facts are from of which `given` may replace some (None = it does not)."""
    named = [value for value in given if value is not None]
    if len(named) == len(given):
        return "as given"
    return f"as given; the rest: {usual}" if named else usual


async def chosen_rates(
    connection: AsyncConnection, model: CatalogModel, choice: Choice
) -> tuple[TokenRates | None, str]:
    """The price that is judged, and where it is from; None when the model has none. Raises InvalidRequest."""
    given = {
        "input": choice.input_price,
        "cached_input": choice.cached_price,
        "output": choice.output_price,
    }
    if given["cached_input"] is None and given["input"] is not None and given["output"] is not None:
        given["cached_input"] = given["input"]
    listed = [
        price
        for price in await prices.list_prices(connection, model=model.name)
        if price.tenant_id is None and price.tier == choice.tier and price.status == "current"
    ]
    usual: object = listed[0] if listed else model.list_price
    if usual is None and any(value is None for value in given.values()):
        return None, "none: proposed prices follow the estimated GPU time of tokens"
    source = _source(tuple(given.values()), "list price in force" if listed else "list price of the catalog")
    rates = {}
    for name, value in given.items():
        try:
            rates[name] = per_mtok_to_pico_per_token(getattr(usual, name) if value is None else value)
        except ValueError as error:
            raise InvalidRequest(str(error), param=f"{name.removesuffix('_input')}_price") from None
    return TokenRates(**rates), source


def parse_dollars(value: str | None, param: str) -> int | None:
    """Picodollars of an optional amount. Raises InvalidRequest for one that is negative or no amount."""
    if value is None:
        return None
    try:
        amount = usd_to_pico(value)
    except ValueError as error:
        raise InvalidRequest(str(error), param=param) from None
    if amount < 0:
        raise InvalidRequest(f"{param} cannot be negative: {value}", param=param)
    return amount


def parse_share(value: str, param: str, *, below_one: bool = False, above_zero: bool = False) -> Fraction:
    """A ratio such as 0.25, from 0 to 1 with the given ends left out. Raises InvalidRequest."""
    try:
        share = Decimal(value)
        written = share.is_finite() and -MAX_DECIMALS <= int(share.as_tuple().exponent) <= 0
    except InvalidOperation:
        share, written = Decimal(-1), False
    if not written or not 0 <= share <= 1 or (below_one and share == 1) or (above_zero and share == 0):
        low, high = ("above 0" if above_zero else "from 0"), ("to below 1" if below_one else "to 1")
        raise InvalidRequest(
            f"{param} must be a ratio {low} {high} such as 0.25, with at most {MAX_DECIMALS} decimals, "
            f"not {value[:40]!r}",
            param=param,
        )
    return Fraction(share)
