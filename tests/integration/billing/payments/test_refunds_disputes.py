"""Refunds requested here and made in Stripe, failed refunds, disputes won and lost."""

from typing import Any

import pytest

from billing.payments import refunds, topups
from billing.payments.book_updates import apply_update
from billing.payments.payments import prepare_payment
from billing.payments.stripe_gateway import StripeGateway
from core.db import Database
from core.errors import Conflict, NotFound, Unavailable
from core.ids import uuid7
from tests.integration.billing.payments.scenes import ask, credit
from tests.integration.billing.payments.support import (
    RETURN_URL,
    books,
    buy,
    drain,
    equals_stripe,
    gateway_to,
    one,
    prepaid,
    send,
    spend,
)
from tests.support.stripe_sim import FakeStripe


async def test_what_is_left_is_refunded_once(database: Database, fake_stripe: FakeStripe) -> None:
    tenant_id, refund_id = await prepaid(database), uuid7()
    async with gateway_to(fake_stripe) as gateway:
        intent = await buy(database, gateway, fake_stripe, tenant_id)
        await spend(database, tenant_id, 700)
        with pytest.raises(Conflict):
            await ask(database, tenant_id, intent, 1801)
        with pytest.raises(NotFound):
            await ask(database, await prepaid(database, "Other"), intent, None)
        first = await ask(database, tenant_id, intent, None, refund_id)
        assert await ask(database, tenant_id, intent, None, refund_id) == first
        assert first.amount_usd == "18.00"
        assert await credit(database, tenant_id) == 0
        await send(database, gateway)
        await refunds.send_refund(database, gateway, refund_id)
        await drain(database, gateway)
        await equals_stripe(database, gateway)
        assert (await one(database, "SELECT status FROM stripe_refunds")).status == "succeeded"
        with pytest.raises(Conflict):
            await ask(database, tenant_id, intent, None)


@pytest.mark.parametrize("kind", ["timeout", "reset_after", "500_after", "429"])
async def test_a_refund_whose_answer_is_lost_is_made_once(
    database: Database, fake_stripe: FakeStripe, kind: str
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe, timeout_s=5.0, max_wait_s=0.0) as gateway:
        intent = await buy(database, gateway, fake_stripe, tenant_id)
        await ask(database, tenant_id, intent, 1000)
        fake_stripe.fail(kind, path="/v1/refunds$", skip=1, times=1)
        await send(database, gateway)
        await send(database, gateway)
        await drain(database, gateway)
        await equals_stripe(database, gateway)
        assert await credit(database, tenant_id) == 1500
        assert len(await gateway.refunds_of(intent)) == 1


async def test_a_crash_between_the_refund_and_our_commit(
    database: Database, fake_stripe: FakeStripe, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        intent = await buy(database, gateway, fake_stripe, tenant_id)
        asked = await ask(database, tenant_id, intent, 1000)

        async def crash(*_: Any, **__: Any) -> None:
            raise Unavailable("the process died here")

        with monkeypatch.context() as patched:
            patched.setattr(refunds, "apply_refund", crash)
            with pytest.raises(Unavailable):
                await refunds.send_refund(database, gateway, asked.id)
        await send(database, gateway)
        await drain(database, gateway)
        await equals_stripe(database, gateway)
        assert len(await gateway.refunds_of(intent)) == 1
        assert (await one(database, "SELECT status FROM stripe_refunds")).status == "succeeded"


async def test_a_refund_that_fails_later_gives_the_credit_back(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        intent = await buy(database, gateway, fake_stripe, tenant_id, card="pm_card_refundFail")
        await ask(database, tenant_id, intent, 1000)
        await send(database, gateway)
        await drain(database, gateway)
        fake_stripe.advance(3 * 86_400)
        await drain(database, gateway)
        await equals_stripe(database, gateway)
        assert await credit(database, tenant_id) == 2500
        assert (await one(database, "SELECT status FROM stripe_refunds")).status == "failed"
        assert (
            await one(database, "SELECT count(*) AS n FROM notices WHERE kind = 'stripe.refund_failed'")
        ).n == 1


@pytest.mark.parametrize("used", [0, 2000])
async def test_a_refund_made_in_stripe_is_booked(
    database: Database, fake_stripe: FakeStripe, used: int
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        intent = await buy(database, gateway, fake_stripe, tenant_id)
        if used:
            await spend(database, tenant_id, used)
        fake_stripe.client().v1.refunds.create({"payment_intent": intent, "amount": 1000})
        await drain(database, gateway)
        await equals_stripe(database, gateway)
        assert await credit(database, tenant_id) == max(2500 - used - 1000, 0)
        assert (await books(database)).get("uncollectible", 0) == max(used + 1000 - 2500, 0)


async def dispute_of(gateway: StripeGateway, fake: FakeStripe) -> str:
    return str(fake.client().v1.disputes.list().data[0].id)


@pytest.mark.parametrize("ending", ["winning_evidence", "losing_evidence"])
async def test_a_dispute_takes_credit_back_until_it_is_won(
    database: Database, fake_stripe: FakeStripe, ending: str
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        intent = await buy(database, gateway, fake_stripe, tenant_id, card="pm_card_createDispute")
        await drain(database, gateway)
        assert await credit(database, tenant_id) == 0
        await equals_stripe(database, gateway)
        opened = await one(database, "SELECT id, status, clawed_back, fee_cents FROM stripe_disputes")
        assert opened.clawed_back == 2500 * 10**10
        assert opened.fee_cents == 1500
        with pytest.raises(Conflict):
            await ask(database, tenant_id, intent, None)
        fake_stripe.client().v1.disputes.update(
            opened.id, {"evidence": {"uncategorized_text": ending}, "submit": True}
        )
        fake_stripe.advance(86_400)
        await drain(database, gateway)
        await equals_stripe(database, gateway)
        found = await books(database)
        won = ending == "winning_evidence"
        assert found.get("disputed", 0) == 0
        assert await credit(database, tenant_id) == (2500 if won else 0)
        assert found.get("dispute_losses", 0) == 0
        closed = await one(database, "SELECT status FROM stripe_disputes")
        assert closed.status == ("won" if won else "lost")


async def test_credit_that_was_used_before_a_lost_dispute_is_our_loss(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        started = await topups.start_topup(
            database, gateway, tenant_id=tenant_id, cents=2500, return_url=RETURN_URL, by="test"
        )
        fake_stripe.pay(started.url.rsplit("/", 1)[1], "pm_card_createDispute")
        found = fake_stripe.client().v1.disputes.list().data[0]
        await apply_update(database, await prepare_payment(gateway, str(found.payment_intent)))
        await spend(database, tenant_id, 1700)
        await drain(database, gateway)
        assert await credit(database, tenant_id) == 0
        fake_stripe.client().v1.disputes.update(
            found.id, {"evidence": {"uncategorized_text": "losing_evidence"}, "submit": True}
        )
        fake_stripe.advance(60)
        await drain(database, gateway)
        await equals_stripe(database, gateway)
        assert (await books(database))["dispute_losses"] == 1700


async def test_an_inquiry_moves_nothing(database: Database, fake_stripe: FakeStripe) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        await buy(database, gateway, fake_stripe, tenant_id, card="pm_card_createDisputeInquiry")
        assert await credit(database, tenant_id) == 2500
        inquiry = await one(database, "SELECT status, withdrawn_cents FROM stripe_disputes")
        assert inquiry.withdrawn_cents == 0
        assert inquiry.status.startswith("warning")
        await equals_stripe(database, gateway)
