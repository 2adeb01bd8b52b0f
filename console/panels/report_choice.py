"""Options of the usage report. The address holds them, so that a report can be bookmarked and shared."""

from datetime import UTC, date, datetime, timedelta
from urllib.parse import urlencode
from uuid import UUID

import msgspec
from starlette.datastructures import QueryParams

from billing.reports.compare import previous_period
from billing.usage.query import TIME_DIMENSIONS, ReportQuery
from console.periods import PERIODS, Period, form_period
from console.viewer import Viewer

GROUPS = {
    "tenant": "Tenant",
    "project": "Project",
    "key": "Key",
    "model": "Model",
    "tier": "Tier",
    "region": "Region",
    "gpu": "GPU",
    "price_version": "Price version",
    "simulated": "Simulated",
    "hour": "Hour",
    "day": "Day",
    "month": "Month",
}
COMPARES = {"": "Nothing", "previous": "The period before", "custom": "Days of my choice"}
DEFAULT_BY = {True: ("tenant", "model"), False: ("project", "model")}
"""Whether the viewer has a platform role -> the default grouping."""


class ReportOptions(msgspec.Struct, frozen=True):
    """Period, grouping, organisation and compared period."""

    period: str = "month"
    first: str = ""
    last: str = ""
    by: tuple[str, ...] = ()
    tenant: str = ""
    compare: str = ""
    before_first: str = ""
    before_last: str = ""

    def query_string(self, **more: str) -> str:
        """The options as a query string; `more` adds or replaces parameters."""
        values = {"period": self.period, "by": ",".join(self.by), "tenant": self.tenant}
        if self.period == "custom":
            values |= {"from": self.first, "to": self.last}
        values["compare"] = self.compare
        if self.compare == "custom":
            values |= {"before_from": self.before_first, "before_to": self.before_last}
        return urlencode({name: value for name, value in {**values, **more}.items() if value})


def read_options(params: QueryParams, *, is_platform: bool) -> ReportOptions:
    """The options of an address; missing and invalid values become defaults."""
    by = tuple(dict.fromkeys(name for name in params.get("by", "").split(",") if name in GROUPS))
    if not is_platform:
        by = tuple(name for name in by if name != "tenant")
    period = params.get("period", "month")
    compare = params.get("compare", "")
    return ReportOptions(
        period=period if period in PERIODS else "month",
        first=params.get("from", ""),
        last=params.get("to", ""),
        by=one_time_unit(by) or DEFAULT_BY[is_platform],
        tenant=params.get("tenant", "") if is_platform else "",
        compare=compare if compare in COMPARES else "",
        before_first=params.get("before_from", ""),
        before_last=params.get("before_to", ""),
    )


def one_time_unit(by: tuple[str, ...]) -> tuple[str, ...]:
    """`by` with at most one of hour, day and month: the first."""
    units = [name for name in by if name in TIME_DIMENSIONS]
    return tuple(name for name in by if name not in units[1:])


def report_query(choice: ReportOptions, viewer: Viewer, today: date) -> tuple[ReportQuery, Period]:
    """The options as a query and its period. A tenant role always gets its own organisation.

    Raises ValueError with a user message, also beyond 400 days.
    """
    period = form_period(choice.period, choice.first, choice.last, today)
    if (period.last - period.first).days >= 400:
        raise ValueError("At most 400 days at once; take a part of it.")
    tenant_id = viewer.scope
    if tenant_id is None and choice.tenant:
        try:
            tenant_id = UUID(choice.tenant)
        except ValueError:
            raise ValueError("There is no such tenant.") from None
    query = ReportQuery(
        start=period.start,
        end=period.end,
        group_by=choice.by,
        tenant_id=tenant_id,
        with_gpu=viewer.is_platform,
    )
    return query, period


def compared_with(choice: ReportOptions, period: Period, today: date) -> tuple[datetime, datetime] | None:
    """The half-open period to compare with, or None. A running period is compared with as many days of the one before.

    Raises ValueError with a user message, also beyond 400 days.
    """
    if not choice.compare:
        return None
    if choice.compare == "custom":
        other = form_period("custom", choice.before_first, choice.before_last, today)
        if (other.last - other.first).days >= 400:
            raise ValueError("At most 400 days at once; take a part of it.")
        return other.start, other.end
    start, end = previous_period(period.start, period.end)
    if period.last > today >= period.first:
        tomorrow = datetime(today.year, today.month, today.day, tzinfo=UTC) + timedelta(days=1)
        end = min(end, start + (tomorrow - period.start))
    return start, end
