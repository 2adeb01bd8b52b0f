"""Invoice lines and totals as pure functions of a month's usage sums.

A usage line is tenant x model x class x tier x price version. Its exact amount is tokens x unit price in picodollars;
its cents are that amount rounded once, half away from zero. Only lines are rounded; every other amount of an invoice is
a sum of lines.
"""

from collections.abc import Iterable, Mapping
from datetime import date
from typing import Literal
from uuid import UUID

import msgspec

from billing.ledger.months import month_name
from core.money import pico_per_token_to_per_mtok, pico_to_usd, round_to_cents

CLASSES = ("input", "cached_input", "output", "reasoning")
"""Disjoint token classes: input without cached input, output without reasoning."""

MINIMUM_CENTS = 50
"""Stripe's minimum charge in USD. Stripe marks a smaller invoice paid and moves its amount to the customer's balance,
which our books do not see; therefore a smaller total is carried over to the next invoice."""
LineKind = Literal["usage", "late_usage", "adjustment", "commit", "sla", "carried"]

_CLASS_LABELS = {
    "input": "input tokens",
    "cached_input": "cached input tokens",
    "output": "output tokens",
    "reasoning": "reasoning tokens",
}


class UsageGroup(msgspec.Struct, frozen=True):
    """A tenant's billed tokens of one model and tier under one price version in a month."""

    tenant_id: UUID
    kind: Literal["usage", "late_usage"]
    model: str
    tier: str
    price_version: int
    tokens: Mapping[str, int]
    """Tokens by class of CLASSES."""
    prices: Mapping[str, int]
    """Picodollars per token by class, of the pinned price version."""
    cost: int
    """The sum of `usage.cost` in picodollars; the lines must add up to it."""
    used_in: date | None = None
    """Of late usage: the first day of the month in which it ended."""
    adapter: str = ""
    """The adapter of the model whose own price this is; empty = the price is the model's."""

    @property
    def priced_as(self) -> str:
        """The name in the price book: the adapter's, or the model's."""
        return self.adapter or self.model


class Line(msgspec.Struct, frozen=True):
    """One invoice line."""

    kind: LineKind
    exact: int
    """Picodollars."""
    cents: int
    description: str
    model: str = ""
    token_class: str = ""
    tier: str = ""
    price_version: int | None = None
    tokens: int = 0
    unit_price: int | None = None
    """Picodollars per token."""
    adjustment_id: UUID | None = None
    used_in: date | None = None
    """Of late usage, and of what it takes back of a commitment: the first day of the month it belongs to."""


class Movement(msgspec.Struct, frozen=True):
    """An adjustment or SLA credit booked in the month."""

    kind: Literal["adjustment", "sla"]
    source_id: UUID
    amount: int
    """Picodollars; positive = the customer owes more."""
    description: str


class CarriedAmount(msgspec.Struct, frozen=True):
    """What an earlier invoice carries over: a credit, a total below MINIMUM_CENTS, or the amount of a void invoice."""

    invoice_id: UUID
    number: str
    exact: int
    cents: int


class Commitment(msgspec.Struct, frozen=True):
    """A month's committed spend and the usage that counts towards it, in picodollars."""

    committed: int
    counted: int

    @property
    def shortfall(self) -> int:
        """What usage lacks to the commitment."""
        return max(self.committed - self.counted, 0)

    def plus(self, used: int) -> "Commitment":
        """The same commitment with more usage."""
        return Commitment(self.committed, self.counted + used)


class LateUsage(msgspec.Struct, frozen=True):
    """Usage of an earlier month on an invoice."""

    month: date
    """The first day of the month it belongs to."""
    cost: int
    """Picodollars at the pinned prices."""
    corrected: int
    """Picodollars that corrections approved before the invoice add to it."""
    credit: int
    """Picodollars of that month's billed shortfall that it takes back."""

    @property
    def worth(self) -> int:
        """Picodollars at the corrected prices, which count towards the commitment."""
        return self.cost + self.corrected


class Totals(msgspec.Struct, frozen=True):
    """The totals of an invoice: to be paid (`exact` picodollars, `cents`) and carried over to the next invoice."""

    exact: int
    cents: int
    carry_exact: int
    """Picodollars carried over; when not 0, nothing is to be paid."""
    carry_cents: int
    lines: tuple[Line, ...]


def usage_lines(group: UsageGroup) -> list[Line]:
    """One line per class with tokens. Raises ValueError when the lines do not add up to the group's cost."""
    lines = []
    for name in CLASSES:
        tokens, price = group.tokens[name], group.prices[name]
        if tokens == 0:
            continue
        late = f", used in {month_name(group.used_in)}" if group.used_in else ""
        per_mtok = pico_per_token_to_per_mtok(price)
        lines.append(
            Line(
                kind=group.kind,
                exact=tokens * price,
                cents=round_to_cents(tokens * price),
                description=f"{group.priced_as} ({group.tier}): {_CLASS_LABELS[name]} at ${per_mtok} per million{late}",
                model=group.model,
                token_class=name,
                tier=group.tier,
                price_version=group.price_version,
                tokens=tokens,
                unit_price=price,
                used_in=group.used_in,
            )
        )
    total = sum(line.exact for line in lines)
    if total != group.cost:
        raise ValueError(
            f"the usage of {group.tenant_id} on {group.model} ({group.tier}, price {group.price_version}) costs "
            f"{group.cost} and its lines add up to {total}: the rollup does not equal its rows"
        )
    return lines


def movement_lines(movements: Iterable[Movement]) -> list[Line]:
    """One line per adjustment or SLA credit that is not 0."""
    return [
        Line(
            kind=movement.kind,
            exact=movement.amount,
            cents=round_to_cents(movement.amount),
            description=movement.description,
            adjustment_id=movement.source_id if movement.kind == "adjustment" else None,
        )
        for movement in movements
        if movement.amount != 0
    ]


def commit_line(commitment: Commitment) -> Line | None:
    """The shortfall of a commitment; None without one."""
    missing = commitment.shortfall
    if not missing:
        return None
    committed, used = pico_to_usd(commitment.committed), pico_to_usd(commitment.counted)
    description = f"Committed spend ${committed} less usage ${used}"
    return Line(kind="commit", exact=missing, cents=round_to_cents(missing), description=description)


def late_commit_lines(late: Iterable[LateUsage]) -> list[Line]:
    """One line below 0 per month whose shortfall late usage lowers."""
    return [
        Line(
            kind="commit",
            exact=-one.credit,
            cents=round_to_cents(-one.credit),
            description=f"Committed spend of {one.month:%Y-%m} met by late usage ${pico_to_usd(one.worth)}",
            used_in=one.month,
        )
        for one in late
        if one.credit
    ]


def carried_lines(carries: Iterable[CarriedAmount]) -> list[Line]:
    """One line per carried amount, with the cents of the earlier invoice."""
    return [
        Line(
            kind="carried",
            exact=carry.exact,
            cents=carry.cents,
            description=f"Carried over from invoice {carry.number}",
        )
        for carry in carries
    ]


def total_lines(lines: Iterable[Line]) -> Totals:
    """Add up `lines`. A negative sum, or one below MINIMUM_CENTS, is carried over by a last line that makes it 0."""
    known = tuple(lines)
    exact, cents = sum(line.exact for line in known), sum(line.cents for line in known)
    if (exact, cents) == (0, 0) or (exact > 0 and cents >= MINIMUM_CENTS):
        return Totals(exact, cents, 0, 0, known)
    carried = Line(kind="carried", exact=-exact, cents=-cents, description="Carried over to the next invoice")
    return Totals(0, 0, exact, cents, (*known, carried))
