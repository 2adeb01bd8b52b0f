"""Reporting periods of UTC days."""

from datetime import UTC, date, datetime, timedelta

import msgspec

PERIODS = {
    "month": "This month",
    "last_month": "Last month",
    "today": "Today",
    "7d": "Last 7 days",
    "30d": "Last 30 days",
    "custom": "Choose days",
}


class Period(msgspec.Struct, frozen=True):
    """From the start of `first` to the end of `last`, in UTC."""

    first: date
    last: date

    @property
    def start(self) -> datetime:
        """The first instant."""
        return datetime(self.first.year, self.first.month, self.first.day, tzinfo=UTC)

    @property
    def end(self) -> datetime:
        """The first instant after it."""
        return datetime(self.last.year, self.last.month, self.last.day, tzinfo=UTC) + timedelta(days=1)


def named_period(name: str, today: date) -> Period:
    """The period `name` relative to `today`; the present month when PERIODS has no such name."""
    month = today.replace(day=1)
    if name == "last_month":
        last = month - timedelta(days=1)
        return Period(last.replace(day=1), last)
    if name == "today":
        return Period(today, today)
    if name == "7d":
        return Period(today - timedelta(days=6), today)
    if name == "30d":
        return Period(today - timedelta(days=29), today)
    return Period(month, today)


def parse_day(text: str) -> date:
    """A day from user input such as `2026-11-20`. Raises ValueError with a user message."""
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("A day such as 2026-11-20.") from None


def form_period(name: str, first: str, last: str, today: date) -> Period:
    """The period of a form: `custom` is the days `first` and `last` in either order, other names as in `named_period`.

    Raises ValueError with a user message for an invalid day or more than 1,100 days.
    """
    if name != "custom":
        return named_period(name, today)
    one, other = parse_day(first), parse_day(last)
    if abs((other - one).days) > 1100:
        raise ValueError("At most three years at once.")
    return Period(min(one, other), max(one, other))
