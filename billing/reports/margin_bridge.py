"""The margin bridge: why the margin of one period differs from that of another. Pure.

Margin = revenue - GPU cost. The second period's facts are put into the first one's place one after the other, in this
order; an effect is the margin after its step less the margin before it:

1. volume       all tokens scaled to the second period's total; shares, prices and cost per estimated GPU time stay
2. mix          the shares of tenants and models, and of input and output within them
3. cache        the cached share of input within them
4. price        the average price of each kind of token within them
5. utilisation  GPU time that existed per GPU time that the tokens should have taken: idle, loading, asleep, slower
6. gpu_price    the average price of GPU time

Every intermediate margin is exact and then rounded half up to a picodollar, so the effects always add up to the
difference. Another order would move amounts between effects (two things that both grew multiply), never the sum. What a
period does not tell (the price of a model nobody used) is taken from the other one.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Generic, TypeVar

import msgspec

from billing.economics.weights import Coefficients

K = TypeVar("K")
EFFECTS = ("volume", "mix", "cache", "price", "utilisation", "gpu_price")


class Quantities(msgspec.Struct, frozen=True):
    """Tokens, whole or in parts."""

    uncached: int | Fraction = 0
    cached: int | Fraction = 0
    output: int | Fraction = 0

    @property
    def total(self) -> int | Fraction:
        """All of them."""
        return self.uncached + self.cached + self.output

    def scaled(self, factor: Fraction) -> "Quantities":
        """Scaled."""
        return Quantities(self.uncached * factor, self.cached * factor, self.output * factor)


class Segment(msgspec.Struct, frozen=True):
    """What one tenant used of one model, and what it paid for each kind of token, in picodollars."""

    tokens: Quantities = Quantities()
    revenue: Quantities = Quantities()


class Period(msgspec.Struct, Generic[K], frozen=True):
    """A period's facts."""

    segments: dict[K, Segment]
    gpu_cost: int
    """Picodollars of all hosts, idle included."""
    machine_us: int
    """Microseconds of GPUs (of hosts without any: of hosts) behind that cost."""

    @property
    def revenue(self) -> int:
        """Picodollars."""
        return int(sum(cell.revenue.total for cell in self.segments.values()))


class Bridge(msgspec.Struct, frozen=True):
    """The effects in their order; they add up to `after - before` exactly."""

    before: int
    after: int
    effects: dict[str, int]


def bridge(before: Period[K], after: Period[K], weights: Mapping[K, Coefficients]) -> Bridge:
    """The bridge from one period to another; `weights` has the coefficients of every cell's model."""
    keys = [*before.segments, *(key for key in after.segments if key not in before.segments)]
    old = {key: before.segments.get(key, Segment()) for key in keys}
    new = {key: after.segments.get(key, Segment()) for key in keys}
    scaled = _scaled(old, new)
    mixed = {key: _with_cached_share(new[key].tokens, old[key].tokens) for key in keys}
    final = {key: new[key].tokens for key in keys}
    old_prices = {key: _prices(old[key], new[key]) for key in keys}

    old_estimate = _estimate({key: old[key].tokens for key in keys}, weights)

    def cost(tokens: Mapping[K, Quantities]) -> Fraction:
        """GPU cost at the first period's cost per estimated GPU time; all of it when nothing was estimated."""
        return (
            before.gpu_cost * _estimate(tokens, weights) / old_estimate
            if old_estimate
            else Fraction(before.gpu_cost)
        )

    gpu_price = _ratio(
        before.gpu_cost, before.machine_us, _ratio(after.gpu_cost, after.machine_us, Fraction(0))
    )
    margins = [
        Fraction(before.revenue - before.gpu_cost),
        _revenue(scaled, old_prices) - cost(scaled),
        _revenue(mixed, old_prices) - cost(mixed),
        _revenue(final, old_prices) - cost(final),
        after.revenue - cost(final),
        after.revenue - gpu_price * after.machine_us,
        Fraction(after.revenue - after.gpu_cost),
    ]
    rounded = [_round(margin) for margin in margins]
    effects = {name: rounded[i + 1] - rounded[i] for i, name in enumerate(EFFECTS)}
    return Bridge(rounded[0], rounded[-1], effects)


def _scaled(old: Mapping[K, Segment], new: Mapping[K, Segment]) -> dict[K, Quantities]:
    """The first period's tokens at the second one's total; from nothing, the second's themselves."""
    total = sum(cell.tokens.total for cell in old.values())
    wanted = sum(cell.tokens.total for cell in new.values())
    if not total:
        return {key: cell.tokens for key, cell in new.items()}
    return {key: cell.tokens.scaled(Fraction(wanted) / total) for key, cell in old.items()}


def _with_cached_share(tokens: Quantities, shares: Quantities) -> Quantities:
    """`tokens` with the cached share of input of `shares`, where that has any input."""
    known = shares.uncached + shares.cached
    if not known:
        return tokens
    prompt = tokens.uncached + tokens.cached
    cached = Fraction(prompt) * shares.cached / known
    return Quantities(prompt - cached, cached, tokens.output)


def _prices(cell: Segment, other: Segment) -> Quantities:
    """Average picodollars a token of each kind; of `other` where `cell` has none of it."""

    def price(kind: str) -> Fraction:
        elsewhere = _ratio(getattr(other.revenue, kind), getattr(other.tokens, kind), Fraction(0))
        return _ratio(getattr(cell.revenue, kind), getattr(cell.tokens, kind), elsewhere)

    return Quantities(price("uncached"), price("cached"), price("output"))


def _revenue(tokens: Mapping[K, Quantities], prices: Mapping[K, Quantities]) -> Fraction:
    return sum(
        (
            Fraction(
                one.uncached * prices[key].uncached
                + one.cached * prices[key].cached
                + one.output * prices[key].output
            )
            for key, one in tokens.items()
        ),
        Fraction(0),
    )


def _estimate(tokens: Mapping[K, Quantities], weights: Mapping[K, Coefficients]) -> Fraction:
    """GPU-picoseconds that the tokens should take."""
    return sum(
        (
            Fraction(
                one.uncached * weights[key].uncached
                + one.cached * weights[key].cached
                + one.output * weights[key].output
            )
            for key, one in tokens.items()
        ),
        Fraction(0),
    )


def _ratio(numerator: int | Fraction, denominator: int | Fraction, otherwise: Fraction) -> Fraction:
    return Fraction(numerator) / denominator if denominator else otherwise


def _round(value: Fraction) -> int:
    """Half up."""
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)
