"""What people type and what addresses say on the pages of money."""

from datetime import UTC, date, datetime
from uuid import UUID

import pytest
from starlette.datastructures import QueryParams

from billing.notifications.alerts import AlertView
from billing.reports.compare import Change, ComparedRow
from console.pages.requests import read_filters as read_requests
from console.panels.alert_rules import parse_thresholds, used
from console.panels.contract import discount_text, parse_percent, sla_words
from console.panels.report_choice import ReportOptions, compared_with, one_time_unit, read_options
from console.panels.report_table import compared_rows
from console.periods import form_period

TODAY = date(2026, 11, 21)


@pytest.mark.parametrize(
    ("typed", "bps"), [("15", 1500), ("12.5 %", 1250), ("0.25", 25), ("", 0), ("100", 10_000)]
)
def test_a_discount_is_exact(typed: str, bps: int) -> None:
    assert parse_percent(typed) == bps
    assert parse_percent(discount_text(bps)) == bps


@pytest.mark.parametrize("typed", ["-1", "101", "1.234", "ten", "1e1", "٣", "100.01"])
def test_a_discount_that_cannot_be_is_refused(typed: str) -> None:
    with pytest.raises(ValueError, match="percent"):
        parse_percent(typed)


def test_thresholds_are_sorted_and_each_once() -> None:
    assert parse_thresholds("100, 50%, 80,50") == [50, 80, 100]


@pytest.mark.parametrize("typed", ["", "0", "1001", "50;80", "half"])
def test_thresholds_that_cannot_be_are_refused(typed: str) -> None:
    with pytest.raises(ValueError, match="such as 50, 80, 100"):
        parse_thresholds(typed)


def test_a_service_level_reads_as_a_sentence() -> None:
    level = {"metric": "availability", "threshold": "99.9", "credit_percent": 10}
    assert (
        sla_words(level) == "At least 99.9% of requests answered, else 10% of the month's charges come back"
    )
    assert sla_words(None) == "No service level is promised"


def test_only_a_budget_has_a_share() -> None:
    rule = AlertView(None, UUID(int=1), "budget", "tenant", UUID(int=1), "20", [50], "5", [])
    assert used(rule) == 0.25
    assert used(AlertView(None, UUID(int=1), "low_balance", "tenant", UUID(int=1), "20", [], "5", [])) is None


def test_a_report_has_one_unit_of_time() -> None:
    assert one_time_unit(("hour", "model", "month")) == ("hour", "model")
    assert read_options(QueryParams("by=day,hour,day"), is_platform=True).by == ("day",)


def test_an_open_month_is_compared_with_as_many_days_of_the_one_before() -> None:
    period = form_period("month", "", "", TODAY)
    month = form_period("custom", "2026-11-01", "2026-11-30", TODAY)
    before = compared_with(ReportOptions(compare="previous"), month, TODAY)
    assert before == (datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 10, 22, tzinfo=UTC))
    assert compared_with(ReportOptions(), period, TODAY) is None
    october = form_period("last_month", "", "", TODAY)
    assert compared_with(ReportOptions(compare="previous"), october, TODAY) == (
        datetime(2026, 9, 1, tzinfo=UTC),
        datetime(2026, 10, 1, tzinfo=UTC),
    )


def test_a_comparison_shows_signs_and_what_is_new() -> None:
    figures = {
        "cost_usd": Change("1.50", "2.00", "-0.50", "-25.00"),
        "requests": Change(3, 0, 3, None),
        "total_tokens": Change(5, 5, 0, "0.00"),
    }
    row = ComparedRow("2026-11-01T00:00:00Z", "2026-10-01T00:00:00Z", {"model": "m"}, figures)
    (shown,) = compared_rows([row], ("model",), is_platform=False)
    assert (shown["cost_usd_change"]["t"], shown["cost_usd_change"]["sub"]) == ("−$0.50", "−25.00%")
    assert (shown["requests_change"]["t"], shown["requests_change"]["sub"]) == ("+3", "new")
    assert "sub" not in shown["total_tokens_change"]
    assert not any(name.startswith(("gpu", "margin")) for name in shown)


def test_an_address_of_requests_cannot_name_another_organisation_or_nonsense() -> None:
    other = str(UUID(int=7))
    params = QueryParams(f"tenant={other}&outcome=gone&days=12&key=x&before={other}")
    mine = read_requests(params, is_platform=False)
    assert (mine.tenant, mine.outcome, mine.days, mine.key, mine.before) == ("", "", "7", "", other)
    assert read_requests(params, is_platform=True).tenant == other
