"""The prices of the play as its model knows them: whole picodollars a token, by the instant of admission."""

from dataclasses import dataclass, field
from datetime import datetime

Rates = tuple[int, int, int, int]
"""Picodollars a token: input, cached input, output, reasoning."""
CLASSES = ("input", "cached_input", "output", "reasoning")


def per_million(pico: int) -> str:
    """Picodollars a token as dollars per million tokens, written by hand: six decimals."""
    return f"{pico // 10**6}.{pico % 10**6:06d}"


def in_words(rates: Rates) -> dict[str, str]:
    """Rates as the acts of finance take them."""
    return {name: per_million(rate) for name, rate in zip(CLASSES, rates, strict=True)}


def discounted(rates: Rates, bps: int) -> Rates:
    """Less a discount, half up to the picodollar."""
    a, b, c, d = ((rate * (10_000 - bps) * 2 + 10_000) // 20_000 for rate in rates)
    return a, b, c, d


@dataclass(frozen=True)
class Pinned:
    """A price that a request got at admission: where it came from, and its rates."""

    book: str
    """list | own | discount"""
    since: datetime
    bps: int
    rates: Rates


@dataclass
class Book:
    """List prices by model, prices of single customers, discounts; each from an instant on."""

    listed: dict[str, list[tuple[datetime, Rates]]] = field(default_factory=dict)
    own: dict[tuple[str, str], list[tuple[datetime, Rates]]] = field(default_factory=dict)
    discounts: dict[str, tuple[datetime, int]] = field(default_factory=dict)

    def pinned(self, customer: str, model: str, at: datetime) -> Pinned:
        """What a request of `customer` gets that is admitted at `at`."""
        for since, rates in reversed(self.own.get((customer, model), [])):
            if since <= at:
                return Pinned("own", since, 0, rates)
        since, rates = self.list_price(model, at)
        begin, bps = self.discounts.get(customer, (at, 0))
        if bps and begin <= at:
            return Pinned("discount", since, bps, discounted(rates, bps))
        return Pinned("list", since, 0, rates)

    def list_price(self, model: str, at: datetime) -> tuple[datetime, Rates]:
        """The list price of an instant, and since when it holds."""
        return next(one for one in reversed(self.listed[model]) if one[0] <= at)
