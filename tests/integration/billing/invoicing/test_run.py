"""The invoice run: lines equal usage to the picodollar, bookings match, and it is idempotent after a crash."""

import asyncio
from datetime import date, datetime, timedelta

import pytest
from sqlalchemy import text

from billing.invoicing import run
from billing.invoicing.run import make_invoices
from billing.ledger.adjustments import adjust
from billing.ledger.months import bounds, next_month
from billing.pricing.contracts import end_contract
from billing.usage.rollups import roll_up
from core.errors import Conflict
from core.ids import uuid7
from core.money import PICO_PER_CENT, PICO_PER_USD
from tests.integration.billing.invoicing.support import Platform
from tests.integration.billing.support import make_customer, price


@pytest.mark.promise(15)
async def test_lines_are_usage_by_class_and_the_books_follow(platform: Platform) -> None:
    await price(platform.database, input="1", cached_input="0.1", output="10", reasoning="20")
    acme = await make_customer(platform.database, name="Acme", mode="postpaid")
    await platform.use(acme, input=1_000_003, cached=400_000, output=70_001, reasoning=20_000)
    await platform.use(acme, input=5, output=5, outcome="engine_failed")
    month = await platform.end_month()
    done = await make_invoices(platform.database, month)
    assert (done.made, done.lines) == (1, 4)
    lines = await platform.lines(acme, month)
    assert [(line._mapping["class"], int(line.tokens), int(line.exact), line.cents) for line in lines] == [
        ("input", 600_003, 600_003 * 10**6, 60),
        ("cached_input", 400_000, 400_000 * 10**5, 4),
        ("output", 50_001, 50_001 * 10**7, 50),
        ("reasoning", 20_000, 20_000 * 2 * 10**7, 40),
    ]
    invoice = await platform.invoice(acme, month)
    exact = int(invoice.exact)
    assert exact == sum(int(line.exact) for line in lines)
    assert exact == await platform.one("SELECT sum(cost) FROM usage")
    assert (invoice.total_cents, invoice.status, invoice.kind) == (154, "open", "postpaid")
    assert invoice.number == f"PS-{month:%Y-%m}-000001"
    assert invoice.due_at - invoice.finalized_at == timedelta(days=30)
    assert await platform.balance(acme, "receivable") == 0
    assert await platform.balance(acme, "invoiced") == 154 * PICO_PER_CENT
    assert await platform.balance(acme, "rounding") == exact - 154 * PICO_PER_CENT
    topics = await platform.rows("SELECT topic, payload FROM outbox WHERE topic = 'stripe.push_invoice'")
    assert [row.payload for row in topics] == [{"invoice_id": str(invoice.id)}]
    assert await platform.one("SELECT count(*) FROM notices WHERE kind = 'invoice.finalized'") == 1
    await platform.is_sound()


async def test_a_prepaid_customer_sees_what_credit_paid_for_and_nothing_is_booked(platform: Platform) -> None:
    await price(platform.database)
    acme = await make_customer(platform.database, "10")
    await platform.use(acme, input=1_000_000)
    before = await platform.one("SELECT count(*) FROM ledger_transfers")
    month = await platform.end_month()
    await make_invoices(platform.database, month)
    invoice = await platform.invoice(acme, month)
    assert (invoice.kind, invoice.status, invoice.number, invoice.due_at) == (
        "prepaid",
        "settled",
        None,
        None,
    )
    assert (int(invoice.exact), invoice.total_cents) == (PICO_PER_USD, 100)
    assert await platform.one("SELECT count(*) FROM ledger_transfers") == before
    assert await platform.rows("SELECT 1 FROM outbox WHERE topic = 'stripe.push_invoice'") == []


async def test_the_month_must_be_over_and_its_late_window_past(platform: Platform) -> None:
    month = platform.month
    with pytest.raises(Conflict, match="can be made from"):
        await make_invoices(platform.database, month)
    await platform.clock.set(bounds(month)[1] + timedelta(hours=47))
    with pytest.raises(Conflict, match="can be made from"):
        await make_invoices(platform.database, month)
    await platform.clock.set(bounds(month)[1] + timedelta(hours=49))
    assert (await make_invoices(platform.database, month)).made == 0


async def test_a_run_that_dies_goes_on_with_the_next_number(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "CHUNK", 2)
    await price(platform.database)
    customers = [await make_customer(platform.database, name=f"C{i}", mode="postpaid") for i in range(7)]
    for customer in customers:
        await platform.use(customer, input=1_000_000)
    month = await platform.end_month()

    class Killed(Exception):
        pass

    def die(done: int, total: int) -> None:
        assert total == 7
        if done == 4:
            raise Killed

    with pytest.raises(Killed):
        await make_invoices(platform.database, month, progress=die)
    first = await platform.rows("SELECT * FROM invoices ORDER BY number")
    assert len(first) == 4
    again = await make_invoices(platform.database, month)
    assert again.made == 3
    rows = await platform.rows("SELECT * FROM invoices ORDER BY number")
    assert rows[:4] == first
    assert [row.number for row in rows] == [f"PS-{month:%Y-%m}-{n:06d}" for n in range(1, 8)]
    assert (await make_invoices(platform.database, month)).made == 0
    assert await platform.rows("SELECT * FROM invoices ORDER BY number") == rows
    await platform.is_sound()


@pytest.mark.promise(11)
async def test_two_runs_at_once_make_each_invoice_once(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "CHUNK", 1)
    await price(platform.database)
    for i in range(5):
        customer = await make_customer(platform.database, name=f"C{i}", mode="postpaid")
        await platform.use(customer, input=1_000_000)
    month = await platform.end_month()
    runs = await asyncio.gather(*(make_invoices(platform.database, month) for _ in range(2)))
    assert sum(one.made for one in runs) == 5
    numbers = [row.number for row in await platform.rows("SELECT number FROM invoices ORDER BY number")]
    assert numbers == [f"PS-{month:%Y-%m}-{n:06d}" for n in range(1, 6)]
    await platform.is_sound()


async def test_invoices_have_the_payment_terms_of_the_contract(platform: Platform) -> None:
    await price(platform.database)
    start, _ = bounds(platform.month)
    terms = {"A": (60, True), "B": (45, False)}
    customers = {name: await make_customer(platform.database, name=name, mode="postpaid") for name in terms}
    for name, (days, automatic) in terms.items():
        await platform.commit_to(customers[name], PICO_PER_USD, since=start, days=days, automatic=automatic)
    month = await platform.end_month()
    await make_invoices(platform.database, month)
    for name, (days, automatic) in terms.items():
        invoice = await platform.invoice(customers[name], month)
        assert invoice.due_at - invoice.finalized_at == timedelta(days=days)
        assert invoice.automatic_payment is automatic


async def test_what_the_commitment_lacks_is_a_line_and_revenue_of_the_month(platform: Platform) -> None:
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    start, end = bounds(platform.month)
    await platform.commit_to(acme, 5 * PICO_PER_USD, since=start, days=14)
    await platform.use(acme, input=2_000_000)
    month = await platform.end_month()
    await make_invoices(platform.database, month)
    usage, missing = await platform.lines(acme, month)
    assert (usage.kind, missing.kind, int(missing.exact)) == ("usage", "commit", 3 * PICO_PER_USD)
    invoice = await platform.invoice(acme, month)
    assert invoice.total_cents == 500
    assert invoice.due_at - invoice.finalized_at == timedelta(days=14)
    effective = await platform.one("SELECT effective_at FROM ledger_transfers WHERE kind = 'commit'")
    assert start <= effective < end
    assert await platform.balance(acme, "revenue") == -5 * PICO_PER_USD
    assert await platform.balance(acme, "receivable") == 0
    # The second month has no usage towards the commitment.
    second = await platform.end_month()
    await make_invoices(platform.database, second)
    assert [(line.kind, line.cents) for line in await platform.lines(acme, second)] == [("commit", 500)]
    await platform.is_sound()


def part_of(amount: int, month: date, first: datetime, last: datetime) -> int:
    """What `amount` a month comes to from `first` to `last`, to the whole picodollar."""
    start, end = bounds(month)
    moment = timedelta(microseconds=1)
    return amount * ((last - first) // moment) // ((end - start) // moment)


@pytest.mark.promise(15)
async def test_a_commitment_from_the_middle_of_a_month_is_due_for_its_part(platform: Platform) -> None:
    acme = await make_customer(platform.database, mode="postpaid")
    since = await platform.clock.now()
    await platform.commit_to(acme, 7 * PICO_PER_USD, since=since)
    month = await platform.end_month()
    await make_invoices(platform.database, month)
    (line,) = await platform.lines(acme, month)
    part = part_of(7 * PICO_PER_USD, month, since, bounds(month)[1])
    assert (line.kind, int(line.exact)) == ("commit", part)
    assert 0 < part < 7 * PICO_PER_USD
    assert await platform.balance(acme, "revenue") == -part
    await platform.is_sound()


async def test_a_commitment_outlives_a_change_of_contract_inside_a_month(platform: Platform) -> None:
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    start, end = bounds(platform.month)
    old = await platform.commit_to(acme, 5 * PICO_PER_USD, since=start)
    change = await platform.clock.now()
    async with platform.database.system() as connection:
        await end_contract(connection, old, at=None, by="ann")
    ended = await platform.one("SELECT upper(effective) FROM contracts WHERE id = :id", id=old)
    await platform.commit_to(acme, 11 * PICO_PER_USD, since=ended)
    await platform.use(acme, input=1_000_000)
    month = await platform.end_month()
    await make_invoices(platform.database, month)
    moment = timedelta(microseconds=1)
    both = 5 * PICO_PER_USD * ((ended - start) // moment) + 11 * PICO_PER_USD * ((end - ended) // moment)
    due = both // ((end - start) // moment)
    assert ended >= change
    assert [(line.kind, int(line.exact)) for line in await platform.lines(acme, month)] == [
        ("usage", PICO_PER_USD),
        ("commit", due - PICO_PER_USD),
    ]
    assert await platform.one("SELECT committed FROM invoices") == due
    second = await platform.end_month()
    await make_invoices(platform.database, second)
    assert [int(line.exact) for line in await platform.lines(acme, second)] == [11 * PICO_PER_USD]
    await platform.is_sound()


async def test_a_contract_that_ended_inside_the_month_is_due_and_the_next_month_nothing(
    platform: Platform,
) -> None:
    acme = await make_customer(platform.database, mode="postpaid")
    start, _ = bounds(platform.month)
    contract = await platform.commit_to(acme, 5 * PICO_PER_USD, since=start)
    async with platform.database.system() as connection:
        await end_contract(connection, contract, at=None, by="ann")
    ended = await platform.one("SELECT upper(effective) FROM contracts")
    month = await platform.end_month()
    await make_invoices(platform.database, month)
    (line,) = await platform.lines(acme, month)
    assert (line.kind, int(line.exact)) == ("commit", part_of(5 * PICO_PER_USD, month, start, ended))
    second = await platform.end_month()
    assert (await make_invoices(platform.database, second)).made == 0
    await platform.is_sound()


@pytest.mark.parametrize("late", [1, 2, 6])
async def test_late_usage_meets_the_commitment_of_the_month_it_belongs_to(
    platform: Platform, late: int
) -> None:
    """Of 5 dollars committed 2 are used in time and `late` afterwards; the next month is used in full."""
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    start, _ = bounds(platform.month)
    await platform.commit_to(acme, 5 * PICO_PER_USD, since=start)
    await platform.use(acme, input=2_000_000)
    month = await platform.end_month()
    await make_invoices(platform.database, month)
    await platform.use(acme, input=late * 500_000, ended_at=bounds(month)[1] - timedelta(hours=1))
    await platform.use(acme, input=late * 500_000, ended_at=bounds(month)[1] - timedelta(hours=2))
    await platform.use(acme, input=4_000_000)
    second = await platform.end_month()
    await make_invoices(platform.database, second)
    credited = min(late, 3)
    assert [(line.kind, line.cents) for line in await platform.lines(acme, second)] == [
        ("usage", 400),
        ("late_usage", late * 100),
        ("commit", 100),  # late usage is none of this month's
        ("commit", -credited * 100),
    ]
    assert await platform.balance(acme, "revenue") == -(5 + max(2 + late, 5)) * PICO_PER_USD
    months = await platform.rows(
        "SELECT date_trunc('month', effective_at, 'UTC') AS month FROM ledger_transfers WHERE kind = 'commit'"
    )
    assert {row.month.date() for row in months} == {month, second}
    await platform.is_sound()


async def test_late_usage_of_a_month_that_is_not_invoiced_yet_is_counted_once(platform: Platform) -> None:
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    await platform.commit_to(acme, 5 * PICO_PER_USD, since=bounds(platform.month)[0])
    month = await platform.end_month()
    await platform.use(acme, input=2_000_000, ended_at=bounds(month)[1] - timedelta(hours=1))
    second = await platform.end_month()
    await make_invoices(platform.database, second)
    await make_invoices(platform.database, month)
    assert [(line.kind, line.cents) for line in await platform.lines(acme, second)] == [
        ("late_usage", 200),
        ("commit", 500),
    ]
    assert [(line.kind, line.cents) for line in await platform.lines(acme, month)] == [("commit", 300)]
    await platform.is_sound()


async def test_an_invoice_below_zero_is_carried_to_the_next(platform: Platform) -> None:
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    await platform.use(acme, input=1_000_000)
    async with platform.database.system() as connection:
        await adjust(
            connection,
            adjustment_id=uuid7(),
            tenant_id=acme.tenant_id,
            amount=3 * PICO_PER_USD + 4_999_999_999,
            reason="an outage",
            created_by="ann",
        )
    month = await platform.end_month()
    await make_invoices(platform.database, month)
    invoice = await platform.invoice(acme, month)
    assert (invoice.status, invoice.total_cents, invoice.carry_cents) == ("settled", 0, -200)
    assert [line.kind for line in await platform.lines(acme, month)] == ["usage", "adjustment", "carried"]
    assert await platform.balance(acme, "invoiced") == 0
    assert await platform.balance(acme, "receivable") == -2 * PICO_PER_USD - 4_999_999_999

    second = next_month(month)
    await platform.use(acme, input=5_000_000)
    assert await platform.end_month() == second
    await make_invoices(platform.database, second)
    later = await platform.invoice(acme, second)
    assert [(line.kind, line.cents) for line in await platform.lines(acme, second)] == [
        ("usage", 500),
        ("carried", -200),
    ]
    assert (later.status, later.total_cents) == ("open", 300)
    assert (await platform.invoice(acme, month)).carried_to == later.id
    assert await platform.balance(acme, "receivable") == 0
    assert await platform.balance(acme, "invoiced") == 300 * PICO_PER_CENT
    await platform.is_sound()


async def test_late_usage_of_an_earlier_month_is_a_line_of_its_own(platform: Platform) -> None:
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    await platform.use(acme, input=1_000_000)
    month = await platform.end_month()
    true_end = bounds(month)[1] - timedelta(hours=1)
    await platform.use(acme, input=2_000_000, ended_at=true_end)
    await platform.use(acme, input=4_000_000)
    late = "SELECT sum(u.cost) FROM usage_late l JOIN usage u ON u.request_id = l.request_id"
    assert await platform.one(late) == 2 * PICO_PER_USD
    await make_invoices(platform.database, month)
    assert [line.cents for line in await platform.lines(acme, month)] == [100]
    second = await platform.end_month()
    await make_invoices(platform.database, second)
    lines = await platform.lines(acme, second)
    assert [(line.kind, line.cents) for line in lines] == [("usage", 400), ("late_usage", 200)]
    await platform.is_sound()


async def test_a_rollup_that_differs_from_its_rows_is_refused(platform: Platform) -> None:
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    await platform.use(acme, input=1_000_000)
    month = await platform.end_month()
    await roll_up(platform.database)
    async with platform.database.engine.begin() as connection:
        await connection.execute(text("UPDATE usage_hours SET cost = cost + 1"))
    with pytest.raises(ValueError, match="does not equal its rows"):
        await make_invoices(platform.database, month)
    assert await platform.rows("SELECT 1 FROM invoices") == []
