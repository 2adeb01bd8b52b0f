"""Postpaid invoices in Stripe: sent line by line, compared to the cent, paid, credited; dunning; the close's check."""

import pytest
from sqlalchemy import text

from admin import invoices as admin_invoices
from admin import users as admin_users
from billing.payments import dunning, meter_events, push_invoices, stripe_close_check, stripe_reconciliation
from core.db import Database
from tests.integration.billing.payments.scenes import MONTH, credit_note, exchange, invoiced, save_card, state
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
from tests.support.tenancy import ADMIN


@pytest.mark.promise(14)
async def test_an_invoice_is_sent_paid_and_equal(database: Database, fake_stripe: FakeStripe) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        await save_card(database, gateway, fake_stripe, tenant_id, "pm_card_visa")
        invoice_id = await invoiced(database, tenant_id, [1234, 0, 5678, -12], automatic=True)
        await send(database, gateway)
        assert (await state(database)).stripe_invoice_id is not None
        assert await push_invoices.push_invoice(database, gateway, invoice_id)
        fake_stripe.advance(2 * 3600)
        await drain(database, gateway)
        assert (await state(database)).status == "paid"
        assert (await books(database)).get("invoiced", 0) == 0
        await equals_stripe(database, gateway)
        found = await stripe_reconciliation.compare_month(database, gateway, MONTH)
        assert found.problems == []
        assert found.paid_usd == "69.00"
        async with database.read() as connection:
            assert (await stripe_close_check.stripe_equal(connection, MONTH)).ok
        sent = await gateway.invoice_lines((await state(database)).stripe_invoice_id)
        assert sorted(line.cents for line in sent) == [-12, 0, 1234, 5678]


async def test_more_lines_than_stripe_takes_share_the_last_item(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        await invoiced(database, tenant_id, [*range(1, 270)])
        fake_stripe.fail("reset_after", path="/v1/invoices/.*/add_lines", times=1)
        await send(database, gateway)
        await send(database, gateway)
        stripe_id = (await state(database)).stripe_invoice_id
        sent = await gateway.invoice_lines(stripe_id)
        assert len(sent) == push_invoices.MAX_ITEMS
        assert sum(line.cents for line in sent) == sum(range(1, 270))
        assert min(line.cents for line in sent) == 21
        assert (
            await one(database, "SELECT count(*) AS n FROM invoice_lines WHERE stripe_item_id IS NULL")
        ).n == 0
        assert (await stripe_reconciliation.compare_month(database, gateway, MONTH)).problems == []


@pytest.mark.promise(14)
@pytest.mark.parametrize("kind", ["reset_after", "500_after", "429"])
@pytest.mark.parametrize("path", ["/v1/invoices$", "/v1/invoices/.*/add_lines", "/v1/invoices/.*/finalize"])
async def test_a_lost_answer_makes_no_second_invoice(
    database: Database, fake_stripe: FakeStripe, kind: str, path: str
) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe, max_wait_s=0.0) as gateway:
        await invoiced(database, tenant_id, [700, 800])
        fake_stripe.fail(kind, path=path, times=1)
        for _ in range(2):
            await send(database, gateway)
        stripe_id = (await state(database)).stripe_invoice_id
        found = await gateway.invoice(stripe_id)
        assert (found.status, found.total_cents) == ("open", 1500)
    assert len(fake_stripe.client().v1.invoices.list().data) == 1


async def test_a_draft_that_is_not_ours_is_not_opened(database: Database, fake_stripe: FakeStripe) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        invoice_id = await invoiced(database, tenant_id, [700])
        fake_stripe.fail("429", path="/v1/invoices/.*/finalize", times=1)
        async with gateway_to(fake_stripe, max_wait_s=0.0) as impatient:
            await send(database, impatient)
        draft = fake_stripe.client().v1.invoices.list().data[0].id
        fake_stripe.client().v1.invoices.add_lines(
            draft, {"lines": [{"amount": 1, "description": "by hand"}]}
        )
        await send(database, gateway)
        assert (await gateway.invoice(draft)).status == "draft"
        assert (await state(database)).stripe_invoice_id is None
        blocked = await one(database, "SELECT object_id, status, error FROM stripe_pushes")
        assert (blocked.object_id, blocked.status) == (invoice_id, "blocked")
        assert (await one(database, "SELECT count(*) AS n FROM notices WHERE kind = 'stripe.blocked'")).n == 1
        found = await stripe_reconciliation.compare_month(database, gateway, MONTH)
        assert any("blocked" in problem for problem in found.problems)
        async with database.read() as connection:
            assert not (await stripe_close_check.stripe_equal(connection, MONTH)).ok


@pytest.mark.parametrize("pays", ["invoice", "balance", "refund"])
async def test_a_credit_note_reaches_stripe_once(
    database: Database, fake_stripe: FakeStripe, pays: str
) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        if pays != "invoice":
            await save_card(database, gateway, fake_stripe, tenant_id, "pm_card_visa")
        invoice_id = await invoiced(database, tenant_id, [3000], automatic=True)
        await send(database, gateway)
        if pays != "invoice":
            fake_stripe.advance(2 * 3600)
            await drain(database, gateway)
        await credit_note(database, invoice_id, tenant_id, 1000, pays)
        fake_stripe.fail("reset_after", path="/v1/credit_notes$", skip=1, times=1)
        await exchange(database, gateway)
        await equals_stripe(database, gateway)
        left = {"invoice": 2000, "balance": -1000, "refund": 0}[pays]
        assert (await books(database)).get("invoiced", 0) == left
        stripe_id = (await state(database)).stripe_invoice_id
        assert [note.cents for note in await gateway.credit_notes(stripe_id)] == [1000]
        assert (await stripe_reconciliation.compare_month(database, gateway, MONTH)).problems == []


async def test_a_line_that_is_credited_beyond_its_invoice_is_sent_as_an_amount(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        invoice_id = await invoiced(database, tenant_id, [3000, 2000])
        await send(database, gateway)
        for cents, lines in ((1000, {0: 1000}), (2001, {0: 2001}), (500, {1: 500}), (1499, {1: 1499})):
            await credit_note(database, invoice_id, tenant_id, cents, "invoice", lines)
            await send(database, gateway)
        await drain(database, gateway)
        assert (await stripe_reconciliation.compare_month(database, gateway, MONTH)).problems == []
    notes = fake_stripe.client().v1.credit_notes.list().data
    kinds = {note.amount: [line.type for line in note.lines.data] for note in notes}
    assert kinds == {
        1000: ["invoice_line_item"],
        2001: ["custom_line_item"],
        500: ["invoice_line_item"],
        1499: ["invoice_line_item"],
    }
    assert (await books(database)).get("invoiced", 0) == 0


async def test_a_declined_card_ends_in_a_write_off(database: Database, fake_stripe: FakeStripe) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        await save_card(database, gateway, fake_stripe, tenant_id, "pm_card_chargeCustomerFail")
        await invoiced(database, tenant_id, [5000], automatic=True)
        await send(database, gateway)
        for _ in range(25):
            fake_stripe.advance(86_400)
            await drain(database, gateway)
        assert (await state(database)).status == "uncollectible"
        found = await books(database)
        assert (found.get("invoiced", 0), found["uncollectible"]) == (0, 5000)
        assert (
            await one(database, "SELECT count(*) AS n FROM notices WHERE kind = 'invoice.payment_failed'")
        ).n > 0


async def test_unpaid_invoices_stop_new_work_and_payment_brings_it_back(database: Database) -> None:
    tenant_id = await postpaid(database)
    async with database.system() as connection:
        await connection.execute(text("UPDATE billing_accounts SET credit_limit = 42"))
    await invoiced(database, tenant_id, [100], due_days=-1)
    seen = []
    for overdue in (-1, -20, None):
        async with database.engine.begin() as connection:  # as the owner: no role may change a due date
            if overdue is None:
                await connection.execute(text("UPDATE invoices SET status = 'paid'"))
            else:
                await connection.execute(
                    text("UPDATE invoices SET due_at = now() + make_interval(days => :days)"),
                    {"days": overdue},
                )
        assert await dunning.run(database) == 1
        assert await dunning.run(database) == 0
        row = await one(
            database,
            "SELECT c.dunning, a.credit_limit FROM stripe_customers c JOIN billing_accounts a USING (tenant_id)",
        )
        seen.append((row.dunning, row.credit_limit))
    assert seen == [("past_due", 42), ("suspended", 0), ("current", 42)]


async def test_tokens_of_closed_hours_reach_the_meter_once(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await postpaid(database)
    add = text(
        "INSERT INTO usage_hours (hour, tenant_id, project_id, key_id, model, tier, region, price_version, "
        "list_price_version, simulated, requests, outcomes, input_tokens, cached_input_tokens, output_tokens, "
        "reasoning_tokens, unbilled_input_tokens, unbilled_output_tokens, cost, list_cost, busy_us) "
        "SELECT date_trunc('hour', now()) - make_interval(hours => :ago), :tenant, :tenant, :tenant, :model, "
        "'standard', 'r', 1, 1, false, 1, '{}', :tokens, 0, 5, 0, 0, 0, 0, 0, 0"
    )
    async with gateway_to(fake_stripe) as gateway:
        async with database.system() as connection:
            for ago, tokens in ((1, 100), (2, 10**14), (24 * 34 + 12, 7)):
                await connection.execute(
                    add, {"ago": ago, "tenant": tenant_id, "model": "a", "tokens": tokens}
                )
        fake_stripe.fail("reset_after", path="/v2/billing/meter_event_stream", times=1)
        with pytest.raises(Exception, match=r"Stripe"):
            await meter_events.run(database, gateway)
        assert await meter_events.run(database, gateway) == 2
        assert await meter_events.run(database, gateway) == 0
        async with database.system() as connection:
            await connection.execute(add, {"ago": 1, "tenant": tenant_id, "model": "b", "tokens": 50})
        assert await meter_events.run(database, gateway) == 1
        fake_stripe.advance(600)
        row = await one(
            database,
            "SELECT c.customer_id, s.meter_id, extract(epoch FROM date_trunc('hour', now()))::bigint AS hour "
            "FROM stripe_customers c, stripe_state s",
        )
        sums = await gateway.meter_event_summaries(row.meter_id, row.customer_id, row.hour - 86_400, row.hour)
        assert sum(one.tokens for one in sums) == 105 + 10**14 + 5 + 55
        assert (
            await one(database, "SELECT tokens FROM stripe_meter_events WHERE state = 'too_old'")
        ).tokens == 12


async def test_an_invoice_that_is_mailed_has_an_address(database: Database, fake_stripe: FakeStripe) -> None:
    tenant_id = await postpaid(database)
    await admin_users.create_user(
        database, ADMIN, email="owner@globex.example", password="a long password", role="tenant_owner",
        tenant_id=tenant_id,
    )  # fmt: skip
    await invoiced(database, tenant_id, [1200])
    async with gateway_to(fake_stripe) as gateway:
        await send(database, gateway)
    (customer,) = fake_stripe.client().v1.customers.list().data
    assert customer.email == "owner@globex.example"
    (sent,) = fake_stripe.client().v1.invoices.list().data
    assert (sent.status, sent.customer_email) == ("open", "owner@globex.example")


async def test_a_void_invoice_that_is_paid_is_told(database: Database, fake_stripe: FakeStripe) -> None:
    tenant_id = await postpaid(database)
    invoice_id = await invoiced(database, tenant_id, [1200], automatic=True)
    async with gateway_to(fake_stripe) as gateway:
        await save_card(database, gateway, fake_stripe, tenant_id, "pm_card_visa")
        await send(database, gateway)
        stripe_id = (await state(database)).stripe_invoice_id
        await admin_invoices.void_invoice(database, ADMIN, ref=str(invoice_id), reason="r")
        await send(database, gateway)
        await drain(database, gateway)
        assert (await books(database, tenant_id))["invoiced"] == -1200
        intent = (await one(database, "SELECT payment_intent FROM stripe_payments")).payment_intent
        fake_stripe.client().v1.refunds.create({"payment_intent": intent})
        await drain(database, gateway)
        await equals_stripe(database, gateway)
    told = await one(
        database, "SELECT count(*) AS n, max(body) AS body FROM notices WHERE kind = 'stripe.event'"
    )
    assert told.n == 1
    assert stripe_id in told.body
    assert "refund" in told.body
    assert (await books(database, tenant_id)).get("invoiced", 0) == 0


async def test_a_void_invoice_that_was_paid_and_refunded_in_full_is_no_difference(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await postpaid(database)
    invoice_id = await invoiced(database, tenant_id, [1200], automatic=True)
    async with gateway_to(fake_stripe) as gateway:
        await save_card(database, gateway, fake_stripe, tenant_id, "pm_card_visa")
        await send(database, gateway)
        await admin_invoices.void_invoice(database, ADMIN, ref=str(invoice_id), reason="r")
        await send(database, gateway)
        await drain(database, gateway)
        intent = (await one(database, "SELECT payment_intent FROM stripe_payments")).payment_intent
        refunds = fake_stripe.client().v1.refunds
        refunds.create({"payment_intent": intent, "amount": 1199})
        await drain(database, gateway)
        (problem,) = (await stripe_reconciliation.compare_month(database, gateway, MONTH)).problems
        assert "status void here, paid in Stripe" in problem, "a cent is still with us"
        refunds.create({"payment_intent": intent, "amount": 1})
        await drain(database, gateway)
        assert (await stripe_reconciliation.compare_month(database, gateway, MONTH)).problems == []
        async with database.system() as connection:
            assert (await stripe_close_check.stripe_equal(connection, MONTH)).ok
            await connection.execute(
                text("UPDATE stripe_refunds SET status = 'failed', ended_at = clock_timestamp()")
            )
            assert not (await stripe_close_check.stripe_equal(connection, MONTH)).ok, (
                "a refund that came back"
            )
