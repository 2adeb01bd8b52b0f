"""Automatic purchases: one at a time, within the cap, resumed after a crash, disabled after failures."""

import asyncio
from uuid import UUID

import pytest
from sqlalchemy import text

from admin import tenants as admin_tenants
from billing.payments import auto_topup, auto_topup_rules, refund_requests
from billing.payments.customers import ensure_customer, refresh_cards
from billing.payments.disputes import prepare_dispute
from billing.payments.stripe_gateway import StripeGateway
from billing.payments.stripe_types import PaymentIntent
from core.db import Database
from core.errors import Conflict, InvalidRequest, Unavailable
from core.ids import uuid7
from tests.integration.billing.payments.scenes import dispute
from tests.integration.billing.payments.support import (
    books,
    drain,
    equals_stripe,
    gateway_to,
    one,
    prepaid,
    send,
    spend,
)
from tests.support.stripe_sim import FakeStripe
from tests.support.tenancy import ADMIN


async def ready(
    database: Database,
    gateway: StripeGateway,
    fake: FakeStripe,
    *,
    card: str = "pm_card_visa",
    cap: int = 6000,
    name: str = "Acme",
) -> UUID:
    tenant_id = await prepaid(database, name)
    customer = await ensure_customer(database, gateway, tenant_id)
    fake.client().v1.payment_methods.attach(card, {"customer": customer})
    await refresh_cards(database, gateway, customer)
    async with database.system() as connection:
        await auto_topup_rules.set_rule(
            connection,
            tenant_id=tenant_id,
            enabled=True,
            threshold=10**13,
            cents=2500,
            monthly_cap_cents=cap,
            by="t",
        )
    return tenant_id


async def test_credit_is_bought_when_it_runs_low_up_to_the_cap(
    database: Database, fake_stripe: FakeStripe
) -> None:
    async with gateway_to(fake_stripe) as gateway:
        tenant_id = await ready(database, gateway, fake_stripe)
        assert await auto_topup.run(database, gateway) == 1
        assert await auto_topup.run(database, gateway) == 0
        await spend(database, tenant_id, 2000)
        assert await auto_topup.run(database, gateway) == 1
        await spend(database, tenant_id, 2500)
        assert await auto_topup.run(database, gateway) == 0
        await drain(database, gateway)
        await equals_stripe(database, gateway)
        assert (await books(database))["credit"] == -500
        assert (await one(database, "SELECT count(*) AS n FROM notices WHERE kind = 'topup.cap'")).n == 1


async def test_two_runs_at_once_buy_once(database: Database, fake_stripe: FakeStripe) -> None:
    async with gateway_to(fake_stripe, max_retries=2) as gateway:
        await ready(database, gateway, fake_stripe)
        await asyncio.gather(*(auto_topup.run(database, gateway) for _ in range(3)), return_exceptions=True)
        await auto_topup.run(database, gateway)
        await drain(database, gateway)
        await equals_stripe(database, gateway)
        assert (await books(database))["credit"] == -2500


@pytest.mark.parametrize("kind", ["timeout", "reset_after", "500_after"])
async def test_a_lost_answer_does_not_charge_twice(
    database: Database, fake_stripe: FakeStripe, kind: str
) -> None:
    async with gateway_to(fake_stripe, timeout_s=5.0) as gateway:
        await ready(database, gateway, fake_stripe)
        fake_stripe.fail(kind, path="/v1/payment_intents$", times=1)
        for _ in range(2):
            try:
                await auto_topup.run(database, gateway)
            except Unavailable:
                continue
        await drain(database, gateway)
        await equals_stripe(database, gateway)
        assert (await books(database))["credit"] == -2500
    assert len(fake_stripe.client().v1.payment_intents.list().data) == 1


async def test_failures_switch_it_off_with_a_notice(database: Database, fake_stripe: FakeStripe) -> None:
    async with gateway_to(fake_stripe) as gateway:
        tenant_id = await ready(database, gateway, fake_stripe, card="pm_card_chargeCustomerFail")
        for _ in range(5):
            assert await auto_topup.run(database, gateway) == 0
            await drain(database, gateway)
            async with database.system() as connection:
                await connection.execute(text("UPDATE stripe_auto_topups SET retry_at = NULL"))
        async with database.read() as connection:
            rule = await auto_topup_rules.get_rule(connection, tenant_id)
        assert rule is not None
        assert (rule.enabled, rule.failures) == (False, auto_topup_rules.MAX_FAILURES)
        assert await books(database) == {}
        assert (await one(database, "SELECT count(*) AS n FROM notices WHERE kind = 'topup.disabled'")).n == 1
    statuses = {each.status for each in fake_stripe.client().v1.payment_intents.list().data}
    assert statuses == {"canceled"}


async def test_a_rule_needs_a_card_and_a_cap(database: Database) -> None:
    tenant_id = await prepaid(database)
    async with database.system() as connection:
        with pytest.raises(Conflict):
            await auto_topup_rules.set_rule(
                connection,
                tenant_id=tenant_id,
                enabled=True,
                threshold=0,
                cents=500,
                monthly_cap_cents=500,
                by="t",
            )
        with pytest.raises(InvalidRequest):
            await auto_topup_rules.set_rule(
                connection,
                tenant_id=tenant_id,
                enabled=False,
                threshold=0,
                cents=500,
                monthly_cap_cents=499,
                by="t",
            )


async def enabled(database: Database) -> bool:
    return bool((await one(database, "SELECT enabled FROM stripe_auto_topups")).enabled)


async def bought(database: Database, gateway: StripeGateway) -> str:
    """The payment of one automatic purchase."""
    assert await auto_topup.run(database, gateway) == 1
    await drain(database, gateway)
    return str((await one(database, "SELECT payment_intent FROM stripe_payments")).payment_intent)


async def disabled_once(
    database: Database, gateway: StripeGateway, fake: FakeStripe, payments: int = 1
) -> None:
    """Assert that the rule is off, the customer has one notice of it, and the card is not charged again."""
    assert not await enabled(database)
    assert (await one(database, "SELECT count(*) AS n FROM notices WHERE kind = 'topup.disabled'")).n == 1
    for _ in range(3):
        assert await auto_topup.run(database, gateway) == 0
        await drain(database, gateway)
    assert len(fake.client().v1.payment_intents.list().data) == payments
    await equals_stripe(database, gateway)


@pytest.mark.parametrize("inquiry", [False, True])
async def test_a_dispute_switches_it_off_in_its_own_transaction(
    database: Database, fake_stripe: FakeStripe, inquiry: bool
) -> None:
    async with gateway_to(fake_stripe) as gateway:
        tenant_id = await ready(database, gateway, fake_stripe, cap=100_000)
        intent = await bought(database, gateway)
        charge = fake_stripe.client().v1.payment_intents.retrieve(intent).latest_charge
        dispute_id = fake_stripe.control("POST", f"/charges/{charge}/dispute", inquiry=inquiry)["id"]
        update = await prepare_dispute(gateway, str(dispute_id))
        async with database.system() as connection:
            await update(connection)
            await connection.rollback()
        assert await enabled(database)
        await drain(database, gateway)
        if inquiry:
            await spend(database, tenant_id, 2500)
        await disabled_once(database, gateway, fake_stripe)


async def test_a_rule_that_is_switched_on_again_stays_on_when_the_dispute_is_won(
    database: Database, fake_stripe: FakeStripe
) -> None:
    async with gateway_to(fake_stripe) as gateway:
        await ready(database, gateway, fake_stripe, cap=100_000)
        dispute_id = dispute(fake_stripe, await bought(database, gateway))
        await drain(database, gateway)
        assert not await enabled(database)
        async with database.system() as connection:
            await connection.execute(text("UPDATE stripe_auto_topups SET enabled = true"))
        fake_stripe.client().v1.disputes.update(
            dispute_id, {"evidence": {"uncategorized_text": "winning_evidence"}, "submit": True}
        )
        fake_stripe.advance(86_400)
        await drain(database, gateway)
        assert await enabled(database)


@pytest.mark.parametrize("here", [True, False])
async def test_a_refund_switches_it_off(database: Database, fake_stripe: FakeStripe, here: bool) -> None:
    async with gateway_to(fake_stripe) as gateway:
        tenant_id = await ready(database, gateway, fake_stripe, cap=100_000)
        intent = await bought(database, gateway)
        if here:
            async with database.system() as connection:
                await refund_requests.request_refund(
                    connection, refund_id=uuid7(), tenant_id=tenant_id, payment_intent=intent, cents=None,
                    reason="unhappy", by="test",
                )  # fmt: skip
            assert not await enabled(database)
            await send(database, gateway)
        else:
            fake_stripe.client().v1.refunds.create({"payment_intent": intent})
        await drain(database, gateway)
        await disabled_once(database, gateway, fake_stripe)


async def test_only_active_organisations_are_charged(database: Database, fake_stripe: FakeStripe) -> None:
    async with gateway_to(fake_stripe) as gateway:
        tenant_id = await ready(database, gateway, fake_stripe)
        await admin_tenants.suspend_tenant(database, ADMIN, tenant_id=tenant_id, reason="unpaid")
        assert await auto_topup.run(database, gateway) == 0
        await admin_tenants.resume_tenant(database, ADMIN, tenant_id=tenant_id, reason="paid")
        assert await auto_topup.run(database, gateway) == 1


@pytest.mark.parametrize("cause", ["disabled", "suspended"])
@pytest.mark.parametrize("attempts", [0, 1])
async def test_a_purchase_that_was_started_before_is_not_charged_any_more(
    database: Database, fake_stripe: FakeStripe, cause: str, attempts: int
) -> None:
    async with gateway_to(fake_stripe) as gateway:
        tenant_id = await ready(database, gateway, fake_stripe)
        assert await auto_topup.start_due(database) == 1
        async with database.system() as connection:
            await connection.execute(text("UPDATE stripe_topups SET attempts = :n"), {"n": attempts})
            if cause == "disabled":
                await auto_topup_rules.disable(connection, tenant_id, auto_topup_rules.REFUNDED)
        if cause == "suspended":
            await admin_tenants.suspend_tenant(database, ADMIN, tenant_id=tenant_id, reason="unpaid")
        assert await auto_topup.run(database, gateway) == 0
        assert (await one(database, "SELECT status FROM stripe_topups")).status == "failed"
        assert fake_stripe.client().v1.payment_intents.list().data == []


async def test_those_at_their_cap_do_not_keep_others_from_their_turn(
    database: Database, fake_stripe: FakeStripe, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_to(fake_stripe) as gateway:
        first = await ready(database, gateway, fake_stripe, cap=2500)
        assert await auto_topup.run(database, gateway) == 1
        await drain(database, gateway)
        await spend(database, first, 2500)
        monkeypatch.setattr(auto_topup, "BATCH", 1)
        await ready(database, gateway, fake_stripe, name="Globex")
        assert await auto_topup.run(database, gateway) == 0
        assert (await one(database, "SELECT count(*) AS n FROM notices WHERE kind = 'topup.cap'")).n == 1
        assert await auto_topup.run(database, gateway) == 1


async def test_a_purchase_that_cannot_go_on_does_not_stop_the_others(
    database: Database, fake_stripe: FakeStripe, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_to(fake_stripe) as gateway:
        await ready(database, gateway, fake_stripe)
        await ready(database, gateway, fake_stripe, name="Globex")
        asked = gateway.payment_intent

        async def refused(payment_intent: str) -> PaymentIntent:
            if not known:
                known.append(payment_intent)
            if payment_intent in known:
                raise InvalidRequest("Stripe refuses this payment", code="stripe_refused")
            return await asked(payment_intent)

        known: list[str] = []
        monkeypatch.setattr(gateway, "payment_intent", refused)
        assert await auto_topup.run(database, gateway) == 1
