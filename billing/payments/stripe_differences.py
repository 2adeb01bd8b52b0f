"""How Stripe's invoices, cash and meter differ from a month of our books."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import date
from typing import Any

from sqlalchemy import Row

from billing.ledger import months
from billing.payments.invoices import INVOICE_KEY
from billing.payments.push_invoices import LINE_KEY, invoice_items
from billing.payments.stripe_books import Books, unix_bounds
from billing.payments.stripe_gateway import StripeGateway
from billing.payments.stripe_types import Invoice

CONCURRENT_CALLS = 8
"""Concurrent calls to Stripe."""
NON_CUSTOMER_TYPES = frozenset(
    {"payout", "payout_cancel", "payout_failure", "stripe_fee", "topup", "transfer"}
)
"""Types of balance transactions that belong to no customer: payouts, transfers and Stripe's own fees."""


async def _for_each(rows: Iterable[Any], work: Callable[[Any], Awaitable[None]]) -> None:
    """Run `work` for every row, CONCURRENT_CALLS at a time; the first error cancels all."""
    gate = asyncio.Semaphore(CONCURRENT_CALLS)

    async def one(row: Any) -> None:
        async with gate:
            await work(row)

    async with asyncio.TaskGroup() as group:
        for row in rows:
            group.create_task(one(row))


async def compare_invoices(gateway: StripeGateway, ours: Books, problems: list[str]) -> tuple[int, int]:
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


async def compare_cash(gateway: StripeGateway, ours: Books, month: date, problems: list[str]) -> int:
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


async def compare_meter(gateway: StripeGateway, ours: Books, month: date, problems: list[str]) -> int:
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
