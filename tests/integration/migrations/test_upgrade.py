"""A database of the last revision before the baseline becomes today's, and its money stays.

tests/data/schema/0017_fair_shares.sql.gz is a dump, with INSERT statements, of a database that went through the
revisions 0001 to 0017. It holds usage and seals from before 0006 (wide rows, one link a transfer), prepaid and postpaid
organisations with keys, a contract, lots, adjustments, an uncollectible rest, settled, voided and open holds, and a
closed month with its invoices.
"""

import gzip
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from billing.ledger.transfers import seal
from billing.ledger.verification import VerificationResult, verify
from core.db import Database, connect_system
from core.ids import uuid7
from core.services import migrate
from tests.integration.billing.support import settle_json
from tests.support.schema import own_database, schema_of
from tests.support.services import Services

DUMP = Path(__file__).resolve().parents[2] / "data" / "schema" / "0017_fair_shares.sql.gz"
USAGE_COST = 2_485_166_000_970
"""Picodollars of all usage in the dump."""
RENAMED = {"usage_touched": "dirty_hours", "request_shapes": "request_traces"}
"""Tables of the dump that have another name today."""


@pytest.fixture
async def old_url(services: Services) -> AsyncIterator[str]:
    """A database restored from the dump, not migrated."""
    async with own_database(services, "upgrade") as url:
        connection = await asyncpg.connect(url)
        await connection.execute(gzip.decompress(DUMP.read_bytes()).decode())
        await connection.close()
        yield url


async def _columns(url: str) -> dict[str, list[str]]:
    """The columns of each table and view, in their order, by the table's name of today."""
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid "
            "WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND a.attnum > 0 "
            "AND NOT a.attisdropped AND c.relname NOT IN ('alembic_version', 'schema_sql_files') "
            "ORDER BY c.relname, a.attnum"
        )
    finally:
        await connection.close()
    found: dict[str, list[str]] = {}
    for table, column in rows:
        found.setdefault(RENAMED.get(table, table), []).append(column)
    return found


async def _contents(url: str, counts: dict[str, int] | None = None) -> dict[str, str]:
    """A digest of the rows of each table and view: of its first columns, as many as `counts` says, or of all."""
    columns = await _columns(url)
    before = {today: old for old, today in RENAMED.items()}
    connection = await asyncpg.connect(url)
    try:
        there = {
            row[0]
            for row in await connection.fetch(
                "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
            )
        }
        found = {}
        for name, names in columns.items():
            if counts is not None and name not in counts:
                continue  # a table of today
            table = name if name in there else before[name]
            wanted = names if counts is None else names[: counts.get(name, len(names))]
            row = f"ROW({', '.join(f't.{column}' for column in wanted)})::text"
            found[name] = await connection.fetchval(
                f"SELECT count(*) || ' ' || md5(coalesce(string_agg({row}, ';' ORDER BY {row}), '')) FROM {table} t"
            )
        return found
    finally:
        await connection.close()


async def _known(url: str, counts: dict[str, int]) -> dict[str, str]:
    """The digests of the tables and views of the dump; tables that a revision made are left out."""
    return {name: digest for name, digest in (await _contents(url, counts)).items() if name in counts}


async def _books(url: str, *, seal_first: bool = False) -> VerificationResult:
    database = Database(url)
    try:
        async with database.system() as connection:
            if seal_first:
                await seal(connection)
            return await verify(connection)
    finally:
        await database.close()


async def test_no_row_changes_and_the_books_verify(old_url: str) -> None:
    before = await _contents(old_url)
    counts = {table: len(names) for table, names in (await _columns(old_url)).items()}
    assert {name for name, digest in before.items() if digest.startswith("0 ")}.isdisjoint(
        {
            "holds",
            "usage",
            "ledger_transfers",
            "ledger_seals",
            "credit_grants",
            "invoices",
            "invoice_lines",
            "contracts",
        }
    )
    await migrate(old_url)
    assert await _known(old_url, counts) == before
    books = await _books(old_url)
    assert books.problems == []
    assert (books.transfers, books.sealed, books.unsealed, books.usage_cost) == (41, 40, 1, USAGE_COST)
    await migrate(old_url)
    assert await _known(old_url, counts) == before


async def test_its_schema_becomes_that_of_a_new_database(old_url: str, pg_url: str) -> None:
    await migrate(old_url)
    schemas = []
    for url in (old_url, pg_url):
        connection = await asyncpg.connect(url)
        schemas.append(await schema_of(connection))
        await connection.close()
    assert schemas[0] == schemas[1]


Hot = "asyncpg.Connection[asyncpg.Record]"


async def _run_request(hot: Hot, name: str) -> tuple[int, int]:
    """Hold and settle one request of the organisation; its hold and its cost in picodollars."""
    key = await hot.fetchrow(
        "SELECT k.id AS key_id, k.project_id, k.tenant_id FROM api_keys k JOIN tenants t ON t.id = k.tenant_id "
        "WHERE t.name = $1",
        name,
    )
    assert key is not None
    request = uuid7()
    held = await hot.fetchrow(
        "SELECT * FROM penstock_hold('api-1', $1, $2, $3, $4, '{river-7b}', '{standard}', '{1000}', '{200}', '{1}')",
        [request], [key["tenant_id"]], [key["project_id"]], [key["key_id"]],
    )  # fmt: skip
    assert held is not None
    assert held["verdict"] == "granted"
    record: dict[str, Any] = {
        **{name: str(value) for name, value in key.items()}, "request_id": str(request), "model": "river-7b",
        "tier": "standard", "region": "test", "replica_id": "h/1", "boot_id": "b9",
        "admitted_at": (held["admitted_at"] - timedelta(seconds=1)).isoformat(), "outcome": "completed", "free": False,
        "attempts": 1, "stream": True, "simulated": False, "price_version": held["price_id"],
        "list_price_version": held["list_id"], "input_tokens": 1000, "cached_input_tokens": 200, "output_tokens": 100,
        "reasoning_tokens": 0, "unbilled_input_tokens": 0, "unbilled_output_tokens": 0, "queue_us": 0, "ttft_us": 1,
        "duration_us": 1_000_000,
    }  # fmt: skip
    for result in ("settled", "duplicate"):
        settled = await hot.fetchrow(settle_json(), json.dumps([record]))
        assert settled is not None
        assert settled["result"] == result
    return int(held["amount"]), int(
        await hot.fetchval("SELECT cost FROM usage WHERE request_id = $1", request)
    )


async def test_it_goes_on_billing(old_url: str) -> None:
    await migrate(old_url)
    hot = await connect_system(old_url)
    try:
        account = (
            "SELECT balance, owed, held, open_holds FROM billing_accounts a "
            "JOIN tenants t ON t.id = a.tenant_id WHERE t.name = $1"
        )
        before = {name: await hot.fetchrow(account, name) for name in ("Acme", "Bolt")}
        assert [row["open_holds"] for row in before.values() if row] == [1, 1]
        # 800 input at 1 USD a million, 200 cached at 0.1, 100 output at 10; Bolt pays 20% less.
        full, less = 1_820_000_000, 1_456_000_000
        assert await _run_request(hot, "Acme") == (5_000_000_000, full)
        assert await _run_request(hot, "Bolt") == (4_000_000_000, less)
        for name, paid, owed in (("Acme", full, 0), ("Bolt", 0, less)):
            row, old = await hot.fetchrow(account, name), before[name]
            assert row is not None
            assert old is not None
            assert tuple(row) == (old["balance"] - paid, old["owed"] + owed, old["held"], 1)
    finally:
        await hot.close()
    books = await _books(old_url, seal_first=True)
    assert books.problems == []
    assert (books.transfers, books.sealed, books.usage_cost) == (43, 43, USAGE_COST + full + less)
