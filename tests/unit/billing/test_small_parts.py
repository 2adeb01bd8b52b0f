"""Pure functions of billing: shares, periods, errors and files."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.metering.records import Outcome, PriceVersion
from billing.metering.refusals import hold_refusal
from billing.reports.report_format import compared_csv
from billing.usage.period import parse_group_by, parse_period
from billing.usage.query import this_month
from core.apportion import split
from core.errors import BudgetExceeded, InsufficientCredit, InvalidRequest, Unavailable
from core.tokens import TokenUsage


@given(st.integers(0, 10**24), st.lists(st.integers(0, 10**12), min_size=1, max_size=50))
def test_shares_add_up_and_are_fair(total: int, weights: list[int]) -> None:
    shares = split(total, weights)
    whole = sum(weights)
    if whole == 0:
        assert shares == [0] * len(weights)
        return
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        exact = total * weight
        assert exact // whole <= share <= -(-exact // whole)


@given(st.builds(TokenUsage, *(st.integers(0, 10**9) for _ in range(4))))
def test_every_token_is_priced_once(usage: TokenUsage) -> None:
    assert PriceVersion(1, 1, 1, 1, 1).cost(usage) == usage.input + usage.output


def test_the_default_period_is_the_utc_month() -> None:
    now = datetime(2026, 12, 31, 23, 59, tzinfo=UTC)
    december = (datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))
    assert this_month(now) == parse_period(None, None, now) == december
    assert parse_period("2026-11-03", "2026-11-03T05:00+02:00") == (
        datetime(2026, 11, 3, tzinfo=UTC),
        datetime(2026, 11, 3, 3, tzinfo=UTC),
    )


@pytest.mark.parametrize("value", ["yesterday", "2026-13-01", "", "0001-01-01T00:00+23:00"])
def test_a_period_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_period(value, None)
    assert refused.value.param == "from"


def test_grouping_is_read_leniently() -> None:
    assert parse_group_by("tenant, model,,day") == ("tenant", "model", "day")


def test_refusals_speak_in_exact_dollars() -> None:
    facts = {
        "model": "m",
        "tier": "standard",
        "funds": 5,
        "held": 10**12,
        "needed": 2 * 10**12 + 1,
        "open_requests": 3,
        "top_up_url": "https://pay",
    }
    refusal = hold_refusal("insufficient_credit", **facts)  # type: ignore[arg-type]
    assert isinstance(refusal, InsufficientCredit)
    assert refusal.details == {
        "balance_usd": "0.000000000005",
        "held_usd": "1.00",
        "needed_usd": "2.000000000001",
        "open_requests": 3,
        "top_up_url": "https://pay",
    }
    assert isinstance(hold_refusal("budget_exceeded", **facts), BudgetExceeded)  # type: ignore[arg-type]
    budget = hold_refusal("budget_exceeded", **facts, budget_scope="tag", budget_label="tag_t=a=b")  # type: ignore[arg-type]
    assert budget.message.startswith(
        "the monthly budget of the tag tag_t with the value 'a=b' does not cover"
    )
    assert budget.details["tag"] == "tag_t=a=b"
    crowded = hold_refusal("too_many_end_users", **facts)  # type: ignore[arg-type]
    assert isinstance(crowded, BudgetExceeded)
    for verdict in ("unpriced", "no_account", "duplicate"):
        assert isinstance(hold_refusal(verdict, **facts), Unavailable)  # type: ignore[arg-type]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_names_are_no_formulas_and_amounts_stay_numbers(start: str) -> None:
    row = {
        "tenant": f"{start}1+1",
        "simulated": True,
        "key_last4": None,
        "margin_usd": "-0.50",
        "margin_pct": "-5.00",
    }
    cells = compared_csv([row])
    assert f"'{start}1+1" in cells
    assert ",true,,-0.50,-5.00" in cells
    assert compared_csv([{"tenant": "Bäche GmbH"}]).startswith("\ufeff")


def test_two_outcomes_are_free() -> None:
    assert [outcome.value for outcome in Outcome if outcome.free] == ["engine_failed", "zero_output"]
