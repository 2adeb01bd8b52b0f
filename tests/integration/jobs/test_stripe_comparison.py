"""The comparison with Stripe: a lock of its own, and calls to Stripe only for what changed."""

from datetime import date
from typing import Any

import pytest
from sqlalchemy import text

from billing.payments import stripe_reconciliation
from billing.payments.stripe_compared import COMPARED_EVERY, CallBudget
from billing.payments.stripe_gateway import StripeGateway
from core.db import Database
from core.settings import Settings
from jobs import payments
from tests.integration.billing.payments.scenes import MONTH, invoiced, save_card
from tests.integration.billing.payments.support import drain, gateway_to, postpaid, send
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


async def compare(
    database: Database, gateway: StripeGateway, *, calls: int | None = None
) -> stripe_reconciliation.Reconciliation:
    return await stripe_reconciliation.compare_month(
        database, gateway, MONTH, only_changed=True, budget=CallBudget(calls)
    )


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


async def test_what_was_found_equal_is_compared_again_over_the_week(
    database: Database, fake_stripe: FakeStripe, calls: list[tuple[str, Any]]
) -> None:
    """Ten invoices that were compared in one run become due in several, each once within COMPARED_EVERY."""
    async with gateway_to(fake_stripe) as gateway:
        for number in range(10):
            await invoiced(database, await postpaid(database, f"C{number}"), [1200])
        await send(database, gateway)
        await drain(database, gateway)
        assert (await compare(database, gateway)).ok
        async with database.engine.begin() as owner:
            await owner.execute(
                text("UPDATE stripe_events SET received_at = received_at - interval '30 days'")
            )
        asked: list[list[Any]] = []
        for _ in range(7):
            async with database.engine.begin() as owner:  # a day passes
                await owner.execute(
                    text("UPDATE stripe_compared SET compared_at = compared_at - CAST(:step AS interval)"),
                    {"step": COMPARED_EVERY / 7},
                )
            calls.clear()
            assert (await compare(database, gateway)).ok
            asked.append([one for name, one in calls if name == "invoice"])
        assert len({one for run in asked for one in run}) == 10
        assert max(len(run) for run in asked) < 10


async def test_a_run_makes_so_many_calls_and_the_next_one_goes_on(
    database: Database, fake_stripe: FakeStripe, calls: list[tuple[str, Any]]
) -> None:
    async with gateway_to(fake_stripe) as gateway:
        for number in range(5):
            await invoiced(database, await postpaid(database, f"C{number}"), [1200])
        await send(database, gateway)
        await drain(database, gateway)
        waiting = []
        asked: list[str] = []
        for _ in range(3):
            calls.clear()
            found = await compare(database, gateway, calls=4)
            assert len(calls) <= 4
            asked += [one for name, one in calls if name == "invoice"]
            waiting.append((found.waiting, found.ok))
            assert found.problems == []
            async with database.read() as connection:
                (stored,) = await connection.execute(text("SELECT count(*) FROM stripe_reconciliations"))
            assert stored[0] == found.ok
        assert waiting == [(4, False), (2, False), (0, True)]
        assert len(asked) == len(set(asked)) == 5
        assert found.invoiced_usd == "60.00"


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
