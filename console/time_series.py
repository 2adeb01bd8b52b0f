"""Resamples activity by minute into evenly spaced points for charts."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal

import msgspec

from billing.reports.activity import Minute


class Point(msgspec.Struct):
    """One point of a chart."""

    at: datetime
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: Decimal = Decimal(0)
    """US dollars, exact."""
    ttft_p50_ms: int | None = None
    """Median time to first token of the point's slowest minute, because percentiles cannot be averaged."""
    ttft_p95_ms: int | None = None


def resample(minutes: Sequence[Minute], since: datetime, now: datetime, step_minutes: int) -> list[Point]:
    """One point per `step_minutes` from `since` to `now`; the last point only when it has requests."""
    start = since.replace(second=0, microsecond=0)
    step = timedelta(minutes=step_minutes)
    points = [Point(at=start + number * step) for number in range((now - start) // step + 1)]
    for minute in minutes:
        index = (minute.at - start) // step
        if not 0 <= index < len(points):
            continue
        point = points[index]
        point.requests += minute.requests
        point.input_tokens += minute.input_tokens
        point.output_tokens += minute.output_tokens
        point.cost += Decimal(minute.cost_usd)
        point.ttft_p50_ms = _larger(point.ttft_p50_ms, minute.ttft_p50_ms)
        point.ttft_p95_ms = _larger(point.ttft_p95_ms, minute.ttft_p95_ms)
    return points if points[-1].requests else points[:-1]


def _larger(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return max(one, other)
