"""Stripe's minimum charge of $0.50: a smaller amount due is paid at once, and the next invoice collects it."""

from datetime import date

import pytest

from billing.payments import stripe_reconciliation
from core.db import Database
from tests.integration.billing.payments.scenes import MONTH, credit_note, invoiced, save_card
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

AUGUST, SEPTEMBER = date(2026, 8, 1), date(2026, 9, 1)


@pytest.mark.promise(14)
@pytest.mark.parametrize("due", [1, 30, 49, 50])
async def test_less_than_the_minimum_due_after_the_balance_is_collected_by_the_next_invoice(
    database: Database, fake_stripe: FakeStripe, due: int
) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:

        async def pushed() -> None:
            await send(database, gateway)
            fake_stripe.advance(2 * 3600)
            await drain(database, gateway)
            await equals_stripe(database, gateway)

        await save_card(database, gateway, fake_stripe, tenant_id, "pm_card_visa")
        first = await invoiced(database, tenant_id, [1000], automatic=True, month=AUGUST)
        await pushed()
        await credit_note(database, first, tenant_id, 1000 - due, "balance")
        await pushed()
        await invoiced(database, tenant_id, [1000], automatic=True, month=SEPTEMBER)
        await pushed()
        small = due < 50
        row = await one(
            database,
            "SELECT status, applied_cents, penstock_open_cents(id) AS left_open FROM invoices "
            "WHERE month = '2026-09-01'",
        )
        assert tuple(row) == ("paid", 1000 if small else 950, 0)
        assert (await books(database)).get("invoiced", 0) == (due if small else 0)
        await invoiced(database, tenant_id, [2000], automatic=True)
        await pushed()
        assert (await books(database)).get("invoiced", 0) == 0
        paid = await one(database, "SELECT max(cents) AS cents FROM stripe_payments")
        assert paid.cents == (2000 + due if small else 2000)
        for month in (AUGUST, SEPTEMBER, MONTH):
            assert (await stripe_reconciliation.compare_month(database, gateway, month)).problems == []
