"""Compares Stripe with our books for a month: invoices, payments, credit notes, cash, refunds, the meter.

A job calls Stripe outside of any transaction and stores the result. It asks Stripe only for objects that changed since
they were found equal (stripe_compared.py). The close of a month reads the newest result and requires that nothing of
the month changed since that comparison began.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, date, datetime
from typing import Any

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import bindparam

from billing.ledger import months
from billing.ledger.check_result import CheckResult
from billing.payments.invoices import INVOICE_KEY
from billing.payments.push_invoices import LINE_KEY, invoice_items
from billing.payments.stripe_compared import CallBudget, Compared
from billing.payments.stripe_gateway import StripeGateway
from billing.payments.stripe_types import Invoice
from core.db import Database
from core.ids import uuid7
from core.money import PICO_PER_CENT, pico_to_usd
from tenants.scoping import platform_wide

CONCURRENT_CALLS = 8
"""Concurrent calls to Stripe."""
MAX_PROBLEMS = 200
"""Problems stored of one comparison."""
NON_CUSTOMER_TYPES = frozenset(
    {"payout", "payout_cancel", "payout_failure", "stripe_fee", "topup", "transfer"}
)
"""Types of balance transactions that belong to no customer: payouts, transfers and Stripe's own fees."""


class Reconciliation(msgspec.Struct, frozen=True):
    """The result of a comparison."""

    month: date
    began_at: datetime
    at: datetime
    """When it ended."""
    ok: bool
    """Whether everything was compared and there were no problems."""
    invoices: int
    """Invoices of our books in the comparison."""
    invoiced_usd: str
    """As Stripe has it."""
    paid_usd: str
    """As Stripe has it."""
    movements: int
    """Balance transactions of Stripe in the month."""
    metered_tokens: int
    """Tokens in Stripe's meter."""
    problems: list[str]
    """The first MAX_PROBLEMS differences."""
    waiting: int = 0
    """Objects that the budget of calls left for a later comparison."""


class _Books(msgspec.Struct):
    """A month's figures from our books."""

    began_at: datetime
    invoices: list[Row[Any]]
    lines: dict[str, dict[str, int]]
    cash: dict[str, Row[Any]]
    tokens: list[Row[Any]]
    meter_id: str | None
    problems: list[str]
    compared: Compared
    budget: CallBudget
    waiting: int = 0

    def may_ask(self, calls: int) -> bool:
        """Whether an object may be asked for with `calls` calls; otherwise it is counted as waiting."""
        allowed = self.budget.take(calls)
        self.waiting += not allowed
        return allowed


def unix_bounds(month: date) -> tuple[int, int]:
    """Unix seconds of a UTC month's start and end."""
    start, end = months.bounds(month)
    return int(start.timestamp()), int(end.timestamp())


async def compare_month(
    database: Database,
    gateway: StripeGateway,
    month: date,
    *,
    only_changed: bool = False,
    budget: CallBudget | None = None,
) -> Reconciliation:
    """Compare `month` (its first day) with Stripe and store the result. Raises Unavailable without an answer.

    With `only_changed`, objects that were found equal and have not changed count with the figures of then. `budget`
    bounds the calls of Stripe, where a list counts as one; None = no bound. When it leaves objects waiting and no
    problem was found, no result is stored: the next comparison with `only_changed` goes on with them.
    """
    async with database.read() as connection:
        ours = await _read(connection, month, budget or CallBudget(), only_changed=only_changed)
    problems = ours.problems
    invoiced, paid = await _invoices(gateway, ours, problems)
    movements = await _cash(gateway, ours, month, problems)
    tokens = await _meter(gateway, ours, month, problems)
    async with database.system() as connection:
        found = Reconciliation(
            month=month,
            began_at=ours.began_at,
            at=datetime.now(UTC),
            ok=not problems and not ours.waiting,
            invoices=len(ours.invoices),
            invoiced_usd=pico_to_usd(invoiced * PICO_PER_CENT),
            paid_usd=pico_to_usd(paid * PICO_PER_CENT),
            movements=movements,
            metered_tokens=tokens,
            problems=problems[:MAX_PROBLEMS],
            waiting=ours.waiting,
        )
        if found.ok or problems:
            await _store(connection, found)
        await ours.compared.store(connection, month)
    return found


async def _store(connection: AsyncConnection, found: Reconciliation) -> None:
    statement = text(
        "INSERT INTO stripe_reconciliations (id, month, began_at, ok, facts) VALUES (:id, :month, :began, :ok, :facts)"
    ).bindparams(bindparam("facts", type_=JSONB))
    await connection.execute(
        statement,
        {
            "id": uuid7(),
            "month": found.month,
            "began": found.began_at,
            "ok": found.ok,
            "facts": msgspec.to_builtins(found),
        },
    )


_INVOICES = """
    SELECT i.id::text AS id, i.tenant_id, i.status, i.number, i.total_cents, i.stripe_invoice_id,
        extract(epoch FROM i.created_at)::bigint AS created,
        (SELECT max(e.received_at) FROM stripe_events e WHERE e.object_id = i.stripe_invoice_id) AS changed_at,
        (SELECT coalesce(sum(p.cents), 0) FROM stripe_payments p WHERE p.invoice_id = i.id)::bigint AS paid,
        (SELECT coalesce(sum(r.cents), 0) FROM stripe_refunds r JOIN stripe_payments p USING (payment_intent)
            WHERE p.invoice_id = i.id AND r.status = 'succeeded')::bigint AS refunded,
        (SELECT coalesce(sum(n.cents), 0) FROM credit_notes n WHERE n.invoice_id = i.id AND n.status <> 'void')::bigint
            AS credited
    FROM invoices i WHERE i.month = :month AND i.kind = 'postpaid' AND i.total_cents > 0
        AND i.status NOT IN ('draft', 'settled') ORDER BY i.id
"""
_LINES = """
    SELECT l.invoice_id::text AS invoice_id, l.id::text AS id, l.cents FROM invoice_lines l
    JOIN invoices i ON i.id = l.invoice_id WHERE i.month = :month AND i.kind = 'postpaid'
"""
_TOKENS = """
    SELECT u.tenant_id, c.customer_id, sum(u.input_tokens + u.output_tokens)::bigint AS tokens
    FROM usage_hours u LEFT JOIN stripe_customers c ON c.tenant_id = u.tenant_id
    WHERE u.hour >= to_timestamp(:start) AND u.hour < to_timestamp(:end)
    GROUP BY u.tenant_id, c.customer_id HAVING sum(u.input_tokens + u.output_tokens) > 0
"""
_PROBLEM_QUERIES = {
    "an event of Stripe is not applied": """
        SELECT id || ' ' || type || coalesce(': ' || error, '') FROM stripe_events WHERE applied_at IS NULL
            AND created_at < to_timestamp(:end) AND received_at < now() - interval '5 minutes' LIMIT 20""",
    "blocked": """
        SELECT p.kind || ' ' || p.object_id || coalesce(': ' || p.error, '') FROM stripe_pushes p
        LEFT JOIN credit_notes n ON p.kind = 'credit_note' AND n.id = p.object_id
        JOIN invoices i ON i.id = coalesce(n.invoice_id, p.object_id)
        WHERE p.status = 'blocked' AND i.month = :month LIMIT 20""",
    "a credit note is not in Stripe": """
        SELECT n.id::text FROM credit_notes n JOIN invoices i ON i.id = n.invoice_id
        WHERE i.month = :month AND n.status = 'issued' LIMIT 20""",
    "a refund is not sent": """
        SELECT id::text FROM stripe_refunds WHERE status = 'requested' AND created_at < to_timestamp(:end)
            AND created_at < now() - interval '1 day' LIMIT 20""",
    "tokens are too old for the meter": """
        SELECT tenant_id || ' ' || hour FROM stripe_meter_events WHERE state = 'too_old'
            AND hour >= to_timestamp(:start) AND hour < to_timestamp(:end) LIMIT 20""",
    "the ledger's cash is not what Stripe moved": """
        SELECT format('ledger %s, Stripe %s, on its way %s, past Stripe %s (cents)', l.cents, s.cents, w.cents,
            o.cents + g.cents)
        FROM (SELECT coalesce(sum(m.debit - m.credit), 0) / 10000000000 AS cents FROM penstock_ledger_sums() m
                JOIN ledger_accounts a ON a.id = m.account WHERE a.code = 'cash') l,
            (SELECT coalesce(sum(cents - fee_cents), 0) AS cents FROM stripe_cash) s,
            (SELECT coalesce(sum(r.cents), 0) AS cents FROM stripe_refunds r WHERE NOT EXISTS (
                SELECT 1 FROM stripe_cash m WHERE m.object_id = r.refund_id) AND r.status <> 'failed') w,
            (SELECT coalesce(sum(p.cents), 0) AS cents FROM stripe_payments p WHERE NOT EXISTS (
                SELECT 1 FROM stripe_cash m WHERE m.object_id = p.payment_intent)) o,
            (SELECT coalesce(sum(t.amount), 0) / 10000000000 AS cents FROM ledger_transfers t
                JOIN credit_grants c ON c.id = t.source_id
                WHERE t.kind = 'purchase' AND c.created_by <> 'stripe') g
        WHERE l.cents <> s.cents - w.cents + o.cents + g.cents""",
}
"""Queries whose rows are problems, by the message of the problem."""


@platform_wide("a month's books are those of every organisation")
async def _read(
    connection: AsyncConnection, month: date, budget: CallBudget, *, only_changed: bool
) -> _Books:
    start, end = unix_bounds(month)
    began = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
    invoices = (await connection.execute(text(_INVOICES), {"month": month})).all()
    lines: dict[str, dict[str, int]] = {}
    for row in await connection.execute(text(_LINES), {"month": month}):
        lines.setdefault(row.invoice_id, {})[row.id] = row.cents
    cash = await connection.execute(
        text(
            "SELECT txn_id, cents, fee_cents, object_id FROM stripe_cash "
            "WHERE at >= to_timestamp(:start) AND at < to_timestamp(:end)"
        ),
        {"start": start, "end": end},
    )
    tokens = (await connection.execute(text(_TOKENS), {"start": start, "end": end})).all()
    meter_id = (await connection.execute(text("SELECT meter_id FROM stripe_state"))).scalar_one()
    problems = []
    for meaning, statement in _PROBLEM_QUERIES.items():
        wanted = {"month": month, "start": start, "end": end}
        params = {name: value for name, value in wanted.items() if f":{name}" in statement}
        problems += [f"{meaning}: {row[0]}" for row in await connection.execute(text(statement), params)]
    compared = await Compared.load(connection, month, began, only_changed=only_changed)
    return _Books(
        began,
        list(invoices),
        lines,
        {row.txn_id: row for row in cash},
        list(tokens),
        meter_id,
        problems,
        compared,
        budget,
    )


async def _for_each(rows: Iterable[Any], work: Callable[[Any], Awaitable[None]]) -> None:
    """Run `work` for every row, CONCURRENT_CALLS at a time; the first error cancels all."""
    gate = asyncio.Semaphore(CONCURRENT_CALLS)

    async def one(row: Any) -> None:
        async with gate:
            await work(row)

    async with asyncio.TaskGroup() as group:
        for row in rows:
            group.create_task(one(row))


async def _invoices(gateway: StripeGateway, ours: _Books, problems: list[str]) -> tuple[int, int]:
    """Compare every invoice by status, amounts and lines; returns the cents invoiced and paid as Stripe has them."""
    sums = [0, 0]

    async def check(row: Row[Any]) -> None:
        if row.stripe_invoice_id is None and row.status in ("void", "uncollectible"):
            return  # it ended here before it was sent
        if row.stripe_invoice_id is None:
            problems.append(f"invoice {row.number} is not in Stripe")
            return
        lines = ours.lines.get(row.id, {})
        mine = [
            row.status,
            row.total_cents,
            row.paid,
            row.refunded,
            row.credited,
            row.stripe_invoice_id,
            lines,
        ]
        known = ours.compared.figures("invoice", row.id, mine, row.changed_at)
        if known is None:
            if not ours.may_ask(2):
                return
            found = await gateway.invoice(row.stripe_invoice_id)
            known = (found.total_cents, found.paid_cents)
            differences = await _invoice_differences(gateway, row, found, lines)
            problems.extend(differences)
            if differences:
                ours.compared.different("invoice", row.id)
            else:
                ours.compared.equal("invoice", row.id, mine, known)
        sums[0] += known[0]
        sums[1] += known[1]

    await _for_each(ours.invoices, check)
    return sums[0], sums[1]


async def _invoice_differences(
    gateway: StripeGateway, row: Row[Any], found: Invoice, lines: dict[str, int]
) -> list[str]:
    """How our invoice differs from Stripe's, whose lines are fetched."""
    facts: dict[str, tuple[Any, Any]] = {
        "status": (_status(row, found), found.status),
        "total": (row.total_cents, found.total_cents),
        "paid": (row.paid, found.paid_cents),
        "credited": (row.credited, found.credited_cents),
        "id": (row.id, found.metadata.get(INVOICE_KEY)),
    }
    sent = await gateway.invoice_lines(row.stripe_invoice_id)
    have = {line.metadata.get(LINE_KEY, line.id): line.cents for line in sent}
    items = invoice_items((identity, cents, "") for identity, cents in lines.items())
    facts["lines"] = ({item.key: item.cents for item in items}, have)
    differences = []
    for name, (mine, theirs) in facts.items():
        if mine != theirs:
            detail = "differ" if name == "lines" else f"{mine} here, {theirs} in Stripe"
            differences.append(f"invoice {row.number}: {name} {detail}")
    return differences


def _status(ours: Row[Any], theirs: Invoice) -> str:
    """The status that Stripe should have. A void invoice that was paid before Stripe voided it stays paid there; it is
    correct once the payment is refunded completely."""
    if ours.status == "void" and theirs.status == "paid" and 0 < theirs.paid_cents == ours.refunded:
        return "paid"
    return str(ours.status)


async def _cash(gateway: StripeGateway, ours: _Books, month: date, problems: list[str]) -> int:
    """Compare the month's balance transactions with stripe_cash; returns the number of Stripe's.

    Stripe dates a transaction when it makes it: the list of a month is final soon after the month's end.
    """
    mine = sorted(tuple(row) for row in ours.cash.values())
    known = ours.compared.figures("cash", "", mine, months.final_at(month))
    if known is not None:
        return known[0]
    if not ours.may_ask(1):
        return 0
    differences = []
    theirs = {move.id: move for move in await gateway.balance_transactions(*unix_bounds(month))}
    for identity, move in theirs.items():
        row = ours.cash.get(identity)
        if row is None and move.type not in NON_CUSTOMER_TYPES:
            differences.append(
                f"Stripe moved {move.cents} cents ({identity}, {move.source}) and we did not book it"
            )
        elif row is not None and (row.cents, row.fee_cents) != (move.cents, move.fee_cents):
            differences.append(
                f"{identity}: {row.cents} less {row.fee_cents} here, {move.cents} less {move.fee_cents}"
            )
    for identity, row in ours.cash.items():
        if identity not in theirs:
            differences.append(f"we booked {identity} of {row.object_id}, which Stripe does not list")
    problems.extend(differences)
    if differences:
        ours.compared.different("cash", "")
    else:
        ours.compared.equal("cash", "", mine, [len(theirs)])
    return len(theirs)


async def _meter(gateway: StripeGateway, ours: _Books, month: date, problems: list[str]) -> int:
    """Compare tokens per customer with the meter; returns the meter's tokens."""
    start, end = unix_bounds(month)
    total = [0]

    async def check(row: Row[Any]) -> None:
        mine, theirs, who = [row.tokens, row.customer_id, ours.meter_id], 0, str(row.tenant_id)
        known = ours.compared.figures("meter", who, mine)
        if known is not None:
            total[0] += known[0]
            return
        if row.customer_id is not None and ours.meter_id is not None:
            if not ours.may_ask(1):
                return
            sums = await gateway.meter_event_summaries(ours.meter_id, row.customer_id, start, end)
            theirs = sum(one.tokens for one in sums)
        total[0] += theirs
        if theirs == row.tokens:
            ours.compared.equal("meter", who, mine, [theirs])
        else:
            ours.compared.different("meter", who)
            problems.append(f"tokens of {row.tenant_id}: {row.tokens} here, {theirs} in the meter")

    await _for_each(ours.tokens, check)
    return total[0]


_CHANGED = """
    SELECT greatest(
        (SELECT max(greatest(created_at, finalized_at)) FROM invoices WHERE month = :month),
        (SELECT max(p.paid_at) FROM stripe_payments p JOIN invoices i ON i.id = p.invoice_id WHERE i.month = :month),
        (SELECT max(greatest(r.created_at, r.ended_at)) FROM stripe_refunds r JOIN stripe_payments p
            USING (payment_intent) JOIN invoices i ON i.id = p.invoice_id WHERE i.month = :month),
        (SELECT max(n.created_at) FROM credit_notes n JOIN invoices i ON i.id = n.invoice_id WHERE i.month = :month),
        (SELECT max(p.updated_at) FROM stripe_pushes p LEFT JOIN credit_notes n ON n.id = p.object_id
            JOIN invoices i ON i.id = coalesce(n.invoice_id, p.object_id) WHERE i.month = :month),
        (SELECT max(booked_at) FROM stripe_cash WHERE at >= to_timestamp(:start) AND at < to_timestamp(:end)),
        (SELECT max(greatest(created_at, sent_at)) FROM stripe_meter_events
            WHERE hour >= to_timestamp(:start) AND hour < to_timestamp(:end))) AS changed,
        (SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM usage_hours
            WHERE hour >= to_timestamp(:start) AND hour < to_timestamp(:end)) AS tokens
"""


@platform_wide("a month is closed for every organisation")
async def stripe_equal(connection: AsyncConnection, month: date) -> CheckResult:
    """A check of the close: the newest comparison found no problem, and the month did not change since it began."""
    name = "stripe_equal"
    newest = (
        await connection.execute(
            text(
                "SELECT began_at, ok, facts FROM stripe_reconciliations WHERE month = :month ORDER BY at DESC LIMIT 1"
            ),
            {"month": month},
        )
    ).one_or_none()
    start, end = unix_bounds(month)
    now = (await connection.execute(text(_CHANGED), {"month": month, "start": start, "end": end})).one()
    command = f"run `penstock payments reconcile {month:%Y-%m}`"
    used = (await connection.execute(text("SELECT used_since FROM stripe_state"))).scalar_one()
    if newest is None:
        if used is None or (now.changed is None and not now.tokens):
            return CheckResult(name, True, "nothing of this month concerns Stripe")
        return CheckResult(name, False, f"not compared yet: {command}")
    if not newest.ok:
        problems = newest.facts["problems"]
        return CheckResult(name, False, f"{len(problems)} differences, first: {problems[0]}; then {command}")
    if (now.changed is not None and now.changed >= newest.began_at) or now.tokens != newest.facts[
        "metered_tokens"
    ]:
        return CheckResult(name, False, f"the month changed after the comparison: {command}")
    facts = newest.facts
    return CheckResult(
        name,
        True,
        f"{facts['invoices']} invoices over ${facts['invoiced_usd']}, ${facts['paid_usd']} paid, "
        f"{facts['movements']} movements, {facts['metered_tokens']} tokens",
    )


async def list_latest(connection: AsyncConnection, limit: int = 20) -> list[Reconciliation]:
    """At most `limit` comparisons, newest first."""
    rows = await connection.execute(
        text("SELECT facts, at FROM stripe_reconciliations ORDER BY at DESC LIMIT :limit"), {"limit": limit}
    )
    return [msgspec.convert(row.facts, Reconciliation) for row in rows]


@platform_wide("a job compares the months of the platform")
async def months_to_compare(connection: AsyncConnection) -> list[date]:
    """Past, open months that have invoices."""
    rows = await connection.execute(
        text(
            "SELECT DISTINCT i.month FROM invoices i WHERE NOT EXISTS (SELECT 1 FROM billing_periods p "
            "WHERE p.month = i.month AND p.status = 'closed') AND i.month < date_trunc('month', now(), 'UTC') "
            "ORDER BY i.month"
        )
    )
    return [row.month for row in rows]
