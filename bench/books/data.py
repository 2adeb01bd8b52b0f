"""A month of usage with its ledger, generated inside PostgreSQL; every value follows from the row's number."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date, datetime
from uuid import UUID

import asyncpg

from billing.ledger.months import bounds

Connection = asyncpg.Connection
CHUNK = 20_000
"""Transfers of one entry of the sealer's queue, and so of one link."""
HOLDS_PER_ROW = 10
"""One hold of an old month is made for so many usage rows."""
MODELS = ("river-7b", "lake-70b")


def tenant(number: int) -> UUID:
    """Return the id of an organisation of the bench."""
    return UUID(int=(7 << 76) | (2 << 62) | number)


async def seed(connection: "Connection[asyncpg.Record]", tenants: int, start: datetime) -> None:
    """Insert organisations with accounts, prices, and one dimension for each organisation."""
    ids = [tenant(number) for number in range(tenants)]
    await connection.execute(
        "INSERT INTO tenants (id, name, slug) SELECT t, 'Customer ' || n, 'customer-' || n "
        "FROM unnest($1::uuid[]) WITH ORDINALITY u (t, n)",
        ids,
    )
    await connection.execute("SELECT penstock_open_account(t, 'postpaid') FROM unnest($1::uuid[]) t", ids)
    await connection.execute(
        "INSERT INTO price_versions (model, tier, input, cached_input, output, reasoning, effective, created_by) "
        "SELECT m, 'standard', 27000000, 2700000, 110000000, 110000000, tstzrange($1, NULL), 'bench' "
        "FROM unnest($2::text[]) m",
        start,
        list(MODELS),
    )
    await connection.execute(
        "INSERT INTO usage_dims (id, tenant_id, project_id, key_id, model, tier, region, price_version, "
        "list_price_version, simulated) OVERRIDING SYSTEM VALUE SELECT n - 1, t, t, t, p.model, 'standard', 'fra', "
        "p.id, p.id, false FROM unnest($1::uuid[]) WITH ORDINALITY u (t, n) "
        "JOIN price_versions p ON p.model = ($2::text[])[1 + n % 2]",
        ids,
        list(MODELS),
    )
    await connection.execute(
        "INSERT INTO usage_engines (id, replica_id, boot_id) OVERRIDING SYSTEM VALUE VALUES (1, 'host-1/r0', 'b1')"
    )
    await connection.execute(
        "INSERT INTO stripe_customers (tenant_id, customer_id, name) SELECT t, 'cus_' || t, 'c' "
        "FROM unnest($1::uuid[]) t",
        ids,
    )
    await connection.execute("UPDATE stripe_state SET meter_id = 'mtr', used_since = now()")
    await connection.execute("ANALYZE")


async def load_usage(connection: "Connection[asyncpg.Record]", month: date, rows: int, tenants: int) -> None:
    """Fill the month's partition, which is indexed afterwards. Nothing goes through the write-ahead log twice."""
    start, end = bounds(month)
    name = f"usage_rows_{month:%Y_%m}"
    step = int((end - start).total_seconds() * 1e6) // rows
    async with connection.transaction():
        await connection.execute(f"CREATE TABLE {name} (LIKE usage_rows INCLUDING CONSTRAINTS)")
        await connection.execute(
            f"INSERT INTO {name} SELECT (lpad(to_hex(e / 1000), 12, '0') || '7' || lpad(to_hex(i % 4096), 3, '0') "
            "|| '8' || lpad(to_hex(i), 15, '0'))::uuid, timestamptz 'epoch' + e * interval '1 us', 900000, 0, 0, "
            f"((i * 7919) % {tenants})::int, 1, 1000, (100 + i % 4000)::int, 0, (1 + i % 900)::int, 0, 0, 0, "
            "'completed', 1::smallint, true, false, (100 + i % 4000) * 27000000 + (1 + i % 900) * 110000000, 0 "
            f"FROM (SELECT i, {int(start.timestamp()) * 1_000_000} + i * {step} AS e "
            f"FROM generate_series(0::bigint, {rows - 1}) i) s"
        )
        await connection.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (request_id)")
        await connection.execute(f"CREATE INDEX ON {name} (dim_id)")
        await connection.execute(
            f"CREATE INDEX ON {name} USING brin (ended_at) WITH (pages_per_range = 32, autosummarize = on)"
        )
    await connection.execute(
        f"ALTER TABLE usage_rows ATTACH PARTITION {name} FOR VALUES FROM (penstock_uuid_floor('{start}')) "
        f"TO (penstock_uuid_floor('{end}'))"
    )
    await connection.execute(f"VACUUM (ANALYZE) {name}")


@asynccontextmanager
async def emptied(connection: "Connection[asyncpg.Record]", table: str) -> AsyncIterator[None]:
    """One transaction in which `table` is empty, without indexes and triggers; its indexes are built at the end.

    With `wal_level` minimal the rows are not written to the log, because the table was truncated in the transaction.
    """
    constraints = await connection.fetch(
        "SELECT conname AS name, pg_get_constraintdef(oid) AS definition FROM pg_constraint "
        "WHERE conrelid = $1::regclass AND contype IN ('p', 'u')",
        table,
    )
    indexes = await connection.fetch(
        "SELECT i.indexrelid::regclass::text AS name, pg_get_indexdef(i.indexrelid) AS definition FROM pg_index i "
        "WHERE i.indrelid = $1::regclass "
        "AND NOT EXISTS (SELECT 1 FROM pg_constraint c WHERE c.conindid = i.indexrelid)",
        table,
    )
    async with connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(f"TRUNCATE {table}")
        for one in constraints:
            await connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT {one['name']}")
        for one in indexes:
            await connection.execute(f"DROP INDEX {one['name']}")
        yield
        for one in constraints:
            await connection.execute(f"ALTER TABLE {table} ADD CONSTRAINT {one['name']} {one['definition']}")
        for one in indexes:
            await connection.execute(one["definition"])


async def load_ledger(connection: "Connection[asyncpg.Record]", rows: int) -> None:
    """Insert the transfer of every usage row, queued for the sealer in entries of CHUNK transfers."""
    async with emptied(connection, "ledger_transfers"):
        await connection.execute(
            "INSERT INTO ledger_transfers (at, effective_at, tenant_id, kind, debit_account, credit_account, amount, "
            "source_id) SELECT u.ended_at, u.ended_at, d.tenant_id, 'usage', d.receivable, d.revenue, u.cost, "
            "u.request_id FROM usage_rows u JOIN (SELECT s.id, s.tenant_id, r.id AS receivable, v.id AS revenue "
            "FROM usage_dims s JOIN ledger_accounts r ON r.tenant_id = s.tenant_id AND r.code = 'receivable' "
            "JOIN ledger_accounts v ON v.tenant_id = s.tenant_id AND v.code = 'revenue') d ON d.id = u.dim_id"
        )
        await connection.execute(
            "INSERT INTO ledger_unsealed (transfers) SELECT int8multirange(int8range(g, least(g + $2, $1 + 1))) "
            "FROM generate_series(1, $1::bigint, $2::bigint) g",
            rows,
            CHUNK,
        )
    await connection.execute("VACUUM (ANALYZE) ledger_transfers")
    await connection.execute(
        "UPDATE billing_accounts b SET owed = s.cost FROM (SELECT tenant_id, sum(amount) AS cost "
        "FROM ledger_transfers GROUP BY 1) s WHERE s.tenant_id = b.tenant_id"
    )


async def load_rollup(connection: "Connection[asyncpg.Record]", month: date) -> None:
    """Sum the hours and days of the month with the product's own functions."""
    start, end = bounds(month)
    async with emptied(connection, "usage_hours"):
        await connection.execute(
            "INSERT INTO usage_hours (hour, tenant_id, project_id, key_id, model, tier, region, price_version, "
            "list_price_version, simulated, requests, outcomes, input_tokens, cached_input_tokens, output_tokens, "
            "reasoning_tokens, unbilled_input_tokens, unbilled_output_tokens, cost, list_cost, busy_us) SELECT h, f.* "
            "FROM generate_series($1::timestamptz, $2::timestamptz - interval '1 hour', interval '1 hour') h, "
            "LATERAL penstock_fold_usage(h, h + interval '1 hour') f",
            start,
            end,
        )
    await connection.execute("VACUUM (ANALYZE) usage_hours")
    await connection.execute(
        "SELECT penstock_roll_day(d) FROM generate_series($1::timestamptz, $2::timestamptz - interval '1 day', "
        "interval '1 day') d",
        start,
        end,
    )
    await connection.execute("VACUUM (ANALYZE) usage_days")


async def load_holds(connection: "Connection[asyncpg.Record]", start: datetime, rows: int) -> None:
    """Fill a month of holds that begins at `start` with settled holds."""
    await connection.execute("SELECT penstock_make_partition('holds', $1)", start)
    await connection.execute(
        "INSERT INTO holds SELECT (lpad(to_hex(e), 12, '0') || '7' || lpad(to_hex(i % 4096), 3, '0') || '8' || "
        "lpad(to_hex(i), 15, '0'))::uuid, $2, $2, $2, 'river-7b', 'bench', 1, 100, 1000, 'settled', $1, $1, $1 "
        "FROM (SELECT i, (extract(epoch FROM $1::timestamptz) * 1000)::bigint + i / 100 AS e "
        "FROM generate_series(0::bigint, $3::bigint - 1) i) s",
        start,
        tenant(0),
        rows,
    )
