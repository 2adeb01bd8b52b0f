"""The margin bridge (price-volume-mix analysis): the effects that make up the difference of two periods' margins. Pure.

Margin = revenue - GPU cost. The figures of the first period are replaced by those of the second step by step, in this
order; an effect is the margin after its step less the margin before it:

1. volume       all tokens scaled to the second period's total; shares, prices and cost per estimated GPU time stay
2. mix          the shares of segments (tenant and model), and of input and output within them
3. cache        the cached share of input within them
4. price        the average price of each kind of token within them
5. utilisation  GPU time of the hosts per estimated GPU time of the tokens: idle, loading, asleep, slower engines
6. gpu_price    the average price of GPU time

Intermediate margins are exact and rounded half up to a picodollar, so the effects always add up to the difference.
Another order would move amounts between effects, because effects multiply; it would not change their sum. A figure that
a period lacks (the price of a model without usage) is taken from the other period.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Generic, TypeVar

import msgspec

from billing.economics.weights import Coefficients

K = TypeVar("K")
EFFECTS = ("volume", "mix", "cache", "price", "utilisation", "gpu_price")


class Quantities(msgspec.Struct, frozen=True):
    """A figure per kind of token: tokens, picodollars, or picodollars per token."""

    uncached: int | Fraction = 0
    cached: int | Fraction = 0
    output: int | Fraction = 0

    @property
    def total(self) -> int | Fraction:
        """The sum of all kinds."""
        return self.uncached + self.cached + self.output

    def scaled(self, factor: Fraction) -> "Quantities":
        """All kinds times `factor`."""
        return Quantities(self.uncached * factor, self.cached * factor, self.output * factor)


class Segment(msgspec.Struct, frozen=True):
    """Tokens of one tenant and model, and their revenue in picodollars, by kind of token."""

    tokens: Quantities = Quantities()
    revenue: Quantities = Quantities()


class Period(msgspec.Struct, Generic[K], frozen=True):
    """The figures of a period."""

    segments: dict[K, Segment]
    gpu_cost: int
    """Picodollars of all hosts, including unused time."""
    machine_us: int
    """GPU-microseconds of that cost; a host without GPUs counts as one GPU."""

    @property
    def revenue(self) -> int:
        """Picodollars of all segments."""
        return int(sum(segment.revenue.total for segment in self.segments.values()))


class Bridge(msgspec.Struct, frozen=True):
    """Margins of both periods and the effects by EFFECTS, in picodollars; the effects add up to `after - before`."""

    before: int
    after: int
    effects: dict[str, int]


def bridge(before: Period[K], after: Period[K], weights: Mapping[K, Coefficients]) -> Bridge:
    """The bridge from one period to another; `weights` has the coefficients of every segment's model."""
    keys = [*before.segments, *(key for key in after.segments if key not in before.segments)]
    old = {key: before.segments.get(key, Segment()) for key in keys}
    new = {key: after.segments.get(key, Segment()) for key in keys}
    scaled = _scaled(old, new)
    mixed = {key: _with_cached_share(new[key].tokens, old[key].tokens) for key in keys}
    final = {key: new[key].tokens for key in keys}
    old_prices = {key: _prices(old[key], new[key]) for key in keys}

    old_estimate = _weighted({key: old[key].tokens for key in keys}, weights)

    def cost(tokens: Mapping[K, Quantities]) -> Fraction:
        """GPU cost at the first period's cost per estimated GPU time; its whole cost when it had no tokens."""
        return (
            before.gpu_cost * _weighted(tokens, weights) / old_estimate
            if old_estimate
            else Fraction(before.gpu_cost)
        )

    gpu_price = _ratio(
        before.gpu_cost, before.machine_us, _ratio(after.gpu_cost, after.machine_us, Fraction(0))
    )
    margins = [
        Fraction(before.revenue - before.gpu_cost),
        _weighted(scaled, old_prices) - cost(scaled),
        _weighted(mixed, old_prices) - cost(mixed),
        _weighted(final, old_prices) - cost(final),
        after.revenue - cost(final),
        after.revenue - gpu_price * after.machine_us,
        Fraction(after.revenue - after.gpu_cost),
    ]
    rounded = [_round(margin) for margin in margins]
    effects = {name: rounded[i + 1] - rounded[i] for i, name in enumerate(EFFECTS)}
    return Bridge(rounded[0], rounded[-1], effects)


def _scaled(old: Mapping[K, Segment], new: Mapping[K, Segment]) -> dict[K, Quantities]:
    """The first period's tokens scaled to the second's total; the second's tokens when the first has none."""
    total = sum(segment.tokens.total for segment in old.values())
    wanted = sum(segment.tokens.total for segment in new.values())
    if not total:
        return {key: segment.tokens for key, segment in new.items()}
    return {key: segment.tokens.scaled(Fraction(wanted) / total) for key, segment in old.items()}


def _with_cached_share(tokens: Quantities, shares: Quantities) -> Quantities:
    """`tokens` with the cached share of input of `shares`; unchanged when `shares` has no input."""
    known = shares.uncached + shares.cached
    if not known:
        return tokens
    prompt = tokens.uncached + tokens.cached
    cached = Fraction(prompt) * shares.cached / known
    return Quantities(prompt - cached, cached, tokens.output)


def _prices(segment: Segment, other: Segment) -> Quantities:
    """Average picodollars per token of each kind; from `other` for kinds of which `segment` has no tokens."""

    def price(kind: str) -> Fraction:
        elsewhere = _ratio(getattr(other.revenue, kind), getattr(other.tokens, kind), Fraction(0))
        return _ratio(getattr(segment.revenue, kind), getattr(segment.tokens, kind), elsewhere)

    return Quantities(price("uncached"), price("cached"), price("output"))


def _weighted(tokens: Mapping[K, Quantities], per_token: Mapping[K, Quantities | Coefficients]) -> Fraction:
    """Tokens times a figure per token of their kind, summed: revenue by prices, GPU-picoseconds by coefficients."""
    return sum(
        (
            Fraction(
                one.uncached * per_token[key].uncached
                + one.cached * per_token[key].cached
                + one.output * per_token[key].output
            )
            for key, one in tokens.items()
        ),
        Fraction(0),
    )


def _ratio(numerator: int | Fraction, denominator: int | Fraction, otherwise: Fraction) -> Fraction:
    return Fraction(numerator) / denominator if denominator else otherwise


def _round(value: Fraction) -> int:
    """Round half up."""
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)
