"""Refusals of models without a price are counted and listed until the price is set; the list is bounded."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from admin import prices as admin_prices
from admin.actor import Actor, system_actor
from billing.metering.holds import HoldManager
from billing.pricing.prices import list_unpriced
from core.clock import SystemClock
from core.db import Database
from core.errors import PermissionDenied, Unavailable
from tests.integration.billing.support import MODEL, Customer, make_customer, price

ADMIN = system_actor("test")


async def refuse(pg_url: str, customer: Customer, models: list[str]) -> None:
    """One process refuses requests for these models and ends."""
    manager = HoldManager(pg_url, "api-test", ttl_s=60.0, clock=SystemClock(), timeout_s=10.0)
    await manager.start()
    try:
        for model in models:
            with pytest.raises(Unavailable):
                await manager.place(customer.hold(model=model))
    finally:
        await manager.close()


async def offer(database: Database, *models: str) -> None:
    async with database.system() as connection:
        for model in models:
            await connection.execute(text("INSERT INTO models (name) VALUES (:name)"), {"name": model})


async def test_refused_traffic_is_listed_until_it_has_a_price(database: Database, pg_url: str) -> None:
    customer = await make_customer(database, "10")
    await offer(database, MODEL, "second")
    await refuse(pg_url, customer, [MODEL, "made-up", MODEL])
    await refuse(pg_url, customer, [MODEL])
    rows = await admin_prices.unpriced(database, ADMIN)
    assert [(row.model, row.tenant_id, row.requests) for row in rows] == [
        (MODEL, None, 0),
        (MODEL, customer.tenant_id, 3),
        ("second", None, 0),
    ]
    now = datetime.now(UTC)
    async with database.read() as connection:
        earlier = await list_unpriced(connection, now - timedelta(days=2), now - timedelta(days=1))
    assert [row.tenant_id for row in earlier] == [None, None]
    await price(database, tenant_id=customer.tenant_id)
    await price(database, model="second")
    assert [(row.model, row.tenant_id) for row in await admin_prices.unpriced(database, ADMIN)] == [
        (MODEL, None)
    ]
    async with database.system() as connection:
        await connection.execute(
            text("UPDATE models SET status = 'retired' WHERE name = :name"), {"name": MODEL}
        )
    assert await admin_prices.unpriced(database, ADMIN) == []


async def test_customers_do_not_see_it(database: Database) -> None:
    customer = await make_customer(database)
    owner = Actor(kind="user", id="u", label="u", role="tenant_owner", tenant_id=customer.tenant_id)
    with pytest.raises(PermissionDenied):
        await admin_prices.unpriced(database, owner)
