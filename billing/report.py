"""The usage report: what was used, what it costs the customer and what it cost us, by tenant, project, key, model, day.

Hours come from the rollups where they are whole and from the usage rows elsewhere, in one statement and so one
snapshot: the report always equals the rows. Columns are those of DESIGN §9 whose source exists; `credits_applied_usd`,
`adjustment_usd`, `period_status` and `invoice_id` come with invoices. Tokens are the billed ones (what an engine
failure or an empty answer used is in the rows), so tokens times price is the cost. Cached is part of input, reasoning
part of output. `tier`, `region`, `price_version` and `simulated` are empty where a row mixes several.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.economics.gpu_cost import GpuUse, HourUse, host_hours
from billing.economics.weights import catalog_weights
from billing.records import Outcome
from billing.shares import split
from core.errors import InvalidRequest
from core.money import pico_to_usd, ratio_per_mtok

DIMENSIONS = ("tenant", "project", "key", "model", "day")
MAX_DAYS = 400

_COLUMNS = {
    "tenant": "tenant_id",
    "project": "project_id",
    "key": "key_id",
    "model": "model",
    "day": "date_trunc('day', hour, 'UTC')",
}
_OUTCOMES = [outcome.value for outcome in Outcome]
_FREE = [i for i, outcome in enumerate(Outcome) if outcome.free]
_SUMS = (
    "requests",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "reasoning_tokens",
    "unbilled_input_tokens",
    "unbilled_output_tokens",
    "cost",
    "list_cost",
)


class ReportQuery(msgspec.Struct, frozen=True):
    """Which usage, and how to group it. `start` and `end` are whole UTC hours, the end excluded."""

    start: datetime
    end: datetime
    group_by: tuple[str, ...] = ("tenant",)
    tenant_id: UUID | None = None
    with_gpu: bool = True
    """GPU cost and margin: for the platform only; its session must see all tenants."""


class ReportRow(msgspec.Struct):
    """One line. Amounts are exact decimal dollars, instants ISO 8601 in UTC; None = does not apply."""

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
    price_per_mtok_usd: str | None = None
    gpu_seconds: str | None = None
    gpu_cost_usd: str | None = None
    gpu_cost_per_mtok_usd: str | None = None
    margin_usd: str | None = None
    margin_pct: str | None = None
    outcomes: dict[str, int] = {}
    currency: str = "USD"


Key = tuple[object, ...]


class _Group:
    """What is known of one line while it is added up; all integers."""

    def __init__(self) -> None:
        self.sums = dict.fromkeys(_SUMS, 0)
        self.outcomes = [0] * len(_OUTCOMES)
        self.facets: dict[str, set[Any]] = {
            name: set() for name in ("tier", "region", "price_version", "simulated")
        }
        self.gpu = GpuUse()

    def add(self, row: Row[Any]) -> None:
        for name in _SUMS:
            self.sums[name] += int(getattr(row, name))
        for i in range(len(_OUTCOMES)):
            self.outcomes[i] += int(getattr(row, f"outcome_{i}"))
        for name, values in self.facets.items():
            values.add(getattr(row, name))


def this_month(now: datetime) -> tuple[datetime, datetime]:
    """The UTC month of `now`: the report's default period."""
    start = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return start, (start + timedelta(days=32)).replace(day=1)


async def usage_report(connection: AsyncConnection, query: ReportQuery) -> list[ReportRow]:
    """The lines of `query`, in the order of its dimensions; idle GPU cost as lines without a tenant at the end.

    With a tenant filter there are no idle lines. Raises InvalidRequest for a period or dimension that cannot be.
    """
    _check(query)
    groups: dict[Key, _Group] = {}
    hours: dict[datetime, HourUse] = {}
    if query.with_gpu:
        hours = await host_hours(connection, query.start, query.end)
    async for block in _blocks(connection, query):
        _share_gpu(query, block, hours, groups)
        for row in block:
            if query.tenant_id in (None, row.tenant_id):
                groups.setdefault(_key(query, row), _Group()).add(row)
    if query.tenant_id is None:
        _add_idle(query, hours, groups)
    else:
        groups = {key: group for key, group in groups.items() if group.sums["requests"]}
    return await _lines(connection, query, groups)


def _check(query: ReportQuery) -> None:
    unknown = [name for name in query.group_by if name not in DIMENSIONS]
    if unknown or not query.group_by or len(set(query.group_by)) != len(query.group_by):
        raise InvalidRequest(
            f"group by any of {', '.join(DIMENSIONS)}, each once, not {','.join(query.group_by)[:80]!r}",
            param="by",
        )
    for name, instant in (("from", query.start), ("to", query.end)):
        if instant.tzinfo is None or (instant.minute, instant.second, instant.microsecond) != (0, 0, 0):
            raise InvalidRequest(
                f"{name} must be a date or a whole UTC hour, not {instant.isoformat()}", param=name
            )
    if not query.start < query.end:
        raise InvalidRequest("the period is empty: `from` must be before `to`, which is excluded", param="to")
    if query.end - query.start > timedelta(days=MAX_DAYS):
        raise InvalidRequest(f"the period is longer than {MAX_DAYS} days; ask for a part of it", param="to")


async def _blocks(connection: AsyncConnection, query: ReportQuery) -> AsyncIterator[list[Row[Any]]]:
    """Grouped usage, a block per hour and model where GPU cost must be shared, else one row a block."""
    columns = ["tenant_id", *dict.fromkeys(_COLUMNS[name] for name in query.group_by if name != "tenant")]
    if query.with_gpu:
        columns = [*dict.fromkeys(["hour", "model", *columns])]
    facets = ["tier", "region", "price_version", "simulated"]
    selected = [f"{column} AS day" if column.startswith("date_trunc") else column for column in columns]
    sums = [f"sum({name}) AS {name}" for name in _SUMS]
    outcomes = [f"sum(outcomes[{i + 1}]) AS outcome_{i}" for i in range(len(_OUTCOMES))]
    # Only names from the tuples above are put into the text; values are bound.
    statement = f"""
        WITH touched AS MATERIALIZED (
            SELECT DISTINCT hour FROM usage_touched WHERE hour >= :start AND hour < :end),
        counted AS (
            SELECT h.* FROM usage_hours h WHERE h.hour >= :start AND h.hour < :end
                AND NOT EXISTS (SELECT 1 FROM touched t WHERE t.hour = h.hour)
            UNION ALL
            SELECT t.hour, f.* FROM touched t,
                LATERAL penstock_fold_usage(t.hour, t.hour + interval '1 hour') f)
        SELECT {", ".join([*selected, *facets, *sums, *outcomes])} FROM counted
        WHERE CAST(:tenant AS uuid) IS NULL OR tenant_id = :tenant
        GROUP BY {", ".join([*columns, *facets])} ORDER BY {", ".join([*columns, *facets])}
    """  # noqa: S608
    # Shares of GPU cost need everybody's use, so the tenant is filtered later then.
    tenant = None if query.with_gpu else query.tenant_id
    result = await connection.stream(
        text(statement), {"start": query.start, "end": query.end, "tenant": tenant}
    )
    block: list[Row[Any]] = []
    async for row in result:
        if block and not (query.with_gpu and (row.hour, row.model) == (block[0].hour, block[0].model)):
            yield block
            block = []
        block.append(row)
    if block:
        yield block


def _key(query: ReportQuery, row: Row[Any]) -> Key:
    return tuple(getattr(row, "day" if name == "day" else _COLUMNS[name]) for name in query.group_by)


def _share_gpu(
    query: ReportQuery, block: list[Row[Any]], hours: dict[datetime, HourUse], groups: dict[Key, _Group]
) -> None:
    """Give what one model's replicas cost in one hour to the requests of that hour."""
    if not query.with_gpu:
        return
    hour = hours.get(block[0].hour)
    use = hour.serving.get(block[0].model) if hour else None
    weights = [_gpu_weight(row) for row in block]
    if hour is None or use is None or sum(weights) == 0:
        return
    shares = zip(block, split(use.cost, weights), split(use.gpu_us, weights), strict=True)
    for row, cost, gpu_us in shares:
        if query.tenant_id in (None, row.tenant_id):
            groups.setdefault(_key(query, row), _Group()).gpu.add(cost, gpu_us)
    del hour.serving[block[0].model]


def _gpu_weight(row: Row[Any]) -> int:
    """Estimated GPU time of a row's tokens; unbilled ones used the GPU too."""
    uncached = int(row.input_tokens - row.cached_input_tokens + row.unbilled_input_tokens)
    output = int(row.output_tokens + row.unbilled_output_tokens)
    return catalog_weights().picoseconds(row.model, uncached, int(row.cached_input_tokens), output)


def _add_idle(query: ReportQuery, hours: dict[datetime, HourUse], groups: dict[Key, _Group]) -> None:
    """Host time that no request used: lines without tenant, project and key."""
    for hour, use in hours.items():
        unused = [(model, part) for (model, _), part in use.unused.items()]
        for model, part in [*use.serving.items(), *unused]:
            if part.cost == 0 and part.gpu_us == 0:
                continue
            values = {"model": model, "day": hour.replace(hour=0)}
            key = ("idle", *(values.get(name) for name in query.group_by))
            groups.setdefault(key, _Group()).gpu.add(part.cost, part.gpu_us)


async def _lines(
    connection: AsyncConnection, query: ReportQuery, groups: dict[Key, _Group]
) -> list[ReportRow]:
    rows = []
    for key, group in groups.items():
        values = dict(zip(query.group_by, key[-len(query.group_by) :], strict=True))
        rows.append(_line(query, values, group))
    await _put_names(connection, rows)
    return sorted(rows, key=_order)


def _line(query: ReportQuery, values: dict[str, Any], group: _Group) -> ReportRow:
    sums = group.sums
    start, end = query.start, query.end
    if "day" in values:
        start, end = max(start, values["day"]), min(end, values["day"] + timedelta(days=1))
    total = sums["input_tokens"] + sums["output_tokens"]
    row = ReportRow(
        period_start=_instant(start),
        period_end=_instant(end),
        tenant_id=_text(values.get("tenant")),
        project_id=_text(values.get("project")),
        key_id=_text(values.get("key")),
        model=_text(values.get("model")),
        requests=sums["requests"],
        requests_unbilled=sum(group.outcomes[i] for i in _FREE),
        input_tokens=sums["input_tokens"],
        cached_input_tokens=sums["cached_input_tokens"],
        output_tokens=sums["output_tokens"],
        reasoning_tokens=sums["reasoning_tokens"],
        total_tokens=total,
        list_cost_usd=pico_to_usd(sums["list_cost"]),
        discount_usd=pico_to_usd(sums["list_cost"] - sums["cost"]),
        cost_usd=pico_to_usd(sums["cost"]),
        price_per_mtok_usd=ratio_per_mtok(sums["cost"], total),
        outcomes={name: n for name, n in zip(_OUTCOMES, group.outcomes, strict=True) if n},
    )
    for name, found in group.facets.items():
        if len(found) == 1:
            setattr(row, name, next(iter(found)))
    if query.with_gpu:
        _put_gpu(row, sums["cost"], group.gpu, total)
    return row


def _put_gpu(row: ReportRow, cost: int, gpu: GpuUse, total_tokens: int) -> None:
    margin = cost - gpu.cost
    row.gpu_seconds = f"{gpu.gpu_us // 1_000_000}.{gpu.gpu_us % 1_000_000:06d}"
    row.gpu_cost_usd = pico_to_usd(gpu.cost)
    row.gpu_cost_per_mtok_usd = ratio_per_mtok(gpu.cost, total_tokens)
    row.margin_usd = pico_to_usd(margin)
    if cost:
        hundredths = (abs(margin) * 20_000 + cost) // (2 * cost)
        row.margin_pct = f"{'-' if margin < 0 else ''}{hundredths // 100}.{hundredths % 100:02d}"


async def _put_names(connection: AsyncConnection, rows: list[ReportRow]) -> None:
    """Names of tenants and projects and the last four characters of keys."""
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


def _order(row: ReportRow) -> tuple[object, ...]:
    idle = row.requests == 0
    return (idle, row.period_start, row.tenant or "", row.project or "", row.key_id or "", row.model or "")


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _instant(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
