"""Closed months in Parquet: complete, exact, the same bytes again; sums over archived and live months; dropped rows."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import duckdb
import pyarrow.parquet as pq
import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from admin import archive as admin_archive
from admin.actor import Actor, system_actor
from billing.ledger.verification import verify
from billing.reports.archive_report import month_report
from billing.reports.usage_report import totals, usage_report
from billing.usage.archive import (
    archive_closed_months,
    archive_dir,
    archive_month,
    drop_rows,
    parquet_path,
    read_manifest,
    verify_archive,
    write_month,
)
from billing.usage.query import ReportQuery
from billing.usage.rollups import roll_up
from cli.main import app as penstock_app
from core.db import Database, connect_system
from core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied
from core.ids import uuid7
from core.settings import Settings
from tests.integration.billing.support import Customer, make_customer, price
from tests.integration.billing.usage.test_usage_store import row, settle

LAST = (datetime.now(UTC).replace(day=1) - timedelta(days=1)).date().replace(day=1)
THIS = datetime.now(UTC).date().replace(day=1)
ACTOR = system_actor("test")
ROWS = 40
EVERYTHING = ReportQuery(
    datetime(LAST.year, LAST.month, 1, tzinfo=UTC),
    (datetime(THIS.year, THIS.month, 1, tzinfo=UTC) + timedelta(days=32)).replace(day=1),
    ("tenant", "model", "day"),
)


def id_of(instant: datetime) -> UUID:
    """A UUIDv7 of an instant: rows of last month belong into last month's partition."""
    number = uuid7().int & ((1 << 80) - 1)
    return UUID(int=(int(instant.timestamp() * 1000) << 80) | number)


@pytest.fixture
async def months(database: Database, pg_url: str) -> AsyncIterator[list[Customer]]:
    """Two customers with usage in last month (its own partition) and in this one, rolled up; last month closed."""
    version = await price(database)
    customers = [await make_customer(database, mode="postpaid", name=name) for name in ('A, "quoted"', "B")]
    owner = await asyncpg.connect(pg_url)
    start = datetime(LAST.year, LAST.month, 1, tzinfo=UTC)
    await owner.execute("SELECT penstock_make_partition('usage_rows', $1)", start)
    # The only place where usage of last month may still arrive.
    source = await owner.fetchval("SELECT pg_get_functiondef('penstock_settle'::regproc)")
    await owner.execute(source.replace("interval '48 hours'", "interval '90 days'"))
    hot = await connect_system(pg_url)
    rows = []
    for n in range(ROWS):
        at = start + timedelta(hours=7 * n, microseconds=n)
        facts = {
            "model": "river-7b",
            "input_tokens": n * 1000,
            "cached_input_tokens": n,
            "output_tokens": 7 * n + 1,
        }
        facts["outcome"] = "engine_failed" if n % 10 == 3 else "completed"
        facts["gpu"] = ("H200", "B300", "")[n % 3]
        facts["replica_id"] = 'h,"1"\nx' if n % 2 else "h/0"
        rows.append(row(customers[n % 2], version, request_id=id_of(at), admitted_at=at, **facts))
    # Began last month, ended in this one: lies in last month's partition and belongs to this month.
    turn = datetime(THIS.year, THIS.month, 1, tzinfo=UTC)
    rows.append(
        row(
            customers[0], version, request_id=id_of(turn - timedelta(seconds=1)),
            admitted_at=turn - timedelta(seconds=1), duration_us=1_500_000,
        )
    )  # fmt: skip
    rows += [row(customers[1], version, input_tokens=5, output_tokens=5) for _ in range(3)]
    assert set((await settle(hot, *rows)).values()) == {"settled"}
    await roll_up(database)
    await owner.execute(
        "INSERT INTO billing_periods (month, status, closed_at, closed_by) VALUES ($1, 'closed', now(), 'test')",
        LAST,
    )
    yield customers
    await hot.close()
    await owner.close()


async def rows_of_last_month(database: Database) -> list[dict[str, Any]]:
    async with database.system() as connection:
        found = await connection.execute(
            text("SELECT * FROM usage WHERE ended_at < :end ORDER BY request_id"),
            {"end": datetime(THIS.year, THIS.month, 1, tzinfo=UTC)},
        )
        return [dict(one) for one in found.mappings()]


async def test_a_closed_month_lies_in_parquet_exactly(
    database: Database, months: list[Customer], tmp_path: Path
) -> None:
    manifest = await archive_month(database, tmp_path, LAST)
    rows = await rows_of_last_month(database)
    assert manifest.rows == ROWS == len(rows)
    stored = pq.read_table(parquet_path(tmp_path, LAST))
    assert str(stored.schema.field("cost").type) == "decimal128(38, 0)"
    told = sorted(stored.to_pylist(), key=lambda one: one["request_id"])
    ids = ("tenant_id", "project_id", "key_id")
    assert [{**one, **{name: str(one[name]) for name in ids}} for one in rows] == told
    assert manifest.sums["cost"] == str(sum(int(one["cost"]) for one in rows))
    assert manifest.sums["input_tokens"] == str(sum(one["input_tokens"] for one in rows))
    order = [
        (one["ended_at"].replace(minute=0, second=0, microsecond=0), str(one["tenant_id"]))
        for one in stored.to_pylist()
    ]
    assert order == sorted(order)
    with duckdb.connect() as session:
        read = session.execute(
            "SELECT count(DISTINCT request_id), sum(cost) FROM read_parquet(?)",
            [str(parquet_path(tmp_path, LAST))],
        ).fetchall()[0]
    assert read == (ROWS, Decimal(manifest.sums["cost"]))
    assert verify_archive(tmp_path, LAST) == manifest == read_manifest(tmp_path, LAST)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [manifest.file, manifest.file.replace("parquet", "json")]
    )


async def test_archiving_again_writes_the_same_bytes(
    database: Database, months: list[Customer], tmp_path: Path
) -> None:
    assert await archive_closed_months(database, tmp_path / "a") == 1
    assert await archive_closed_months(database, tmp_path / "a") == 0
    await archive_month(database, tmp_path / "b", LAST)
    for name in (f"usage-{LAST:%Y-%m}.parquet", f"usage-{LAST:%Y-%m}.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    async with database.system() as connection:
        recorded = (await connection.execute(text("SELECT * FROM usage_archives"))).one()
    manifest = read_manifest(tmp_path / "a", LAST)
    assert (recorded.rows, recorded.bytes) == (manifest.rows, manifest.bytes)
    assert recorded.sha256.hex() == manifest.sha256
    assert recorded.cost == int(manifest.sums["cost"])


async def test_an_open_month_is_not_archived(
    database: Database, months: list[Customer], tmp_path: Path
) -> None:
    with pytest.raises(Conflict, match="is open"):
        await archive_month(database, tmp_path, THIS)
    with pytest.raises(NotFound, match="not archived"):
        verify_archive(tmp_path, THIS)
    assert list(tmp_path.iterdir()) == []


async def test_busy_hours_are_cut_and_tell_the_same(
    database: Database, months: list[Customer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with database.read() as connection:
        whole = await write_month(connection, tmp_path / "a", LAST)
        monkeypatch.setattr("billing.usage.archive.BUSY_HOUR_ROWS", 0)
        monkeypatch.setattr("billing.usage.archive.ROW_GROUP", 7)
        cut = await write_month(connection, tmp_path / "b", LAST)
    assert cut.sums == whole.sums
    assert pq.ParquetFile(parquet_path(tmp_path / "b", LAST)).num_row_groups > 5
    tables = [pq.read_table(parquet_path(tmp_path / name, LAST)).to_pylist() for name in ("a", "b")]
    assert sorted(map(str, tables[0])) == sorted(map(str, tables[1]))


@pytest.mark.parametrize(
    "by",
    [
        ("tenant_id",),
        ("month", "model"),
        ("day", "tenant_id", "price_version", "simulated"),
        ("gpu", "month"),
    ],
)
async def test_sums_over_archive_and_live_rows_are_those_of_the_rows(
    database: Database, months: list[Customer], tmp_path: Path, by: tuple[str, ...]
) -> None:
    async with database.read() as connection:
        before = await month_report(connection, tmp_path, LAST, THIS, by)
    await archive_month(database, tmp_path, LAST)
    async with database.read() as connection:
        after = await month_report(connection, tmp_path, LAST, THIS, by)
        one = await month_report(connection, tmp_path, LAST, THIS, by, months[1].tenant_id)
        cost = await connection.scalar(text("SELECT sum(cost) FROM usage"))
    assert (before.archived, after.archived) == ([], [f"{LAST:%Y-%m}"])
    assert after.live == [f"{THIS:%Y-%m}"]
    assert after.lines == before.lines
    assert sum(Decimal(line.cost_usd) for line in after.lines) == Decimal(int(cost)) / 10**12
    assert sum(line.requests for line in after.lines) == ROWS + 4
    assert sum(line.requests for line in one.lines) == ROWS // 2 + 3


async def test_an_archive_of_before_the_class_of_gpu_is_read_as_usage_whose_class_is_not_known(
    database: Database, months: list[Customer], tmp_path: Path
) -> None:
    await archive_month(database, tmp_path, LAST)
    path = parquet_path(tmp_path, LAST)
    pq.write_table(pq.read_table(path).drop_columns(["gpu"]), path)
    manifest = path.with_suffix(".json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "bytes": path.stat().st_size}))
    async with database.read() as connection:
        told = await month_report(connection, tmp_path, LAST, LAST, ("gpu", "model"))
    assert [(line.by["gpu"], line.by["model"], line.requests) for line in told.lines] == [
        ("", "river-7b", ROWS)
    ]


async def test_a_file_that_was_touched_is_refused(
    database: Database, months: list[Customer], tmp_path: Path
) -> None:
    manifest = await archive_month(database, tmp_path, LAST)
    path = parquet_path(tmp_path, LAST)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(Conflict, match="is not what its manifest says"):
        verify_archive(tmp_path, LAST)
    async with database.system() as connection:
        with pytest.raises(Conflict, match="is not what its manifest says"):
            await drop_rows(connection, tmp_path, LAST)
    path.write_bytes(content[:-1])
    async with database.read() as connection:
        with pytest.raises(Conflict, match="missing or not the file"):
            await month_report(connection, tmp_path, LAST, LAST, ("month",))
        with pytest.raises(InvalidRequest, match="group by any of"):
            await month_report(connection, tmp_path, LAST, LAST, ("tenant_id; DROP TABLE tenants",))
    assert manifest.rows == ROWS


async def test_dropped_rows_live_on_in_archive_rollups_and_ledger(
    database: Database, months: list[Customer], tmp_path: Path
) -> None:
    rows = await rows_of_last_month(database)
    async with database.read() as connection:
        before = await month_report(connection, tmp_path, LAST, THIS, ("month", "tenant_id"))
        reported = await usage_report(connection, EVERYTHING)
    for _ in range(2):
        manifest = await admin_archive.archive_month(
            database, ACTOR, tmp_path, month=LAST, drop_partition=True
        )
        assert manifest.rows == len(rows)
    async with database.system() as connection:
        left = await connection.execute(text("SELECT count(*), min(ended_at) FROM usage"))
        # This month's three, and the one that had begun in the dropped partition.
        assert tuple(left.one()) == (4, datetime(THIS.year, THIS.month, 1, 0, 0, 0, 500_000, tzinfo=UTC))
        kept = await connection.scalar(text("SELECT sum(requests) FROM usage_hours"))
        books = await verify(connection)
        after = await month_report(connection, tmp_path, LAST, THIS, ("month", "tenant_id"))
        assert await usage_report(connection, EVERYTHING) == reported
        assert (await totals(connection, EVERYTHING, reported)).equal
        audited = await connection.scalar(
            text("SELECT count(*) FROM audit_log WHERE action = 'usage.drop_partition'")
        )
    assert kept >= len(rows)
    assert books.problems == []
    assert after.lines == before.lines
    assert audited == 2


async def test_an_adjustment_that_found_no_money_is_no_usage_of_an_archived_month(
    database: Database, months: list[Customer], tmp_path: Path, pg_url: str
) -> None:
    adjustment, start = uuid7(), datetime(LAST.year, LAST.month, 1, tzinfo=UTC)
    owner = await asyncpg.connect(pg_url)
    # As it was booked in the month before its close.
    await owner.execute("SET session_replication_role = replica; DELETE FROM billing_periods")
    await owner.execute("SET session_replication_role = origin")
    await owner.execute(
        "INSERT INTO adjustments (id, tenant_id, amount, uncollectible, reason, created_by) "
        "VALUES ($1, $2, -5, 5, 'r', 't')",
        adjustment,
        months[0].tenant_id,
    )
    await owner.execute(
        "SELECT penstock_book('uncollectible', $1, 'uncollectible', 'revenue', 5, $2, $3)",
        months[0].tenant_id,
        adjustment,
        start,
    )
    await owner.execute(
        "INSERT INTO billing_periods (month, status, closed_at, closed_by) VALUES ($1, 'closed', now(), 'test')",
        LAST,
    )
    await owner.close()
    await admin_archive.archive_month(database, ACTOR, tmp_path, month=LAST, drop_partition=True)
    async with database.system() as connection:
        assert (await verify(connection)).problems == []


@pytest.mark.parametrize(
    ("harm", "sign"),
    [
        ("UPDATE usage_hours SET cost = cost + 1", "rollups count"),
        ("INSERT INTO dirty_hours (hour) SELECT min(hour) FROM usage_hours", "not rolled up"),
        ("UPDATE usage_archives SET sha256 = '\\x00'", "not the one that was recorded"),
        ("UPDATE usage_archives SET rows = rows + 1", "the archive"),
    ],
)
async def test_nothing_is_dropped_when_anything_disagrees(
    database: Database, months: list[Customer], tmp_path: Path, pg_url: str, harm: str, sign: str
) -> None:
    await archive_month(database, tmp_path, LAST)
    owner = await asyncpg.connect(pg_url)
    await owner.execute(harm)
    await owner.close()
    with pytest.raises(Conflict, match=sign):
        async with database.system() as connection:
            await drop_rows(connection, tmp_path, LAST)
    assert len(await rows_of_last_month(database)) == ROWS


async def test_customers_cannot_archive(database: Database, months: list[Customer], tmp_path: Path) -> None:
    customer = Actor(kind="user", id="u", label="u", role="owner", tenant_id=months[0].tenant_id)
    with pytest.raises(PermissionDenied):
        await admin_archive.archive_month(database, customer, tmp_path, month=LAST)
    with pytest.raises(PermissionDenied):
        await admin_archive.months(
            database, customer, tmp_path, first=LAST, last=date(THIS.year, THIS.month, 1), group_by=("month",)
        )


def test_the_archive_lies_in_the_data_directory(tmp_path: Path) -> None:
    assert archive_dir(Settings(data_dir=tmp_path)) == tmp_path / "archive"
    assert archive_dir(Settings(data_dir=tmp_path, archive_dir=tmp_path / "x")) == tmp_path / "x"


async def test_the_archive_on_the_command_line(
    months: list[Customer], pg_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.setenv("PENSTOCK_DATA_DIR", str(tmp_path))

    async def penstock(*words: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, penstock_app, ["usage", *words])

    open_month = await penstock("archive", "--month", f"{THIS:%Y-%m}")
    assert (open_month.exit_code, open_month.stdout) == (2, "")
    assert "is open: only closed months are archived" in open_month.stderr
    assert (await penstock("archive", "--month", "October")).exit_code == 2
    written = json.loads((await penstock("archive", "--month", f"{LAST:%Y-%m}", "--json")).stdout)
    assert (written["rows"], written["file"]) == (ROWS, f"usage-{LAST:%Y-%m}.parquet")
    assert parquet_path(tmp_path / "archive", LAST).exists()
    asked = await penstock(
        "months", "--from", f"{LAST:%Y-%m}", "--to", f"{THIS:%Y-%m}", "--by", "month", "--json"
    )
    report = json.loads(asked.stdout)
    assert (report["archived"], report["live"]) == ([f"{LAST:%Y-%m}"], [f"{THIS:%Y-%m}"])
    assert report["lines"][0]["cost_usd"] == written["cost_usd"]
    dropped = await penstock("archive", "--month", f"{LAST:%Y-%m}", "--drop-partition", "--json")
    assert json.loads(dropped.stdout) == written
    again = await penstock(
        "months", "--from", f"{LAST:%Y-%m}", "--to", f"{THIS:%Y-%m}", "--by", "month", "--json"
    )
    assert json.loads(again.stdout) == report
