"""The cross-check states which sources equal the gateway's usage rows."""

from datetime import date

from sqlalchemy import text

from billing.close.cross_check import cross_check_month
from core.db import Database

MONTH = date(2026, 1, 1)


async def _equal(database: Database) -> dict[str, bool | None]:
    async with database.read() as connection:
        return {row.source: row.equal for row in await cross_check_month(connection, MONTH)}


async def _compare_with_stripe(database: Database, *, ok: bool) -> None:
    async with database.system() as connection:
        await connection.execute(
            text(
                "INSERT INTO stripe_reconciliations (id, month, began_at, at, ok, facts) VALUES "
                "(gen_random_uuid(), :month, clock_timestamp(), clock_timestamp(), :ok, '{}')"
            ),
            {"month": MONTH, "ok": ok},
        )


async def test_a_month_without_usage_equals_its_ledger_and_stripe_as_last_compared(
    database: Database,
) -> None:
    before = {
        "gateway": None,
        "ledger": True,
        "invoices": None,
        "stripe_meter": None,
        "stripe_invoices": None,
        "engines": None,
    }
    assert await _equal(database) == before
    await _compare_with_stripe(database, ok=False)
    assert await _equal(database) == {**before, "stripe_invoices": False}
    await _compare_with_stripe(database, ok=True)
    assert await _equal(database) == {**before, "stripe_invoices": True}
