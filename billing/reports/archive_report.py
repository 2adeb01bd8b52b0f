"""Usage sums of whole months from archives and live rows: DuckDB reads Parquet files, PostgreSQL the other months.

An archived month is read from its file only, every other month from PostgreSQL (rollups, and rows of hours that are not
rolled up), so no row counts twice. Tokens are billed tokens, as in billing/reports/usage_report.py.
"""

import asyncio
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import msgspec
import pyarrow as pa
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger.months import bounds, month_name, next_month
from billing.usage.archive import parquet_path, read_manifest
from billing.usage.sums import DAILY_SUMS
from core.errors import Conflict, InvalidRequest
from core.money import pico_to_usd

DIMENSIONS = (
    "tenant_id", "project_id", "key_id", "model", "tier", "region", "price_version", "simulated", "gpu", "day",
    "month",
)  # fmt: skip
SUMS = (
    "requests", "input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens", "cost", "list_cost",
)  # fmt: skip
MAX_MONTHS = 120
"""Months of one report."""
_TIMES = {"day": "date_trunc('day', {at})", "month": "date_trunc('month', {at})"}
_MEMORY = "2GB"
"""Memory beyond which DuckDB spills to disk."""


class MonthRow(msgspec.Struct, frozen=True):
    """One group's sums; amounts are exact decimal dollars."""

    by: dict[str, str]
    requests: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost_usd: str
    list_cost_usd: str


class MonthReport(msgspec.Struct, frozen=True):
    """The sums and their sources."""

    archived: list[str]
    """Months read from Parquet."""
    live: list[str]
    """Months read from PostgreSQL."""
    lines: list[MonthRow]


async def month_report(
    connection: AsyncConnection,
    folder: Path,
    first: date,
    last: date,
    group_by: tuple[str, ...],
    tenant_id: UUID | None = None,
) -> MonthReport:
    """Usage of the months `first` to `last` (first days, both included), grouped by `group_by` in its order.

    `connection` must see all tenants; `folder` holds the archives. Raises InvalidRequest for an invalid grouping or
    more than MAX_MONTHS months, Conflict when an archive is missing or does not have its manifest's size.
    """
    months = _months(first, last)
    unknown = [name for name in group_by if name not in DIMENSIONS]
    if unknown or not group_by or len(set(group_by)) != len(group_by):
        raise InvalidRequest(
            f"group by any of {', '.join(DIMENSIONS)}, each once, not {','.join(group_by)[:80]!r}", param="by"
        )
    recorded = await connection.scalars(
        text("SELECT month FROM usage_archives WHERE month = ANY(:months)"), {"months": months}
    )
    archived = sorted(recorded)
    live = [month for month in months if month not in archived]
    files = [_archive_file(folder, month) for month in archived]
    table = await _live_sums(connection, live, group_by, tenant_id)
    rows = await asyncio.to_thread(sum_sources, files, table, group_by, tenant_id)
    return MonthReport(
        archived=[month_name(month) for month in archived],
        live=[month_name(month) for month in live],
        lines=[_row(row, group_by) for row in rows],
    )


def sum_sources(
    files: list[str], live: pa.Table, group_by: tuple[str, ...], tenant_id: UUID | None = None
) -> list[tuple[Any, ...]]:
    """Sorted rows (`group_by`, then SUMS) over the Parquet `files` and `live`, which has the same columns. Blocking."""
    sources = ["SELECT * FROM live"]
    bound: list[object] = []
    if files:
        columns = [f"{_archived_column(name)} AS {name}" for name in group_by]
        # Names come from the tuples above; values are bound.
        sources.append(
            f"SELECT {', '.join(columns)}, {_ARCHIVED_SUMS} FROM {_ARCHIVES} "  # noqa: S608
            f"WHERE ? IS NULL OR tenant_id = ? GROUP BY ALL"
        )
        tenant = None if tenant_id is None else str(tenant_id)
        bound = [files, tenant, tenant]
    names = ", ".join(group_by)
    sums = ", ".join(f"sum({name})::DECIMAL(38,0) AS {name}" for name in SUMS)
    with duckdb.connect(config={"memory_limit": _MEMORY}) as session:
        session.execute("SET TimeZone = 'UTC'")
        session.register("live", live)
        found = session.execute(
            f"SELECT {names}, {sums} FROM ({' UNION ALL '.join(sources)}) GROUP BY {names} ORDER BY {names}",  # noqa: S608
            bound,
        )
        return found.fetchall()


_ARCHIVES = (
    "(FROM read_parquet(?, union_by_name = true) UNION ALL BY NAME SELECT NULL::VARCHAR AS gpu WHERE false)"
)
"""The archived rows; those of archives of before version 2 have no class of GPU."""
_BILLED = "FILTER (WHERE outcome NOT IN ('engine_failed', 'zero_output'))"
_ARCHIVED_SUMS = ", ".join(
    [
        "count(*)::DECIMAL(38,0) AS requests",
        *(
            f"coalesce(sum({name}) {_BILLED}, 0)::DECIMAL(38,0) AS {name}"
            for name in SUMS
            if "tokens" in name
        ),
        *(f"sum({name})::DECIMAL(38,0) AS {name}" for name in ("cost", "list_cost")),
    ]
)


def _archived_column(name: str) -> str:
    if name in _TIMES:
        return f"strftime({_TIMES[name].format(at='ended_at')}, '%Y-%m-%d')"
    return "coalesce(gpu, '')" if name == "gpu" else f"CAST({name} AS VARCHAR)"


def _months(first: date, last: date) -> list[date]:
    months = [first]
    while months[-1] < last and len(months) <= MAX_MONTHS:
        months.append(next_month(months[-1]))
    if first > last or len(months) > MAX_MONTHS:
        raise InvalidRequest(f"ask for 1 to {MAX_MONTHS} months, the first before the last", param="to")
    return months


def _archive_file(folder: Path, month: date) -> str:
    """The file of a month. Raises Conflict unless it has its manifest's size; `verify_archive` checks its content."""
    manifest = read_manifest(folder, month)
    path = parquet_path(folder, month)
    if not path.exists() or path.stat().st_size != manifest.bytes:
        raise Conflict(f"{path} is missing or not the file that its manifest describes")
    return str(path)


async def _live_sums(
    connection: AsyncConnection, months: list[date], group_by: tuple[str, ...], tenant_id: UUID | None
) -> pa.Table:
    """Sums of live months from PostgreSQL, one statement per month."""
    columns = [
        f"to_char({_TIMES[name].format(at='hour')}, 'YYYY-MM-DD')" if name in _TIMES else f"{name}::text"
        for name in group_by
    ]
    statement = f"""
        WITH {DAILY_SUMS}
        SELECT {", ".join(f"{column} AS {name}" for column, name in zip(columns, group_by, strict=True))},
            {", ".join(f"sum({name}) AS {name}" for name in SUMS)}
        FROM usage_sums WHERE CAST(:tenant AS uuid) IS NULL OR tenant_id = :tenant
        GROUP BY {", ".join(str(place + 1) for place in range(len(group_by)))}
    """  # noqa: S608
    rows: list[dict[str, Any]] = []
    for month in months:
        start, end = bounds(month)
        found = await connection.execute(text(statement), {"start": start, "end": end, "tenant": tenant_id})
        rows.extend(dict(row) for row in found.mappings())
    fields = [pa.field(name, pa.string()) for name in group_by]
    fields += [pa.field(name, pa.decimal128(38, 0)) for name in SUMS]
    for row in rows:
        row.update({name: Decimal(int(row[name])) for name in SUMS})
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def _row(row: tuple[Any, ...], group_by: tuple[str, ...]) -> MonthRow:
    sums = dict(zip(SUMS, (int(value) for value in row[len(group_by) :]), strict=True))
    return MonthRow(
        by=dict(zip(group_by, row, strict=False)),
        cost_usd=pico_to_usd(sums.pop("cost")),
        list_cost_usd=pico_to_usd(sums.pop("list_cost")),
        **sums,
    )
