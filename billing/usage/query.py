"""The query and the rows of a usage report; the columns are in the order of the report."""

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import msgspec

from core.errors import InvalidRequest

TIME_DIMENSIONS = ("hour", "day", "month")
DIMENSIONS = (
    "tenant",
    "project",
    "key",
    "model",
    "tier",
    "region",
    "gpu",
    "price_version",
    "simulated",
    "end_user",
    *TIME_DIMENSIONS,
)
_TAG = re.compile(r"tag_[A-Za-z0-9_.-]{1,60}|tag_\(other\)")
"""Further dimensions: the tags of requests."""
MAX_TAGS = 5
"""Tags of a grouping: as many as a request may have."""
MAX_DAYS = 400
"""The longest period of a report."""

GroupKey = tuple[object, ...]
"""The values of a row's dimensions, in the order of `ReportQuery.group_by`."""


class ReportQuery(msgspec.Struct, frozen=True):
    """A period of whole UTC hours (end excluded), the dimensions to group by, and one tenant or all."""

    start: datetime
    end: datetime
    group_by: tuple[str, ...] = ("tenant",)
    tenant_id: UUID | None = None
    with_gpu: bool = True
    """Include GPU cost and margin; only for the platform, whose session must see all tenants."""


class ReportRow(msgspec.Struct):
    """One row. Amounts are exact decimal dollars, instants ISO 8601 in UTC; None = does not apply."""

    period_start: str
    period_end: str
    tenant_id: str | None = None
    tenant: str | None = None
    project_id: str | None = None
    project: str | None = None
    key_id: str | None = None
    key_last4: str | None = None
    model: str | None = None
    tier: str | None = None
    region: str | None = None
    price_version: int | None = None
    simulated: bool | None = None
    requests: int = 0
    requests_unbilled: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    total_tokens: int = 0
    list_cost_usd: str = "0.00"
    discount_usd: str = "0.00"
    cost_usd: str = "0.00"
    credits_applied_usd: str = "0.00"
    adjustment_usd: str = "0.00"
    price_per_mtok_usd: str | None = None
    gpu_seconds: str | None = None
    gpu_cost_usd: str | None = None
    gpu_cost_per_mtok_usd: str | None = None
    margin_usd: str | None = None
    margin_pct: str | None = None
    outcomes: dict[str, int] = {}
    currency: str = "USD"
    period_status: str | None = None
    invoice_id: str | None = None
    end_user: str | None = None
    tags: str | None = None
    """The tags that the report is grouped by and the line has, as a JSON object; None = it has none of them."""
    gpu: str | None = None
    """Class of GPU; empty = requests ran without one, or it is not known. None = the line mixes several."""


def this_month(now: datetime) -> tuple[datetime, datetime]:
    """[start, end) of the UTC month of `now`, a report's default period."""
    start = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return start, (start + timedelta(days=32)).replace(day=1)


def is_tag(name: str) -> bool:
    """Whether a dimension is a tag."""
    return _TAG.fullmatch(name) is not None


def has_labels(group_by: Sequence[str]) -> bool:
    """Whether a grouping needs end users or tags, which sums of hours and days do not have."""
    return any(name == "end_user" or is_tag(name) for name in group_by)


def check_query(query: ReportQuery) -> None:
    """Raise InvalidRequest for an invalid period or grouping."""
    unknown = [name for name in query.group_by if name not in DIMENSIONS and not is_tag(name)]
    if unknown or not query.group_by or len(set(query.group_by)) != len(query.group_by):
        raise InvalidRequest(
            f"group by any of {', '.join(DIMENSIONS)} and tags (tag_...), each once, "
            f"not {','.join(query.group_by)[:80]!r}",
            param="by",
        )
    if sum(map(is_tag, query.group_by)) > MAX_TAGS:
        raise InvalidRequest(f"group by at most {MAX_TAGS} tags", param="by")
    if sum(name in TIME_DIMENSIONS for name in query.group_by) > 1:
        raise InvalidRequest("group by one of hour, day and month, not by several", param="by")
    check_period(query.start, query.end)


def check_period(start: datetime, end: datetime) -> None:
    """Raise InvalidRequest unless [start, end) are whole UTC hours of at most MAX_DAYS days."""
    for name, instant in (("from", start), ("to", end)):
        if instant.tzinfo is None or (instant.minute, instant.second, instant.microsecond) != (0, 0, 0):
            raise InvalidRequest(
                f"{name} must be a date or a whole UTC hour, not {instant.isoformat()}", param=name
            )
    if not start < end:
        raise InvalidRequest("the period is empty: `from` must be before `to`, which is excluded", param="to")
    if end - start > timedelta(days=MAX_DAYS):
        raise InvalidRequest(f"the period is longer than {MAX_DAYS} days; ask for a part of it", param="to")


def time_dimension(group_by: tuple[str, ...]) -> str | None:
    """The time dimension (hour, day or month) of a grouping, or None."""
    return next((name for name in group_by if name in TIME_DIMENSIONS), None)


def bucket_start(instant: datetime, unit: str) -> datetime:
    """The start of the UTC `unit` (hour, day or month) that contains `instant`."""
    whole = instant.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    if unit == "hour":
        return whole
    return whole.replace(hour=0) if unit == "day" else whole.replace(hour=0, day=1)


def bucket_end(start: datetime, unit: str) -> datetime:
    """The end, excluded, of the `unit` that begins at `start`."""
    if unit == "hour":
        return start + timedelta(hours=1)
    if unit == "day":
        return start + timedelta(days=1)
    return (start + timedelta(days=32)).replace(day=1)


def months_of(start: datetime, end: datetime) -> list[date]:
    """The first days of the UTC months that overlap [start, end)."""
    months = []
    at = bucket_start(start, "month")
    while at < end:
        months.append(at.date())
        at = bucket_end(at, "month")
    return months


def iso(value: datetime) -> str:
    """An instant as `2026-11-01T00:00:00Z`."""
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
