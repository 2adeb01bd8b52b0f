"""Void and write-off of an invoice reach Stripe once, and leave out what was paid."""

import asyncio
from datetime import date

import pytest
from sqlalchemy import text

from billing.invoicing.status_changes import void_invoice, write_off_invoice
from billing.payments import stripe_reconciliation
from billing.payments.invoices import prepare_invoice
from core.db import Database
from core.errors import Conflict
from tests.integration.billing.payments.scenes import (
    MONTH,
    credit_note,
    exchange,
    invoiced,
    pay_part,
    save_card,
    state,
)
from tests.integration.billing.payments.support import (
    books,
    drain,
    equals_stripe,
    gateway_to,
    one,
    postpaid,
    send,
)
from tests.support.stripe_sim import FakeStripe


@pytest.mark.parametrize("sent_before", [True, False])
async def test_a_written_off_invoice_is_uncollectible_in_stripe(
    database: Database, fake_stripe: FakeStripe, sent_before: bool
) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        invoice_id = await invoiced(database, tenant_id, [5000])
        if sent_before:
            await send(database, gateway)
        async with database.system() as connection:
            assert await write_off_invoice(connection, invoice_id) == 5000
        await exchange(database, gateway)
        ours = await state(database)
        assert ours.status == "uncollectible"
        assert (ours.stripe_invoice_id is not None) == sent_before
        if sent_before:
            assert (await gateway.invoice(ours.stripe_invoice_id)).status == "uncollectible"
        found = await books(database)
        assert (found.get("invoiced", 0), found["uncollectible"]) == (0, 5000)
        await equals_stripe(database, gateway)


async def test_a_void_invoice_is_void_in_stripe(database: Database, fake_stripe: FakeStripe) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        invoice_id = await invoiced(database, tenant_id, [5000])
        await send(database, gateway)
        async with database.system() as connection:
            await void_invoice(connection, invoice_id)
        await exchange(database, gateway)
        ours = await state(database)
        assert ours.status == "void"
        assert (await gateway.invoice(ours.stripe_invoice_id)).status == "void"
        found = await books(database)
        assert (found.get("invoiced", 0), found["receivable"]) == (0, 5000)
        await equals_stripe(database, gateway)


async def test_a_write_off_leaves_out_what_was_paid_and_a_later_payment_reverses_it(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        invoice_id = await invoiced(database, tenant_id, [100_000])
        await send(database, gateway)
        stripe_id = (await state(database)).stripe_invoice_id
        pay_part(fake_stripe, stripe_id, 40_000)
        await drain(database, gateway)
        assert (await books(database))["invoiced"] == 60_000
        async with database.system() as connection:
            assert await write_off_invoice(connection, invoice_id) == 60_000
        await send(database, gateway)
        await drain(database, gateway)
        assert (await gateway.invoice(stripe_id)).status == "uncollectible"
        for more, expense in ((10_000, 50_000), (50_000, 0)):
            pay_part(fake_stripe, stripe_id, more)
            for _ in range(2):
                await drain(database, gateway)
            found = await books(database)
            assert (found.get("invoiced", 0), found.get("uncollectible", 0)) == (0, expense)
        assert (await state(database)).status == "paid"
        await equals_stripe(database, gateway)
        assert (await stripe_reconciliation.compare_month(database, gateway, MONTH)).problems == []


async def test_what_stripe_gives_up_is_written_off_without_what_was_paid(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        invoice_id = await invoiced(database, tenant_id, [5000])
        await send(database, gateway)
        stripe_id = (await state(database)).stripe_invoice_id
        pay_part(fake_stripe, stripe_id, 1000)
        await credit_note(database, invoice_id, tenant_id, 500, "invoice")
        fake_stripe.client().v1.invoices.mark_uncollectible(stripe_id)
        await drain(database, gateway)
        await send(database, gateway)
        await drain(database, gateway)
        found = await books(database)
        assert (found.get("invoiced", 0), found["uncollectible"]) == (0, 3500)
        assert (await gateway.invoice(stripe_id)).remaining_cents == 3500
        await equals_stripe(database, gateway)


async def test_an_invoice_that_was_paid_in_part_cannot_be_void(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        invoice_id = await invoiced(database, tenant_id, [100_000])
        await send(database, gateway)
        pay_part(fake_stripe, (await state(database)).stripe_invoice_id, 40_000)
        await drain(database, gateway)
        async with database.system() as connection:
            with pytest.raises(Conflict, match=r"\$400\.00"):
                await void_invoice(connection, invoice_id)
        assert (await state(database)).status == "open"
        await equals_stripe(database, gateway)


async def test_a_payment_that_races_a_write_off_is_subtracted_under_the_lock(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        invoice_id = await invoiced(database, tenant_id, [100_000])
        await send(database, gateway)
        stripe_id = (await state(database)).stripe_invoice_id
        pay_part(fake_stripe, stripe_id, 40_000)
        booking = await prepare_invoice(gateway, stripe_id)

        async def write_off() -> int:
            async with database.system() as connection:
                return await write_off_invoice(connection, invoice_id)

        async with database.system() as paying:
            await booking(paying)
            writing = asyncio.create_task(write_off())
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%FOR UPDATE%'"
            async with database.engine.connect() as looking:
                while not await looking.scalar(text(waits)):
                    await looking.rollback()
        assert await writing == 60_000
        await send(database, gateway)
        await drain(database, gateway)
        await equals_stripe(database, gateway)


@pytest.mark.parametrize("ending", ["write_off", "void"])
async def test_what_stripe_took_from_the_balance_is_left_out_or_returned(
    database: Database, fake_stripe: FakeStripe, ending: str
) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        await save_card(database, gateway, fake_stripe, tenant_id, "pm_card_visa")
        paid = await invoiced(database, tenant_id, [50_000], automatic=True, month=date(2026, 9, 1))
        await send(database, gateway)
        fake_stripe.advance(2 * 3600)
        await drain(database, gateway)
        await credit_note(database, paid, tenant_id, 30_000, "balance")
        await send(database, gateway)
        invoice_id = await invoiced(database, tenant_id, [100_000])
        await send(database, gateway)
        await drain(database, gateway)
        assert (await books(database))["invoiced"] == 70_000
        async with database.system() as connection:
            if ending == "write_off":
                assert await write_off_invoice(connection, invoice_id) == 70_000
            else:
                await void_invoice(connection, invoice_id)
        await send(database, gateway)
        await drain(database, gateway)
        assert (await books(database)).get("invoiced", 0) == (0 if ending == "write_off" else -30_000)
        (customer,) = fake_stripe.client().v1.customers.list().data
        assert customer.balance == (0 if ending == "write_off" else -30_000)
        await equals_stripe(database, gateway)


async def test_a_void_invoice_that_is_paid_in_part_meanwhile_is_told(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        invoice_id = await invoiced(database, tenant_id, [5000])
        await send(database, gateway)
        async with database.system() as connection:
            await void_invoice(connection, invoice_id)
        pay_part(fake_stripe, (await state(database)).stripe_invoice_id, 1000)
        await send(database, gateway)
        await drain(database, gateway)
        waiting = await one(database, "SELECT count(*) AS n FROM outbox WHERE done_at IS NULL")
        told = await one(database, "SELECT count(*) AS n FROM notices WHERE kind = 'stripe.event'")
        assert (waiting.n, told.n) == (0, 1)


@pytest.mark.parametrize("status", ["void", "uncollectible"])
async def test_an_invoice_that_ended_before_it_was_sent_is_no_difference(
    database: Database, fake_stripe: FakeStripe, status: str
) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        invoice_id = await invoiced(database, tenant_id, [5000])
        async with database.system() as connection:
            await (void_invoice if status == "void" else write_off_invoice)(connection, invoice_id)
        await send(database, gateway)
        assert (await state(database)).stripe_invoice_id is None
        assert (await stripe_reconciliation.compare_month(database, gateway, MONTH)).problems == []


async def test_an_invoice_whose_id_was_lost_in_a_crash_is_void_in_stripe(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        invoice_id = await invoiced(database, tenant_id, [5000])
        fake_stripe.fail("reset", path="/v1/invoices/.*/send", times=1)
        await send(database, gateway)
        async with database.system() as connection:
            await void_invoice(connection, invoice_id)
        await send(database, gateway)
        (theirs,) = fake_stripe.client().v1.invoices.list().data
        assert theirs.status == "void"
