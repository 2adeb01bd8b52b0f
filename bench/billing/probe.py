"""Runs one measurement in a process of its own and prints JSON: `python -m bench.billing.probe KIND ARGUMENTS`.

It is a separate process because its peak memory is part of the measurement.
"""

import asyncio
import json
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow as pa

from billing.economics.provider_invoices import host_states
from billing.ledger.months import bounds
from billing.reports.archive_report import SUMS, sum_sources
from billing.reports.usage_report import usage_report
from billing.usage.archive import parquet_path, write_month
from billing.usage.query import ReportQuery
from core.db import Database
from core.money import usd_to_pico

BY = ("tenant", "model")


async def rollup(url: str, month: date, folder: Path, *, with_gpu: bool = False) -> dict[str, Any]:
    """Measure the usage report by tenant and model from rollups, with the product's own function."""
    start, end = bounds(month)
    database = Database(url)
    async with database.read() as connection:
        began = time.perf_counter()
        rows = await usage_report(connection, ReportQuery(start, end, BY, with_gpu=with_gpu))
        took = time.perf_counter() - began
        found = {
            "seconds": took,
            "lines": len(rows),
            "cost": str(sum(usd_to_pico(row.cost_usd) for row in rows)),
        }
        if with_gpu:
            spent = sum(usd_to_pico(row.gpu_cost_usd or "0") for row in rows)
            hosts = [row.cost_usd for row in await host_states(connection, start, end)]
            assert spent == sum(map(usd_to_pico, hosts)), "the shares do not add up to what the hosts cost"
            found["gpu_cost"] = str(spent)
    await database.close()
    return found


async def gpu(url: str, month: date, folder: Path) -> dict[str, Any]:
    """Measure the same report with GPU cost and margin, and verify that the costs sum to the hosts' cost."""
    return await rollup(url, month, folder, with_gpu=True)


async def raw_postgres(url: str, month: date, folder: Path) -> dict[str, Any]:
    """Measure the same sums from the rows in PostgreSQL."""
    connection = await asyncpg.connect(url, server_settings={"timezone": "UTC"}, command_timeout=3600)
    began = time.perf_counter()
    rows = await connection.fetch(
        "SELECT tenant_id, model, sum(requests), sum(input_tokens), sum(cached_input_tokens), sum(output_tokens), "
        "sum(cost) AS cost, sum(list_cost) FROM penstock_fold_usage($1, $2) GROUP BY 1, 2",
        *bounds(month),
    )
    took = time.perf_counter() - began
    await connection.close()
    return {"seconds": took, "lines": len(rows), "cost": str(sum(int(row["cost"]) for row in rows))}


async def raw_parquet(url: str, month: date, folder: Path) -> dict[str, Any]:
    """Measure the same sums from the rows in Parquet, with the product's own reader."""
    fields = [
        ("tenant_id", pa.string()),
        ("model", pa.string()),
        *((name, pa.decimal128(38, 0)) for name in SUMS),
    ]
    began = time.perf_counter()
    rows = sum_sources(
        [str(parquet_path(folder, month))], pa.schema(fields).empty_table(), ("tenant_id", "model")
    )
    took = time.perf_counter() - began
    return {
        "seconds": took,
        "lines": len(rows),
        "cost": str(sum(int(row[2 + SUMS.index("cost")]) for row in rows)),
    }


async def archive(url: str, month: date, folder: Path) -> dict[str, Any]:
    """Measure writing the month from PostgreSQL to Parquet."""
    database = Database(url)
    async with database.read() as connection:
        began = time.perf_counter()
        manifest = await write_month(connection, folder / "written", month)
        took = time.perf_counter() - began
    await database.close()
    return {"seconds": took, "rows": manifest.rows, "bytes": manifest.bytes, "cost": manifest.sums["cost"]}


KINDS = {
    "rollup": rollup,
    "gpu": gpu,
    "raw_postgres": raw_postgres,
    "raw_parquet": raw_parquet,
    "archive": archive,
}


def peak_mb() -> float:
    """Return this process's peak resident memory in MB (ru_maxrss would include the parent's)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main() -> None:
    """Run one kind of measurement."""
    kind, url, month, folder = sys.argv[1:5]
    found = asyncio.run(KINDS[kind](url, date.fromisoformat(month), Path(folder)))
    found["peak_mb"] = peak_mb()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
