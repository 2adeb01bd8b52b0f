"""Every data set opens in the library of its format and adds up to the ledger; memory does not grow with the rows."""

import csv
import io
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import openpyxl
import pyarrow.parquet as pq
import pytest

from admin import exports as admin_exports
from billing.exports import datasets, writers
from billing.exports.columns import Column, ColumnKind, Record
from billing.exports.dataset_registry import write_query
from billing.exports.datasets import DATASETS, Dataset, WriteTotals, write_dataset
from billing.exports.writers import FORMATS, Format
from billing.reports.report_format import GPU_COLUMNS
from core.db import Database
from core.errors import InvalidRequest, PermissionDenied
from core.money import usd_to_pico
from tests.integration.billing.exports.books import busy, ledger
from tests.support.tenancy import ADMIN, member

AMOUNT = {
    "report": "cost_usd",
    "journal": "amount_usd",
    "focus_charges": "BilledCost",
    "focus_gpu": "BilledCost",
}


async def exported(database: Database, query: Any, format: Format) -> tuple[bytes, WriteTotals]:
    file = io.BytesIO()
    async with database.snapshot() as connection:
        tally = await write_query(connection, query, format, file)
    return file.getvalue(), tally


def from_csv(content: bytes) -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO(content.decode())))


def from_xlsx(content: bytes) -> list[dict[str, Any]]:
    book = openpyxl.load_workbook(io.BytesIO(content), read_only=True)
    rows = list(book.worksheets[0].iter_rows(values_only=True))
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


READERS: dict[str, Callable[[bytes], list[dict[str, Any]]]] = {
    "csv": from_csv,
    "json": lambda content: msgspec.json.decode(content),
    "xlsx": from_xlsx,
    "parquet": lambda content: pq.read_table(io.BytesIO(content)).to_pylist(),
}


@pytest.mark.parametrize("format", FORMATS)
async def test_what_a_library_reads_adds_up_to_the_ledger(
    database: Database, format: Format, tmp_path: Path
) -> None:
    month = await busy(database, requests=60)
    async with database.read() as connection:
        cost = (await connection.exec_driver_sql("SELECT sum(cost) FROM usage")).scalar_one()
        booked = (await connection.exec_driver_sql("SELECT sum(amount) FROM ledger_transfers")).scalar_one()
    expected = {
        "report": cost,
        "journal": booked,
        "focus_charges": await ledger(database, revenue=1, uncollectible=1, promotions=1, sla_credits=1),
        "focus_gpu": month.gpu_cost,
    }
    for dataset, column in AMOUNT.items():
        query = month.query(dataset, group_by=("tenant", "model", "day"), with_gpu=True)
        content, tally = await exported(database, query, format)
        rows = READERS[format](content)
        exact = f"{column} (exact)" if format == "xlsx" else column
        assert (
            sum(usd_to_pico(str(row[exact])) for row in rows if row[exact] is not None) == expected[dataset]
        )
        assert (len(rows), usd_to_pico(tally.sums[column])) == (tally.rows, expected[dataset])
        again, _ = await exported(database, query, format)
        assert again == content
        if format == "parquet":
            place = tmp_path / f"{dataset}.parquet"
            place.write_bytes(content)
            found = (
                duckdb.connect()
                .execute(f"SELECT sum({column}), typeof(any_value({column})) FROM '{place}'")
                .fetchone()
            )
            assert found == (Decimal(int(expected[dataset])).scaleb(-12), "DECIMAL(38,12)")


async def test_formulas_are_text_everywhere(database: Database) -> None:
    month = await busy(database, requests=20)
    content, _ = await exported(database, month.query("report", group_by=("tenant",)), "csv")
    assert {row["tenant"] for row in from_csv(content)} == {"'=Rich, Inc.", "Poor", "Große Post GmbH"}
    content, _ = await exported(database, month.query("report", group_by=("tenant",)), "xlsx")
    book = openpyxl.load_workbook(io.BytesIO(content))
    cells = [cell for row in book.worksheets[0].iter_rows(min_row=2) for cell in row]
    assert "=Rich, Inc." in {cell.value for cell in cells if cell.data_type == "s"}
    assert not [cell for cell in cells if cell.data_type == "f"]
    amounts = {cell.number_format for cell in cells if cell.column_letter == "V"}
    assert amounts == {"#,##0.00####"}


async def test_customers_never_get_our_cost(database: Database) -> None:
    month = await busy(database, requests=20)
    mine = month.customers[0]
    span: dict[str, Any] = {"start": month.start, "end": month.end}
    for dataset in DATASETS:
        if dataset in ("focus_gpu", "journal", "audit"):
            with pytest.raises(PermissionDenied):
                await admin_exports.download(
                    database, member(mine.tenant_id), dataset=dataset, format="csv", **span
                )
            continue
        found = await admin_exports.download(
            database, member(mine.tenant_id), dataset=dataset, format="csv", **span
        )
        content = b"".join(found.chunks).decode()
        assert not [name for name in GPU_COLUMNS if name in content]
        assert not any(str(other.tenant_id) in content for other in month.customers[1:])
    with pytest.raises(PermissionDenied):
        await admin_exports.download(
            database, member(mine.tenant_id), dataset="report", format="csv",
            tenant_id=month.customers[1].tenant_id, **span,
        )  # fmt: skip
    whole = await admin_exports.download(database, ADMIN, dataset="report", format="csv", **span)
    assert "margin_usd" in b"".join(whole.chunks).decode()
    with pytest.raises(InvalidRequest):
        await admin_exports.download(
            database, ADMIN, dataset="report", format="csv", group_by=("colour",), **span
        )


COLUMNS = (
    Column("at", ColumnKind.INSTANT),
    Column("name"),
    Column("tokens", ColumnKind.INTEGER),
    Column("amount", ColumnKind.AMOUNT),
)


def records(count: int) -> Dataset:
    """`count` different records, generated lazily."""

    async def blocks() -> AsyncIterator[Sequence[Record]]:
        at = datetime(2026, 11, 1, tzinfo=UTC)
        for start in range(0, count, 1000):
            yield [
                (at, f"tenant-{i}", i, Decimal(f"{i}.000000000001"))
                for i in range(start, min(start + 1000, count))
            ]

    return Dataset("report", "test/1", COLUMNS, blocks())


@pytest.mark.parametrize(
    ("format", "most"), [("csv", 100_000), ("json", 100_000), ("parquet", 100_000), ("xlsx", 15_000)]
)
async def test_memory_does_not_follow_the_rows(
    format: Format, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "ROW_GROUP", 1_000)

    async def peak(count: int) -> int:
        tracemalloc.start()
        with (tmp_path / "out").open("wb") as file:
            tally = await write_dataset(records(count), format, file)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert tally.rows == count
        assert usd_to_pico(tally.sums["amount"]) == sum(range(count)) * 10**12 + count
        return used

    await peak(1_000)
    small, large = await peak(2_000), await peak(most)
    assert large < 1.5 * small + 2**20


async def test_a_sheet_that_would_be_too_long_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file, pytest.raises(InvalidRequest, match="csv or parquet"):
        await write_dataset(_many(), "xlsx", file)


def _many() -> Dataset:
    async def blocks() -> AsyncIterator[Sequence[Record]]:
        yield [("x",)] * 1_048_576

    return Dataset("report", "test/1", (Column("name"),), blocks())


async def test_numbers_beyond_a_float_stay_exact_beside_it(tmp_path: Path) -> None:
    amount = Decimal("12345678901234567890.123456789012")

    async def blocks() -> AsyncIterator[Sequence[Record]]:
        yield [(amount,)]

    file = io.BytesIO()
    await write_dataset(
        Dataset("report", "test/1", (Column("cost_usd", ColumnKind.AMOUNT),), blocks()), "xlsx", file
    )
    (row,) = from_xlsx(file.getvalue())
    assert row["cost_usd (exact)"] == str(amount)
    assert abs(row["cost_usd"] - float(amount)) < 5000


class Spy:
    """A sink that records the thread that calls it."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def add(self, records: Sequence[Record]) -> None:
        self.threads.append(threading.current_thread().name)

    def close(self) -> None:
        self.threads.append(threading.current_thread().name)

    def abort(self) -> None:
        raise AssertionError("nothing went wrong")


async def test_files_are_written_beside_the_loop_that_serves_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def blocks() -> AsyncIterator[Sequence[Record]]:
        for number in range(3):
            yield [(f"row {number}",)]

    spy = Spy()
    monkeypatch.setattr(datasets, "open_sink", lambda *_: spy)
    with (tmp_path / "x").open("wb") as file:
        assert (await write_dataset(Dataset("x", "1", (Column("a"),), blocks()), "csv", file)).rows == 3
    assert len(spy.threads) == 4
    assert threading.current_thread().name not in spy.threads
