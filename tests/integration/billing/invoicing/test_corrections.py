"""Corrections: dry run, approval by a second person, booking in the present, reversal at most once."""

from datetime import date, timedelta
from typing import Any

import pytest

from billing.invoicing.correction_views import list_corrections
from billing.invoicing.corrections import (
    dry_run,
)
from billing.invoicing.rerate import parse_spec
from billing.invoicing.run import make_invoices
from billing.ledger.months import next_month
from billing.ledger.transfers import book
from billing.usage.rollups import roll_up
from core.errors import Conflict, InvalidRequest
from core.ids import uuid7
from core.money import PICO_PER_CENT, PICO_PER_USD
from tests.integration.billing.invoicing.correcting import DOUBLE, HALF, decide, request, reverse
from tests.integration.billing.invoicing.support import Platform
from tests.integration.billing.support import MODEL, Customer, account, make_customer, price
from tests.support.closing import close_month


async def billed(platform: Platform, tokens: int = 1_000_000) -> tuple[Customer, date]:
    """A postpaid customer with a closed month and its open invoice."""
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    await platform.use(acme, input=tokens)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    return acme, month


async def journal(platform: Platform) -> list[Any]:
    return await platform.rows("SELECT id, kind, amount, effective_at FROM ledger_transfers ORDER BY id")


async def test_a_dry_run_tells_the_difference_and_changes_nothing(platform: Platform) -> None:
    acme, month = await billed(platform)
    await platform.use(acme, input=77)
    await roll_up(platform.database)
    before = await journal(platform)
    async with platform.database.read() as connection:
        told = await dry_run(connection, month, parse_spec(HALF))
    (line,) = told.lines
    assert (line.tenant_id, line.token_class, line.tokens) == (acme.tenant_id, "input", 1_000_000)
    assert (line.old_price_per_mtok_usd, line.new_price_per_mtok_usd) == ("1.00", "0.50")
    assert (line.old_usd, line.new_usd, line.delta_usd, told.delta_usd) == ("1.00", "0.50", "-0.50", "-0.50")
    assert await journal(platform) == before
    assert await platform.rows("SELECT 1 FROM corrections") == []


async def test_an_open_invoice_is_credited_and_stays_as_it_was(platform: Platform) -> None:
    acme, month = await billed(platform, 1_234_567)
    invoice, before = await platform.invoice(acme, month), await journal(platform)
    lines = await platform.lines(acme, month)
    done = await decide(platform, await request(platform, month, HALF))
    assert (done.status, done.decided_by, done.delta_usd) == ("approved", "bob", "-0.6172835")
    assert await platform.invoice(acme, month) == invoice
    assert await platform.lines(acme, month) == lines
    assert (await journal(platform))[: len(before)] == before
    (note,) = await platform.rows("SELECT * FROM credit_notes")
    # 1.234567 was billed as 1.23; at half the price 0.6172835 would have been 0.62.
    assert (note.cents, int(note.exact), note.pays, note.status) == (61, 617_283_500_000, "invoice", "issued")
    (line,) = await platform.rows("SELECT * FROM credit_note_lines")
    assert (line.invoice_line_id, line.cents) == (lines[0].id, 61)
    assert await platform.balance(acme, "invoiced") == 62 * PICO_PER_CENT
    assert await platform.balance(acme, "receivable") == 0
    payload = await platform.one("SELECT payload FROM outbox WHERE topic = 'stripe.push_credit_note'")
    assert payload == {"credit_note_id": str(note.id)}
    (notice,) = await platform.rows("SELECT * FROM notices WHERE kind = 'correction.applied'")
    assert (notice.tenant_id, notice.facts["delta_usd"]) == (acme.tenant_id, "-0.6172835")
    # The next invoice does not show it.
    await platform.use(acme, input=1_000_000)
    second = await platform.end_month()
    await close_month(platform.database, second, by="fin")
    assert [(one.kind, one.cents) for one in await platform.lines(acme, second)] == [("usage", 100)]
    await platform.is_sound()


async def test_a_paid_invoice_leaves_the_credit_with_the_customer_or_pays_it_back(platform: Platform) -> None:
    acme, month = await billed(platform)
    async with platform.database.system() as connection:
        await book(connection, "payment", acme.tenant_id, "cash", "invoiced", PICO_PER_USD, uuid7())
    await platform.rows("UPDATE invoices SET status = 'paid', paid_at = clock_timestamp() RETURNING id")
    await decide(platform, await request(platform, month, HALF))
    assert [row.pays for row in await platform.rows("SELECT pays FROM credit_notes")] == ["balance"]
    assert await platform.balance(acme, "invoiced") == -50 * PICO_PER_CENT
    quarter = {"rates": [{"model": MODEL, "input": "0.25", "output": "1"}], "refund": True}
    await decide(platform, await request(platform, month, quarter))
    pays = await platform.rows("SELECT pays, cents FROM credit_notes ORDER BY created_at")
    assert [(row.pays, row.cents) for row in pays] == [("balance", 50), ("refund", 25)]
    # The refund is booked when the note is sent: Stripe's invoice decides how much of it can be paid back.
    assert await platform.balance(acme, "invoiced") == -75 * PICO_PER_CENT
    assert await platform.balance(acme, "cash") == 100 * PICO_PER_CENT
    await platform.is_sound()


async def test_charging_more_is_a_line_of_the_next_invoice(platform: Platform) -> None:
    acme, month = await billed(platform)
    done = await decide(platform, await request(platform, month, DOUBLE))
    assert done.delta_usd == "1.00"
    assert await platform.rows("SELECT 1 FROM credit_notes") == []
    second = await platform.end_month()
    await make_invoices(platform.database, second)
    (line,) = await platform.lines(acme, second)
    assert (line.kind, line.cents) == ("adjustment", 100)
    assert line.description == f"Adjustment of {month:%Y-%m}: a wrong price"
    await platform.is_sound()


async def test_what_goes_up_and_what_goes_down_are_told_apart(platform: Platform) -> None:
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    await platform.use(acme, input=1_000_000, output=100_000)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    mixed = {"rates": [{"model": MODEL, "input": "0.4", "output": "12"}]}
    await decide(platform, await request(platform, month, mixed))
    (note,) = await platform.rows("SELECT cents FROM credit_notes")
    assert note.cents == 60
    second = await platform.end_month()
    await make_invoices(platform.database, second)
    assert [(one.kind, one.cents) for one in await platform.lines(acme, second)] == [
        ("adjustment", 20),
        ("carried", -20),
    ]
    await platform.is_sound()


async def test_prepaid_customers_get_and_give_credit(platform: Platform) -> None:
    await price(platform.database)
    rich = await make_customer(platform.database, "5", name="Rich")
    poor = await make_customer(platform.database, "1", name="Poor")
    for customer in (rich, poor):
        await platform.use(customer, input=1_000_000)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    half = await decide(platform, await request(platform, month, HALF))
    assert (await account(platform.database, rich)).balance == 9 * PICO_PER_USD // 2
    lots = await platform.rows("SELECT kind, amount FROM credit_grants WHERE kind = 'adjustment'")
    assert [int(lot.amount) for lot in lots] == [PICO_PER_USD // 2] * 2
    await decide(platform, await reverse(platform, half))
    assert (await account(platform.database, rich)).balance == 4 * PICO_PER_USD
    assert (await account(platform.database, poor)).balance == 0
    # Twice the price: a prepaid customer without credit owes nothing, and the missing amount is uncollectible.
    await decide(platform, await request(platform, month, DOUBLE))
    assert (await account(platform.database, rich)).balance == 3 * PICO_PER_USD
    assert await platform.balance(poor, "uncollectible") == PICO_PER_USD
    await platform.is_sound()


async def test_a_reversal_gives_no_credit_for_what_nobody_paid(platform: Platform) -> None:
    await price(platform.database)
    poor = await make_customer(platform.database, "1.25", name="Poor")
    broke = await make_customer(platform.database, "1", name="Broke")
    for customer in (poor, broke):
        await platform.use(customer, input=1_000_000)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    before = [await platform.balance(one, code) for one in (poor, broke) for code in ("credit", "revenue")]
    done = await decide(platform, await request(platform, month, DOUBLE))
    # A quarter was collected, three quarters were uncollectible.
    assert await platform.balance(poor, "uncollectible") == 75 * PICO_PER_CENT
    assert await platform.balance(broke, "uncollectible") == PICO_PER_USD
    await decide(platform, await reverse(platform, done))
    after = [await platform.balance(one, code) for one in (poor, broke) for code in ("credit", "revenue")]
    assert after == before
    assert [await platform.balance(one, "uncollectible") for one in (poor, broke)] == [0, 0]
    assert (await account(platform.database, poor)).balance == 25 * PICO_PER_CENT
    await platform.is_sound()


async def test_a_reversal_mirrors_the_revenue_exactly_and_once(platform: Platform) -> None:
    acme, month = await billed(platform, 1_234_567)
    revenue = await platform.balance(acme, "revenue")
    done = await decide(platform, await request(platform, month, HALF))
    undo = await reverse(platform, done)
    with pytest.raises(Conflict, match="reversed already"):
        await reverse(platform, done)
    undone = await decide(platform, undo)
    assert (undone.delta_usd, undone.reverses) == ("0.6172835", done.id)
    assert await platform.balance(acme, "revenue") == revenue
    amounts = [
        int(row.amount) for row in await platform.rows("SELECT amount FROM adjustments ORDER BY created_at")
    ]
    assert amounts == [617_283_500_000, -617_283_500_000]
    with pytest.raises(Conflict, match="reversed already"):
        await reverse(platform, done)
    with pytest.raises(Conflict, match="cannot be reversed"):
        await reverse(platform, undone)
    # The credit note stays; its opposite is charged on the next invoice.
    second = await platform.end_month()
    await make_invoices(platform.database, second)
    assert [(one.kind, one.cents) for one in await platform.lines(acme, second)] == [("adjustment", 62)]
    await platform.is_sound()


async def test_a_rejected_reversal_can_be_asked_for_again(platform: Platform) -> None:
    _, month = await billed(platform)
    done = await decide(platform, await request(platform, month, HALF))
    await decide(platform, await reverse(platform, done), approve=False)
    await decide(platform, await reverse(platform, done))


async def test_one_person_is_not_enough_and_once_is_once(platform: Platform) -> None:
    _, month = await billed(platform)
    asked = await request(platform, month, HALF)
    before = await journal(platform)
    with pytest.raises(Conflict, match="another person"):
        await decide(platform, asked, by="ann")
    assert await journal(platform) == before
    rejected = await decide(platform, asked, approve=False)
    assert rejected.status == "rejected"
    with pytest.raises(Conflict, match="rejected by bob"):
        await decide(platform, asked)
    assert await journal(platform) == before
    approved = await decide(platform, await request(platform, month, HALF))
    with pytest.raises(Conflict, match="approved by bob"):
        await decide(platform, approved)
    with pytest.raises(Conflict, match="only an approved one"):
        await reverse(platform, rejected)


async def test_a_second_correction_begins_where_the_first_ended(platform: Platform) -> None:
    acme, month = await billed(platform, 12_345_670)
    first = await request(platform, month, HALF)
    stale = await request(platform, month, DOUBLE)
    await decide(platform, first)
    with pytest.raises(Conflict, match="have changed"):
        await decide(platform, stale)
    with pytest.raises(InvalidRequest, match="changes its price"):
        await request(platform, month, HALF)
    third = {"rates": [{"model": MODEL, "input": "0.1", "output": "1"}]}
    await decide(platform, await request(platform, month, third))
    # 12.35 billed, 1.23 would have been right.
    assert await platform.one("SELECT sum(cents) FROM credit_notes") == 1112
    assert await platform.balance(acme, "invoiced") == 123 * PICO_PER_CENT
    assert await platform.balance(acme, "revenue") == -1_234_567_000_000
    await platform.is_sound()


async def test_a_credit_that_leaves_less_than_stripe_charges_is_carried_by_the_next_invoice(
    platform: Platform,
) -> None:
    acme, month = await billed(platform, 1_234_567)
    await decide(
        platform, await request(platform, month, {"rates": [{"model": MODEL, "input": "0.1", "output": "1"}]})
    )
    assert await platform.rows("SELECT 1 FROM credit_notes") == []
    assert (await platform.invoice(acme, month)).status == "open"
    assert await platform.balance(acme, "invoiced") == 123 * PICO_PER_CENT
    await platform.use(acme, input=2_000_000)
    second = await platform.end_month()
    await close_month(platform.database, second, by="fin")
    kinds = sorted((one.kind, one.cents) for one in await platform.lines(acme, second))
    assert kinds == [("adjustment", -111), ("usage", 200)]
    await platform.is_sound()


async def test_an_invoice_credited_whole_is_settled(platform: Platform) -> None:
    acme, month = await billed(platform)
    await decide(
        platform, await request(platform, month, {"rates": [{"model": MODEL, "input": "0", "output": "0"}]})
    )
    assert (await platform.invoice(acme, month)).status == "paid"
    assert await platform.balance(acme, "invoiced") == 0


async def test_a_credit_larger_than_the_invoice_is_carried_by_the_next(platform: Platform) -> None:
    acme, month = await billed(platform)
    done = await decide(platform, await request(platform, month, HALF))
    await decide(platform, await reverse(platform, done))
    free = {"rates": [{"model": MODEL, "input": "0", "output": "0"}]}
    await decide(platform, await request(platform, month, free))
    assert await platform.one("SELECT sum(cents) FROM credit_notes") == 50
    second = await platform.end_month()
    await make_invoices(platform.database, second)
    kinds = [(one.kind, one.cents) for one in await platform.lines(acme, second)]
    assert sorted(kinds) == [("adjustment", -100), ("adjustment", 50), ("carried", 50)]
    assert await platform.balance(acme, "revenue") == 0
    await platform.is_sound()


async def test_the_price_book_as_of_an_instant(platform: Platform) -> None:
    await price(platform.database, input="1")
    before = await platform.clock.now()
    await price(platform.database, input="3")
    acme = await make_customer(platform.database, mode="postpaid")
    other = await make_customer(platform.database, name="Other", mode="postpaid")
    for customer in (acme, other):
        await platform.use(customer, input=1_000_000)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    spec = {"as_of": before.isoformat(), "tenant_id": str(acme.tenant_id)}
    done = await decide(platform, await request(platform, month, spec))
    assert [(one.tenant_id, one.delta_usd) for one in done.tenants] == [(acme.tenant_id, "-2.00")]
    early = {"as_of": (before - timedelta(days=3000)).isoformat()}
    with pytest.raises(InvalidRequest, match="had no price"):
        await request(platform, month, early)


async def test_the_present_month_can_be_corrected_up_to_its_last_full_hour(platform: Platform) -> None:
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    await platform.use(acme, input=1_000_000)
    await platform.clock.set(await platform.clock.now() + timedelta(hours=2))
    await platform.use(acme, input=1_000_000)
    await decide(platform, await request(platform, platform.month, HALF))
    month = await platform.end_month()
    await make_invoices(platform.database, month)
    assert [(one.kind, one.cents) for one in await platform.lines(acme, month)] == [
        ("usage", 200),
        ("adjustment", -50),
    ]
    assert (await platform.invoice(acme, month)).total_cents == 150
    with pytest.raises(InvalidRequest, match="no full hour"):
        await request(platform, next_month(next_month(month)), HALF)
    async with platform.database.read() as connection:
        assert [one.status for one in await list_corrections(connection, month=month)] == ["approved"]
    await platform.is_sound()
