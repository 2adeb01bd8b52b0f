"""What finance's pages work out before anything is drawn."""

from datetime import UTC, date, datetime
from typing import Any

import pytest

from admin.breakeven import Loss, PriceRates
from billing.close.cross_check import CrossCheckRow
from billing.close.periods import Period
from billing.reports.money_health import MoneyHealth
from console.components.waterfall import Step, bars
from console.format import money
from console.pages.periods import chosen_month
from console.pages.reconciliation import cross_check_row
from console.panels.margin import compared_periods
from console.panels.money_today import incidents, price_warnings, revenue_share

NOW = datetime(2026, 3, 31, 12, 30, tzinfo=UTC)
CLEAN = MoneyHealth(0, 0, 0, 0, 0, "0.00", 0)


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]


def test_a_past_month_meets_the_whole_month_before() -> None:
    spans = compared_periods("month", date(2026, 1, 1), NOW)
    assert spans.before == (at(2025, 12, 1), at(2026, 1, 1))
    assert spans.after == (at(2026, 1, 1), at(2026, 2, 1))


def test_a_running_month_meets_the_same_days_and_never_itself() -> None:
    spans = compared_periods("month", date(2026, 3, 1), NOW)
    assert spans.after == (at(2026, 3, 1), at(2026, 3, 31, 13))
    assert spans.before == (at(2026, 2, 1), at(2026, 3, 1))  # February has no 31st
    early = compared_periods("month", date(2026, 3, 1), at(2026, 3, 2, 5, 59))
    assert early.before == (at(2026, 2, 1), at(2026, 2, 2, 6))


def test_the_last_days_meet_as_many_before_them() -> None:
    spans = compared_periods("7d", date(2026, 3, 1), NOW)
    assert spans.before[1] == spans.after[0]
    assert spans.after[1] - spans.after[0] == spans.before[1] - spans.before[0]


def test_each_column_of_a_waterfall_begins_where_the_last_one_ended() -> None:
    steps = [
        Step("Before", money("10"), is_total=True),
        Step("Price", money("-15")),
        Step("Volume", money("2")),
        Step("After", money("-3"), is_total=True),
    ]
    assert bars(steps) == [(0, 10), (10, -5), (-5, -3), (0, -3)]


def test_money_in_order_is_no_incident() -> None:
    assert incidents(CLEAN) == []


@pytest.mark.parametrize(
    ("health", "words", "href"),
    [
        (MoneyHealth(7, 1, 0, 0, 0, "0.00", 0), "7 tokens of engines are unexplained", "/reconciliation"),
        (
            MoneyHealth(0, 0, 2, 0, 0, "0.00", 0),
            "2 invoices or credit notes were refused",
            "/periods?tab=stripe",
        ),
        (MoneyHealth(0, 0, 0, 3, 0, "0.00", 0), "3 differences to Stripe", "/periods?tab=stripe"),
        (MoneyHealth(0, 0, 0, 0, 4, "0.00", 0), "4 notices could not be delivered", "/alerts"),
        (MoneyHealth(0, 0, 0, 0, 0, "-0.000000000001", 0), "drift by", "/reconciliation"),
        (MoneyHealth(0, 0, 0, 0, 0, "0.00", 2), "2 days of usage differ", "/periods"),
    ],
)
def test_whatever_is_wrong_is_an_incident_that_leads_somewhere(
    health: MoneyHealth, words: str, href: str
) -> None:
    ((headline, body, target),) = incidents(health)
    assert words in headline
    assert body
    assert target.startswith(href)


def _link(source: str, **figures: Any) -> CrossCheckRow:
    return CrossCheckRow(source=source, detail="", **figures)


@pytest.mark.parametrize(
    ("row", "tone"),
    [
        (_link("ledger", amount_usd="1.00", difference_usd="0.00", equal=True), "ok"),
        (_link("ledger", amount_usd="1.00", difference_usd="0.000000000001", equal=False), "bad"),
        (_link("stripe_meter", tokens=9, token_difference=-1, equal=False), "bad"),
        (_link("stripe_meter", tokens=10, token_difference=0, equal=True), "ok"),
        (_link("stripe_meter"), None),
        (_link("stripe_invoices", equal=False), "bad"),
        (_link("stripe_invoices", equal=True), "ok"),
        (_link("engines", tokens=5), "ok"),
    ],
)
def test_a_link_of_the_chain_is_green_only_when_it_is_equal(row: CrossCheckRow, tone: str | None) -> None:
    assert cross_check_row(row)["equal"].get("tone") == tone


def test_engines_that_do_not_come_out_are_red() -> None:
    row = _link("engines", tokens=5)
    assert cross_check_row(row, is_red=True)["equal"]["tone"] == "bad"


def test_billing_opens_with_the_oldest_month_that_waits() -> None:
    periods = [
        Period(name, status, "", "", None, None, None)
        for name, status in (
            ("2026-03", "open"),
            ("2026-02", "open"),
            ("2026-01", "open"),
            ("2025-12", "closed"),
        )
    ]
    assert chosen_month("", periods) == date(2026, 1, 1)
    assert chosen_month("2025-12", periods) == date(2025, 12, 1)
    assert chosen_month("1999-01", periods) == date(2026, 1, 1)
    assert chosen_month("", periods[:1]) == date(2026, 3, 1)


@pytest.mark.parametrize(
    ("margin", "revenue", "said"),
    [
        (0, 0, "no revenue yet"),
        (25 * 10**12, 100 * 10**12, "25.00% of $100.00"),
        (-100 * 10**12, 100 * 10**12, "-100.00% of $100.00"),
        (-300 * 10**12, 10**12, "revenue $1.00"),
    ],
)
def test_a_loss_above_the_revenue_is_shown_without_a_share(margin: int, revenue: int, said: str) -> None:
    assert revenue_share(margin, revenue) == said


def test_a_price_of_the_catalog_below_cost_is_named_with_what_mends_it() -> None:
    rates = PriceRates("0.50", "0.10", "1.60")
    loss = Loss(
        "deepseek",
        "standard",
        rates,
        "tp8",
        "b300",
        "18.12",
        "64.00",
        "below cost: at full load",
        "penstock prices",
    )
    [(headline, body, _)] = price_warnings([loss])
    assert headline == "The catalog's price of deepseek is below cost"
    assert body == (
        "0.50 USD input, 0.10 cached, 1.60 output per million tokens: At full load. Mend it: penstock prices"
    )
