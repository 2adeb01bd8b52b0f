"""The end of the play: engine = usage = ledger = report = invoices = Stripe, and what was closed has not moved."""

import asyncio
from collections import Counter
from datetime import date
from typing import Any
from uuid import UUID

from admin import exports as admin_exports
from admin import ledger as admin_ledger
from admin import statements as admin_statements
from billing.ledger.credits import allocate_all
from billing.ledger.months import bounds, month_name
from billing.ledger.transfers import seal
from billing.ledger.verification import verify
from billing.payments.stripe_books import unix_bounds as seconds_of
from billing.payments.stripe_gateway import open_gateway
from billing.reports.usage_report import usage_report
from billing.statements.verify import verify_pair
from billing.usage.query import ReportQuery
from core.money import usd_to_pico
from tests.support.platform_play.engines import CAUSES
from tests.support.platform_play.model import CENT, LineOf
from tests.support.platform_play.prices import CLASSES
from tests.support.platform_play.stage import ANN, MONTHS, Stage
from tests.support.stripe_sim import stripe_balance_cents


async def everything(play: Stage) -> None:
    """All that must hold at the end."""
    async with play.database.system() as connection:
        await seal(connection)
        books = await verify(connection)
    assert books.problems == []
    await play.agree()
    for month in MONTHS:
        await one_price_of_usage(play, month)
        await invoices_say_what_the_model_says(play, month)
        await statements_hold(play, month)
    await stripe_has_our_cash(play)
    await stripe_has_our_invoices(play)
    await meters_have_our_tokens(play)
    await engines_are_explained(play)
    await credit_is_in_lots(play)
    await exports_hold(play)


async def one_price_of_usage(play: Stage, month: date) -> None:
    """Usage rows, the ledger's revenue of usage, the report, the statement's source and the model: one amount each."""
    start, end = bounds(month)
    span = {"start": start, "end": end}
    rows = await play.rows(
        "SELECT tenant_id, sum(cost) AS cost FROM usage WHERE ended_at >= :start AND ended_at < :end GROUP BY 1",
        **span,
    )
    usage = {row.tenant_id: int(row.cost) for row in rows if row.cost}
    rows = await play.rows(
        "SELECT t.tenant_id, sum(t.amount) AS cost FROM ledger_transfers t JOIN ledger_accounts c "
        "ON c.id = t.credit_account AND c.code = 'revenue' WHERE effective_at >= :start AND effective_at < :end "
        "AND t.source_id IN (SELECT request_id FROM usage) GROUP BY 1",
        **span,
    )
    ledger = {row.tenant_id: int(row.cost) for row in rows}
    rows = await play.rows(
        "SELECT i.tenant_id, sum(l.exact) AS cost FROM invoices i JOIN invoice_lines l ON l.invoice_id = i.id "
        "WHERE i.month = :month AND l.kind IN ('usage', 'late_usage') GROUP BY 1",
        month=month,
    )
    invoiced = {row.tenant_id: int(row.cost) for row in rows}
    async with play.database.snapshot() as connection:
        report = await usage_report(connection, ReportQuery(start, end, ("tenant",)))
    reported = {UUID(row.tenant_id): usd_to_pico(row.cost_usd) for row in report if row.tenant_id}
    reported = {tenant: cost for tenant, cost in reported.items() if cost}
    model = {
        one.tenant_id: one.account.cost(month) for one in play.people.values() if one.account.cost(month)
    }
    assert usage == ledger == invoiced == reported == model, month_name(month)
    adjusted = {UUID(row.tenant_id): _signed(row.adjustment_usd) for row in report if row.tenant_id}
    for person in play.people.values():
        assert adjusted.get(person.tenant_id, 0) == person.account.booked[month], (person.account.name, month)


def _signed(usd: str) -> int:
    return usd_to_pico(usd.removeprefix("-")) * (-1 if usd.startswith("-") else 1)


async def invoices_say_what_the_model_says(play: Stage, month: date) -> None:
    """Line by line."""
    for name, person in play.people.items():
        rows = await play.rows(
            "SELECT l.kind, l.model, l.class AS token_class, l.tokens, l.unit_price, l.exact, l.cents, i.total_cents "
            "FROM invoices i JOIN invoice_lines l ON l.invoice_id = i.id "
            "WHERE i.tenant_id = :tenant AND i.month = :month",
            tenant=person.tenant_id,
            month=month,
        )
        found = Counter(_line(row) for row in rows)
        bill = person.account.bills.get(month)
        wanted = Counter(bill.lines if bill else [])
        assert found == wanted, f"the invoice of {name} for {month_name(month)}"
        if bill and person.account.mode == "postpaid":
            assert (
                {row.total_cents for row in rows} == {bill.total} == {sum(line.cents for line in bill.lines)}
            )


def _line(row: Any) -> LineOf:
    number = CLASSES.index(row.token_class) if row.token_class else -1
    return LineOf(
        row.kind, row.model, number, int(row.tokens), int(row.unit_price or 0), int(row.exact), row.cents
    )


async def statements_hold(play: Stage, month: date) -> None:
    """Signed, verified offline, and equal to the model; no key, or another month's PDF, and it is refused."""
    keys = {
        key.key_id: bytes.fromhex(key.public_key) for key in await admin_statements.public_keys(play.database)
    }
    for name, person in play.people.items():
        made = await admin_statements.get_statement(
            play.database, ANN, settings=play.settings, tenant_id=person.tenant_id, month=month
        )
        assert made.final
        body = verify_pair(made.document, made.pdf, keys).body
        assert body is not None
        assert usd_to_pico(body["totals"]["cost_usd"]) == person.account.cost(month), (name, month)


async def stripe_has_our_cash(play: Stage) -> None:
    """Stripe's balance after fees, refunds and disputes is the ledger's cash, and the model's."""
    async with open_gateway(play.settings) as gateway:
        theirs = await stripe_balance_cents(gateway)
    ours = await play.one("SELECT sum(debit - credit) FROM ledger_balances WHERE code = 'cash'")
    assert theirs * CENT == int(ours) == sum(account.cash for account in play.accounts()) * CENT


async def stripe_has_our_invoices(play: Stage) -> None:
    """Totals, what is paid and what is credited, to the cent."""
    for person in play.people.values():
        for month, bill in person.account.bills.items():
            if person.account.mode == "prepaid" or not bill.total:
                continue
            stripe_id = await play.one(
                "SELECT stripe_invoice_id FROM invoices WHERE tenant_id = :tenant AND month = :month",
                tenant=person.tenant_id,
                month=month,
            )
            found = await asyncio.to_thread(play.stripe.client().v1.invoices.retrieve, stripe_id)
            credited = (found.pre_payment_credit_notes_amount or 0) + (
                found.post_payment_credit_notes_amount or 0
            )
            assert (found.total, credited) == (bill.total, bill.credited)
            paid = await play.one(
                "SELECT coalesce(sum(cents), 0) FROM stripe_payments p JOIN invoices i ON i.id = p.invoice_id "
                "WHERE i.stripe_invoice_id = :id",
                id=stripe_id,
            )
            assert int(paid) == bill.paid_cash


async def meters_have_our_tokens(play: Stage) -> None:
    """The billing meter knows each customer's tokens of each month."""
    meter = await play.one("SELECT meter_id FROM stripe_state")
    async with open_gateway(play.settings) as gateway:
        for month in MONTHS:
            for person in play.people.values():
                sums = person.account.tokens.get(month, {}).values()
                customer = await play.one(
                    "SELECT customer_id FROM stripe_customers WHERE tenant_id = :tenant",
                    tenant=person.tenant_id,
                )
                found = await gateway.meter_event_summaries(meter, customer, *seconds_of(month))
                assert sum(one.tokens for one in found) == sum(map(sum, sums))


async def engines_are_explained(play: Stage) -> None:
    """What every engine counted is billed, unbilled for a cause, or was never seen; nothing else."""
    for counter, wanted in (("prompt", play.tally.prompt), ("generation", play.tally.generation)):
        rows = await play.rows(
            "SELECT sum(engine) AS engine, sum(unobserved) AS unobserved, sum(abs(unexplained)) AS unexplained, "
            "sum(billed) AS billed, sum(engine_failed) AS engine_failed, sum(zero_output) AS zero_output, "
            "sum(cancelled_tail) AS cancelled_tail, sum(retried) AS retried, sum(choices) AS choices, "
            "sum(warmup) AS warmup FROM reconciliations WHERE counter = :counter",
            counter=counter,
        )
        found = rows[0]._mapping
        assert found["unexplained"] == 0
        told = {cause: int(found[cause]) for cause in CAUSES}
        made = {cause: wanted[cause] for cause in CAUSES}
        assert told == made, f"{counter}: {told} is not {made}"
        assert found["unobserved"] == wanted["unobserved"]
        assert found["engine"] + found["unobserved"] == sum(wanted[cause] for cause in CAUSES)


async def credit_is_in_lots(play: Stage) -> None:
    """Deferred revenue is what remains of the lots, lot by lot as in the model."""
    await allocate_all(play.database)
    rows = await play.rows("SELECT tenant_id, kind, amount, remaining, expires_at FROM credit_grants")
    for name, person in play.people.items():
        found = Counter((row.kind, int(row.remaining)) for row in rows if row.tenant_id == person.tenant_id)
        assert found == Counter((lot.kind, lot.remaining) for lot in person.account.lots), name
        balance = sum(int(row.remaining) for row in rows if row.tenant_id == person.tenant_id)
        assert balance == person.account.balance
    deferred = await admin_ledger.deferred_revenue(play.database, ANN, at=play.time.now())
    assert sum(_signed(line.unused_usd) for line in deferred) == sum(one.balance for one in play.accounts())


async def exports_hold(play: Stage) -> None:
    """Every scheduled file is as its manifest says; a closed month exported again is no new revision."""
    found = admin_exports.verify(play.folder / "exports" / "finance")
    assert found
    assert all(one.problems == [] for one in found)
    for definition in await admin_exports.list_exports(play.database, ANN):
        for month in MONTHS:
            again = await admin_exports.run_export(
                play.database, ANN, play.settings, name=definition.name, period=month_name(month)
            )
            assert (again.is_new, again.final) == (False, True), (definition.name, month_name(month))
