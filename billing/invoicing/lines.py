"""What an invoice says, as pure functions: a month's sums in, lines out.

A line is tenant x model x class x tier x price version. Its exact amount is tokens x unit price in picodollars; the
cents are that amount rounded once, half away from zero. Nothing else is ever rounded, and every other amount of an
invoice is a sum of lines (DESIGN §5).
"""

from collections.abc import Iterable, Mapping
from typing import Literal
from uuid import UUID

import msgspec

from core.money import pico_per_token_to_per_mtok, pico_to_usd, round_to_cents

CLASSES = ("input", "cached_input", "output", "reasoning")
"""Disjoint: input is what was not cached, output what was not reasoning."""

MINIMUM_CENTS = 50
"""Stripe charges no less in US dollars: it marks a smaller invoice paid and keeps the amount in the customer's balance,
where our books would not see it. So such an invoice is carried over here."""
LineKind = Literal["usage", "late_usage", "adjustment", "commit", "sla", "carried"]

_CLASS_WORDS = {
    "input": "input tokens",
    "cached_input": "cached input tokens",
    "output": "output tokens",
    "reasoning": "reasoning tokens",
}


class UsageGroup(msgspec.Struct, frozen=True):
    """What a tenant used of one model and tier under one price version in a month; billed tokens only."""

    tenant_id: UUID
    kind: Literal["usage", "late_usage"]
    model: str
    tier: str
    price_version: int
    tokens: Mapping[str, int]
    """By class, disjoint."""
    prices: Mapping[str, int]
    """Picodollars per token by class, of the pinned version."""
    cost: int
    """The sum of `usage.cost`; the lines must add up to it."""


class Line(msgspec.Struct, frozen=True):
    """One line; amounts in picodollars and cents."""

    kind: LineKind
    exact: int
    cents: int
    description: str
    model: str = ""
    token_class: str = ""
    tier: str = ""
    price_version: int | None = None
    tokens: int = 0
    unit_price: int | None = None
    adjustment_id: UUID | None = None


class Movement(msgspec.Struct, frozen=True):
    """Something besides usage that changed what a customer owes in the month; positive = the customer owes more."""

    kind: Literal["adjustment", "sla"]
    source_id: UUID
    amount: int
    description: str


class Carry(msgspec.Struct, frozen=True):
    """What an earlier invoice leaves to this one: a credit, or the amount of one that was voided."""

    invoice_id: UUID
    number: str
    exact: int
    cents: int


class Totals(msgspec.Struct, frozen=True):
    """The sums of an invoice and what becomes of it."""

    exact: int
    cents: int
    carry_exact: int
    """Not 0: nothing is to be paid, and the next invoice begins with this."""
    carry_cents: int
    lines: tuple[Line, ...]


def usage_lines(group: UsageGroup) -> list[Line]:
    """The lines of one group, one per class with tokens. Raises ValueError when they do not add up to its cost."""
    lines = []
    for name in CLASSES:
        tokens, price = group.tokens[name], group.prices[name]
        if tokens == 0:
            continue
        late = ", used in an earlier month" if group.kind == "late_usage" else ""
        per_mtok = pico_per_token_to_per_mtok(price)
        lines.append(
            Line(
                kind=group.kind,
                exact=tokens * price,
                cents=round_to_cents(tokens * price),
                description=f"{group.model} ({group.tier}): {_CLASS_WORDS[name]} at ${per_mtok} per million{late}",
                model=group.model,
                token_class=name,
                tier=group.tier,
                price_version=group.price_version,
                tokens=tokens,
                unit_price=price,
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


def commit_line(committed: int | None, used: int) -> Line | None:
    """What is missing to the spend that the contract commits to; None when nothing is."""
    missing = (committed or 0) - used
    if missing <= 0:
        return None
    words = f"Committed spend ${pico_to_usd(committed or 0)} less usage ${pico_to_usd(used)}"
    return Line(kind="commit", exact=missing, cents=round_to_cents(missing), description=words)


def carried_lines(carries: Iterable[Carry]) -> list[Line]:
    """What earlier invoices leave to this one, to the cent that they said."""
    return [
        Line(
            kind="carried",
            exact=carry.exact,
            cents=carry.cents,
            description=f"Carried over from invoice {carry.number}",
        )
        for carry in carries
    ]


def close(lines: Iterable[Line]) -> Totals:
    """Add lines up. A sum below zero, or too small to be charged, goes to the next invoice: a last line makes it 0."""
    known = tuple(lines)
    exact, cents = sum(line.exact for line in known), sum(line.cents for line in known)
    if (exact, cents) == (0, 0) or (exact > 0 and cents >= MINIMUM_CENTS):
        return Totals(exact, cents, 0, 0, known)
    carried = Line(kind="carried", exact=-exact, cents=-cents, description="Carried over to the next invoice")
    return Totals(0, 0, exact, cents, (*known, carried))
