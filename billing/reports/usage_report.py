"""The usage report: usage, its cost to the customer and its GPU cost, grouped by any dimensions.

Sums come from rollups, and from usage rows for hours that are not rolled up (billing/usage/sums.py), so the report
always equals the rows; its totals equal the ledger (`totals`, billing/reports/books.py). Tokens are billed tokens, so
tokens times price is the cost. Cached tokens are part of input, reasoning tokens part of output. `tier`, `region`,
`gpu`, `price_version` and `simulated` are None on a line that mixes several. `credits_applied_usd` is the part paid
from prepaid credit. `adjustment_usd` is the sum of adjustments and shortfalls of committed spend, positive for a
charge; it is on a separate line when the grouping has a dimension that adjustments lack.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.economics.gpu_cost import GpuUse, HourCost
from billing.metering.records import Outcome
from billing.reports import books
from billing.reports.figures import percent, seconds
from billing.usage.gpu_shares import DAILY_SUMS_WITH_GPU, GPU_SUMS, HostCosts, host_costs
from billing.usage.query import (
    GroupKey,
    ReportQuery,
    ReportRow,
    bucket_end,
    bucket_start,
    check_query,
    has_labels,
    is_tag,
    iso,
    months_of,
    time_dimension,
)
from billing.usage.sums import (
    DAILY_SUMS,
    FACETS,
    HOURLY_SUMS,
    OUTCOMES,
    SUMS,
    group_key,
    grouped_usage,
    with_labels,
)
from core.money import pico_to_usd, ratio_per_mtok, usd_to_pico

_FREE_OUTCOMES = [i for i, outcome in enumerate(Outcome) if outcome.free]
_ADDED = ("requests", "requests_unbilled", "input_tokens", "cached_input_tokens", "output_tokens")
_ADDED_MORE = ("reasoning_tokens", "total_tokens")
_ADDED_USD = (
    "list_cost_usd",
    "discount_usd",
    "cost_usd",
    "credits_applied_usd",
    "adjustment_usd",
    "gpu_cost_usd",
)


class Totals(msgspec.Struct, frozen=True):
    """The sums of a report's lines and the ledger's sums of the same period."""

    totals: ReportRow
    ledger: books.LedgerSums
    equal: bool
    """Cost plus adjustments equals the ledger's revenue, and applied credit equals its debits of credit."""


class _LineSums:
    """The sums of one line while it is added up; integers, money in picodollars."""

    def __init__(self) -> None:
        self.sums = dict.fromkeys(SUMS, 0)
        self.outcomes = [0] * len(OUTCOMES)
        self.facets: dict[str, set[Any]] = {name: set() for name in FACETS}
        self.gpu = GpuUse()
        self.credits = 0
        self.adjustment = 0

    def add(self, row: Row[Any], *, prepaid: bool) -> None:
        for name in SUMS:
            self.sums[name] += int(getattr(row, name))
        for i in range(len(OUTCOMES)):
            self.outcomes[i] += int(getattr(row, f"outcome_{i}"))
        for name, values in self.facets.items():
            values.add(getattr(row, name))
        if prepaid:
            self.credits += int(row.cost)


async def usage_report(connection: AsyncConnection, query: ReportQuery) -> list[ReportRow]:
    """The lines of `query` in the order of its dimensions, then lines of unused GPU cost without a tenant.

    A tenant filter omits the lines of unused cost. Raises InvalidRequest for an invalid period or grouping.
    """
    check_query(query)
    if has_labels(query.group_by):  # GPU cost is shared by the sums of days, which have no labels
        query = msgspec.structs.replace(query, with_gpu=False)
    groups: dict[GroupKey, _LineSums] = {}
    by_hour = "hour" in query.group_by
    costs = HostCosts.empty()
    if query.with_gpu:
        costs = await host_costs(connection, query.start, query.end)
        bound = costs.parameters(query.start, query.end, by_hour=by_hour)
        found = grouped_usage(connection, query, DAILY_SUMS_WITH_GPU, bound, GPU_SUMS)
    else:
        source = HOURLY_SUMS if by_hour else DAILY_SUMS
        labelled = has_labels(query.group_by)
        found = grouped_usage(connection, query, with_labels(source) if labelled else source, {})
    prepaid = await books.prepaid_tenants(connection)
    shared: dict[GroupKey, GpuUse] = defaultdict(GpuUse)
    async for row in found:
        group = groups.setdefault(group_key(query, row), _LineSums())
        group.add(row, prepaid=row.tenant_id in prepaid)
        if query.with_gpu:
            part = (int(row.gpu_input_cost + row.gpu_output_cost), int(row.gpu_us))
            group.gpu.add(*part)
            shared[_served_key(query, row)].add(*part)
    if query.tenant_id is None and query.with_gpu:
        _add_idle(query, costs.hours, shared, groups)
    await _add_books(connection, query, groups)
    rows = [_line(query, key, group) for key, group in groups.items()]
    await _add_names(connection, rows)
    await _add_periods(connection, query, rows)
    return sorted(rows, key=_order)


async def totals(connection: AsyncConnection, query: ReportQuery, rows: Sequence[ReportRow]) -> Totals:
    """The sums of `rows`, the report of `query`, and the ledger's sums of its period.

    Both must be read in one snapshot, or `equal` may be False while usage arrives.
    """
    total = ReportRow(iso(query.start), iso(query.end))
    for name in (*_ADDED, *_ADDED_MORE):
        setattr(total, name, sum(getattr(row, name) for row in rows))
    for name in _ADDED_USD:
        amounts = [usd_to_pico(getattr(row, name)) for row in rows if getattr(row, name) is not None]
        if amounts or name != "gpu_cost_usd":
            setattr(total, name, pico_to_usd(sum(amounts)))
    total.price_per_mtok_usd = ratio_per_mtok(usd_to_pico(total.cost_usd), total.total_tokens)
    if query.with_gpu:
        spent = sum(_microseconds(row.gpu_seconds) for row in rows)
        _set_gpu(
            total, usd_to_pico(total.cost_usd), GpuUse(usd_to_pico(total.gpu_cost_usd or "0"), spent),
            total.total_tokens,
        )  # fmt: skip
    ledger = await books.ledger_sums(connection, query)
    reported = usd_to_pico(total.cost_usd) + usd_to_pico(total.adjustment_usd)
    equal = (
        reported == usd_to_pico(ledger.revenue_usd) and total.credits_applied_usd == ledger.from_credit_usd
    )
    return Totals(total, ledger, equal)


def _served_key(query: ReportQuery, row: Row[Any]) -> GroupKey:
    """(start of the time dimension, model): the serving time of which the row has a share."""
    unit = time_dimension(query.group_by)
    return (getattr(row, f"by_{unit}") if unit else None, row.model)


def _add_idle(
    query: ReportQuery,
    hours: dict[datetime, HourCost],
    shared: dict[GroupKey, GpuUse],
    groups: dict[GroupKey, _LineSums],
) -> None:
    """Add lines without tenant, project and key for unused host time and for serving time that was not shared."""
    unit = time_dimension(query.group_by)
    idle: dict[GroupKey, GpuUse] = defaultdict(GpuUse)
    for hour, use in hours.items():
        at = bucket_start(hour, unit) if unit else None
        unused = [(model, part) for (model, _), part in use.unused.items()]
        for model, part in [*use.serving.items(), *unused]:
            idle[at, model].add(part.cost, part.gpu_us)
    for key, part in shared.items():
        idle[key].add(-part.cost, -part.gpu_us)
    for served, part in idle.items():
        if part.cost or part.gpu_us:
            known = dict(zip((unit, "model"), served, strict=True))
            values = (known.get(name) for name in query.group_by)
            groups.setdefault(("idle", *values), _LineSums()).gpu.add(part.cost, part.gpu_us)


async def _add_books(
    connection: AsyncConnection, query: ReportQuery, groups: dict[GroupKey, _LineSums]
) -> None:
    """Subtract uncollected amounts from applied credit, and add adjustments to their organisation and time."""
    separate = any(name != "tenant" and name != time_dimension(query.group_by) for name in query.group_by)

    def own(one: books.BookedAmount) -> _LineSums:
        key = _values(query, one.hour, {"tenant": one.tenant_id})
        return groups.setdefault(("booked", *key) if separate else key, _LineSums())

    for known, lost in await books.uncollected(connection, query):
        group = own(lost) if known is None else groups.setdefault(known, _LineSums())
        group.credits -= lost.amount
    for one in await books.booked_amounts(connection, query):
        own(one).adjustment += one.amount


def _values(query: ReportQuery, hour: datetime, known: dict[str, object]) -> GroupKey:
    """The key of something without a usage row; dimensions that are not `known` are None."""
    unit = time_dimension(query.group_by)
    return tuple(bucket_start(hour, name) if name == unit else known.get(name) for name in query.group_by)


def _line(query: ReportQuery, key: GroupKey, group: _LineSums) -> ReportRow:
    values: dict[str, Any] = dict(zip(query.group_by, key[-len(query.group_by) :], strict=True))
    sums = group.sums
    start, end = query.start, query.end
    unit = time_dimension(query.group_by)
    if unit is not None:
        start, end = max(start, values[unit]), min(end, bucket_end(values[unit], unit))
    total = sums["input_tokens"] + sums["output_tokens"]
    row = ReportRow(
        period_start=iso(start),
        period_end=iso(end),
        tenant_id=_text(values.get("tenant")),
        project_id=_text(values.get("project")),
        key_id=_text(values.get("key")),
        model=_text(values.get("model")),
        end_user=_text(values.get("end_user")),
        tags=_tags(values),
        requests=sums["requests"],
        requests_unbilled=sum(group.outcomes[i] for i in _FREE_OUTCOMES),
        input_tokens=sums["input_tokens"],
        cached_input_tokens=sums["cached_input_tokens"],
        output_tokens=sums["output_tokens"],
        reasoning_tokens=sums["reasoning_tokens"],
        total_tokens=total,
        list_cost_usd=pico_to_usd(sums["list_cost"]),
        discount_usd=pico_to_usd(sums["list_cost"] - sums["cost"]),
        cost_usd=pico_to_usd(sums["cost"]),
        credits_applied_usd=pico_to_usd(group.credits),
        adjustment_usd=pico_to_usd(group.adjustment),
        price_per_mtok_usd=ratio_per_mtok(sums["cost"], total),
        outcomes={name: n for name, n in zip(OUTCOMES, group.outcomes, strict=True) if n},
    )
    for name, found in group.facets.items():
        if len(found) == 1:
            setattr(row, name, next(iter(found)))
    if query.with_gpu:
        _set_gpu(row, sums["cost"], group.gpu, total)
    return row


def _set_gpu(row: ReportRow, cost: int, gpu: GpuUse, total_tokens: int) -> None:
    margin = cost - gpu.cost
    row.gpu_seconds = seconds(gpu.gpu_us)
    row.gpu_cost_usd = pico_to_usd(gpu.cost)
    row.gpu_cost_per_mtok_usd = ratio_per_mtok(gpu.cost, total_tokens)
    row.margin_usd = pico_to_usd(margin)
    row.margin_pct = percent(margin, cost)


def _microseconds(seconds: str | None) -> int:
    return int((seconds or "0").replace(".", ""))


async def _add_names(connection: AsyncConnection, rows: list[ReportRow]) -> None:
    """Set the names of tenants and projects, and the last four characters of keys."""
    for kind, column, source in (
        ("tenant", "name", "tenants"),
        ("project", "name", "projects"),
        ("key", "last4", "api_keys"),
    ):
        ids = {value for row in rows if (value := getattr(row, f"{kind}_id")) is not None}
        if not ids:
            continue
        found = await connection.execute(
            text(f"SELECT id, {column} AS label FROM {source} WHERE id = ANY(:ids)"),  # noqa: S608 - names from above
            {"ids": [UUID(value) for value in ids]},
        )
        labels = {str(one.id): one.label for one in found}
        target = "key_last4" if kind == "key" else kind
        for row in rows:
            setattr(row, target, labels.get(getattr(row, f"{kind}_id") or ""))


async def _add_periods(connection: AsyncConnection, query: ReportQuery, rows: list[ReportRow]) -> None:
    """Set each line's period status, and the invoice of a line of one organisation and one month."""
    months = months_of(query.start, query.end)
    closed = await books.closed_months(connection, months)
    owners = {UUID(row.tenant_id) for row in rows if row.tenant_id is not None}
    if query.tenant_id is not None:
        owners.add(query.tenant_id)
    invoices = await books.invoice_names(connection, months, owners)
    for row in rows:
        touched = months_of(datetime.fromisoformat(row.period_start), datetime.fromisoformat(row.period_end))
        states = {"closed" if month in closed else "open" for month in touched}
        row.period_status = states.pop() if len(states) == 1 else "mixed"
        owner = UUID(row.tenant_id) if row.tenant_id else query.tenant_id
        if owner is not None and len(touched) == 1:
            row.invoice_id = invoices.get((owner, touched[0]))


def _order(row: ReportRow) -> tuple[object, ...]:
    idle = row.requests == 0
    return (
        idle,
        row.period_start,
        row.tenant or "",
        row.tenant_id or "",
        row.project or "",
        row.project_id or "",
        row.key_id or "",
        row.model or "",
        row.tier or "",
        row.region or "",
        row.gpu or "",
        row.price_version or 0,
        bool(row.simulated),
        row.end_user or "",
        row.tags or "",
    )


def _tags(values: dict[str, Any]) -> str | None:
    """The tags of a line as a JSON object, in the order of the grouping."""
    tags = {name: value for name, value in values.items() if is_tag(name) and value is not None}
    return msgspec.json.encode(tags).decode() if tags else None


def _text(value: object) -> str | None:
    return None if value is None else str(value)
