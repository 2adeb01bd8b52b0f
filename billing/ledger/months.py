"""Accounting months: UTC calendar months, written 2026-11, known by their first day."""

import re
from datetime import UTC, date, datetime, timedelta

from core.errors import InvalidRequest

LATE_WINDOW_HOURS = 48
"""Usage may reach its own month for this long after the month's end (DESIGN §5); later it belongs to the present."""
_MONTH = re.compile(r"(2[0-9]{3})-(0[1-9]|1[0-2])", re.ASCII)
"""A month of this millennium: one of the year 1 would make two thousand years of open months before the present."""


def parse_month(value: str, param: str = "month") -> date:
    """The first day of a month such as 2026-11, from 2000-01 on. Raises InvalidRequest."""
    found = _MONTH.fullmatch(value)
    if found is None:
        raise InvalidRequest(f"{param} must be a month such as 2026-11, not {value[:40]!r}", param=param)
    return date(int(found[1]), int(found[2]), 1)


def month_name(month: date) -> str:
    """`month` as people write it: 2026-11."""
    return month.strftime("%Y-%m")


def next_month(month: date) -> date:
    """The first day of the month after `month`."""
    return (month.replace(day=28) + timedelta(days=4)).replace(day=1)


def bounds(month: date) -> tuple[datetime, datetime]:
    """[start, end) of a month in UTC."""
    after = next_month(month)
    return (
        datetime(month.year, month.month, 1, tzinfo=UTC),
        datetime(after.year, after.month, 1, tzinfo=UTC),
    )


def final_at(month: date) -> datetime:
    """From this instant on no usage can reach the month any more."""
    return bounds(month)[1] + timedelta(hours=LATE_WINDOW_HOURS)


def month_of(instant: datetime) -> date:
    """The accounting month of an instant."""
    return instant.astimezone(UTC).date().replace(day=1)
