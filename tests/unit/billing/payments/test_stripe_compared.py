"""When an object that was found equal to Stripe is compared again, and how many calls a run makes."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from billing.payments.stripe_compared import COMPARED_EVERY, CallBudget, is_due_again
from core.ids import uuid7

HOUR = timedelta(hours=1)
moments = st.datetimes(datetime(2026, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))


@given(object_id=st.text(max_size=40), compared=moments, after=st.timedeltas(timedelta(), COMPARED_EVERY))
def test_an_object_is_due_once_within_the_time(object_id: str, compared: datetime, after: timedelta) -> None:
    assert not is_due_again("invoice", object_id, compared, compared)
    assert is_due_again("invoice", object_id, compared, compared + COMPARED_EVERY)
    moment = compared + after
    if is_due_again("invoice", object_id, compared, moment):
        assert not is_due_again("invoice", object_id, moment, compared + COMPARED_EVERY)


def test_objects_that_were_compared_at_once_become_due_evenly() -> None:
    names = [str(uuid7()) for _ in range(16_800)]
    began = datetime(2026, 11, 3, 4, 0, tzinfo=UTC)
    runs = int(COMPARED_EVERY / HOUR)
    due = [
        sum(is_due_again("invoice", name, began + hour * HOUR, began + (hour + 1) * HOUR) for name in names)
        for hour in range(0, runs, 24)
    ]
    assert all(40 <= count <= 180 for count in due), "about a hundred an hour"


def test_a_budget_is_never_exceeded() -> None:
    budget = CallBudget(5)
    assert [budget.take(2), budget.take(2), budget.take(2), budget.take(1), budget.take(1)] == [
        True,
        True,
        False,
        True,
        False,
    ]
    assert CallBudget().take(10**9)
