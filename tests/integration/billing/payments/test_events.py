"""Stripe's events: one that cannot be applied does not stop those behind it."""

import pytest
from sqlalchemy import text

from billing.payments import events, topups
from billing.payments.effects import Effect
from billing.stripe_gateway import StripeGateway
from core.db import Database
from tests.integration.billing.payments.support import RETURN_URL, books, gateway_to, one, prepaid
from tests.support.stripe_sim import FakeStripe


async def test_an_object_that_nobody_can_read_does_not_stop_the_others(
    database: Database, fake_stripe: FakeStripe, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:

        async def unreadable(database: Database, gateway: StripeGateway, object_id: str) -> Effect:
            raise KeyError("currency")

        monkeypatch.setitem(events.HANDLERS, "customer", unreadable)
        started = await topups.start_topup(
            database, gateway, tenant_id=tenant_id, cents=2500, return_url=RETURN_URL, by="test"
        )
        fake_stripe.pay(started.url.rsplit("/", 1)[1])
        await events.find_missed(database, gateway)
        async with database.system() as connection:
            await connection.execute(
                text("UPDATE stripe_events SET created_at = 'epoch' WHERE object_kind = 'customer'")
            )
        await events.apply_waiting(database, gateway)
        assert (await books(database))["credit"] == -2500
        left = await one(
            database, "SELECT count(*) AS n, max(error) AS error FROM stripe_events WHERE applied_at IS NULL"
        )
        assert left.n >= 1
        assert left.error.startswith("KeyError")
