"""Exact money: integers, rounded only to cents."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import money

picos = st.integers(-money.MAX_PICO, money.MAX_PICO)


@given(picos)
def test_dollars_round_trip(pico: int) -> None:
    text = money.pico_to_usd(pico)
    assert "e" not in text.lower()
    assert money.usd_to_pico(text) == pico


@given(st.integers(0, 10**20))
def test_prices_round_trip(price: int) -> None:
    assert money.per_mtok_to_pico_per_token(money.pico_per_token_to_per_mtok(price)) == price


@pytest.mark.parametrize(
    ("text", "pico"),
    [("0.50", 500_000_000_000), ("12.5", 12_500_000_000_000), ("-0.000000000001", -1), ("0", 0)],
)
def test_known_amounts(text: str, pico: int) -> None:
    assert money.usd_to_pico(text) == pico


@pytest.mark.parametrize("text", ["", "ten", "nan", "inf", "0.0000000000001", "1e30", "1_0x", "--1"])
def test_invalid_amounts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"dollar|amount|decimals"):
        money.usd_to_pico(text)


@pytest.mark.parametrize(
    "text", ["1e999999", "-1e999999", "1e9999999999", "1e-9999999", "1." + "0" * 90 + "1", "9" * 5000]
)
def test_an_amount_beyond_all_digits_is_refused_and_never_rounded(text: str) -> None:
    with pytest.raises(ValueError, match=r"out of range|decimals"):
        money.usd_to_pico(text)
    with pytest.raises(ValueError, match=r"out of range|decimals"):
        money.per_mtok_to_pico_per_token(text)


def test_a_price_is_whole_picodollars_a_token_and_not_negative() -> None:
    assert money.per_mtok_to_pico_per_token("0.50") == 500_000
    with pytest.raises(ValueError, match="6 decimals"):
        money.per_mtok_to_pico_per_token("0.0000001")
    with pytest.raises(ValueError, match="negative"):
        money.per_mtok_to_pico_per_token("-1")


@pytest.mark.promise(15)
@given(picos)
def test_cents_are_the_nearest_half_away_from_zero(pico: int) -> None:
    cents = money.round_to_cents(pico)
    exact = Fraction(pico, money.PICO_PER_CENT)
    assert abs(exact - cents) <= Fraction(1, 2)
    if abs(exact - cents) == Fraction(1, 2):
        assert abs(cents) > abs(exact)


@given(st.integers(0, 10**24), st.integers(1, 10**12))
def test_the_blended_price_is_the_nearest(pico: int, tokens: int) -> None:
    text = money.ratio_per_mtok(pico, tokens)
    assert text is not None
    exact = Fraction(pico * money.TOKENS_PER_MTOK, tokens * money.PICO_PER_USD)
    assert abs(Fraction(Decimal(text)) - exact) <= Fraction(1, 2 * money.PICO_PER_USD)


def test_no_tokens_have_no_price() -> None:
    assert money.ratio_per_mtok(5, 0) is None
