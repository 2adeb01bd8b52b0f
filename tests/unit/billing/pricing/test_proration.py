"""Proration of a committed monthly spend: exact over any split of a month."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.ledger.months import bounds, next_month
from billing.pricing.proration import Span, prorate
from core.money import MAX_PICO

MOMENT = timedelta(microseconds=1)
MONTHS = st.builds(date, st.integers(2000, 2999), st.integers(1, 12), st.just(1))


@st.composite
def splits(draw: st.DrawFn) -> tuple[date, list[tuple[datetime, datetime]]]:
    """A month and its parts between any instants, in any order, without a gap or an overlap."""
    month = draw(MONTHS)
    start, end = bounds(month)
    cuts = draw(st.lists(st.integers(1, (end - start) // MOMENT - 1), unique=True, max_size=20).map(sorted))
    points = [start, *(start + cut * MOMENT for cut in cuts), end]
    return month, draw(st.permutations(list(pairwise(points))))


@pytest.mark.promise(15)
@given(split=splits(), amount=st.integers(1, MAX_PICO))
def test_any_split_of_a_month_is_one_months_commitment(
    split: tuple[date, list[tuple[datetime, datetime]]], amount: int
) -> None:
    month, parts = split
    assert prorate([Span(amount, *part) for part in parts], month) == amount


@pytest.mark.promise(15)
@given(split=splits(), amounts=st.lists(st.integers(1, MAX_PICO), min_size=21, max_size=21), data=st.data())
def test_other_terms_and_gaps_are_rounded_down_once(
    split: tuple[date, list[tuple[datetime, datetime]]], amounts: list[int], data: st.DataObject
) -> None:
    month, parts = split
    spans = [Span(amount, *part) for amount, part in zip(amounts, parts, strict=False)]
    held = data.draw(st.lists(st.sampled_from(spans), unique=True))
    start, end = bounds(month)
    whole = (end - start) // MOMENT
    exact = sum(span.amount * ((span.until - span.since) // MOMENT) for span in held if span.until)
    due = prorate(held, month)
    assert 0 <= exact - due * whole < whole  # at most one picodollar is left out, in all
    assert due <= max((span.amount for span in held), default=0)
    assert due + prorate([span for span in spans if span not in held], month) <= prorate(spans, month)


@given(month=MONTHS, amount=st.integers(1, MAX_PICO), days=st.integers(1, 400))
def test_only_the_month_counts_of_a_contract_that_lasts_longer(month: date, amount: int, days: int) -> None:
    start, end = bounds(month)
    around = timedelta(days=days)
    assert prorate([Span(amount, start - around, None)], month) == amount
    assert prorate([Span(amount, start - around, end + around)], month) == amount
    assert prorate([Span(amount, end, None)], month) == 0
    assert prorate([Span(amount, start - around, start)], month) == 0


def test_half_of_a_month_is_half() -> None:
    middle = datetime(2031, 6, 16, tzinfo=UTC)
    month = date(2031, 6, 1)
    assert prorate([Span(3001, middle, None)], month) == 1500
    assert prorate([Span(3001, middle, None)], next_month(month)) == 3001
