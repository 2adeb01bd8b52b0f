"""Accounting months as people write them."""

from datetime import date

import pytest

from admin.adjustments import parse_month as parse_optional
from billing.ledger.months import bounds, final_at, month_name, next_month, parse_month
from core.errors import InvalidRequest


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026",
        "2026-1",
        "2026-13",
        "2026-00",
        "2026-11 ",
        "0001-01",
        "1999-12",
        "9999-12",
        "\uff12026-11",
        "x" * 99,
    ],
)
def test_what_is_no_month_of_ours_is_refused(text: str) -> None:
    for parse in (parse_month, parse_optional):
        with pytest.raises(InvalidRequest, match="must be a month such as 2026-11"):
            parse(text, "month")


@pytest.mark.parametrize("text", ["2000-01", "2026-11", "2999-12"])
def test_every_month_has_an_end_and_its_own_name(text: str) -> None:
    month = parse_month(text)
    assert month_name(month) == text
    start, end = bounds(month)
    assert start.date() == month < end.date() == next_month(month) < final_at(month).date()
    assert parse_optional(text, "month") == month
    assert parse_optional(None, "month") is None


def test_the_first_day_stands_for_the_month() -> None:
    assert parse_month("2026-11") == date(2026, 11, 1)
