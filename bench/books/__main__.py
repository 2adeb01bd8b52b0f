"""`python -m bench.books` (make bench-books): the work of the books that must not grow with history.

Generates a month of usage with its ledger for each size inside PostgreSQL, times every piece, and drops the database.
Full size: `--rows 10000000 100000000`, about 430 bytes of disk a row and 3 GB of hours.
With `--publish` it writes docs/results/books.md.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import psutil

from bench.billing.__main__ import BULK, OUT, fresh, make_folder, server
from bench.books import data, measure
from bench.books.publish import publish
from bench.provenance import provenance
from billing.ledger.months import bounds
from core.db import Database


async def one_size(base_url: str, rows: int, given: argparse.Namespace) -> dict[str, Any]:
    """Generate a month of `rows` rows in a database of its own, measure it and drop it."""
    url = await fresh(base_url, "books")
    month = measure.previous_month(datetime.now(UTC))
    start, _ = bounds(month)
    owner = await asyncpg.connect(url, server_settings={"timezone": "UTC"}, command_timeout=3600)
    database = Database(url)
    timings: list[measure.Timing] = []

    async def step(*found: measure.Timing) -> None:
        for timing in found:
            print(
                f"{rows:>12,}  {timing.name:<50} {timing.seconds:10.3f} s  {timing.detail}",
                file=sys.stderr,
                flush=True,
            )
        timings.extend(found)

    await data.seed(owner, given.tenants, start)
    for name, work in (
        ("generate usage rows", lambda: data.load_usage(owner, month, rows, given.tenants)),
        ("generate their transfers", lambda: data.load_ledger(owner, rows)),
        ("roll up hours and days", lambda: data.load_rollup(owner, month)),
        (
            "generate holds",
            lambda: data.load_holds(owner, start - timedelta(days=100), rows // data.HOLDS_PER_ROW),
        ),
    ):
        await step(await measure.timed(name, work, lambda _: ""))
    disk = await owner.fetchval("SELECT pg_database_size(current_database())")
    await step(*await measure.ledger(database, whole=rows <= given.whole_rows))
    await step(*await measure.stripe(database, month))
    await step(*await measure.checklist(database, month))
    await step(*await measure.rerating(database, month))
    await step(*await measure.partitions(url, database, month))
    await database.close()
    await owner.close()
    connection = await asyncpg.connect(f"{base_url.rsplit('/', 1)[0]}/postgres")
    await connection.execute("DROP DATABASE books WITH (FORCE)")
    await connection.close()
    return {"rows": rows, "disk_gb": disk / 1e9, "timings": [msgspec.to_builtins(one) for one in timings]}


async def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measure every size, the smallest first, on one server."""
    scratch = Path(tempfile.mkdtemp(prefix="penstock-books-"))
    make_folder(scratch)
    load = psutil.getloadavg()[0]
    try:
        async with server(scratch / "pg", {**BULK, "fsync": "off", "max_wal_size": "2GB"}) as url:
            sizes = [await one_size(url, rows, given) for rows in sorted(given.rows)]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    conditions = {**provenance(), "tenants": given.tenants, "load_average": max(load, psutil.getloadavg()[0])}
    return {"conditions": conditions, "note": given.note, "sizes": sizes}


def main() -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[200_000, 2_000_000], help="usage rows of each size"
    )
    parser.add_argument("--tenants", type=int, default=10_000, help="organisations")
    parser.add_argument(
        "--whole-rows",
        type=int,
        default=2_000_000,
        help="largest size at which the whole ledger is verified, too",
    )
    parser.add_argument("--note", default="", help="a sentence for the page")
    parser.add_argument("--publish", action="store_true", help="write docs/results/books.md and its plot")
    given = parser.parse_args()
    report = asyncio.run(run(given))
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"books-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    path.write_text(json.dumps(report, indent=1))
    print(f"written: bench/out/{path.name}")
    if given.publish:
        publish(report)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
