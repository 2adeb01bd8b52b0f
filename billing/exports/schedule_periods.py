"""The periods of scheduled exports: UTC hours, days and months, and which of them are due."""

from datetime import datetime, timedelta

import msgspec

from billing.usage.query import bucket_end, bucket_start
from core.errors import InvalidRequest

UNITS: dict[str, str] = {"hourly": "hour", "daily": "day", "monthly": "month"}
_LABELS = {"hourly": "%Y-%m-%dT%H", "daily": "%Y-%m-%d", "monthly": "%Y-%m"}
RECENT = timedelta(days=3)
"""Age up to which an open period is checked hourly, because late usage arrives for 48 h; an older one daily."""
MAX_PERIODS = 50
"""Periods of one definition exported in one run at most."""


class PeriodState(msgspec.Struct, frozen=True):
    """When an exported period was checked last, and whether it is final."""

    checked_at: datetime
    final: bool


def unit_of(cadence: str) -> str:
    """The unit of a cadence: hour, day or month. Raises InvalidRequest for another cadence."""
    if cadence not in UNITS:
        raise InvalidRequest(
            f"schedule must be one of {', '.join(UNITS)}, not {cadence[:40]!r}", param="schedule"
        )
    return UNITS[cadence]


def label(cadence: str, start: datetime) -> str:
    """The period's name in paths: 2026-11, 2026-11-20 or 2026-11-20T13."""
    return start.strftime(_LABELS[cadence])


def parse_label(cadence: str, text: str) -> datetime:
    """The start of the period whose `label` is `text`. Raises InvalidRequest."""
    unit_of(cadence)
    try:
        return datetime.strptime(f"{text}+0000", f"{_LABELS[cadence]}%z")
    except ValueError:
        shape = {"hourly": "2026-11-20T13", "daily": "2026-11-20", "monthly": "2026-11"}[cadence]
        raise InvalidRequest(
            f"the period of a {cadence} export is like {shape}, not {text[:40]!r}", param="period"
        ) from None


def due_periods(
    cadence: str,
    starts_at: datetime,
    now: datetime,
    states: dict[datetime, PeriodState],
    failed: dict[datetime, datetime] | None = None,
) -> list[datetime]:
    """The starts of at most MAX_PERIODS periods to export at `now`.

    These are ended periods from `starts_at` on that were never exported, or are not final and due for a check, oldest
    first; then `failed` ones (start -> instant of the next attempt) whose instant has come.
    """
    failed = failed or {}
    unit = unit_of(cadence)
    found: list[datetime] = []
    retries: list[datetime] = []
    start = bucket_start(starts_at, unit)
    while (end := bucket_end(start, unit)) <= now and len(found) < MAX_PERIODS:
        known = states.get(start)
        pause = timedelta(hours=1) if now - end < RECENT else timedelta(days=1)
        if known is None or (not known.final and known.checked_at <= now - pause):
            if start not in failed:
                found.append(start)
            elif failed[start] <= now:
                retries.append(start)
        start = end
    return [*found, *retries][:MAX_PERIODS]
