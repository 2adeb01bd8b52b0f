"""Accounting months: UTC calendar months, written 2026-11 and represented by their first day."""

import re
from datetime import UTC, date, datetime, timedelta

from core.errors import InvalidRequest

LATE_WINDOW_HOURS = 48
"""Hours after a month's end in which late usage is still dated into the month."""
_MONTH = re.compile(r"(2[0-9]{3})-(0[1-9]|1[0-2])", re.ASCII)
"""Months from the year 2000 on, so that a typing error cannot name an open month of long ago."""


def parse_month(value: str, param: str = "month") -> date:
    """The first day of a month such as 2026-11, from 2000-01 to 2999-12. Raises InvalidRequest naming `param`."""
    found = _MONTH.fullmatch(value)
    if found is None:
        raise InvalidRequest(f"{param} must be a month such as 2026-11, not {value[:40]!r}", param=param)
    return date(int(found[1]), int(found[2]), 1)


def month_name(month: date) -> str:
    """`month` as text: 2026-11."""
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
    """The instant from which on no late usage is dated into the month."""
    return bounds(month)[1] + timedelta(hours=LATE_WINDOW_HOURS)


def month_of(instant: datetime) -> date:
    """The accounting month of an instant with a time zone."""
    return instant.astimezone(UTC).date().replace(day=1)
