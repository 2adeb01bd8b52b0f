"""The usage report as a data set, read in buckets of its time dimension to bound memory."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from decimal import Decimal

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.exports.columns import Column, ColumnKind, Record, Value
from billing.exports.datasets import BLOCK, Dataset, DatasetQuery
from billing.reports.report_format import columns as report_names
from billing.reports.usage_report import usage_report
from billing.usage.query import ReportQuery, ReportRow, bucket_end, bucket_start, check_query, time_dimension

VERSION = "report/2"
_INTEGERS = ("price_version", "requests", "requests_unbilled")
_DECIMALS = ("price_per_mtok_usd", "gpu_seconds", "gpu_cost_per_mtok_usd", "margin_pct")


def report_dataset(connection: AsyncConnection, query: DatasetQuery) -> Dataset:
    """The report of `query`. Raises InvalidRequest for an invalid period or grouping."""
    asked = ReportQuery(query.start, query.end, query.group_by, query.tenant_id, with_gpu=query.with_gpu)
    check_query(asked)
    columns = report_columns(query.with_gpu)
    return Dataset("report", VERSION, columns, _blocks(connection, asked, columns))


def report_columns(with_gpu: bool) -> tuple[Column, ...]:
    """The report's columns with their kinds; `with_gpu` False omits GPU cost and margin."""
    return tuple(Column(name, _kind(name)) for name in report_names(with_gpu))


def _kind(name: str) -> ColumnKind:
    if name in _INTEGERS or name.endswith("_tokens"):
        return ColumnKind.INTEGER
    if name in _DECIMALS:
        return ColumnKind.DECIMAL
    if name.endswith("_usd"):
        return ColumnKind.AMOUNT
    if name.startswith("period_") and name != "period_status":
        return ColumnKind.INSTANT
    return {"simulated": ColumnKind.BOOLEAN, "outcomes": ColumnKind.COUNTS}.get(name, ColumnKind.TEXT)


async def _blocks(
    connection: AsyncConnection, query: ReportQuery, columns: Sequence[Column]
) -> AsyncIterator[Sequence[Record]]:
    unit = time_dimension(query.group_by)
    start = query.start
    while start < query.end:
        end = query.end if unit is None else min(query.end, bucket_end(bucket_start(start, unit), unit))
        rows = await usage_report(connection, msgspec.structs.replace(query, start=start, end=end))
        for at in range(0, len(rows), BLOCK):
            yield [record(row, columns) for row in rows[at : at + BLOCK]]
        start = end


def record(row: ReportRow, columns: Sequence[Column]) -> Record:
    """One line of the report as a record of `columns`."""
    return tuple(_value(getattr(row, column.name), column) for column in columns)


def _value(value: object, column: Column) -> Value:
    if value is None or isinstance(value, bool | int | dict):
        return value
    if column.is_decimal:
        return Decimal(str(value))
    if column.kind is ColumnKind.INSTANT:
        return datetime.fromisoformat(str(value))
    return str(value)
