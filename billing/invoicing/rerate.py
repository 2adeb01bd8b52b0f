"""Re-rating of a month's usage under other prices, as pure functions.

New prices by tenant, model and tier replace the pinned ones. A new list price applies to a customer with a contract's
discount less that discount, and does not apply to a customer whose pinned price was its own. Approved corrections of
the month are part of the old amount.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from billing.invoicing.lines import CLASSES, Commitment, UsageGroup
from billing.pricing.prices import TIERS, Rates
from core.errors import InvalidRequest
from core.money import pico_per_token_to_per_mtok, pico_to_usd

MAX_RATES = 1000
"""Rates per correction."""
COMMIT = "commit"
"""Kind of the line with a commitment's shortfall, which has no model, class, tier or price."""


class NewRate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A corrected price, in decimal dollars per million tokens."""

    model: str
    input: str
    output: str
    cached_input: str | None = None
    """None = the price of input."""
    reasoning: str | None = None
    """None = the price of output."""
    tier: str = "standard"
    tenant_id: UUID | None = None
    """None = the list price."""

    def pico(self) -> dict[str, int]:
        """Picodollars per token by class. Raises InvalidRequest for what is not a price."""
        cached = self.input if self.cached_input is None else self.cached_input
        reasoning = self.output if self.reasoning is None else self.reasoning
        return Rates(input=self.input, cached_input=cached, output=self.output, reasoning=reasoning).to_pico()


class CorrectionSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to re-rate a month: under `rates`, or under the price book `as_of` an instant; exactly one is set."""

    rates: tuple[NewRate, ...] = ()
    as_of: str | None = None
    """ISO 8601 instant: each customer gets the price in force for it at that instant."""
    tenant_id: UUID | None = None
    """Restricts the correction to one organisation."""
    model: str | None = None
    """Restricts the correction to one model."""
    refund: bool = False
    """Refund a credit on a paid invoice instead of adding it to the customer's Stripe balance."""

    def concerned_tenants(self) -> set[UUID] | None:
        """The organisations whose prices it may change; None = any."""
        if self.tenant_id is not None:
            return {self.tenant_id}
        named = {rate.tenant_id for rate in self.rates if rate.tenant_id is not None}
        anyone = not self.rates or any(rate.tenant_id is None for rate in self.rates)
        return None if anyone else named

    def concerned_models(self) -> set[str] | None:
        """The models whose prices it may change; None = any."""
        if self.model is not None:
            return {self.model}
        return {rate.model for rate in self.rates} or None


class LineKey(NamedTuple):
    """Identifies a line of an invoice and the lines of corrections that change it."""

    tenant_id: UUID
    kind: str
    model: str
    token_class: str
    tier: str
    price_version: int
    used_in: date | None


class Difference(msgspec.Struct, frozen=True):
    """The change of one line; amounts in picodollars, prices in picodollars per token."""

    tenant_id: UUID
    kind: str
    model: str
    token_class: str
    tier: str
    price_version: int
    tokens: int
    old_price: int | None
    """None when earlier corrections left no single price."""
    new_price: int | None
    old_exact: int
    new_exact: int
    delta: int
    """`new_exact` less `old_exact`; negative is in the customer's favour."""
    used_in: date | None = None
    """Of late usage, and of the shortfall that it lowers: the first day of the month it belongs to."""

    @property
    def key(self) -> LineKey:
        """The line that changes."""
        return LineKey(
            self.tenant_id,
            self.kind,
            self.model,
            self.token_class,
            self.tier,
            self.price_version,
            self.used_in,
        )


class DifferenceView(msgspec.Struct, frozen=True):
    """A Difference in decimal dollars and dollars per million tokens."""

    tenant_id: UUID
    kind: str
    model: str
    token_class: str
    tier: str
    price_version: int
    tokens: int
    old_price_per_mtok_usd: str | None
    new_price_per_mtok_usd: str | None
    old_usd: str
    new_usd: str
    delta_usd: str
    used_in: date | None
    """Of late usage, and of the shortfall that it lowers: the first day of the month it belongs to."""


class PriceOrigin(msgspec.Struct, frozen=True):
    """The price book of a pinned price."""

    tenant_id: UUID | None
    """None = the list."""
    discount_bps: int | None
    """Basis points of the contract's discount when the price is derived from the list, else None."""


def parse_spec(data: Mapping[str, Any]) -> CorrectionSpec:
    """A validated specification from decoded JSON.

    Raises InvalidRequest for an unknown field, both or neither of `rates` and `as_of`, more than MAX_RATES rates, or
    an invalid or repeated rate.
    """
    try:
        spec = msgspec.convert(dict(data), CorrectionSpec)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the correction is not understood: {error}", param="spec") from None
    if bool(spec.rates) == (spec.as_of is not None):
        raise InvalidRequest("a correction takes either rates or as_of", param="spec")
    if len(spec.rates) > MAX_RATES:
        raise InvalidRequest(f"at most {MAX_RATES} rates in one correction", param="rates")
    seen = set()
    for rate in spec.rates:
        rate.pico()
        if not rate.model or len(rate.model) > 200:
            raise InvalidRequest("model must be a name of 1 to 200 characters", param="rates")
        if rate.tier not in TIERS:
            raise InvalidRequest(
                f"tier must be one of {', '.join(TIERS)}, not {rate.tier[:40]!r}", param="rates"
            )
        book = (rate.model, rate.tier, rate.tenant_id)
        if book in seen:
            whose = "the list" if rate.tenant_id is None else f"organisation {rate.tenant_id}"
            raise InvalidRequest(f"two rates of {rate.model} ({rate.tier}) for {whose}", param="rates")
        seen.add(book)
    return spec


def prices_from_rates(
    rates: Iterable[NewRate], origins: Mapping[int, PriceOrigin]
) -> Callable[[UsageGroup], Mapping[str, int] | None]:
    """A function from a usage group to its new prices by `rates` (picodollars per token by class); None = unchanged.

    `origins` has the price book of every pinned version by its id.
    """
    books = {(rate.model, rate.tier, rate.tenant_id): rate.pico() for rate in rates}

    def prices(group: UsageGroup) -> Mapping[str, int] | None:
        own = books.get((group.priced_as, group.tier, group.tenant_id))
        if own is not None:
            return own
        listed = books.get((group.priced_as, group.tier, None))
        origin = origins[group.price_version]
        if listed is None or (origin.tenant_id is not None and origin.discount_bps is None):
            return None
        if origin.discount_bps is None:
            return listed
        return {name: discounted(price, origin.discount_bps) for name, price in listed.items()}

    return prices


def discounted(price: int, bps: int) -> int:
    """`price` less `bps` basis points, rounded half up to the picodollar, like the SQL function penstock_discounted."""
    return (price * (10_000 - bps) + 5_000) // 10_000


def rerate(
    groups: Iterable[UsageGroup],
    prior: Mapping[LineKey, int],
    prices: Callable[[UsageGroup], Mapping[str, int] | None],
) -> list[Difference]:
    """Every line whose amount changes under `prices` (None = unchanged).

    `prior` has the picodollars that approved corrections have added to a line.
    """
    found = []
    for group in groups:
        new = prices(group)
        if new is None:
            continue
        for name in CLASSES:
            tokens = group.tokens[name]
            key = LineKey(
                group.tenant_id, group.kind, group.model, name, group.tier, group.price_version, group.used_in
            )
            old_exact = tokens * group.prices[name] + prior.get(key, 0)
            new_exact = tokens * new[name]
            if new_exact == old_exact:
                continue
            single = tokens > 0 and old_exact % tokens == 0
            found.append(
                Difference(
                    **key._asdict(),
                    tokens=tokens,
                    old_price=old_exact // tokens if single else None,
                    new_price=new[name],
                    old_exact=old_exact,
                    new_exact=new_exact,
                    delta=new_exact - old_exact,
                )
            )
    return found


def commit_differences(
    lines: Iterable[Difference], billed: Mapping[tuple[UUID, date | None], Commitment]
) -> list[Difference]:
    """Changes of billed commitment shortfalls that follow from `lines`: more usage lowers the shortfall.

    `billed` has the commitments by tenant and month: None is the corrected month, any other that of late usage. Those
    that no invoice has billed yet are left out.
    """
    change: dict[tuple[UUID, date | None], int] = defaultdict(int)
    for line in lines:
        if line.kind != COMMIT:
            change[line.tenant_id, line.used_in] += line.delta
    found = []
    for tenant_id, used_in in sorted(
        change.keys() & billed.keys(), key=lambda one: (one[0], one[1] or date.min)
    ):
        before = billed[tenant_id, used_in]
        old, new = before.shortfall, before.plus(change[tenant_id, used_in]).shortfall
        if new != old:
            found.append(
                Difference(
                    tenant_id,
                    COMMIT,
                    "",
                    "",
                    "",
                    0,
                    tokens=0,
                    old_price=None,
                    new_price=None,
                    old_exact=old,
                    new_exact=new,
                    delta=new - old,
                    used_in=used_in,
                )
            )
    return found


def reversed_lines(lines: Iterable[Difference]) -> list[Difference]:
    """The lines that undo those of usage among `lines` exactly. What follows for commitments depends on what else has
    changed meanwhile: see `commit_differences`.
    """
    return [
        msgspec.structs.replace(
            line,
            old_price=line.new_price,
            new_price=line.old_price,
            old_exact=line.new_exact,
            new_exact=line.old_exact,
            delta=-line.delta,
        )
        for line in lines
        if line.kind != COMMIT
    ]


def difference_view(line: Difference) -> DifferenceView:
    """`line` in dollars."""
    return DifferenceView(
        **line.key._asdict(),
        tokens=line.tokens,
        old_price_per_mtok_usd=None if line.old_price is None else pico_per_token_to_per_mtok(line.old_price),
        new_price_per_mtok_usd=None if line.new_price is None else pico_per_token_to_per_mtok(line.new_price),
        old_usd=pico_to_usd(line.old_exact),
        new_usd=pico_to_usd(line.new_exact),
        delta_usd=pico_to_usd(line.delta),
    )
