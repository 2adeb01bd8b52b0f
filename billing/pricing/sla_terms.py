"""The service-level rule of a contract: metric, threshold, and the credit for a missed threshold.

`{"metric": "ttft", "percentile": 95, "threshold": 800, "credit_percent": 10}`: when in a month the 95th percentile of
the time to the first token is above 800 ms, 10 % of the month's charges are credited.
`{"metric": "availability", "threshold": "99.9", "credit_percent": 10}`: when in a month fewer than 99.9 % of the
requests that reached an engine were answered. billing/statements/ measures and credits.
"""

from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from core.errors import InvalidRequest

METRICS = ("ttft", "availability")
PERCENTILES = (50, 75, 90, 95, 99)
MAX_TTFT_MS = 600_000


class Sla(msgspec.Struct, frozen=True, omit_defaults=True):
    """A valid rule."""

    metric: str
    """ttft | availability"""
    threshold: int | str
    """ttft: the highest milliseconds allowed; availability: the lowest percentage allowed, a decimal string."""
    credit_percent: int
    """Percent of the month's charges that are credited, 1 to 100."""
    percentile: int | None = None
    """Percentile of the times to the first token; None for availability."""


def parse_sla(rule: dict[str, Any]) -> Sla:
    """The validated rule. Raises InvalidRequest naming the invalid field."""
    unknown = set(rule) - set(Sla.__struct_fields__)
    if unknown:
        raise _invalid(f"has an unknown field {sorted(unknown)[0][:40]!r}")
    metric = rule.get("metric")
    if metric not in METRICS:
        raise _invalid("needs metric: ttft or availability")
    credit = _as_int(rule.get("credit_percent"))
    if credit is None or not 1 <= credit <= 100:
        raise _invalid("needs credit_percent: a whole number from 1 to 100")
    threshold = rule.get("threshold")
    if metric == "availability":
        if rule.get("percentile") is not None:
            raise _invalid("has a percentile, which an availability does not have")
        return Sla(metric="availability", threshold=_parse_percent(threshold), credit_percent=credit)
    limit_ms = _as_int(threshold)
    if limit_ms is None or not 1 <= limit_ms <= MAX_TTFT_MS:
        raise _invalid(f"needs threshold: whole milliseconds from 1 to {MAX_TTFT_MS}")
    percentile = _as_int(rule.get("percentile"))
    if percentile not in PERCENTILES:
        raise _invalid(f"needs percentile: one of {', '.join(map(str, PERCENTILES))}")
    return Sla(metric="ttft", threshold=limit_ms, credit_percent=credit, percentile=percentile)


def _parse_percent(value: object) -> str:
    """A percentage above 0 and at most 100, with at most three decimals, as entered."""
    try:
        percent = (
            Decimal(value) if isinstance(value, int | str) and not isinstance(value, bool) else Decimal(-1)
        )
    except InvalidOperation:
        percent = Decimal(-1)
    if not percent.is_finite() or not 0 < percent <= 100 or percent != percent.quantize(Decimal("0.001")):
        raise _invalid('needs threshold: a percentage such as "99.9", at most three decimals')
    return str(value)


def _as_int(value: object) -> int | None:
    """The value when it is an integer (not a bool), else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _invalid(what: str) -> InvalidRequest:
    return InvalidRequest(f"the sla {what}", param="sla")
