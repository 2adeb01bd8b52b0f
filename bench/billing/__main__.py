"""`python -m bench.billing` (make bench-billing): settlement, bytes per row, month reports, archive, invoice run.

Writes JSON and a plot into bench/out. `--rows 100000000` is the full size: about 20 GB of disk and half an hour.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psutil
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.billing import invoices, months, settle
from bench.billing.plot import plot
from bench.provenance import provenance
from core.embedded import EmbeddedPostgres
from core.services import migrate

OUT = Path(__file__).resolve().parents[1] / "out"
BULK = {
    "wal_level": "minimal", "max_wal_senders": "0", "maintenance_work_mem": "1GB", "max_wal_size": "8GB",
    "shared_buffers": "1GB",
}  # fmt: skip
"""PostgreSQL settings of the server that loads months; settlement and invoices use the product's own settings."""
REPORTS = ("rollup", "gpu", "raw_parquet", "raw_postgres")
"""The reports that are measured at every size."""
TARGETS = {
    "settled_and_sealed_per_s": (10_000, ">="),
    "bytes_per_row": (200, "<"),
    "rollup_s": (2.0, "<"),
    "rollup_with_gpu_s": (2.0, "<"),
    "raw_parquet_s": (20.0, "<"),
    "raw_postgres_s": (20.0, "<"),
    "invoices_s": (300.0, "<"),
}
"""Limit and comparison of each figure that has a target; the units are in the names."""


def make_folder(path: Path) -> None:
    """Create a directory that the server's account may traverse."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o755)


@asynccontextmanager
async def server(folder: Path, settings: dict[str, str] | None = None) -> AsyncIterator[str]:
    """Run an embedded PostgreSQL with `settings`, and yield its URL."""
    make_folder(folder)
    postgres = EmbeddedPostgres(folder, settings=settings)
    try:
        yield await postgres.start()
    finally:
        await postgres.stop()


async def fresh(url: str, name: str) -> str:
    """Create a migrated database on the server of `url`, and return its URL."""
    base = url.rsplit("/", 1)[0]
    connection = await asyncpg.connect(f"{base}/postgres")
    await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    await migrate(f"{base}/{name}")
    return f"{base}/{name}"


async def settlement(url: str, given: argparse.Namespace, on_progress: Any) -> dict[str, Any]:
    """Measure settlement at saturation and at the target rate, then the disk bytes per row."""
    found: dict[str, Any] = {}
    database = await fresh(url, "settle")
    connection = await asyncpg.connect(database)
    await months.seed(connection)
    on_progress("settlement: as fast as it goes")
    found["saturated"] = await settle.run(database, given.settle_rows, 0)
    on_progress(f"settlement: {given.rate:,.0f} a second for {given.seconds:.0f} s")
    found["steady"] = await settle.run(database, int(given.rate * given.seconds), given.rate)
    await connection.execute("VACUUM usage_rows")
    found["bytes_per_row"] = await connection.fetchval(
        "SELECT sum(pg_total_relation_size(c.oid)) FILTER (WHERE pg_relation_size(c.oid) > 0)::float8 "
        "/ (SELECT count(*) FROM usage_rows) FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid "
        "WHERE i.inhparent = 'usage_rows'::regclass"
    )
    await connection.close()
    return found


async def growth(url: str, folder: Path, given: argparse.Namespace, on_progress: Any) -> list[dict[str, Any]]:
    """For a month of each size, load it and run every report in a process of its own."""
    await migrate(url)
    connection = await asyncpg.connect(url)
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS bench_loads "
        "(month date PRIMARY KEY, rows bigint, load_s float8, rollup_s float8, parquet_s float8)"
    )
    if not await connection.fetchval("SELECT count(*) FROM usage_dims"):
        await months.seed(connection)
    sizes = sorted({max(given.rows // 100, 10_000), max(given.rows // 10, 10_000), given.rows})
    found = []
    for place, rows in enumerate(sizes):
        month = months.utc_month(2026, 7 + place)
        known = await connection.fetchrow("SELECT * FROM bench_loads WHERE month = $1", month)
        if known is None:
            on_progress(f"{rows:,} rows: loading {month:%Y-%m} and rolling it up")
            took = await months.load(url, month, rows)
            await connection.execute(
                "INSERT INTO bench_loads VALUES ($1, $2, $3, $4)",
                month,
                rows,
                took["load_s"],
                took["rollup_s"],
            )
            known = await connection.fetchrow("SELECT * FROM bench_loads WHERE month = $1", month)
        assert known is not None
        assert known["rows"] == rows, "the data directory holds months of another size"
        if known["parquet_s"] is None:
            on_progress(f"{rows:,} rows: writing Parquet")
            parquet_s = await asyncio.to_thread(months.write_parquet, folder, month, rows)
            await connection.execute(
                "UPDATE bench_loads SET parquet_s = $2 WHERE month = $1", month, parquet_s
            )
        one: dict[str, Any] = {
            "rows": rows, "load_s": known["load_s"], "rollup_s": known["rollup_s"],
            "bytes_per_row": await connection.fetchval(
                "SELECT sum(pg_total_relation_size(oid))::float8 / $2 FROM pg_class WHERE relname ~ $1",
                f"^usage_rows_{month:%Y_%m}_.$", rows,
            ),
            "parquet_bytes_per_row": (folder / f"usage-{month:%Y-%m}.parquet").stat().st_size / rows,
        }  # fmt: skip
        kinds = [*REPORTS, *(["archive"] if rows <= given.archive_rows else [])]
        costs = set()
        for kind in kinds:
            on_progress(f"{rows:,} rows: {kind}")
            runs = [await probe(kind, url, str(month), folder) for _ in range(2 if kind in REPORTS else 1)]
            one[kind] = min(runs, key=lambda run: run["seconds"])
            costs |= {run["cost"] for run in runs}
        assert len(costs) == 1, f"the ways to the same sum differ: {costs}"
        found.append(one)
    await connection.close()
    return found


async def probe(*arguments: object) -> dict[str, Any]:
    """Run bench.billing.probe and return its result."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.billing.probe", *map(str, arguments), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await child.communicate()
    assert child.returncode == 0, f"the probe {arguments[0]} failed"
    result: dict[str, Any] = json.loads(output)
    return result


async def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Measure everything in one run and return the report."""
    scratch = Path(given.data or tempfile.mkdtemp(prefix="penstock-bench-"))
    make_folder(scratch)
    report: dict[str, Any] = {"conditions": conditions(given)}
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    try:
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task("starting", total=None)

            def on_progress(what: str) -> None:
                progress.update(task, description=what)

            async with server(scratch / "bulk", BULK) as url:
                report["growth"] = await growth(url, scratch / "parquet", given, on_progress)
            async with server(scratch / "plain") as url:
                report["settlement"] = await settlement(url, given, on_progress)
                on_progress(f"invoices of {given.tenants:,} customers")
                report["invoices"] = await invoices.run(await fresh(url, "invoices"), given.tenants)
    finally:
        if given.data is None:
            shutil.rmtree(scratch, ignore_errors=True)
    return report


def conditions(given: argparse.Namespace) -> dict[str, object]:
    """Return the conditions that must accompany the figures."""
    return {
        **provenance(),
        "tenants": months.TENANTS,
        "dimensions": months.DIMS,
        "settlers": settle.SETTLERS,
        "load_average": psutil.getloadavg()[0],
    }


def figures(report: dict[str, Any]) -> dict[str, float]:
    """Return the figures that have a target."""
    largest = report["growth"][-1]
    return {
        "settled_and_sealed_per_s": report["settlement"]["saturated"]["settled_and_sealed_per_s"],
        "bytes_per_row": report["settlement"]["bytes_per_row"],
        "rollup_s": largest["rollup"]["seconds"],
        "rollup_with_gpu_s": largest["gpu"]["seconds"],
        "raw_parquet_s": largest["raw_parquet"]["seconds"],
        "raw_postgres_s": largest["raw_postgres"]["seconds"],
        "invoices_s": report["invoices"]["seconds"],
    }


def show(report: dict[str, Any]) -> bool:
    """Print the tables, and return whether every target is met."""
    console = Console()
    console.print(report["conditions"])
    steady = report["settlement"]["steady"]
    console.print(
        f"offered {steady['offered_per_s']:,.0f}/s: settled {steady['settled_per_s']:,.0f}/s, lag p50 "
        f"{steady['lag_p50_ms']:.0f} ms, p99 {steady['lag_p99_ms']:.0f} ms, "
        f"{steady['left_when_the_offer_ended']:,} waiting at the end"
    )
    table = Table("rows", *(f"{kind} s (MB)" for kind in REPORTS), "bytes/row", "Parquet bytes/row")
    for one in report["growth"]:
        cells = [f"{one[kind]['seconds']:.2f} ({one[kind]['peak_mb']:.0f})" for kind in REPORTS]
        table.add_row(
            f"{one['rows']:,}", *cells, f"{one['bytes_per_row']:.0f}", f"{one['parquet_bytes_per_row']:.0f}"
        )
    console.print(table)
    met = True
    for name, value in figures(report).items():
        target, sign = TARGETS[name]
        reached = value >= target if sign == ">=" else value < target
        met = met and reached
        console.print(
            f"mark {name} {sign} {target:,}: {value:,.2f} ({value / target:.2f}x) {'met' if reached else 'MISSED'}"
        )
    return met


def main() -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the largest month")
    parser.add_argument("--settle-rows", type=int, default=200_000, help="rows settled as fast as it goes")
    parser.add_argument("--rate", type=float, default=10_000.0, help="rows a second offered")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long they are offered")
    parser.add_argument("--tenants", type=int, default=10_000, help="customers of the invoice run")
    parser.add_argument(
        "--archive-rows", type=int, default=1_000_000, help="largest month exported from PostgreSQL"
    )
    parser.add_argument("--data", help="folder to keep months in, and to find them in the next time")
    parser.add_argument("--json", action="store_true", help="print the report as JSON, too")
    given = parser.parse_args()
    report = asyncio.run(measure(given))
    met = show(report)
    OUT.mkdir(parents=True, exist_ok=True)
    name = f"billing-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    (OUT / f"{name}.json").write_text(json.dumps(report, indent=1))
    plot(report, OUT / f"{name}.png")
    if given.json:
        print(json.dumps(report))
    print(f"written: bench/out/{name}.json and .png")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
