"""What a committed monthly spend comes to in a month that a contract covers in part."""

from collections.abc import Iterable
from datetime import date, datetime, timedelta

import msgspec

from billing.ledger.months import bounds

_MICROSECOND = timedelta(microseconds=1)


class Span(msgspec.Struct, frozen=True):
    """A commitment and the time [since, until) in which it holds."""

    amount: int
    """Picodollars a month."""
    since: datetime
    until: datetime | None
    """None = no end."""


def prorate(spans: Iterable[Span], month: date) -> int:
    """Picodollars that commitments come to in `month`: each in the ratio of the microseconds that it holds.

    The sum is rounded down once, so a month that is split between equal commitments costs exactly one of them. The
    spans must not overlap.
    """
    start, end = bounds(month)
    weighted = 0
    for span in spans:
        covered = min(span.until or end, end) - max(span.since, start)
        weighted += span.amount * max(covered // _MICROSECOND, 0)
    return weighted // ((end - start) // _MICROSECOND)
