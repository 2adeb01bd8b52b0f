"""Void and write-off of an invoice reach Stripe once."""

import pytest

from billing.invoicing.status_changes import void_invoice, write_off_invoice
from core.db import Database
from tests.integration.billing.payments.support import books, drain, equals_stripe, gateway_to, postpaid, send
from tests.integration.billing.payments.test_invoices import invoiced, state
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
        for _ in range(2):
            await send(database, gateway)
            await drain(database, gateway)
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
        for _ in range(2):
            await send(database, gateway)
            await drain(database, gateway)
        ours = await state(database)
        assert ours.status == "void"
        assert (await gateway.invoice(ours.stripe_invoice_id)).status == "void"
        found = await books(database)
        assert (found.get("invoiced", 0), found["receivable"]) == (0, 5000)
        await equals_stripe(database, gateway)
