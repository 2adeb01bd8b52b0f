"""Shared parts of the payments tests: organisations, the gateway to the local Stripe, account balances."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from sqlalchemy import text

from admin import tenants as admin_tenants
from billing.ledger import transfers, verification
from billing.payments import events, topups
from billing.payments.stripe_gateway import StripeGateway
from core.db import Database
from core.ids import uuid7
from core.money import PICO_PER_CENT
from jobs import outbox
from jobs.payments import handlers
from tests.support.stripe_sim import FakeStripe, stripe_balance_cents
from tests.support.tenancy import ADMIN, make_organisation

RETURN_URL = "http://127.0.0.1:8001/billing"


@asynccontextmanager
async def gateway_to(fake: FakeStripe, **options: float) -> AsyncIterator[StripeGateway]:
    """A gateway to the local Stripe, without retries. A test whose subject is a timeout gives a short `timeout_s`."""
    given = {"timeout_s": 60.0, "max_retries": 0, "max_wait_s": 2.0} | options
    gateway = StripeGateway(fake.api_key, fake.url, **given)  # type: ignore[arg-type]
    try:
        yield gateway
    finally:
        await gateway.close()


async def prepaid(database: Database, name: str = "Acme") -> UUID:
    """A prepaid organisation."""
    return (await make_organisation(database, name)).tenant_id


async def postpaid(database: Database, name: str = "Globex") -> UUID:
    """A postpaid organisation."""
    tenant = await admin_tenants.create_tenant(database, ADMIN, name=name, billing_mode="postpaid")
    return tenant.id


async def books(database: Database, tenant_id: UUID | None = None) -> dict[str, int]:
    """Debit less credit of every account that is not 0, in cents where whole (else the test fails)."""
    async with database.read() as connection:
        rows = await connection.execute(
            text(
                "SELECT code, sum(debit - credit) AS net FROM ledger_balances "
                "WHERE CAST(:tenant AS uuid) IS NULL OR tenant_id = :tenant GROUP BY code ORDER BY code"
            ),
            {"tenant": tenant_id},
        )
        found = {row.code: int(row.net) for row in rows if row.net}
    assert all(amount % PICO_PER_CENT == 0 for amount in found.values())
    return {code: amount // PICO_PER_CENT for code, amount in found.items()}


async def drain(database: Database, gateway: StripeGateway) -> int:
    """Record and apply all of Stripe's events; returns how many were applied."""
    applied = 0
    while True:
        await events.record_missed(database, gateway)
        now = await events.apply_due(database, gateway)
        applied += now
        async with database.read() as connection:
            if not now and not await events.count_due(connection):
                return applied


async def sound(database: Database) -> None:
    """Assert the ledger's invariants."""
    async with database.system() as connection:
        problems = (await verification.verify(connection)).problems
    assert problems == []


async def equals_stripe(database: Database, gateway: StripeGateway) -> None:
    """Assert that our cash account equals Stripe's balance and the ledger verifies."""
    mine, theirs = (await books(database)).get("cash", 0), await stripe_balance_cents(gateway)
    if mine != theirs:
        async with database.read() as connection:
            booked = {row.txn_id for row in await connection.execute(text("SELECT txn_id FROM stripe_cash"))}
            errors = [*(await connection.execute(text("SELECT status, error FROM stripe_refunds")))]
            errors += [*(await connection.execute(text("SELECT type, outcome, error FROM stripe_events")))]
        missing = [move for move in await gateway.balance_transactions(0, 2**34) if move.id not in booked]
        raise AssertionError(
            f"{mine} cents of cash here, {theirs} in Stripe; not booked: {missing}; {errors}"
        )
    await sound(database)


async def buy(
    database: Database,
    gateway: StripeGateway,
    fake: FakeStripe,
    tenant_id: UUID,
    cents: int = 2500,
    card: str = "pm_card_visa",
) -> str:
    """Complete a purchase of credit; returns the payment intent's id."""
    started = await topups.start_topup(
        database, gateway, tenant_id=tenant_id, cents=cents, return_url=RETURN_URL, by="test"
    )
    fake.pay(started.url.rsplit("/", 1)[1], card)
    await drain(database, gateway)
    async with database.read() as connection:
        found = await connection.execute(
            text("SELECT payment_intent FROM stripe_topups WHERE id = :id AND status = 'succeeded'"),
            {"id": started.id},
        )
        return str(found.scalar_one())


async def send(database: Database, gateway: StripeGateway) -> int:
    """Send the outbox, as the job does."""
    return await outbox.dispatch(database, handlers(database, gateway))


async def spend(database: Database, tenant_id: UUID, cents: int) -> None:
    """Use credit, as a settlement would."""
    async with database.system() as connection:
        await transfers.book(
            connection, "adjustment", tenant_id, "credit", "revenue", cents * PICO_PER_CENT, uuid7()
        )


async def one(database: Database, statement: str) -> Any:
    """The one row of a query."""
    async with database.read() as connection:
        return (await connection.execute(text(statement))).one()
