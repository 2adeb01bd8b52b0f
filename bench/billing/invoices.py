"""Measures the invoice run of many customers: last month's usage and bookings in the ledger, then `make_invoices`."""

import time
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import asyncpg

from billing.invoicing.run import make_invoices
from billing.ledger.months import bounds
from billing.ledger.verification import verify
from billing.usage.rollups import roll_up
from core.db import Database

REQUESTS = 20
"""Number of requests per customer, over two models and the whole month."""


def last_month() -> date:
    """Return the first day of the newest month that no further usage can enter."""
    now = datetime.now(UTC)
    back = 1 if now.day > 3 else 2
    number = now.year * 12 + now.month - 1 - back
    return datetime(number // 12, number % 12 + 1, 1, tzinfo=UTC).date()


async def seed(url: str, tenants: int, month: date) -> None:
    """Insert customers with usage rows, the transfers that settlement would have booked, and hourly rollups."""
    connection = await asyncpg.connect(url, server_settings={"timezone": "UTC"}, command_timeout=3600)
    start, end = bounds(month)
    ids = [UUID(int=(7 << 76) | (2 << 62) | number) for number in range(tenants)]
    await connection.execute("SELECT penstock_make_partition('usage_rows', $1)", start)
    await connection.execute(
        "INSERT INTO tenants (id, name, slug) SELECT t, 'Customer ' || n, 'customer-' || n "
        "FROM unnest($1::uuid[]) WITH ORDINALITY u (t, n)", ids,
    )  # fmt: skip
    await connection.execute("SELECT penstock_open_account(t, 'postpaid') FROM unnest($1::uuid[]) t", ids)
    await connection.execute(
        "INSERT INTO price_versions (model, tier, input, cached_input, output, reasoning, effective, created_by) "
        "SELECT 'model-' || m, 'standard', 270000, 27000, 1100000, 1100000, tstzrange($1, NULL), 'bench' "
        "FROM generate_series(1, 2) m", start,
    )  # fmt: skip
    await connection.execute(
        "INSERT INTO usage_dims (tenant_id, project_id, key_id, model, tier, region, price_version, "
        "list_price_version, simulated) SELECT t, t, t, p.model, 'standard', 'fra', p.id, p.id, false "
        "FROM unnest($1::uuid[]) t, price_versions p", ids,
    )  # fmt: skip
    await connection.execute("INSERT INTO usage_engines (replica_id, boot_id) VALUES ('host-1/r0', 'b1')")
    await connection.execute(
        """
        WITH made AS (
            SELECT d.id AS dim,
                $1::timestamptz + ($2::timestamptz - $1) * ((d.id * 7919 + n * 104729) % 700000 / 700000.0) AS ended,
                n, 100 + (d.id + n * 31) % 4000 AS input, 1 + (d.id * 13 + n) % 900 AS output
            FROM usage_dims d, generate_series(1, $3 / 2) n)
        INSERT INTO usage_rows SELECT overlay(gen_random_uuid()::text PLACING
                substring(penstock_uuid_floor(ended)::text FROM 1 FOR 14) FROM 1 FOR 14)::uuid,
            ended, 900000, 0, 0, dim, (SELECT min(id) FROM usage_engines), 1000, input, 0, output, 0, 0, 0, 'completed',
            1::smallint, true, false, input * 270000::numeric + output * 1100000::numeric, 0 FROM made
        """,
        start, end, REQUESTS,
    )  # fmt: skip
    await connection.execute(
        "INSERT INTO ledger_transfers (at, effective_at, tenant_id, kind, debit_account, credit_account, amount, "
        "source_id) SELECT u.ended_at, u.ended_at, d.tenant_id, 'usage', r.id, v.id, u.cost, u.request_id "
        "FROM usage_rows u JOIN usage_dims d ON d.id = u.dim_id "
        "JOIN ledger_accounts r ON r.tenant_id = d.tenant_id AND r.code = 'receivable' "
        "JOIN ledger_accounts v ON v.tenant_id = d.tenant_id AND v.code = 'revenue'"
    )
    await connection.execute(
        "UPDATE billing_accounts b SET owed = s.cost FROM (SELECT d.tenant_id, sum(u.cost) AS cost FROM usage_rows u "
        "JOIN usage_dims d ON d.id = u.dim_id GROUP BY 1) s WHERE s.tenant_id = b.tenant_id"
    )
    await connection.execute(
        "INSERT INTO dirty_hours (hour) SELECT DISTINCT date_trunc('hour', ended_at, 'UTC') FROM usage_rows"
    )
    await connection.execute("VACUUM (ANALYZE)")
    await connection.close()
    database = Database(url)
    await roll_up(database)
    await database.close()


async def run(url: str, tenants: int) -> dict[str, Any]:
    """Insert the data and run the invoices; the ledger is verified afterwards."""
    month = last_month()
    await seed(url, tenants, month)
    database = Database(url)
    began = time.perf_counter()
    made = await make_invoices(database, month)
    took = time.perf_counter() - began
    async with database.system() as connection:
        books = await verify(connection)
    await database.close()
    assert books.problems == [], books.problems[:3]
    return {
        "tenants": tenants, "usage_rows": tenants * REQUESTS, "seconds": took, "invoices": made.made,
        "lines": made.lines,
    }  # fmt: skip
