"""Disputes and further refunds also take the credit that a failed refund returned."""

from uuid import UUID

import pytest
from sqlalchemy import text

from billing.payments.stripe_gateway import StripeGateway
from core.db import Database
from tests.integration.billing.payments.scenes import ask, credit, decide, dispute
from tests.integration.billing.payments.support import (
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


async def failed_refund(database: Database, gateway: StripeGateway, fake: FakeStripe, tenant_id: UUID) -> str:
    """A purchase of 2500 cents whose refund of 1000 failed."""
    intent = await buy(database, gateway, fake, tenant_id, card="pm_card_refundFail")
    await ask(database, tenant_id, intent, 1000)
    await send(database, gateway)
    await drain(database, gateway)
    fake.advance(3 * 86_400)
    await drain(database, gateway)
    assert (await one(database, "SELECT status FROM stripe_refunds")).status == "failed"
    assert await credit(database, tenant_id) == 2500
    return intent


async def test_a_dispute_takes_what_a_failed_refund_gave_back(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        intent = await failed_refund(database, gateway, fake_stripe, tenant_id)
        dispute_id = dispute(fake_stripe, intent)
        await drain(database, gateway)
        assert await credit(database, tenant_id) == 0
        await equals_stripe(database, gateway)
        decide(fake_stripe, dispute_id, "winning")
        await drain(database, gateway)
        assert await credit(database, tenant_id) == 2500
        assert (await books(database)).get("disputed", 0) == 0
        await equals_stripe(database, gateway)


async def test_a_refund_that_is_refused_for_a_dispute_leaves_no_credit(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        intent = await buy(database, gateway, fake_stripe, tenant_id)
        await ask(database, tenant_id, intent, None)
        dispute_id = dispute(fake_stripe, intent)
        await drain(database, gateway)
        await send(database, gateway)
        await drain(database, gateway)
        assert (await one(database, "SELECT status FROM stripe_refunds")).status == "failed"
        assert await credit(database, tenant_id) == 0
        await equals_stripe(database, gateway)
        decide(fake_stripe, dispute_id, "losing")
        await drain(database, gateway)
        found = await books(database)
        assert (found.get("disputed", 0), found.get("dispute_losses", 0)) == (0, 0)
        await equals_stripe(database, gateway)


async def test_a_refund_that_fails_after_a_lost_dispute_is_less_of_a_loss(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        intent = await buy(database, gateway, fake_stripe, tenant_id)
        await ask(database, tenant_id, intent, 2000)
        decide(fake_stripe, dispute(fake_stripe, intent), "losing")
        await drain(database, gateway)
        assert (await books(database))["dispute_losses"] == 2000
        await send(database, gateway)
        await drain(database, gateway)
        found = await books(database)
        assert (found.get("disputed", 0), found.get("dispute_losses", 0)) == (0, 0)
        assert await credit(database, tenant_id) == 0
        await equals_stripe(database, gateway)


async def test_a_refund_by_hand_after_one_that_failed_takes_the_credit(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        intent = await failed_refund(database, gateway, fake_stripe, tenant_id)
        fake_stripe.client().v1.refunds.create({"payment_intent": intent, "amount": 2500})
        await drain(database, gateway)
        assert await credit(database, tenant_id) == 0
        assert (await books(database)).get("uncollectible", 0) == 0


async def test_a_refund_can_be_asked_for_again_after_it_failed(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        intent = await failed_refund(database, gateway, fake_stripe, tenant_id)
        await spend(database, tenant_id, 1500)
        assert (await ask(database, tenant_id, intent, None)).amount_usd == "10.00"
        assert await credit(database, tenant_id) == 0


async def test_credit_that_was_held_when_the_dispute_came_is_taken_later(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        intent = await buy(database, gateway, fake_stripe, tenant_id)
        await hold(database, tenant_id, 2000)
        dispute_id = dispute(fake_stripe, intent)
        await drain(database, gateway)
        assert await credit(database, tenant_id) == 2000
        await hold(database, tenant_id, 0)
        decide(fake_stripe, dispute_id, "losing")
        await drain(database, gateway)
        assert await credit(database, tenant_id) == 0
        assert (await books(database)).get("dispute_losses", 0) == 0
        await equals_stripe(database, gateway)


async def hold(database: Database, tenant_id: UUID, cents: int) -> None:
    """Hold credit, as running requests do."""
    async with database.system() as connection:
        await connection.execute(
            text("UPDATE billing_accounts SET held = :held WHERE tenant_id = :tenant"),
            {"held": cents * 10**10, "tenant": tenant_id},
        )


async def test_a_second_chargeback_after_a_won_dispute_takes_the_credit_again(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        intent = await buy(database, gateway, fake_stripe, tenant_id)
        decide(fake_stripe, dispute(fake_stripe, intent), "winning")
        await drain(database, gateway)
        assert await credit(database, tenant_id) == 2500
        await spend(database, tenant_id, 700)
        second = dispute(fake_stripe, intent)
        await drain(database, gateway)
        assert await credit(database, tenant_id) == 0
        await equals_stripe(database, gateway)
        decide(fake_stripe, second, "losing")
        await drain(database, gateway)
        found = await books(database)
        assert (found.get("disputed", 0), found["dispute_losses"]) == (0, 700)
        await equals_stripe(database, gateway)
        assert (await one(database, "SELECT count(*) AS n FROM stripe_disputes")).n == 2


@pytest.mark.parametrize("ending", ["winning", "losing"])
async def test_a_second_chargeback_of_the_rest_after_a_lost_one_takes_only_the_rest(
    database: Database, fake_stripe: FakeStripe, ending: str
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        intent = await buy(database, gateway, fake_stripe, tenant_id)
        charge = fake_stripe.client().v1.payment_intents.retrieve(intent).latest_charge
        first = str(fake_stripe.control("POST", f"/charges/{charge}/dispute", amount=1000)["id"])
        decide(fake_stripe, first, "losing")
        await drain(database, gateway)
        assert await credit(database, tenant_id) == 1500
        await spend(database, tenant_id, 400)
        second = dispute(fake_stripe, intent)
        await drain(database, gateway)
        assert await credit(database, tenant_id) == 0
        decide(fake_stripe, second, ending)
        await drain(database, gateway)
        found = await books(database)
        won = ending == "winning"
        assert (found.get("disputed", 0), found.get("dispute_losses", 0)) == (0, 0 if won else 400)
        assert await credit(database, tenant_id) == (1100 if won else 0)
        await equals_stripe(database, gateway)


async def test_a_lost_dispute_that_is_won_on_appeal_gives_back_credit_and_loss(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        intent = await buy(database, gateway, fake_stripe, tenant_id)
        await spend(database, tenant_id, 700)
        dispute_id = dispute(fake_stripe, intent)
        await drain(database, gateway)
        decide(fake_stripe, dispute_id, "losing")
        await drain(database, gateway)
        assert (await books(database))["dispute_losses"] == 700
        fake_stripe.control("POST", f"/disputes/{dispute_id}/settle", outcome="won")
        for _ in range(2):
            await drain(database, gateway)
        found = await books(database)
        assert (found.get("disputed", 0), found.get("dispute_losses", 0)) == (0, 0)
        assert await credit(database, tenant_id) == 1800
        await equals_stripe(database, gateway)


def settle(fake: FakeStripe, dispute_id: str, outcome: str) -> None:
    """The bank settles a dispute, also one that it has settled otherwise before."""
    fake.control("POST", f"/disputes/{dispute_id}/settle", outcome=outcome)


@pytest.mark.parametrize("seen", ["each change", "only the end"])
async def test_a_won_dispute_that_is_lost_later_takes_the_credit_again(
    database: Database, fake_stripe: FakeStripe, seen: str
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        intent = await buy(database, gateway, fake_stripe, tenant_id)
        dispute_id = dispute(fake_stripe, intent)
        if seen == "each change":
            await drain(database, gateway)
        settle(fake_stripe, dispute_id, "won")
        if seen == "each change":
            await drain(database, gateway)
            assert await credit(database, tenant_id) == 2500
        await spend(database, tenant_id, 700)
        settle(fake_stripe, dispute_id, "lost")
        for _ in range(2):
            await drain(database, gateway)
        found = await books(database)
        assert (found.get("disputed", 0), found["dispute_losses"]) == (0, 700)
        assert await credit(database, tenant_id) == 0
        await equals_stripe(database, gateway)
        settle(fake_stripe, dispute_id, "won")
        for _ in range(2):
            await drain(database, gateway)
        found = await books(database)
        assert (found.get("disputed", 0), found.get("dispute_losses", 0)) == (0, 0)
        assert await credit(database, tenant_id) == 1800
        await equals_stripe(database, gateway)


async def test_a_second_chargeback_after_one_that_was_won_and_then_lost(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        intent = await buy(database, gateway, fake_stripe, tenant_id)
        charge = fake_stripe.client().v1.payment_intents.retrieve(intent).latest_charge
        first = str(fake_stripe.control("POST", f"/charges/{charge}/dispute", amount=1000)["id"])
        for outcome in ("won", "lost"):
            settle(fake_stripe, first, outcome)
            await drain(database, gateway)
        assert await credit(database, tenant_id) == 1500
        await spend(database, tenant_id, 400)
        second = dispute(fake_stripe, intent)
        await drain(database, gateway)
        settle(fake_stripe, second, "lost")
        for _ in range(2):
            await drain(database, gateway)
        found = await books(database)
        assert (found.get("disputed", 0), found["dispute_losses"]) == (0, 400)
        assert await credit(database, tenant_id) == 0
        await equals_stripe(database, gateway)
