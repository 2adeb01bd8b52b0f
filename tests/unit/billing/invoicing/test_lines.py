"""Lines and totals are exact: every amount is a sum of lines, and only lines are rounded."""

from datetime import date
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.invoicing.lines import (
    CLASSES,
    CarriedAmount,
    Commitment,
    LateUsage,
    Line,
    Movement,
    UsageGroup,
    carried_lines,
    commit_line,
    late_commit_lines,
    movement_lines,
    total_lines,
    usage_lines,
)
from core.money import PICO_PER_CENT, PICO_PER_USD, round_to_cents

TENANT = UUID(int=1)
counts = st.fixed_dictionaries({name: st.integers(0, 10**13) for name in CLASSES})
rates = st.fixed_dictionaries({name: st.integers(0, 10**10) for name in CLASSES})


def group(tokens: dict[str, int], prices: dict[str, int], cost: int | None = None) -> UsageGroup:
    total = sum(tokens[name] * prices[name] for name in CLASSES)
    return UsageGroup(TENANT, "usage", "m", "standard", 7, tokens, prices, total if cost is None else cost)


def line(exact: int) -> Line:
    return Line(kind="usage", exact=exact, cents=round_to_cents(exact), description="")


@pytest.mark.promise(15)
@given(tokens=counts, prices=rates)
def test_lines_add_up_to_the_cost_exactly_and_are_rounded_once(
    tokens: dict[str, int], prices: dict[str, int]
) -> None:
    lines = usage_lines(group(tokens, prices))
    assert sum(one.exact for one in lines) == sum(tokens[name] * prices[name] for name in CLASSES)
    assert [one.token_class for one in lines] == [name for name in CLASSES if tokens[name]]
    for one in lines:
        assert one.unit_price is not None
        assert one.exact == one.tokens * one.unit_price
        assert abs(one.cents * PICO_PER_CENT - one.exact) * 2 <= PICO_PER_CENT


def test_a_cost_that_is_not_tokens_times_price_is_refused() -> None:
    with pytest.raises(ValueError, match="does not equal its rows"):
        usage_lines(group(dict.fromkeys(CLASSES, 1), dict.fromkeys(CLASSES, 1), cost=5))


@pytest.mark.promise(15)
def test_half_a_cent_is_rounded_away_from_zero_both_ways() -> None:
    half = PICO_PER_CENT // 2
    up, down = movement_lines(
        [Movement("adjustment", TENANT, half, "a"), Movement("adjustment", TENANT, -half, "b")]
    )
    assert (up.cents, down.cents) == (1, -1)


def test_a_movement_of_nothing_is_no_line() -> None:
    assert movement_lines([Movement("sla", TENANT, 0, "")]) == []


@pytest.mark.parametrize(
    ("committed", "used", "missing"),
    [(0, 5, None), (10, 10, None), (10, 11, None), (10, 4, 6), (10, 0, 10)],
)
def test_the_commitment_bills_what_is_missing(committed: int, used: int, missing: int | None) -> None:
    found = commit_line(Commitment(committed, used))
    assert (found.exact if found else None) == missing


@given(committed=st.integers(0, 20), used=st.integers(0, 20), late=st.lists(st.integers(1, 20), max_size=5))
def test_late_usage_leaves_a_month_at_what_it_would_have_cost_in_time(
    committed: int, used: int, late: list[int]
) -> None:
    held = Commitment(committed, used)
    charged = used + held.shortfall
    for cost in late:
        after = held.plus(cost)
        lines = late_commit_lines([LateUsage(date(2031, 6, 1), cost, 0, held.shortfall - after.shortfall)])
        charged += cost + sum(line.exact for line in lines)
        held = after
    assert charged == max(committed, used + sum(late))


@pytest.mark.promise(15)
@given(first=st.lists(st.integers(-(10**14), 10**14)), second=st.lists(st.integers(-(10**14), 10**14)))
def test_what_is_carried_arrives_to_the_picodollar_and_the_cent(first: list[int], second: list[int]) -> None:
    opening = [line(exact) for exact in first]
    one = total_lines(opening)
    assert sum(item.exact for item in one.lines) == one.exact
    assert sum(item.cents for item in one.lines) == one.cents
    assert one.cents >= 0
    assert one.exact >= 0
    assert (one.exact + one.carry_exact, one.cents + one.carry_cents) == (
        sum(first),
        sum(item.cents for item in opening),
    )
    assert one.exact == 0 or (one.carry_exact, one.carry_cents) == (0, 0)
    carried = carried_lines([CarriedAmount(TENANT, "PS-1", one.carry_exact, one.carry_cents)])
    two = total_lines([*carried, *(line(exact) for exact in second)])
    assert one.exact + two.exact + two.carry_exact == sum(first) + sum(second)


def test_a_credit_becomes_nothing_to_pay_and_a_carry() -> None:
    totals = total_lines([line(PICO_PER_USD), line(-3 * PICO_PER_USD)])
    assert (totals.exact, totals.cents) == (0, 0)
    assert (totals.carry_exact, totals.carry_cents) == (-2 * PICO_PER_USD, -200)
    assert totals.lines[-1].kind == "carried"
