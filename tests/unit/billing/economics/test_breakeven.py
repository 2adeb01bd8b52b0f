"""The money of a break-even: exact, rounded so that a proposed price never loses."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from billing.economics.breakeven import (
    PRICE_STEP,
    Mix,
    TokenRates,
    breakeven_utilisation,
    paying_rates,
    revenue_per_hour,
    shape_of,
)
from billing.economics.weights import Coefficients

USD = 10**12
MIX = Mix(input=8_000, cached=2_000, output=1_000)
RATES = TokenRates(500_000, 100_000, 1_600_000)


def test_a_request_pays_each_kind_of_token_at_its_own_rate() -> None:
    assert RATES.of(MIX) == 6_000 * 500_000 + 2_000 * 100_000 + 1_000 * 1_600_000
    assert revenue_per_hour(RATES, MIX, Fraction(1, 3)) == RATES.of(MIX) // 3


def test_a_host_is_paid_for_where_revenue_is_its_price() -> None:
    assert breakeven_utilisation(64 * USD, 80 * USD, Fraction(0)) == Fraction(4, 5)
    assert breakeven_utilisation(64 * USD, 80 * USD, Fraction(1, 5)) == 1
    assert breakeven_utilisation(64 * USD, 47 * USD, Fraction(0)) == Fraction(64, 47)
    assert breakeven_utilisation(64 * USD, 0, Fraction(0)) is None
    assert breakeven_utilisation(0, 0, Fraction(0)) == 0


@given(
    st.integers(1, 200 * USD),
    st.fractions(Fraction(1, 1000), 100_000, max_denominator=1000),
    st.fractions(0, Fraction(9, 10), max_denominator=100),
    st.builds(TokenRates, *(st.integers(1, 10**8) for _ in range(3))),
)
def test_the_proposed_price_pays_and_keeps_the_proportions(
    cost: int, requests: Fraction, margin: Fraction, shape: TokenRates
) -> None:
    found = paying_rates(shape, MIX, cost=cost, requests_per_hour=requests, margin=margin)
    assert found is not None
    left = found.of(MIX) * requests - cost
    assert left >= margin * found.of(MIX) * requests
    for name in TokenRates.__struct_fields__:
        rate = getattr(found, name)
        assert rate % PRICE_STEP == 0
        exact = Fraction(cost) / (1 - margin) / requests / shape.of(MIX) * getattr(shape, name)
        assert 0 <= rate - exact < PRICE_STEP


def test_no_price_is_proposed_for_no_requests_or_a_free_shape() -> None:
    assert paying_rates(RATES, MIX, cost=USD, requests_per_hour=Fraction(0), margin=Fraction(0)) is None
    free = TokenRates(0, 0, 0)
    assert paying_rates(free, MIX, cost=USD, requests_per_hour=Fraction(9), margin=Fraction(0)) is None


def test_gpu_time_shapes_the_price_of_a_model_without_one() -> None:
    assert shape_of(Coefficients(uncached=3, cached=1, output=90)) == TokenRates(3, 1, 90)
