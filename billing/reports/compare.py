"""Compares two usage reports: for each line and figure both values, the difference and the change in percent."""

from collections.abc import Sequence
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.reports.report_format import GPU_COLUMNS
from billing.reports.usage_report import usage_report
from billing.usage.query import (
    ReportQuery,
    ReportRow,
    bucket_start,
    check_period,
    is_tag,
    months_of,
    time_dimension,
)
from core.errors import InvalidRequest

NAMES = (
    "tenant_id",
    "tenant",
    "project_id",
    "project",
    "key_id",
    "key_last4",
    "model",
    "tier",
    "region",
    "price_version",
    "simulated",
    "end_user",
    "tags",
    "gpu",
)
FIGURES = (
    "requests",
    "requests_unbilled",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "reasoning_tokens",
    "total_tokens",
    "list_cost_usd",
    "discount_usd",
    "cost_usd",
    "credits_applied_usd",
    "adjustment_usd",
    "price_per_mtok_usd",
    "gpu_seconds",
    "gpu_cost_usd",
    "gpu_cost_per_mtok_usd",
    "margin_usd",
    "margin_pct",
)


class Change(msgspec.Struct, frozen=True):
    """One figure in both periods, exact; None = does not apply."""

    now: str | int | None
    before: str | int | None
    difference: str | int | None
    percent: str | None
    """With two decimals; None when `before` is 0."""


class ComparedRow(msgspec.Struct, frozen=True):
    """One line of both reports."""

    period_start: str
    before_start: str
    names: dict[str, Any]
    """The dimensions of the line, by the columns of NAMES."""
    figures: dict[str, Change]


def previous_period(start: datetime, end: datetime) -> tuple[datetime, datetime]:
    """The period before [start, end): as many whole months when it is whole months, else of the same length."""
    months = months_of(start, end)
    if bucket_start(start, "month") == start and bucket_start(end, "month") == end:
        earlier = start
        for _ in months:
            earlier = bucket_start(earlier, "month").replace(day=1)
            year, month = divmod(earlier.year * 12 + earlier.month - 2, 12)
            earlier = earlier.replace(year=year, month=month + 1)
        return earlier, start
    return start - (end - start), start


async def compare(
    connection: AsyncConnection, query: ReportQuery, before: tuple[datetime, datetime]
) -> list[ComparedRow]:
    """The report of `query` beside that of the period `before` ([start, end)).

    Hours, days and months are matched by their position in the period. Raises InvalidRequest for an invalid query.
    """
    check_period(*before)
    unit = time_dimension(query.group_by)
    earlier = msgspec.structs.replace(query, start=before[0], end=before[1])
    now_rows = _keyed(await usage_report(connection, query), query, unit)
    then_rows = _keyed(await usage_report(connection, earlier), earlier, unit)
    keys = [*now_rows, *(key for key in then_rows if key not in now_rows)]
    return [_compared(now_rows.get(key), then_rows.get(key)) for key in keys]


def parse_compare(text: str, start: datetime, end: datetime, parse: Any) -> tuple[datetime, datetime]:
    """The period named by `text`: `previous` ([start, end) before), or `FROM..TO`, each read by `parse(text, name)`.

    Raises InvalidRequest for another text.
    """
    if text == "previous":
        return previous_period(start, end)
    first, dots, last = text.partition("..")
    if not dots:
        raise InvalidRequest(f"compare with previous or FROM..TO, not {text[:60]!r}", param="compare")
    return parse(first, "compare"), parse(last, "compare")


def _keyed(
    rows: Sequence[ReportRow], query: ReportQuery, unit: str | None
) -> dict[tuple[Any, ...], ReportRow]:
    return {(_position(row, query, unit), row.requests == 0, *_dimensions(row, query)): row for row in rows}


def _dimensions(row: ReportRow, query: ReportQuery) -> tuple[Any, ...]:
    found = {
        name: "tags" if is_tag(name) else f"{name}_id" if name in ("tenant", "project", "key") else name
        for name in query.group_by
    }
    return tuple(getattr(row, column) for name, column in found.items() if hasattr(row, column))


def _position(row: ReportRow, query: ReportQuery, unit: str | None) -> int:
    if unit is None:
        return 0
    at = datetime.fromisoformat(row.period_start)
    if unit == "month":
        return len(months_of(query.start, at))
    start = bucket_start(query.start, unit)
    return int((bucket_start(at, unit) - start).total_seconds()) // (86_400 if unit == "day" else 3_600)


def _compared(now: ReportRow | None, before: ReportRow | None) -> ComparedRow:
    known = now or before
    if known is None:
        raise AssertionError("a line of neither report")
    return ComparedRow(
        period_start="" if now is None else now.period_start,
        before_start="" if before is None else before.period_start,
        names={name: value for name in NAMES if (value := getattr(known, name)) is not None},
        figures={
            name: _change(name, getattr(now, name, None), getattr(before, name, None))
            for name in FIGURES
            if getattr(known, name) is not None
        },
    )


def _change(name: str, now: str | int | None, before: str | int | None) -> Change:
    """The change of one figure; a sum that is missing in one report counts as 0 there."""
    additive = not name.endswith(("_pct", "_per_mtok_usd"))
    if additive:
        zero: str | int = 0 if name.endswith("tokens") or name.startswith("requests") else "0.00"
        now, before = zero if now is None else now, zero if before is None else before
    if now is None or before is None:
        return Change(now, before, None, None)
    with localcontext() as context:
        context.prec = 60
        difference = Decimal(now) - Decimal(before)
        percent = None
        if Decimal(before) != 0:
            share = difference * 100 / abs(Decimal(before))
            percent = str(share.quantize(Decimal("0.01"), rounding=ROUND_HALF_UP))
        shown: str | int = int(difference) if isinstance(now, int) else format(difference, "f")
    return Change(now, before, shown, percent)


def flatten(rows: Sequence[ComparedRow], *, with_gpu: bool) -> list[dict[str, Any]]:
    """The lines as objects with `cost_usd`, `cost_usd_before`, `cost_usd_difference`, `cost_usd_percent` and so on.

    `with_gpu` False omits GPU cost and margin, which customers must not see.
    """
    shown = [name for name in FIGURES if with_gpu or name not in GPU_COLUMNS]
    no_change = Change(None, None, None, None)
    found = []
    for row in rows:
        one: dict[str, Any] = {"period_start": row.period_start, "before_start": row.before_start}
        one |= {name: row.names.get(name) for name in NAMES}
        for name in shown:
            change = row.figures.get(name, no_change)
            one |= {name: change.now, f"{name}_before": change.before}
            one |= {f"{name}_difference": change.difference, f"{name}_percent": change.percent}
        found.append(one)
    return found
