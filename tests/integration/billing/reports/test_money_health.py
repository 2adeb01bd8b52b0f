"""The counts of problems: 0 on a healthy platform, and each from its own rows."""

import pytest
from sqlalchemy import text

from admin import health as admin_health
from admin.actor import Actor, system_actor
from billing.reports.money_health import MoneyHealth
from core.db import Database
from core.errors import PermissionDenied
from core.ids import uuid7
from tests.integration.billing.support import Customer, make_customer

ME = system_actor("test")


async def health(database: Database) -> MoneyHealth:
    return await admin_health.money_health(database, ME)


async def run(database: Database, sql: str, **values: object) -> None:
    async with database.system() as connection:
        await connection.execute(text(sql), values)


@pytest.fixture
async def customer(database: Database) -> Customer:
    return await make_customer(database, "10")


async def test_nothing_is_wrong_at_first(database: Database, customer: Customer) -> None:
    assert await health(database) == MoneyHealth(0, 0, 0, 0, 0, "0.00", 0)


async def test_a_booking_without_usage_is_drift(database: Database, customer: Customer) -> None:
    await run(
        database,
        "SELECT penstock_book('usage', :tenant, 'credit', 'revenue', 7, :id, clock_timestamp() - interval '1 s')",
        tenant=customer.tenant_id,
        id=uuid7(),
    )
    assert (await health(database)).drift_usd == "-0.000000000007"


async def test_a_comparison_counts_until_the_next_one(database: Database, customer: Customer) -> None:
    for problems, expected in (('["a", "b"]', 2), ("[]", 0)):
        await run(
            database,
            "INSERT INTO stripe_reconciliations (id, month, began_at, ok, facts) VALUES (:id, '2026-03-01', "
            "clock_timestamp(), :ok, jsonb_build_object('problems', CAST(:problems AS jsonb)))",
            id=uuid7(),
            ok=not expected,
            problems=problems,
        )
        assert (await health(database)).stripe_differences == expected


async def test_customers_do_not_ask(database: Database, customer: Customer) -> None:
    owner = Actor("user", str(uuid7()), "o@x.example", "tenant_owner", customer.tenant_id)
    with pytest.raises(PermissionDenied):
        await admin_health.money_health(database, owner)
