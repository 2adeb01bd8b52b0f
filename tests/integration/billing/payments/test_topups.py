"""Buying credit through Checkout, against the local Stripe."""

from contextlib import suppress
from uuid import UUID

import pytest
from sqlalchemy import text

from billing.ledger.credits import add_lot
from billing.ledger.months import month_of
from billing.payments import events, stripe_reconciliation, topups
from billing.payments.customers import ensure_customer, set_tax_id
from billing.payments.stripe_gateway import StripeGateway
from core.db import Database
from core.errors import Conflict, InvalidRequest, Unavailable
from core.ids import uuid7
from core.money import PICO_PER_USD
from tests.integration.billing.payments.support import (
    RETURN_URL,
    books,
    drain,
    equals_stripe,
    gateway_to,
    postpaid,
    prepaid,
)
from tests.support.stripe_sim import FakeStripe


async def _start(
    database: Database,
    gateway: StripeGateway,
    tenant_id: UUID,
    cents: int = 2500,
    topup_id: UUID | None = None,
) -> topups.StartedTopup:
    return await topups.start_topup(
        database,
        gateway,
        tenant_id=tenant_id,
        cents=cents,
        return_url=RETURN_URL,
        by="test",
        topup_id=topup_id,
    )


def _session_id(started: topups.StartedTopup) -> str:
    return started.url.rsplit("/", 1)[1]


async def test_a_paid_session_becomes_a_lot_and_its_fee(database: Database, fake_stripe: FakeStripe) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        started = await _start(database, gateway, tenant_id)
        assert (await books(database)) == {}
        fake_stripe.pay(_session_id(started))
        await drain(database, gateway)
        found = await books(database)
        assert found["credit"] == -2500
        assert found["fees"] > 0
        assert found["cash"] == 2500 - found["fees"]
        await equals_stripe(database, gateway)
        assert await drain(database, gateway) == 0
    async with database.read() as connection:
        row = (await connection.execute(text("SELECT status, payment_intent FROM stripe_topups"))).one()
        card = (await connection.execute(text("SELECT brand, last4 FROM stripe_payment_methods"))).one()
    assert row.status == "succeeded"
    assert card.last4 == "4242"


async def test_the_same_purchase_asked_for_again_is_the_same_page(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id, topup_id = await prepaid(database), uuid7()
    async with gateway_to(fake_stripe) as gateway:
        first = await _start(database, gateway, tenant_id, topup_id=topup_id)
        assert await _start(database, gateway, tenant_id, topup_id=topup_id) == first
        with pytest.raises(Conflict):
            await _start(database, gateway, tenant_id, cents=9900, topup_id=topup_id)
    assert fake_stripe.control("GET", "/counts")["objects"]["checkout.session"] == 1


@pytest.mark.parametrize("kind", ["timeout", "reset_after", "500_after"])
async def test_a_timeout_after_success_makes_no_second_customer_or_session(
    database: Database, fake_stripe: FakeStripe, kind: str
) -> None:
    tenant_id, topup_id = await prepaid(database), uuid7()
    async with gateway_to(fake_stripe, timeout_s=5.0) as gateway:
        for path in ("/v1/customers", "/v1/checkout/sessions"):
            fake_stripe.fail(kind, path=path, times=1)
            with suppress(Unavailable):
                await _start(database, gateway, tenant_id, topup_id=topup_id)
        started = await _start(database, gateway, tenant_id, topup_id=topup_id)
        fake_stripe.pay(_session_id(started))
        await drain(database, gateway)
        assert (await books(database))["credit"] == -2500
    counts = fake_stripe.control("GET", "/counts")["objects"]
    assert (counts["customer"], counts["checkout.session"]) == (1, 1)


async def test_a_busy_stripe_is_waited_for(database: Database, fake_stripe: FakeStripe) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        fake_stripe.fail("429", path="/v1/customers", times=1)
        assert (await ensure_customer(database, gateway, tenant_id)).startswith("cus_")
    async with gateway_to(fake_stripe, max_wait_s=0.0) as impatient:
        fake_stripe.fail("429", path="/v1/checkout/sessions", times=1)
        with pytest.raises(Unavailable) as refused:
            await _start(database, impatient, tenant_id)
    assert refused.value.retry_after_s is not None


async def test_a_customer_asked_for_long_ago_is_looked_for(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        first = await ensure_customer(database, gateway, tenant_id)
        async with database.system() as connection:
            await connection.execute(
                text(
                    "UPDATE stripe_customers SET customer_id = NULL, requested_at = now() - interval '2 days'"
                )
            )
        assert await ensure_customer(database, gateway, tenant_id) == first


@pytest.mark.promise(12)
async def test_nobody_pays_twice_when_events_come_twice_and_out_of_order(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        started = await _start(database, gateway, tenant_id)
        fake_stripe.pay(_session_id(started))
        listed = await gateway.events(0)
        async with database.system() as connection:
            for event in reversed(listed):
                assert await events.record(connection, event, "webhook")
                assert not await events.record(connection, event, "webhook")
            await connection.execute(
                text("UPDATE stripe_events SET created_at = now() - random() * interval '1 h'")
            )
        while await events.apply_due(database, gateway):
            pass
        await equals_stripe(database, gateway)
    assert (await books(database))["credit"] == -2500


async def test_an_abandoned_session_expires(database: Database, fake_stripe: FakeStripe) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        await _start(database, gateway, tenant_id)
        fake_stripe.advance(2 * 86_400)
        await drain(database, gateway)
    async with database.read() as connection:
        assert (await connection.execute(text("SELECT status FROM stripe_topups"))).scalar_one() == "expired"
    assert await books(database) == {}


async def test_a_postpaid_account_buys_no_credit(database: Database, fake_stripe: FakeStripe) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        with pytest.raises(Conflict):
            await _start(database, gateway, tenant_id)


@pytest.mark.parametrize("amount", [0, 499 * 10**10, 500 * 10**10 + 1, 10**24])
def test_an_amount_that_cannot_be_charged_is_refused(amount: int) -> None:
    with pytest.raises(InvalidRequest):
        topups.to_cents(amount)


async def test_a_tax_id_replaces_the_one_before(database: Database, fake_stripe: FakeStripe) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        await set_tax_id(database, gateway, tenant_id, "eu_vat", "DE123456789")
        await set_tax_id(database, gateway, tenant_id, "eu_vat", "DE123456789")
        await set_tax_id(database, gateway, tenant_id, "eu_vat", "FR12345678901")
        with pytest.raises(InvalidRequest):
            await set_tax_id(database, gateway, tenant_id, "no such; kind", "1")
    async with database.read() as connection:
        row = (await connection.execute(text("SELECT customer_id, tax_id_value FROM stripe_customers"))).one()
    ids = fake_stripe.client().v1.customers.tax_ids.list(row.customer_id)
    assert [each.value for each in ids.data] == [row.tax_id_value] == ["FR12345678901"]


async def test_credit_that_was_paid_by_wire_is_no_difference_to_stripe(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        started = await _start(database, gateway, tenant_id)
        fake_stripe.pay(_session_id(started))
        await drain(database, gateway)
        async with database.system() as connection:
            await add_lot(
                connection,
                lot_id=uuid7(),
                tenant_id=tenant_id,
                amount=500 * PICO_PER_USD,
                kind="purchased",
                reason="wire transfer 4711",
                created_by="ann@example.com",
            )
            month = month_of((await connection.execute(text("SELECT now()"))).scalar_one())
        compared = await stripe_reconciliation.compare_month(database, gateway, month)
    assert not [one for one in compared.problems if "cash" in one]
