"""Stripe's events: one that cannot be applied does not stop those behind it."""

import pytest
from sqlalchemy import text

from billing.payments import events, topups
from billing.payments.book_updates import BookUpdate
from billing.payments.stripe_gateway import StripeGateway
from billing.payments.stripe_types import Event
from core.db import Database
from core.errors import Unavailable
from tests.integration.billing.payments.support import RETURN_URL, books, gateway_to, one, prepaid
from tests.support.stripe_sim import FakeStripe


async def test_an_object_that_nobody_can_read_does_not_stop_the_others(
    database: Database, fake_stripe: FakeStripe, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:

        async def unreadable(database: Database, gateway: StripeGateway, object_id: str) -> BookUpdate:
            raise KeyError("currency")

        monkeypatch.setitem(events.HANDLERS, "customer", unreadable)
        started = await topups.start_topup(
            database, gateway, tenant_id=tenant_id, cents=2500, return_url=RETURN_URL, by="test"
        )
        fake_stripe.pay(started.url.rsplit("/", 1)[1])
        await events.record_missed(database, gateway)
        async with database.system() as connection:
            await connection.execute(
                text("UPDATE stripe_events SET created_at = 'epoch' WHERE object_kind = 'customer'")
            )
        await events.apply_due(database, gateway)
        assert (await books(database))["credit"] == -2500
        left = await one(
            database, "SELECT count(*) AS n, max(error) AS error FROM stripe_events WHERE applied_at IS NULL"
        )
        assert left.n >= 1
        assert left.error.startswith("KeyError")


@pytest.mark.promise(12)
@pytest.mark.parametrize("ahead", [0, 20 * 86_400], ids=["past", "clock ahead of ours"])
async def test_a_long_backlog_is_recorded_slice_by_slice(
    database: Database, fake_stripe: FakeStripe, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """More events than one slice, and Stripe unavailable after the first slice."""
    monkeypatch.setattr(events, "MAX_SLICE_EVENTS", 100)
    now = fake_stripe.advance(ahead)
    async with database.system() as connection:
        await connection.execute(text("UPDATE stripe_state SET events_seen_at = now() - interval '3 days'"))
    customers = fake_stripe.client().v1.customers
    for _ in range(260):
        customers.create({"name": "Somebody"})
    made = list(fake_stripe.sim.store.kind("event").values())
    for number, event in enumerate(made):  # two days ago and today, 40 in a second
        event["created"] = now - (2 * 86_400 if number < 130 else 0) + number // 40 - 10
    async with gateway_to(fake_stripe) as gateway:
        with monkeypatch.context() as patch:
            _goes_away(patch, gateway)
            with pytest.raises(Unavailable):
                await events.record_missed(database, gateway)
        kept = (await one(database, _RECORDED)).n
        assert 0 < kept < len(made), "what was recorded stays"
        assert await events.record_missed(database, gateway) == len(made) - kept
        assert await events.record_missed(database, gateway) == 0
    seen = await one(
        database,
        "SELECT extract(epoch FROM events_seen_at)::bigint AS at, extract(epoch FROM now())::bigint AS now "
        "FROM stripe_state",
    )
    last = made[-1]["created"]
    assert last <= seen.at <= max(last, seen.now), "never beyond what Stripe has told and our clock"


_RECORDED = "SELECT count(*) AS n FROM stripe_events"


def _goes_away(patch: pytest.MonkeyPatch, gateway: StripeGateway) -> None:
    """Stripe answers until it has listed some events, and is unavailable afterwards."""
    listing, told = gateway.events, list[Event]()

    async def some(since_at: int, before_at: int | None = None, *, at_most: int = 100_000) -> list[Event]:
        if told:
            raise Unavailable("Stripe is away")
        told.extend(await listing(since_at, before_at, at_most=at_most))
        return list(told)

    patch.setattr(gateway, "events", some)
