"""Corrections: dry run, approval by a second person, booking in the present, reversal at most once."""

import asyncio
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_DNS, UUID, uuid5

import asyncpg
import pytest

from billing.invoicing import correction_booking, corrections
from billing.invoicing.correction_booking import apply_all, apply_correction
from billing.invoicing.correction_views import Correction, get_correction, list_corrections
from billing.invoicing.corrections import (
    decide_correction,
    dry_run,
    request_correction,
    request_reversal,
)
from billing.invoicing.lines import UsageGroup
from billing.invoicing.rerate import parse_spec
from billing.invoicing.run import make_invoices
from billing.ledger.approvals import Person
from billing.ledger.months import bounds, next_month
from billing.ledger.transfers import book
from billing.pricing.contracts import end_contract
from billing.usage.rollups import roll_up
from core.errors import Conflict, InvalidRequest
from core.ids import uuid7
from core.money import PICO_PER_CENT, PICO_PER_USD
from tests.integration.billing.invoicing.support import Platform
from tests.integration.billing.support import MODEL, Customer, account, make_customer, price
from tests.support.closing import close_month

HALF = {"rates": [{"model": MODEL, "input": "0.5", "cached_input": "0.05", "output": "5", "reasoning": "10"}]}
DOUBLE = {"rates": [{"model": MODEL, "input": "2", "cached_input": "0.2", "output": "20", "reasoning": "40"}]}


def someone(name: str) -> Person:
    return Person(str(uuid5(NAMESPACE_DNS, name)), name)


async def request(platform: Platform, month: date, spec: dict[str, Any], by: str = "ann") -> Correction:
    await roll_up(platform.database)
    async with platform.database.system() as connection:
        return await request_correction(
            connection, month, parse_spec(spec), reason="a wrong price", by=someone(by)
        )


async def decide(platform: Platform, one: Correction, *, by: str = "bob", approve: bool = True) -> Correction:
    async with platform.database.system() as connection:
        decided = await decide_correction(connection, one.id, by=someone(by), approve=approve)
    assert decided.status == ("applying" if approve else "rejected")
    await apply_correction(platform.database, one.id)
    async with platform.database.read() as connection:
        return await get_correction(connection, one.id)


async def reverse(platform: Platform, one: Correction, by: str = "ann") -> Correction:
    async with platform.database.system() as connection:
        return await request_reversal(connection, one.id, reason="it was right after all", by=someone(by))


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


async def many(platform: Platform, count: int) -> tuple[list[Customer], date]:
    """Customers in the order of their ids, some prepaid, with a closed month."""
    await price(platform.database)
    found = [
        await make_customer(platform.database, "5", name=f"C{i}", mode="postpaid" if i % 2 else "prepaid")
        for i in range(count)
    ]
    for customer in found:
        await platform.use(customer, input=1_234_567)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    return sorted(found, key=lambda one: one.tenant_id), month


async def booked(platform: Platform) -> list[Any]:
    return [
        row.tenant_id
        for row in await platform.rows("SELECT tenant_id FROM adjustments ORDER BY created_at, tenant_id")
    ]


async def test_a_crash_in_the_middle_is_gone_on_from_and_everybody_is_booked_once(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    customers, month = await many(platform, 5)
    asked = await request(platform, month, HALF)
    other = await request(platform, month, DOUBLE)
    monkeypatch.setattr(correction_booking, "CHUNK", 2)
    real, dies_at = correction_booking._book_tenant, customers[3].tenant_id

    async def crash(connection: Any, decision: Any, tenant_id: Any, lines: Any) -> Any:
        done = await real(connection, decision, tenant_id, lines)
        if tenant_id == dies_at:
            raise ConnectionResetError("killed")
        return done

    monkeypatch.setattr(correction_booking, "_book_tenant", crash)
    with pytest.raises(ConnectionResetError):
        await decide(platform, asked)
    # The first two are booked and unlocked; nothing of the second two is stored.
    assert await booked(platform) == [one.tenant_id for one in customers[:2]]
    (row,) = await platform.rows("SELECT status, applied_to FROM corrections WHERE id = :id", id=asked.id)
    assert (row.status, row.applied_to) == ("applying", customers[1].tenant_id)
    await platform.is_sound()
    # The approval is final: it cannot be decided or reversed now, and its whole difference counts already.
    with pytest.raises(Conflict, match="approved by bob already"):
        await decide(platform, asked, approve=False)
    with pytest.raises(Conflict, match="is applying: only an approved one"):
        await reverse(platform, asked)
    with pytest.raises(Conflict, match="have changed"):
        await decide(platform, other)
    with pytest.raises(InvalidRequest, match="changes its price"):
        await request(platform, month, HALF)

    monkeypatch.setattr(correction_booking, "_book_tenant", real)
    await asyncio.gather(*(apply_all(platform.database) for _ in range(3)))
    assert await booked(platform) == [one.tenant_id for one in customers]
    async with platform.database.read() as connection:
        assert (await get_correction(connection, asked.id)).status == "approved"
    notices = await platform.rows("SELECT tenant_id FROM notices WHERE kind = 'correction.applied'")
    assert sorted(row.tenant_id for row in notices) == [one.tenant_id for one in customers]
    assert await platform.one("SELECT count(*) FROM credit_notes") == 2
    assert await apply_all(platform.database) == 0
    revenue = [await platform.balance(one, "revenue") for one in customers]
    assert revenue == [-617_283_500_000] * 5
    await platform.is_sound()


async def test_a_reversal_goes_on_after_a_crash_too(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    customers, month = await many(platform, 3)
    monkeypatch.setattr(correction_booking, "CHUNK", 1)
    before = [await platform.balance(one, "revenue") for one in customers]
    done = await decide(platform, await request(platform, month, DOUBLE))
    undo = await reverse(platform, done)
    async with platform.database.system() as connection:
        await decide_correction(connection, undo.id, by=someone("bob"), approve=True)
    async with platform.database.system() as connection:
        assert await correction_booking._apply_chunk(connection, undo.id)
    async with platform.database.read() as connection:
        assert (await get_correction(connection, undo.id)).status == "applying"
    assert await apply_all(platform.database) == 1
    assert [await platform.balance(one, "revenue") for one in customers] == before
    await platform.is_sound()


async def test_one_correction_that_cannot_go_on_keeps_no_other_waiting(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, month = await many(platform, 2)
    asked = await request(platform, month, HALF)
    async with platform.database.system() as connection:
        await decide_correction(connection, asked.id, by=someone("bob"), approve=True)
    again = await request(platform, month, DOUBLE)
    async with platform.database.system() as connection:
        await decide_correction(connection, again.id, by=someone("bob"), approve=True)
    real = correction_booking._book_tenant

    async def refuse(connection: Any, decision: Any, *rest: Any) -> Any:
        if decision.id == asked.id:
            raise KeyError("no")
        return await real(connection, decision, *rest)

    monkeypatch.setattr(correction_booking, "_book_tenant", refuse)
    assert await apply_all(platform.database) == 2
    async with platform.database.read() as connection:
        statuses = {one.id: one.status for one in await list_corrections(connection)}
    assert statuses == {asked.id: "applying", again.id: "approved"}
    monkeypatch.setattr(correction_booking, "_book_tenant", real)
    assert await apply_all(platform.database) == 1
    await platform.is_sound()


async def test_late_usage_is_corrected_after_the_rows_that_say_so_are_gone(
    platform: Platform, pg_url: str
) -> None:
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    await platform.use(acme, input=1_000_000)
    early = await platform.end_month()
    await close_month(platform.database, early, by="fin")
    late = await platform.clock.now() - timedelta(days=3)
    await platform.use(acme, input=1_000_000, ended_at=late)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    assert [one.kind for one in await platform.lines(acme, month)] == ["late_usage"]
    # As after the month's partition is dropped: the sums stay, and the invoice's lines tell late usage apart.
    owner = await asyncpg.connect(pg_url)
    await owner.execute("SET session_replication_role = replica; DELETE FROM usage_late")
    await owner.close()
    done = await decide(platform, await request(platform, month, HALF))
    assert (done.status, done.delta_usd) == ("approved", "-0.50")
    (line,) = await platform.rows("SELECT kind, used_in, delta FROM correction_lines")
    assert (line.kind, line.used_in, int(line.delta)) == ("late_usage", early, -PICO_PER_USD // 2)
    assert await platform.one("SELECT sum(cents) FROM credit_notes") == 50
    await platform.is_sound()


async def committed(platform: Platform, usd: int) -> Customer:
    """A postpaid customer that has used a dollar of its monthly commitment."""
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    begin = datetime(platform.month.year, platform.month.month, 1, tzinfo=UTC)
    await platform.commit_to(acme, usd * PICO_PER_USD, since=begin)
    await platform.use(acme, input=1_000_000)
    return acme


@pytest.mark.parametrize(
    ("usd", "spec", "lines", "notes"),
    [
        (3, DOUBLE, [("usage", "1.00"), ("commit", "-1.00")], 100),
        (3, HALF, [("usage", "-0.50"), ("commit", "0.50")], 50),
        (1, HALF, [("usage", "-0.50"), ("commit", "0.50")], 50),
    ],
)
async def test_a_commitment_lacks_less_when_usage_costs_more(
    platform: Platform, usd: int, spec: dict[str, Any], lines: list[tuple[str, str]], notes: int
) -> None:
    acme = await committed(platform, usd)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    assert (await platform.invoice(acme, month)).total_cents == 100 * usd
    async with platform.database.read() as connection:
        told = await dry_run(connection, month, parse_spec(spec))
    assert [(line.kind, line.delta_usd) for line in told.lines] == lines
    done = await decide(platform, await request(platform, month, spec))
    assert done.delta_usd == "0.00"
    # The month still costs the commitment: the credit on its invoice is charged on the next.
    assert await platform.one("SELECT sum(cents) FROM credit_notes") == notes
    assert await platform.balance(acme, "revenue") == -usd * PICO_PER_USD
    undone = await decide(platform, await reverse(platform, done))
    assert undone.delta_usd == "0.00"
    assert await platform.balance(acme, "revenue") == -usd * PICO_PER_USD
    await platform.is_sound()


async def test_usage_beyond_the_commitment_costs_what_the_right_price_makes_it(platform: Platform) -> None:
    acme = await committed(platform, 2)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    triple = {"rates": [{"model": MODEL, "input": "3", "output": "1"}]}
    done = await decide(platform, await request(platform, month, triple))
    assert done.delta_usd == "1.00"
    assert await platform.balance(acme, "revenue") == -3 * PICO_PER_USD
    await decide(platform, await request(platform, month, HALF))
    assert await platform.balance(acme, "revenue") == -2 * PICO_PER_USD
    await platform.is_sound()


async def test_a_correction_before_the_invoice_counts_towards_the_commitment(platform: Platform) -> None:
    acme = await committed(platform, 3)
    await platform.clock.set(await platform.clock.now() + timedelta(hours=2))
    await decide(platform, await request(platform, platform.month, DOUBLE))
    month = await platform.end_month()
    await make_invoices(platform.database, month)
    found = [(one.kind, one.cents) for one in await platform.lines(acme, month)]
    assert found == [("usage", 100), ("commit", 100), ("adjustment", 100)]
    assert await platform.balance(acme, "revenue") == -3 * PICO_PER_USD
    await platform.is_sound()


@pytest.mark.parametrize(
    ("spec", "late", "costs"), [(DOUBLE, 1, 5), (HALF, 1, 5), (DOUBLE, 4, 8), (HALF, 4, 5)]
)
async def test_a_correction_counts_late_usage_in_the_month_it_belongs_to(
    platform: Platform, spec: dict[str, Any], late: int, costs: int
) -> None:
    """Of 5 dollars committed 2 are used in time and `late` afterwards, at the price before the correction.

    What the month costs in all, on both invoices, is the greater of its usage and the commitment.
    """
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    contract = await platform.commit_to(
        acme, 5 * PICO_PER_USD, since=datetime(platform.month.year, platform.month.month, 1, tzinfo=UTC)
    )
    await platform.use(acme, input=2_000_000)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    async with platform.database.system() as connection:
        await end_contract(connection, contract, at=None, by="ann")
    (ended,) = await platform.rows("SELECT upper(effective) AS at FROM contracts")
    begin, end = bounds(next_month(month))
    moment = timedelta(microseconds=1)
    part = 5 * PICO_PER_USD * ((ended.at - begin) // moment) // ((end - begin) // moment)
    await platform.use(acme, input=late * 1_000_000, ended_at=begin - timedelta(hours=1))
    second = await platform.end_month()
    await close_month(platform.database, second, by="fin")
    before = max(2 + late, 5) * PICO_PER_USD
    assert await platform.balance(acme, "revenue") == -before - part
    done = await decide(platform, await request(platform, month, spec))
    assert await platform.balance(acme, "revenue") == -costs * PICO_PER_USD - part
    # A correction of the later month leaves its own shortfall alone: late usage is none of its usage.
    async with platform.database.read() as connection:
        told = await dry_run(connection, second, parse_spec(spec))
    assert {(line.kind, line.used_in) for line in told.lines} <= {("late_usage", month), ("commit", month)}
    await decide(platform, await reverse(platform, done))
    assert await platform.balance(acme, "revenue") == -before - part
    await platform.is_sound()


async def test_only_the_usage_that_a_correction_concerns_is_read(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    await price(platform.database)
    await price(platform.database, model="lake-70b")
    begin = datetime(platform.month.year, platform.month.month, 1, tzinfo=UTC)
    customers = [await make_customer(platform.database, mode="postpaid") for _ in range(3)]
    acme, other, _ = customers
    await platform.commit_to(acme, 30 * PICO_PER_USD, since=begin)
    for customer in customers:
        await platform.use(customer, input=1_000_000, model="lake-70b")
    for customer in (acme, other):
        await platform.use(customer, input=1_000_000)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    read: list[tuple[UUID, str]] = []
    load = corrections.usage_groups

    async def watched(*args: Any, **named: Any) -> list[UsageGroup]:
        found = await load(*args, **named)
        read.extend((group.tenant_id, group.model) for group in found)
        return found

    monkeypatch.setattr(corrections, "usage_groups", watched)

    async def reads(spec: dict[str, Any]) -> set[tuple[UUID, str]]:
        read.clear()
        async with platform.database.read() as connection:
            told = await dry_run(connection, month, parse_spec(spec))
        assert told.lines
        return set(read)

    own = {"rates": [{**HALF["rates"][0], "tenant_id": str(other.tenant_id)}]}
    assert await reads(own) == {(other.tenant_id, MODEL)}
    # The commitment of one customer needs the rest of its usage, which is on its invoice.
    assert await reads(HALF) == {(acme.tenant_id, MODEL), (other.tenant_id, MODEL)}
