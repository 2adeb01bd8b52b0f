"""Closed months of usage in Parquet files: streamed, checked against the rows, and reproducible byte for byte.

Each month has a file and a manifest in `Settings.archive_dir`: `usage-2026-10.parquet` and `usage-2026-10.json`. The
file has every column of the view `usage`, amounts as DECIMAL(38,0) picodollars, and is ordered by hour, organisation,
end and request id. billing/reports/archive_report.py reads it. The directory should be on durable storage.
"""

import asyncio
import hashlib
import io
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet as pq
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger.months import bounds, month_name
from core.db import Database
from core.errors import Conflict, NotFound
from core.money import pico_to_usd
from core.settings import Settings

SCHEMA_VERSION = 2
"""Version of the columns, written into the manifest; 2 added `gpu`."""
ROW_GROUP = 262_144
"""Rows of a row group."""
BUSY_HOUR_ROWS = 500_000
"""Hours with more rows are read minute by minute, to bound memory."""
_BLOCK = 1 << 20
"""Bytes read at a time for a digest."""

_LABEL = pa.dictionary(pa.int32(), pa.string())
_INSTANT = pa.timestamp("us", tz="UTC")
_PICO = pa.decimal128(38, 0)
_TYPES: dict[str, pa.DataType] = {
    "request_id": pa.string(),
    **dict.fromkeys(("tenant_id", "project_id", "key_id", "model", "tier", "region"), _LABEL),
    **dict.fromkeys(("replica_id", "boot_id"), _LABEL),
    **dict.fromkeys(("admitted_at", "ended_at", "settled_at"), _INSTANT),
    "outcome": _LABEL,
    "attempts": pa.int16(),
    **dict.fromkeys(("stream", "simulated"), pa.bool_()),
    **dict.fromkeys(("price_version", "list_price_version"), pa.int64()),
    **dict.fromkeys(("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens"), pa.int64()),
    **dict.fromkeys(("unbilled_input_tokens", "unbilled_output_tokens"), pa.int64()),
    **dict.fromkeys(("cost", "list_cost"), _PICO),
    **dict.fromkeys(("queue_us", "ttft_us", "duration_us"), pa.int64()),
    "gpu": _LABEL,
}
_SCHEMA = pa.schema(
    [
        pa.field(name, pa.uuid() if name == "request_id" else kind, nullable=False)
        for name, kind in _TYPES.items()
    ]
)
_SUM_COLUMNS = (
    "input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens", "unbilled_input_tokens",
    "unbilled_output_tokens", "cost", "list_cost",
)  # fmt: skip
_COPY = f"""
    SELECT encode(uuid_send(request_id), 'hex') AS request_id, {", ".join(list(_TYPES)[1:])} FROM usage
    WHERE ended_at >= $1 AND ended_at < $2 ORDER BY tenant_id, ended_at, usage.request_id
"""  # noqa: S608 - the names above


class Manifest(msgspec.Struct, frozen=True):
    """The manifest of an archived month; sums are exact decimal strings, those of costs in picodollars."""

    schema_version: int
    month: str
    file: str
    rows: int
    bytes: int
    sha256: str
    columns: dict[str, str]
    sums: dict[str, str]
    cost_usd: str


def archive_dir(settings: Settings) -> Path:
    """The directory of archived months: `archive_dir`, or `archive` in the data directory when it is not set."""
    return settings.data_dir / "archive" if settings.archive_dir == Path() else settings.archive_dir


def parquet_path(folder: Path, month: date) -> Path:
    """The path of a month's Parquet file."""
    return folder / f"usage-{month_name(month)}.parquet"


def read_manifest(folder: Path, month: date) -> Manifest:
    """The manifest of an archived month. Raises NotFound, Conflict when it cannot be read."""
    path = parquet_path(folder, month).with_suffix(".json")
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise NotFound(f"{month_name(month)} is not archived in {folder}", param="month") from None
    except (OSError, msgspec.DecodeError) as error:
        raise Conflict(f"{path} cannot be read: {error}") from None


def verify_archive(folder: Path, month: date) -> Manifest:
    """The manifest, after its file's digest was compared with it. Raises NotFound, Conflict when they differ."""
    manifest = read_manifest(folder, month)
    path = parquet_path(folder, month)
    try:
        found, _ = _sha256(path)
    except OSError as error:
        raise Conflict(f"{path} cannot be read: {error}") from None
    if found != manifest.sha256:
        raise Conflict(f"{path} is not what its manifest says: its sha256 is {found}")
    return manifest


async def archive_month(database: Database, folder: Path, month: date) -> Manifest:
    """Archive a closed month into `folder` and record it in `usage_archives`. Idempotent.

    When its rows were dropped already, the existing file is verified instead. Raises Conflict when the month is open,
    when the file does not add up to the rows, or when the existing file differs from the record.
    """
    async with database.read() as connection:
        recorded = await _archive_record(connection, month)
        closed = await connection.scalar(
            text("SELECT EXISTS (SELECT 1 FROM billing_periods WHERE month = :month AND status = 'closed')"),
            {"month": month},
        )
    if recorded is not None and recorded.dropped_at is not None:
        manifest = await asyncio.to_thread(verify_archive, folder, month)
        if bytes.fromhex(manifest.sha256) != recorded.sha256:
            raise Conflict(f"the archive of {month_name(month)} is not the one that was recorded")
        return manifest
    if not closed:
        raise Conflict(f"{month_name(month)} is open: only closed months are archived", code="period_open")
    async with database.read() as connection:
        manifest = await write_month(connection, folder, month)
    async with database.system() as connection:
        await connection.execute(
            text(
                "INSERT INTO usage_archives (month, file, rows, bytes, cost, sha256) "
                "VALUES (:month, :file, :rows, :bytes, CAST(:cost AS numeric), :sha256) ON CONFLICT (month) DO UPDATE "
                "SET file = excluded.file, rows = excluded.rows, bytes = excluded.bytes, cost = excluded.cost, "
                "sha256 = excluded.sha256, archived_at = now() WHERE usage_archives.sha256 <> excluded.sha256"
            ),
            {
                "month": month,
                "file": manifest.file,
                "rows": manifest.rows,
                "bytes": manifest.bytes,
                "cost": int(manifest.sums["cost"]),
                "sha256": bytes.fromhex(manifest.sha256),
            },
        )
    return manifest


async def archive_closed_months(database: Database, folder: Path) -> int:
    """Archive every closed month that is not archived yet; returns their number."""
    async with database.read() as connection:
        months = await connection.scalars(
            text(
                "SELECT p.month FROM billing_periods p WHERE p.status = 'closed' "
                "AND NOT EXISTS (SELECT 1 FROM usage_archives a WHERE a.month = p.month) ORDER BY p.month"
            )
        )
        due = list(months)
    for month in due:
        await archive_month(database, folder, month)
    return len(due)


async def drop_rows(connection: AsyncConnection, folder: Path, month: date) -> Manifest:
    """Verify a month's archive and drop its rows from PostgreSQL; rollups and ledger stay.

    Raises NotFound, Conflict when the file, its record, the rollups or the ledger disagree.
    """
    manifest = await asyncio.to_thread(verify_archive, folder, month)
    recorded = await _archive_record(connection, month)
    if recorded is None or recorded.sha256 != bytes.fromhex(manifest.sha256):
        raise Conflict(
            f"the archive of {month_name(month)} is not the one that was recorded; archive it again"
        )
    refusal = await connection.scalar(text("SELECT penstock_drop_usage(:month)"), {"month": month})
    if refusal is not None:
        raise Conflict(f"the rows of {month_name(month)} stay: {refusal}")
    return manifest


async def write_month(connection: AsyncConnection, folder: Path, month: date) -> Manifest:
    """Write the file and manifest of a month, closed or not, each atomically, from the caller's transaction.

    Raises Conflict when the written rows or their cost differ from those of the table.
    """
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    path = parquet_path(folder, month)
    rows, sums = 0, dict.fromkeys(_SUM_COLUMNS, 0)
    with _atomic_file(path) as file, _writer(file) as writer:
        async for table in _row_groups(connection, month):
            await asyncio.to_thread(writer.write_table, table, row_group_size=ROW_GROUP)
            rows += table.num_rows
            for name in _SUM_COLUMNS:
                sums[name] += int(pa.compute.sum(table[name]).as_py() or 0)
        writer.close()
        await _check_sums(connection, month, rows, sums["cost"])
    digest, size = await asyncio.to_thread(_sha256, path)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        month=month_name(month),
        file=path.name,
        rows=rows,
        bytes=size,
        sha256=digest,
        columns={field.name: str(field.type) for field in _SCHEMA},
        sums={name: str(value) for name, value in sums.items()},
        cost_usd=pico_to_usd(sums["cost"]),
    )
    with _atomic_file(path.with_suffix(".json")) as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    return manifest


async def _row_groups(connection: AsyncConnection, month: date) -> AsyncIterator[pa.Table]:
    """The month's rows as tables of at least ROW_GROUP rows (the last may have fewer)."""
    waiting: list[pa.Table] = []
    for start, end in await _time_slices(connection, month):
        table = await _copy_rows(connection, start, end)
        waiting.append(table)
        if sum(one.num_rows for one in waiting) >= ROW_GROUP:
            yield pa.concat_tables(waiting).unify_dictionaries()
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting).unify_dictionaries()


async def _time_slices(connection: AsyncConnection, month: date) -> list[tuple[datetime, datetime]]:
    """[start, end) of the month's hours with usage; of single minutes in hours above BUSY_HOUR_ROWS."""
    start, end = bounds(month)
    counted = await connection.execute(
        text(
            "SELECT date_trunc('hour', ended_at, 'UTC') AS hour, count(*) AS rows FROM usage_rows "
            "WHERE ended_at >= :start AND ended_at < :end GROUP BY 1 ORDER BY 1"
        ),
        {"start": start, "end": end},
    )
    slices = []
    for row in counted:
        step = timedelta(minutes=1) if row.rows > BUSY_HOUR_ROWS else timedelta(hours=1)
        at = row.hour
        while at < row.hour + timedelta(hours=1):
            slices.append((at, at + step))
            at += step
    return slices


async def _copy_rows(connection: AsyncConnection, start: datetime, end: datetime) -> pa.Table:
    """The rows that ended in [start, end), read with PostgreSQL's COPY."""
    buffer = io.BytesIO()

    async def write(data: bytes) -> None:
        buffer.write(data)

    raw = await connection.get_raw_connection()
    driver: Any = raw.driver_connection
    await driver.copy_from_query(_COPY, start, end, output=write, format="csv")
    return await asyncio.to_thread(_parse_csv, buffer.getbuffer())


def _parse_csv(data: memoryview) -> pa.Table:
    if not data:
        return _SCHEMA.empty_table()
    table = pa.csv.read_csv(
        pa.BufferReader(data),
        read_options=pa.csv.ReadOptions(column_names=list(_TYPES), use_threads=False),
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(column_types=_TYPES, true_values=["t"], false_values=["f"]),
    )
    ids = table["request_id"].combine_chunks()
    digits = "".join(ids.to_pylist()) if len(ids) else ""
    stored = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(ids), [None, pa.py_buffer(bytes.fromhex(digits))]
    )
    columns = [pa.ExtensionArray.from_storage(pa.uuid(), stored), *table.columns[1:]]
    return pa.table(columns, schema=_SCHEMA)


async def _check_sums(connection: AsyncConnection, month: date, rows: int, cost: int) -> None:
    start, end = bounds(month)
    found = (
        await connection.execute(
            text(
                "SELECT count(*) AS rows, coalesce(sum(cost), 0) AS cost FROM usage_rows "
                "WHERE ended_at >= :start AND ended_at < :end"
            ),
            {"start": start, "end": end},
        )
    ).one()
    if (found.rows, int(found.cost)) != (rows, cost):
        raise Conflict(
            f"the archive of {month_name(month)} does not add up: {rows} rows and {cost} pico-dollars written, "
            f"{found.rows} and {found.cost} there"
        )


async def _archive_record(connection: AsyncConnection, month: date) -> Any:
    found = await connection.execute(
        text("SELECT sha256, dropped_at FROM usage_archives WHERE month = :month"), {"month": month}
    )
    return found.one_or_none()


@contextmanager
def _atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name only when it is complete and synced to the disk."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with scratch.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def _writer(file: IO[bytes]) -> Iterator[pq.ParquetWriter]:
    writer = pq.ParquetWriter(file, _SCHEMA, compression="zstd", use_dictionary=[
        name for name, kind in _TYPES.items() if kind == _LABEL
    ], column_encoding=None)  # fmt: skip
    try:
        yield writer
    finally:
        writer.close()


def _sha256(path: Path) -> tuple[str, int]:
    """The hexadecimal digest and the length in bytes of a file."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return digest.hexdigest(), size
