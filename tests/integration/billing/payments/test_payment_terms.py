"""How an invoice is collected: mailed with its due date, or charged where the contract says so."""

from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from admin import contracts as admin_contracts
from core.db import Database
from tests.integration.billing.payments.scenes import invoiced, save_card, state
from tests.integration.billing.payments.support import drain, equals_stripe, gateway_to, one, postpaid, send
from tests.support.stripe_sim import FakeStripe
from tests.support.tenancy import ADMIN


async def sent(database: Database, fake: FakeStripe) -> Any:
    return fake.client().v1.invoices.retrieve((await state(database)).stripe_invoice_id)


async def due_at(database: Database) -> datetime:
    due: datetime = (await one(database, "SELECT due_at FROM invoices")).due_at
    return due


async def test_a_saved_card_does_not_override_the_payment_terms(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        await save_card(database, gateway, fake_stripe, tenant_id, "pm_card_visa")
        await invoiced(database, tenant_id, [5000], due_days=60)
        await send(database, gateway)
        assert "invoice.sent" in {event.type for event in fake_stripe.client().v1.events.list().data}
        fake_stripe.advance(59 * 86_400)
        await drain(database, gateway)
        theirs = await sent(database, fake_stripe)
        assert (theirs.status, theirs.collection_method) == ("open", "send_invoice")
        assert theirs.due_date == round((await due_at(database)).timestamp())
        fake_stripe.client().v1.invoices.pay(theirs.id)
        await drain(database, gateway)
        assert (await state(database)).status == "paid"
        await equals_stripe(database, gateway)


@pytest.mark.parametrize("card", [True, False])
async def test_automatic_payment_charges_the_saved_card_if_there_is_one(
    database: Database, fake_stripe: FakeStripe, card: bool
) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        if card:
            await save_card(database, gateway, fake_stripe, tenant_id, "pm_card_visa")
        await invoiced(database, tenant_id, [5000], due_days=60, automatic=True)
        await send(database, gateway)
        fake_stripe.advance(2 * 3600)
        await drain(database, gateway)
        theirs = await sent(database, fake_stripe)
        wanted = ("paid", "charge_automatically") if card else ("open", "send_invoice")
        assert (theirs.status, theirs.collection_method) == wanted


async def test_an_invoice_that_is_due_when_it_is_sent_is_due_at_once(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        await invoiced(database, tenant_id, [5000], due_days=-3)
        await send(database, gateway)
        theirs = await sent(database, fake_stripe)
        assert theirs.status == "open"
        assert theirs.due_date <= theirs.status_transitions.finalized_at


async def test_an_invoice_is_mailed_after_a_crash_behind_its_finalisation(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        await invoiced(database, tenant_id, [5000])
        fake_stripe.fail("reset", path="/v1/invoices/.*/send", times=1)
        for _ in range(2):
            await send(database, gateway)
        kinds = [event.type for event in fake_stripe.client().v1.events.list().data]
        assert kinds.count("invoice.sent") == 1
        assert (await state(database)).stripe_invoice_id is not None


async def test_the_contract_says_how_invoices_are_paid(database: Database) -> None:
    tenant_id: UUID = await postpaid(database)
    for automatic in (True, False):
        made = await admin_contracts.add_contract(
            database, ADMIN, tenant_id=tenant_id, payment_days=60, automatic_payment=automatic, reason="terms"
        )
        assert made.automatic_payment is automatic
        await admin_contracts.end_contract(database, ADMIN, contract_id=made.id, reason="next")
    async with database.read() as connection:
        kept = await connection.scalars(text("SELECT automatic_payment FROM contracts ORDER BY created_at"))
        assert list(kept) == [True, False]
