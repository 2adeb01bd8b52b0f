"""Revisions whose time must not grow with the usage in the ledger."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from alembic import command

from core.services import alembic_config
from tests.support.schema import own_database
from tests.support.services import Services
from tests.support.waiting import until

TENANTS = 20
USAGE = 20_000
"""Transfers of usage."""
INVOICES = 60
"""Each is booked, rounded, and paid where its number is even."""

_FILL = """
    SET session_replication_role = replica;
    INSERT INTO tenants (id, name, slug)
        SELECT md5('t' || n)::uuid, 'Customer ' || n, 'customer-' || n FROM generate_series(1, {tenants}) n;
    INSERT INTO billing_accounts (tenant_id, mode) SELECT id, 'postpaid' FROM tenants;
    INSERT INTO ledger_accounts (tenant_id, code) SELECT id, c FROM tenants,
        unnest('{{cash,receivable,invoiced,revenue,rounding}}'::text[]) c;
    CREATE TEMPORARY TABLE a AS SELECT n, tenant_id, max(id) FILTER (WHERE code = 'cash') AS cash,
        max(id) FILTER (WHERE code = 'receivable') AS receivable, max(id) FILTER (WHERE code = 'invoiced') AS invoiced,
        max(id) FILTER (WHERE code = 'revenue') AS revenue, max(id) FILTER (WHERE code = 'rounding') AS rounding
        FROM ledger_accounts JOIN generate_series(1, {tenants}) n ON tenant_id = md5('t' || n)::uuid GROUP BY 1, 2;
    INSERT INTO ledger_transfers (tenant_id, kind, debit_account, credit_account, amount, source_id)
        SELECT a.tenant_id, 'usage', a.receivable, a.revenue, i, md5('u' || i)::uuid
        FROM generate_series(1, {usage}) i JOIN a ON a.n = 1 + i % {tenants};
    INSERT INTO ledger_transfers (tenant_id, kind, debit_account, credit_account, amount, source_id)
        SELECT a.tenant_id, k.kind, k.debit, k.credit, k.amount, md5('i' || i)::uuid
        FROM generate_series(1, {invoices}) i JOIN a ON a.n = 1 + i % {tenants} CROSS JOIN LATERAL (VALUES
            ('invoice', a.invoiced, a.receivable, 1000 + i), ('rounding', a.rounding, a.invoiced, 3),
            ('payment', a.cash, a.invoiced, 997 + i)) k (kind, debit, credit, amount)
        WHERE k.kind <> 'payment' OR i % 2 = 0;
    ANALYZE ledger_transfers, ledger_accounts, billing_accounts;
"""


@pytest.fixture
async def url(services: Services) -> AsyncIterator[str]:
    """A database at revision 0026 with a ledger."""
    async with own_database(services, "many_rows") as url:
        await asyncio.to_thread(command.upgrade, alembic_config(url), "0026_bounded_work")
        connection = await asyncpg.connect(url)
        await connection.execute(_FILL.format(tenants=TENANTS, usage=USAGE, invoices=INVOICES))
        await connection.close()
        yield url


async def test_unpaid_invoices_are_summed_without_reading_usage(url: str) -> None:
    connection = await asyncpg.connect(url)

    async def reads() -> tuple[int, int]:
        """Scans of the ledger of any kind, and its rows that scans of the whole table have read."""
        row = await connection.fetchrow(
            "SELECT seq_scan + idx_scan, seq_tup_read FROM pg_stat_user_tables WHERE relname = 'ledger_transfers'"
        )
        assert row is not None
        return row[0], row[1]

    before = await reads()
    await asyncio.to_thread(command.upgrade, alembic_config(url), "0027_approval_limit")

    async def counted() -> bool:
        """Whether the migration's session has reported what it read."""
        return (await reads())[0] > before[0]

    await until(counted)
    assert (await reads())[1] == before[1]
    expected = await connection.fetch(
        "SELECT a.tenant_id, sum(CASE WHEN t.debit_account = a.id THEN t.amount ELSE -t.amount END) AS amount "
        "FROM ledger_accounts a JOIN ledger_transfers t ON t.tenant_id = a.tenant_id "
        "AND a.id IN (t.debit_account, t.credit_account) WHERE a.code = 'invoiced' GROUP BY 1"
    )
    found = await connection.fetch("SELECT tenant_id, invoiced FROM billing_accounts")
    assert sorted(map(tuple, found)) == sorted(map(tuple, expected))
    assert sum(row["invoiced"] for row in found) > 0
    await connection.close()
