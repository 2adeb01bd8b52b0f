"""What is paid after a write-off reverses the expense once, whatever happened to earlier payments."""

import pytest

from billing.invoicing.status_changes import write_off_invoice
from billing.payments.stripe_gateway import StripeGateway
from core.db import Database
from tests.integration.billing.payments.support import (
    books,
    drain,
    gateway_to,
    one,
    postpaid,
    send,
    sound,
)
from tests.integration.billing.payments.test_invoice_status_changes import pay_part
from tests.integration.billing.payments.test_invoices import invoiced, state
from tests.support.stripe_sim import FakeStripe

DEFAULT_CREDIT_LIMIT = 1_000 * 10**12
"""Picodollars."""


async def payment_of(database: Database, cents: int) -> str:
    """The payment intent of the only payment of `cents`."""
    return str(
        (
            await one(database, f"SELECT payment_intent FROM stripe_payments WHERE cents = {cents}")
        ).payment_intent
    )


async def figures(database: Database) -> tuple[int, int]:
    """Cents of (invoiced, uncollectible)."""
    found = await books(database)
    return found.get("invoiced", 0), found.get("uncollectible", 0)


async def written_off(database: Database, gateway: StripeGateway) -> str:
    """Stripe's id of an invoice of $500 that was sent and then written off."""
    invoice_id = await invoiced(database, await postpaid(database), [50_000])
    await send(database, gateway)
    stripe_id = str((await state(database)).stripe_invoice_id)
    async with database.system() as connection:
        await write_off_invoice(connection, invoice_id)
    await send(database, gateway)
    return stripe_id


async def test_a_recovered_payment_that_was_refunded_is_not_recovered_again(
    database: Database, fake_stripe: FakeStripe
) -> None:
    async with gateway_to(fake_stripe) as gateway:
        stripe_id = await written_off(database, gateway)
        await drain(database, gateway)
        pay_part(fake_stripe, stripe_id, 20_000)
        await drain(database, gateway)
        assert await figures(database) == (0, 30_000)
        intent = await payment_of(database, 20_000)
        fake_stripe.client().v1.refunds.create({"payment_intent": intent})
        await drain(database, gateway)
        assert await figures(database) == (0, 50_000), "nobody owes what was paid back"
        pay_part(fake_stripe, stripe_id, 30_000)
        for _ in range(2):
            await drain(database, gateway)
        assert (await state(database)).status == "paid"
        assert await figures(database) == (0, 20_000)
        assert await available(database) == DEFAULT_CREDIT_LIMIT
        await sound(database)


async def test_equal_payments_are_recovered_each(database: Database, fake_stripe: FakeStripe) -> None:
    async with gateway_to(fake_stripe) as gateway:
        stripe_id = await written_off(database, gateway)
        for number in range(1, 6):
            pay_part(fake_stripe, stripe_id, 10_000)
            for _ in range(2):
                await drain(database, gateway)
            assert await figures(database) == (0, 50_000 - number * 10_000)


@pytest.mark.parametrize("when", ["before the write-off", "after it"])
async def test_partial_refunds_and_a_failed_one_leave_the_available_credit_right(
    database: Database, fake_stripe: FakeStripe, when: str
) -> None:
    refund = fake_stripe.client().v1.refunds.create
    async with gateway_to(fake_stripe) as gateway:
        invoice_id = await invoiced(database, await postpaid(database), [50_000])
        await send(database, gateway)
        stripe_id = str((await state(database)).stripe_invoice_id)
        if when == "before the write-off":
            pay_part(fake_stripe, stripe_id, 20_000)
            await drain(database, gateway)
        async with database.system() as connection:
            await write_off_invoice(connection, invoice_id)
        await send(database, gateway)
        if when == "after it":
            pay_part(fake_stripe, stripe_id, 20_000)
            await drain(database, gateway)
        assert await figures(database) == (0, 30_000)
        intent = await payment_of(database, 20_000)
        for cents in (5_000, 15_000):
            made = refund({"payment_intent": intent, "amount": cents})
            for _ in range(2):
                await drain(database, gateway)
        assert await figures(database) == (0, 50_000)
        assert await available(database) == DEFAULT_CREDIT_LIMIT
        fake_stripe.control("POST", f"/refunds/{made.id}/fail")
        for _ in range(2):
            await drain(database, gateway)
        assert await figures(database) == (0, 35_000)
        assert await available(database) == DEFAULT_CREDIT_LIMIT
        await sound(database)


async def available(database: Database) -> int:
    """Picodollars that the only organisation may still use on credit."""
    row = await one(database, "SELECT penstock_funds(b) - held AS funds FROM billing_accounts b")
    return int(row.funds)


@pytest.mark.parametrize("ending", ["lost", "won on appeal"])
async def test_a_dispute_over_a_recovered_payment_is_a_loss_and_no_write_off(
    database: Database, fake_stripe: FakeStripe, ending: str
) -> None:
    async with gateway_to(fake_stripe) as gateway:
        stripe_id = await written_off(database, gateway)
        pay_part(fake_stripe, stripe_id, 50_000)
        await drain(database, gateway)
        assert await figures(database) == (0, 0)
        intent = await payment_of(database, 50_000)
        charge = fake_stripe.client().v1.payment_intents.retrieve(intent).latest_charge
        dispute_id = str(fake_stripe.control("POST", f"/charges/{charge}/dispute")["id"])
        await drain(database, gateway)
        fake_stripe.control("POST", f"/disputes/{dispute_id}/settle", outcome="lost")
        await drain(database, gateway)
        if ending == "won on appeal":
            fake_stripe.control("POST", f"/disputes/{dispute_id}/settle", outcome="won")
        for _ in range(2):
            await drain(database, gateway)
        found = await books(database)
        assert (found.get("disputed", 0), found.get("dispute_losses", 0)) == (
            0,
            50_000 if ending == "lost" else 0,
        )
        assert await figures(database) == (0, 0)
        assert (await state(database)).status == "paid"
