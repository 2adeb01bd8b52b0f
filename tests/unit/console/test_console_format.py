"""Numbers for people stay true to the exact ones."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.format import count, milliseconds, moment, money, per_mtok, percent, seconds, short_id, words
from core.money import pico_to_usd

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        ("0.00", "$0.00"),
        ("12.5", "$12.50"),
        ("1234567.895", "$1,234,567.90"),
        ("-3.005", "−$3.01"),
        ("0.01", "$0.01"),
        ("0.0095", "$0.0095"),
        ("0.000123456", "$0.00012"),
        ("0.000000000001", "<$0.000001"),
        (None, "–"),
    ],
)
def test_money(usd: str | None, text: str) -> None:
    assert money(usd).text == text


@given(st.integers(min_value=-(10**30), max_value=10**30))
def test_money_is_exact_on_hover_and_near_on_the_page(pico: int) -> None:
    usd = pico_to_usd(pico)
    shown = money(usd)
    assert shown.exact == f"{usd} USD"
    if not shown.text.lstrip("−").startswith("<"):
        value = Decimal(shown.text.replace("$", "").replace(",", "").replace("−", "-"))
        assert abs(value - Decimal(usd)) <= Decimal("0.005")


@pytest.mark.parametrize(
    ("usd", "text"),
    [("0.5", "$0.50"), ("0.4166666", "$0.4167"), ("0.000125", "$0.000125"), ("12", "$12.00"), (None, "–")],
)
def test_prices_per_million(usd: str | None, text: str) -> None:
    assert per_mtok(usd).text == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (12_345, "12.3k"),
        (1_234_567, "1.23M"),
        (987_654_321_000, "988B"),
        (None, "–"),
    ],
)
def test_counts(value: int | None, text: str) -> None:
    assert count(value).text == text


def test_counts_are_whole_on_hover() -> None:
    assert count(1_234_567).exact == "1,234,567"


@pytest.mark.parametrize(
    ("gap", "text"),
    [
        (timedelta(seconds=3), "just now"),
        (timedelta(minutes=5), "5 min ago"),
        (timedelta(hours=3), "3 h ago"),
        (timedelta(days=2), "2 d ago"),
        (timedelta(days=40), "11 Oct 2026"),
        (timedelta(hours=-2), "in 2 h"),
    ],
)
def test_moments(gap: timedelta, text: str) -> None:
    shown = moment(NOW - gap, NOW)
    assert shown.text == text
    assert shown.exact.endswith("UTC")


def test_small_things() -> None:
    assert percent(0.256).text == "26%"
    assert milliseconds(1500.0).text == "1.50 s"
    assert milliseconds(88.4).text == "88 ms"
    assert seconds(3_725).text == "1 h 2 min"
    assert seconds(1.44).text == "1.4 s"
    assert short_id("01a1fb37-c67a-7e58-a725-e144e47f0efd").text == "…e47f0efd"
    assert words("tenant.set_tier") == "tenant · set tier"
    assert moment(None, NOW).text == "–"
