"""Which price pays for a host: revenue at full load against the host's price, in whole picodollars.

Rates are picodollars per token. How many requests a host serves at full load comes from the caller
(scheduler/core/autoscale/full_load.py); no figure is assumed here.
"""

from fractions import Fraction

import msgspec

from billing.economics.weights import Coefficients
from core.money import PICO_PER_CENT, TOKENS_PER_MTOK

PRICE_STEP = PICO_PER_CENT // TOKENS_PER_MTOK
"""Proposed prices are whole cents per million tokens: this many picodollars per token."""


class Mix(msgspec.Struct, frozen=True):
    """Tokens of a typical request."""

    input: int
    """All tokens of the prompt."""
    cached: int
    """Those of them that the cache has."""
    output: int

    @property
    def uncached(self) -> int:
        """Tokens of the prompt that are computed."""
        return self.input - self.cached


class TokenRates(msgspec.Struct, frozen=True):
    """A price in picodollars per token. Reasoning tokens count as output."""

    input: int
    cached_input: int
    output: int

    def of(self, mix: Mix) -> int:
        """Picodollars of one request."""
        return mix.uncached * self.input + mix.cached * self.cached_input + mix.output * self.output


def revenue_per_hour(rates: TokenRates, mix: Mix, requests_per_hour: Fraction) -> int:
    """Picodollars of an hour with so many requests, rounded down."""
    return int(rates.of(mix) * requests_per_hour)


def breakeven_utilisation(cost: int, revenue: int, margin: Fraction) -> Fraction | None:
    """The share of full load at which a host is paid for and `margin` (a share of revenue, below 1) is left.

    `cost` is the host's price per hour, `revenue` that of an hour at full load, both in picodollars. Above 1 the host
    is never paid for at this price; None without revenue.
    """
    if cost == 0:
        return Fraction(0)
    return Fraction(cost, revenue) / (1 - margin) if revenue > 0 else None


def paying_rates(
    shape: TokenRates, mix: Mix, *, cost: int, requests_per_hour: Fraction, margin: Fraction
) -> TokenRates | None:
    """The lowest rates in the proportions of `shape` that pay for a host with `margin`, rounded up to PRICE_STEP.

    `requests_per_hour` are those that the host is expected to serve. None without requests, and for a shape that makes
    the request free.
    """
    whole = shape.of(mix)
    if requests_per_hour <= 0 or whole <= 0:
        return None
    factor = Fraction(cost) / (1 - margin) / requests_per_hour / whole
    return TokenRates(
        **{name: _round_up(factor * getattr(shape, name)) for name in TokenRates.__struct_fields__}
    )


def shape_of(weights: Coefficients) -> TokenRates:
    """Rates in the proportions of the estimated GPU time of tokens, for a model without a price."""
    return TokenRates(weights.uncached, weights.cached, weights.output)


def _round_up(rate: Fraction) -> int:
    return -int(-rate // PRICE_STEP) * PRICE_STEP
