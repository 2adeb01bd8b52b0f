"""Generates months of usage, the same rows in PostgreSQL and in Parquet; each value is computed from the row's
number.
"""

import asyncio
import time
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import duckdb

from billing.ledger.months import bounds
from billing.usage.archive import ROW_GROUP, parquet_path
from billing.usage.gpu_shares import share_new_days
from core.db import Database

Connection = "asyncpg.Connection[asyncpg.Record]"
TENANTS = 500
"""Number of tenants with usage."""
MODELS = ("river-7b", "lake-70b")
DIMS = TENANTS * len(MODELS)
HOSTS = 16
"""Number of hosts with GPU time."""
HOST_KIND = "gpu-h200x8-1128gb"
"""Kind of every host; each host serves one of the models."""
PARTS = 2
"""Number of partitions of a month that are loaded at the same time."""

_INPUT = "(50 + (i * 31) % 8000)"
_CACHED = f"({_INPUT} * ((i * 17) % 4) // 4)"
_OUTPUT = "(1 + (i * 13) % 2000)"
_FREE = "(i % 100 = 0)"
_DIM = f"((i * 7919) % {DIMS})"
_DURATION = "(200000 + (i * 977) % 30000000)"


def _money(uncached: int, cached: int, output: int) -> str:
    return f"(({_INPUT} - {_CACHED}) * {uncached} + {_CACHED} * {cached} + {_OUTPUT} * {output})"


COST = f"(CASE WHEN {_FREE} THEN 0 ELSE {_money(270_000, 27_000, 1_100_000)} END)"
DISCOUNT = f"(CASE WHEN {_FREE} OR {_DIM} % 10 <> 0 THEN 0 ELSE {_money(30_000, 3_000, 100_000)} END)"


def tenant(number: int) -> UUID:
    """Return the id of a tenant of the benchmark."""
    return UUID(int=(7 << 76) | (2 << 62) | number)


async def seed(connection: Connection) -> None:
    """Insert tenants, prices and the dimension rows to which usage rows refer."""
    await connection.executemany(
        "INSERT INTO tenants (id, name, slug) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
        [(tenant(n), f"Tenant {n:04}", f"tenant-{n:04}") for n in range(TENANTS)],
    )
    await connection.executemany(
        "SELECT penstock_open_account($1, 'postpaid')", [(tenant(n),) for n in range(TENANTS)]
    )
    await connection.execute(
        "INSERT INTO price_versions (model, tier, input, cached_input, output, reasoning, effective, created_by) "
        "SELECT m, 'standard', 270000, 27000, 1100000, 1100000, tstzrange('2026-01-01', NULL), 'bench' "
        "FROM unnest($1::text[]) m",
        list(MODELS),
    )
    await connection.execute(
        "INSERT INTO usage_dims (id, tenant_id, project_id, key_id, model, tier, region, price_version, "
        "list_price_version, simulated) OVERRIDING SYSTEM VALUE SELECT n, t, t, t, $2::text[][1 + n % $3], 'standard', "
        "'fra', 1, 1, false FROM unnest($1::uuid[]) WITH ORDINALITY u (t, place), "
        "LATERAL (SELECT (place - 1) * $3 + k AS n FROM generate_series(0, $3 - 1) k) d".replace(
            "$2::text[][1 + n % $3]", "($2::text[])[1 + n % $3]"
        ),
        [tenant(n) for n in range(TENANTS)],
        list(MODELS),
        len(MODELS),
    )
    await connection.execute(
        "INSERT INTO hosts (host_id, host_kind, region, gpus) SELECT 'host-' || n, $1, 'fra', 8 "
        "FROM generate_series(0, $2 - 1) n",
        HOST_KIND,
        HOSTS,
    )
    await connection.execute(
        "INSERT INTO host_prices VALUES ($1, 35760000000000, '2026-01-01Z', 'bench')", HOST_KIND
    )
    await connection.execute(
        "INSERT INTO usage_engines (id, replica_id, boot_id) OVERRIDING SYSTEM VALUE "
        "SELECT n, 'host-' || n || '/r0', 'b1' FROM generate_series(0, 15) n"
    )


async def load(url: str, month: date, rows: int) -> dict[str, float]:
    """Fill a month's partitions with `rows` rows, index them and roll up its hours; return the seconds of each
    step.
    """
    start, end = bounds(month)
    edges = [start + (end - start) * part / PARTS for part in range(PARTS + 1)]
    step = int((end - start).total_seconds() * 1e6) // rows
    began = time.perf_counter()

    async def fill(part: int) -> None:
        connection = await asyncpg.connect(url, server_settings={"timezone": "UTC"})
        name = f"usage_rows_{month:%Y_%m}_{part}"
        first, last = rows * part // PARTS, rows * (part + 1) // PARTS
        floor_ms = int(edges[part].timestamp() * 1000)
        start_us = int(start.timestamp()) * 1_000_000
        async with connection.transaction():
            # Made and filled in one transaction: nothing goes through the write-ahead log twice.
            await connection.execute(f"CREATE TABLE {name} (LIKE usage_rows INCLUDING CONSTRAINTS)")
            await connection.execute(
                _INSERT.format(
                    name=name, floor=floor_ms, start=start_us, step=step, first=first, last=last - 1
                )
            )
            await connection.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (request_id)")
            await connection.execute(f"CREATE INDEX ON {name} (dim_id)")
            await connection.execute(
                f"CREATE INDEX ON {name} USING brin (ended_at) WITH (pages_per_range = 32, autosummarize = on)"
            )
        await connection.execute(
            f"ALTER TABLE usage_rows ATTACH PARTITION {name} FOR VALUES FROM (penstock_uuid_floor('{edges[part]}')) "
            f"TO (penstock_uuid_floor('{edges[part + 1]}'))"
        )
        await connection.execute(f"VACUUM (ANALYZE) {name}")
        await connection.close()

    await asyncio.gather(*(fill(part) for part in range(PARTS)))
    await spend(url, start, end)
    return {"load_s": time.perf_counter() - began, "rollup_s": await roll_up(url, start, end)}


_INSERT = (
    "INSERT INTO {name} SELECT (lpad(to_hex(greatest({floor}, (e - "
    + _DURATION
    + ") / 1000)), 12, '0') || '7' || lpad(to_hex(i % 4096), 3, '0') || '8' || lpad(to_hex(i), 15, '0'))::uuid, "
    "timestamptz 'epoch' + e * interval '1 us', "
    + ", ".join(
        [
            _DURATION, "(i * 7) % 50000", "(i * 11) % 900000", f"{_DIM}::int", "(i % 16)::int",
            "(30000 + i % 100000)::int", f"{_INPUT}::int", f"{_CACHED}::int", f"{_OUTPUT}::int",
            f"(CASE WHEN i % 5 = 0 THEN {_OUTPUT} // 2 ELSE 0 END)::int", "0", "0",
            f"(CASE WHEN {_FREE} THEN 'engine_failed' WHEN i % 100 = 1 THEN 'client_cancelled' ELSE 'completed' END)"
            "::usage_outcome",
            "1::smallint", "i % 3 = 0", "false", COST, DISCOUNT,
        ]
    ).replace("//", "/")
    + " FROM (SELECT i, {start} + i * {step} AS e FROM generate_series({first}::bigint, {last}::bigint) i) s"
)  # fmt: skip


async def spend(url: str, start: datetime, end: datetime) -> None:
    """Insert the GPU time of every host in every hour: mostly serving, otherwise idle."""
    connection = await asyncpg.connect(url, server_settings={"timezone": "UTC"})
    await connection.execute(
        "INSERT INTO host_seconds SELECT 'host-' || n, 'b1', $1::timestamptz + h * interval '1 hour', state, "
        "CASE state WHEN 'serving' THEN 3000 + (n * 7 + h) % 600 ELSE 600 - (n * 7 + h) % 600 END "
        "FROM generate_series(0, $3 - 1) n, generate_series(0, $2 - 1) h, "
        "unnest(ARRAY['serving', 'warm_idle']) state",
        start, int((end - start).total_seconds()) // 3600, HOSTS,
    )  # fmt: skip
    await connection.execute(
        "INSERT INTO model_seconds SELECT host_id, boot_id, hour, ($3::text[])[1 + substr(host_id, 6)::int % $4], "
        "state, seconds FROM host_seconds WHERE hour >= $1 AND hour < $2",
        start, end, list(MODELS), len(MODELS),
    )  # fmt: skip
    await connection.execute("ANALYZE host_seconds")
    await connection.execute("ANALYZE model_seconds")
    await connection.close()


async def roll_up(url: str, start: datetime, end: datetime) -> float:
    """Roll up every hour with the product's own function; return the seconds."""
    began = time.perf_counter()
    hours = int((end - start).total_seconds()) // 3600

    async def half(part: int) -> None:
        connection = await asyncpg.connect(url, server_settings={"timezone": "UTC"})
        # One lock guards rollups; the benchmark rolls disjoint hours and sums them with the same function.
        await connection.execute(
            "INSERT INTO usage_hours (hour, tenant_id, project_id, key_id, model, tier, region, price_version, "
            "list_price_version, simulated, requests, outcomes, input_tokens, cached_input_tokens, output_tokens, "
            "reasoning_tokens, unbilled_input_tokens, unbilled_output_tokens, cost, list_cost, busy_us) "
            "SELECT h, f.* FROM generate_series(0, $2 - 1) n, LATERAL (SELECT $1::timestamptz + n * interval '1 h') "
            "t (h), LATERAL penstock_fold_usage(h, h + interval '1 h') f WHERE n % $3 = $4",
            start, hours, PARTS, part,
        )  # fmt: skip
        await connection.close()

    await asyncio.gather(*(half(part) for part in range(PARTS)))
    connection = await asyncpg.connect(url, server_settings={"timezone": "UTC"})
    await connection.execute("VACUUM (ANALYZE) usage_hours")
    await connection.execute(
        "SELECT penstock_roll_day($1::timestamptz + n * interval '1 day') FROM generate_series(0, $2 / 24 - 1) n",
        start, hours,
    )  # fmt: skip
    database = Database(url)
    await share_new_days(database)
    await database.close()
    await connection.execute("VACUUM (ANALYZE) usage_days")
    await connection.close()
    return time.perf_counter() - began


def write_parquet(folder: Path, month: date, rows: int) -> float:
    """Write the same month to a file with the columns of the archive; return the seconds."""
    began = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    start, end = bounds(month)
    step = int((end - start).total_seconds() * 1e6) // rows
    start_us = int(start.timestamp()) * 1_000_000
    last = int(tenant(0).int & ((1 << 62) - 1))
    assert last == 0
    tenant_text = f"'{str(tenant(0))[:24]}' || printf('%012x', {_DIM} // {len(MODELS)})"
    columns: dict[str, Any] = {
        "request_id": f"(printf('%012x', (e - {_DURATION}) // 1000) || printf('7%03x8%015x', i % 4096, i))::UUID",
        "tenant_id": tenant_text, "project_id": tenant_text, "key_id": tenant_text,
        "model": f"CASE {_DIM} % 2 WHEN 0 THEN '{MODELS[0]}' ELSE '{MODELS[1]}' END", "tier": "'standard'",
        "region": "'fra'", "replica_id": "'host-' || (i % 16) || '/r0'", "boot_id": "'b1'",
        "admitted_at": f"make_timestamptz(e - {_DURATION})", "ended_at": "make_timestamptz(e)",
        "settled_at": "make_timestamptz(e + 30000 + i % 100000)",
        "outcome": f"CASE WHEN {_FREE} THEN 'engine_failed' WHEN i % 100 = 1 THEN 'client_cancelled' "
        "ELSE 'completed' END",
        "attempts": "1::SMALLINT", "stream": "i % 3 = 0", "simulated": "false", "price_version": "1::BIGINT",
        "list_price_version": "1::BIGINT", "input_tokens": _INPUT, "cached_input_tokens": _CACHED,
        "output_tokens": _OUTPUT, "reasoning_tokens": f"CASE WHEN i % 5 = 0 THEN {_OUTPUT} // 2 ELSE 0 END",
        "unbilled_input_tokens": "0::BIGINT", "unbilled_output_tokens": "0::BIGINT",
        "cost": f"{COST}::DECIMAL(38,0)", "list_cost": f"({COST} + {DISCOUNT})::DECIMAL(38,0)",
        "queue_us": "(i * 7) % 50000", "ttft_us": "(i * 11) % 900000", "duration_us": _DURATION, "gpu": "''",
    }  # fmt: skip
    selected = ", ".join(f"{value} AS {name}" for name, value in columns.items())
    with duckdb.connect(config={"memory_limit": "3GB"}) as session:
        session.execute("SET TimeZone = 'UTC'")
        session.execute(
            f"COPY (SELECT {selected} FROM (SELECT i, {start_us} + i * {step} AS e FROM range({rows}::BIGINT) t(i))) "
            f"TO '{parquet_path(folder, month)}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP})"
        )
    return time.perf_counter() - began


def utc_month(year: int, month: int) -> date:
    """Return the first day of a month."""
    return datetime(year, month, 1, tzinfo=UTC).date()
