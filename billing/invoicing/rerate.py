"""A month under other prices, as pure functions: usage as it was, prices as they should have been, the difference.

Prices per tenant, model and tier replace the pinned ones; a list price reaches a customer with a discount less that
discount, and not at all one that had a price of its own. Corrections that were approved before count as the old price.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from billing.invoicing.lines import CLASSES, UsageGroup
from billing.pricing.prices import TIERS, Rates
from core.errors import InvalidRequest
from core.money import pico_per_token_to_per_mtok, pico_to_usd

MAX_RATES = 1000
COMMIT = "commit"
"""The kind of a line that is the shortfall of a commitment: it has no model, class, tier or price."""


class NewRate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A price that should have held, in dollars per million tokens."""

    model: str
    input: str
    output: str
    cached_input: str | None = None
    """None = as input."""
    reasoning: str | None = None
    """None = as output."""
    tier: str = "standard"
    tenant_id: UUID | None = None
    """None = the list price."""

    def pico(self) -> dict[str, int]:
        """Picodollars per token by class. Raises InvalidRequest."""
        cached = self.input if self.cached_input is None else self.cached_input
        reasoning = self.output if self.reasoning is None else self.reasoning
        return Rates(input=self.input, cached_input=cached, output=self.output, reasoning=reasoning).to_pico()


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to tell a month again with: either `rates`, or the price book `as_of` an instant."""

    rates: tuple[NewRate, ...] = ()
    as_of: str | None = None
    """ISO 8601 instant: each customer gets the price that a request of that instant would have got."""
    tenant_id: UUID | None = None
    """Only this organisation."""
    model: str | None = None
    """Only this model."""
    refund: bool = False
    """What is credited on a paid invoice is paid back, instead of staying on the customer's balance with us."""


class Key(NamedTuple):
    """What a line of an invoice and one of a correction have in common."""

    tenant_id: UUID
    kind: str
    model: str
    token_class: str
    tier: str
    price_version: int


class Difference(msgspec.Struct, frozen=True):
    """One line told again; amounts in picodollars."""

    tenant_id: UUID
    kind: str
    model: str
    token_class: str
    tier: str
    price_version: int
    tokens: int
    old_price: int | None
    """Per token; None when earlier corrections left no single price."""
    new_price: int | None
    old_exact: int
    new_exact: int
    delta: int
    """New less old: below 0 is in the customer's favour."""

    @property
    def key(self) -> Key:
        """Which line it is."""
        return Key(self.tenant_id, self.kind, self.model, self.token_class, self.tier, self.price_version)


class DifferenceView(msgspec.Struct, frozen=True):
    """A difference as people read it: dollars, and dollars per million tokens."""

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


class Origin(msgspec.Struct, frozen=True):
    """Where a pinned price came from."""

    tenant_id: UUID | None
    """None = the list."""
    discount_bps: int | None
    """Set when it follows from the list by a contract's discount."""


def parse_spec(data: Mapping[str, Any]) -> Spec:
    """Check a specification, also one out of a JSON file. Raises InvalidRequest naming what is wrong."""
    try:
        spec = msgspec.convert(dict(data), Spec)
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


def replacement(
    rates: Iterable[NewRate], origins: Mapping[int, Origin]
) -> Callable[[UsageGroup], Mapping[str, int] | None]:
    """The new prices of a group by `rates`; None where they do not reach it."""
    books = {(rate.model, rate.tier, rate.tenant_id): rate.pico() for rate in rates}

    def prices(group: UsageGroup) -> Mapping[str, int] | None:
        own = books.get((group.model, group.tier, group.tenant_id))
        if own is not None:
            return own
        listed = books.get((group.model, group.tier, None))
        origin = origins[group.price_version]
        if listed is None or (origin.tenant_id is not None and origin.discount_bps is None):
            return None
        if origin.discount_bps is None:
            return listed
        return {name: discounted(price, origin.discount_bps) for name, price in listed.items()}

    return prices


def discounted(price: int, bps: int) -> int:
    """A price less basis points, half up to the picodollar, as `penstock_discounted` derives contract prices."""
    return (price * (10_000 - bps) + 5_000) // 10_000


def rerate(
    groups: Iterable[UsageGroup],
    prior: Mapping[Key, int],
    prices: Callable[[UsageGroup], Mapping[str, int] | None],
) -> list[Difference]:
    """Every line whose amount changes. `prior` is what approved corrections have added to a line so far."""
    found = []
    for group in groups:
        new = prices(group)
        if new is None:
            continue
        for name in CLASSES:
            tokens = group.tokens[name]
            key = Key(group.tenant_id, group.kind, group.model, name, group.tier, group.price_version)
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
    groups: Iterable[UsageGroup],
    prior: Mapping[Key, int],
    lines: Iterable[Difference],
    committed: Mapping[UUID, int],
) -> list[Difference]:
    """How the shortfall of a commitment that an invoice has billed changes with its usage: what is used more is lacking
    less. `groups` is all usage of the month, `committed` what customers with an invoice of it committed to.
    """
    before: dict[UUID, int] = defaultdict(int)
    change: dict[UUID, int] = defaultdict(int)
    for group in groups:
        before[group.tenant_id] += group.cost
    for key, delta in prior.items():
        before[key.tenant_id] += 0 if key.kind == COMMIT else delta
    for line in lines:
        change[line.tenant_id] += line.delta
    found = []
    for tenant_id in sorted(change.keys() & committed.keys()):
        old = max(committed[tenant_id] - before[tenant_id], 0)
        new = max(committed[tenant_id] - before[tenant_id] - change[tenant_id], 0)
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
                )
            )
    return found


def mirrored(lines: Iterable[Difference]) -> list[Difference]:
    """The lines that undo `lines`, exactly."""
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
    ]


def view(line: Difference) -> DifferenceView:
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
