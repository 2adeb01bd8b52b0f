"""The comparison with Stripe: a lock of its own, and calls to Stripe only for what changed."""

from datetime import date
from typing import Any

import pytest
from sqlalchemy import text

from billing.payments import stripe_reconciliation
from billing.payments.stripe_gateway import StripeGateway
from core.db import Database
from core.settings import Settings
from jobs import payments
from tests.integration.billing.payments.support import drain, gateway_to, postpaid, send
from tests.integration.billing.payments.test_invoices import MONTH, invoiced, save_card
from tests.integration.jobs.test_stripe_jobs import settings
from tests.support.stripe_sim import FakeStripe, fake_stripe

__all__ = ["fake_stripe", "settings"]
READS = ("invoice", "invoice_lines", "balance_transactions", "meter_event_summaries")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The reads of Stripe, with their first argument, in their order."""
    made: list[tuple[str, Any]] = []

    def watch(name: str) -> None:
        original = getattr(StripeGateway, name)

        async def watched(self: StripeGateway, *args: Any, **named: Any) -> Any:
            made.append((name, args[0]))
            return await original(self, *args, **named)

        monkeypatch.setattr(StripeGateway, name, watched)

    for name in READS:
        watch(name)
    return made


async def compare(database: Database, gateway: StripeGateway) -> stripe_reconciliation.Reconciliation:
    return await stripe_reconciliation.compare_month(database, gateway, MONTH, only_changed=True)


async def test_stripe_is_asked_only_for_what_changed(
    database: Database, fake_stripe: FakeStripe, calls: list[tuple[str, Any]]
) -> None:
    async with gateway_to(fake_stripe) as gateway:
        tenants = [await postpaid(database, name) for name in ("One", "Two", "Three")]
        for tenant_id in tenants:
            await invoiced(database, tenant_id, [1200])
        await send(database, gateway)
        await drain(database, gateway)
        calls.clear()
        first = await compare(database, gateway)
        assert first.problems == []
        assert len([name for name, _ in calls if name == "invoice"]) == 3
        calls.clear()
        again = await compare(database, gateway)
        assert calls == []
        assert (again.invoices, again.invoiced_usd, again.movements) == (
            3,
            first.invoiced_usd,
            first.movements,
        )
        # A payment changes one invoice and the month's cash.
        fake_stripe.advance(60)
        await save_card(database, gateway, fake_stripe, tenants[0], "pm_card_visa")
        async with database.read() as connection:
            paid = await connection.scalar(
                text("SELECT stripe_invoice_id FROM invoices WHERE tenant_id = :tenant"),
                {"tenant": tenants[0]},
            )
        fake_stripe.client().v1.invoices.pay(str(paid))
        await drain(database, gateway)
        calls.clear()
        found = await compare(database, gateway)
        assert found.problems == []
        assert {one for name, one in calls if name == "invoice"} == {paid}
        assert found.paid_usd == "12.00"


async def test_what_differs_is_asked_for_each_time(
    database: Database, fake_stripe: FakeStripe, calls: list[tuple[str, Any]]
) -> None:
    async with gateway_to(fake_stripe) as gateway:
        tenant_id = await postpaid(database)
        await invoiced(database, tenant_id, [1200])
        await send(database, gateway)
        await drain(database, gateway)
        assert (await compare(database, gateway)).ok
        async with database.engine.begin() as owner:
            await owner.execute(text("SET LOCAL session_replication_role = replica"))
            await owner.execute(text("UPDATE invoices SET total_cents = 1300"))
        for _ in range(2):
            calls.clear()
            assert "1300 here, 1200 in Stripe" in (await compare(database, gateway)).problems[0]
            assert [name for name, _ in calls if name == "invoice"] == ["invoice"]
        async with database.engine.begin() as owner:
            await owner.execute(text("SET LOCAL session_replication_role = replica"))
            await owner.execute(text("UPDATE invoices SET total_cents = 1200"))
        calls.clear()
        assert (await compare(database, gateway)).ok
        assert calls
        # A person who asks gets everything compared.
        calls.clear()
        assert (await stripe_reconciliation.compare_month(database, gateway, MONTH)).ok
        assert "invoice" in {name for name, _ in calls}


async def test_webhooks_and_refunds_do_not_wait_for_the_comparison(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    async def months(_: Any) -> list[date]:
        # While the comparison runs, the other jobs do, and a second comparison does not.
        await payments.find_missed(database, settings)
        ran.append("events")
        assert await payments.compare(database, settings) == 0
        return []

    monkeypatch.setattr(stripe_reconciliation, "months_to_compare", months)
    seen = payments.events.record_missed
    missed: list[int] = []

    async def record(*args: Any) -> int:
        missed.append(await seen(*args))
        return missed[-1]

    monkeypatch.setattr(payments.events, "record_missed", record)
    assert await payments.compare(database, settings) == 0
    assert ran == ["events"]
    assert len(missed) == 1
