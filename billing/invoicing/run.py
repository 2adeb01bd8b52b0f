"""The invoice run: every tenant's invoice of a month, made once, however often and by however many it is run.

A postpaid invoice books what the contract's commitment still lacks (`commit`), moves the exact sum of its lines from
receivable to invoiced (`invoice`) and the difference to whole cents (`rounding`). A prepaid one books nothing: it shows
what the customer's credit paid for. Tenants are done in small transactions: a run that is killed leaves whole invoices
behind, and the next one goes on with the rest and the next number.
"""

from collections.abc import AsyncIterator, Callable
from datetime import date, datetime

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.invoicing import sources
from billing.invoicing.lines import carried_lines, close, commit_line, movement_lines, usage_lines
from billing.invoicing.sources import Customer, Terms
from billing.invoicing.writing import Draft, write_invoices
from billing.ledger.months import bounds, final_at, month_name
from billing.usage import rollups
from core.db import Database
from core.errors import Conflict
from core.ids import derived_uuid
from tenants.scoping import platform_wide

CHUNK = 100
"""Tenants of one transaction: their accounts are locked while it books, some tens of milliseconds."""

Progress = Callable[[int, int], None]
"""Told how many of how many tenants are done."""


class InvoiceRun(msgspec.Struct, frozen=True):
    """What a run did."""

    month: str
    tenants: int
    made: int
    """Invoices that are new; the others were there already."""
    lines: int
    total_cents: int
    """Of the new invoices that are to be paid."""


async def make_invoices(database: Database, month: date, *, progress: Progress | None = None) -> InvoiceRun:
    """Make the missing invoices of `month`. Raises Conflict while usage can still reach it.

    A month whose run has come to its end, or that is closed, has all its invoices: nothing is looked at again.
    """
    async with database.read() as connection:
        if await finished_at(connection, month) is not None:
            return InvoiceRun(month_name(month), 0, 0, 0, 0)
    await rollups.roll_up(database)
    made = lines = cents = done = 0
    async with database.read() as reader:
        if not await _ready(reader, month):
            return InvoiceRun(month_name(month), 0, 0, 0, 0)
        total = await _count_tenants(reader)
        async for chunk in _chunks(sources.customers(reader, month)):
            async with database.system() as connection:
                drafts = await _draft(connection, month, chunk)
                await write_invoices(connection, month, drafts)
            made += len(drafts)
            lines += sum(len(draft.totals.lines) for draft in drafts)
            cents += sum(draft.totals.cents for draft in drafts if draft.postpaid)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
    async with database.system() as connection:
        await connection.execute(
            text("INSERT INTO invoice_runs (month) VALUES (:month) ON CONFLICT DO NOTHING"), {"month": month}
        )
    return InvoiceRun(month_name(month), done, made, lines, cents)


async def finished_at(connection: AsyncConnection, month: date) -> datetime | None:
    """When the invoice run of the month came to its end; None = it did not yet."""
    at: datetime | None = (
        await connection.execute(
            text("SELECT finished_at FROM invoice_runs WHERE month = :month"), {"month": month}
        )
    ).scalar_one_or_none()
    return at


async def _ready(connection: AsyncConnection, month: date) -> bool:
    """False when the month is closed. Raises Conflict when it is not over, or its rollups are not whole."""
    start, end = bounds(month)
    row = (
        await connection.execute(
            text(
                "SELECT clock_timestamp() AS now, penstock_is_closed(:start) AS closed, "
                "(SELECT count(*) FROM dirty_hours WHERE hour >= :start AND hour < :end) AS marks"
            ),
            {"start": start, "end": end},
        )
    ).one()
    if row.closed:
        return False
    if row.now < final_at(month):
        raise Conflict(
            f"the invoices of {month_name(month)} can be made from {final_at(month).isoformat()} on: "
            "until then its usage may still arrive",
            param="month",
        )
    if row.marks:
        raise Conflict(
            f"hours of {month_name(month)} are not rolled up yet; try again in a minute", param="month"
        )
    return True


@platform_wide("the invoice run covers every organisation")
async def _count_tenants(connection: AsyncConnection) -> int:
    return int((await connection.execute(text("SELECT count(*) FROM billing_accounts"))).scalar_one())


async def _chunks(customers: AsyncIterator[Customer]) -> AsyncIterator[list[Customer]]:
    chunk: list[Customer] = []
    async for customer in customers:
        chunk.append(customer)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


async def _draft(connection: AsyncConnection, month: date, chunk: list[Customer]) -> list[Draft]:
    """The missing invoices of some tenants. One run at a time writes; the lock ends with the transaction."""
    await connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('penstock_invoices'))"))
    tenants = [customer.tenant_id for customer in chunk]
    have = set(
        (
            await connection.execute(
                text("SELECT tenant_id FROM invoices WHERE month = :month AND tenant_id = ANY (:tenants)"),
                {"month": month, "tenants": tenants},
            )
        ).scalars()
    )
    missing = [customer for customer in chunk if customer.tenant_id not in have]
    if not missing:
        return []
    tenants = [customer.tenant_id for customer in missing]
    movements = await sources.movements(connection, month, tenants)
    terms = await sources.terms(connection, month, tenants)
    carries = await sources.carries(connection, month, tenants)
    corrected = await sources.corrected(connection, month, tenants)
    now: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
    drafts = []
    for customer in missing:
        tenant_id = customer.tenant_id
        postpaid = customer.mode == "postpaid"
        agreed = terms.get(tenant_id, Terms())
        used = [line for group in customer.groups for line in usage_lines(group)]
        # What was re-rated already counts at its right price; the adjustment for it is a line of its own.
        worth = sum(line.exact for line in used) + corrected.get(tenant_id, 0)
        committed = commit_line(agreed.committed, worth) if postpaid else None
        carried = carries.get(tenant_id, []) if postpaid else []
        lines = [
            *used,
            *([committed] if committed else []),
            *(movement_lines(movements.get(tenant_id, [])) if postpaid else []),
            *carried_lines(carried),
        ]
        if lines:
            drafts.append(
                Draft(
                    id=derived_uuid("invoice", tenant_id, month),
                    tenant_id=tenant_id,
                    postpaid=postpaid,
                    totals=close(lines),
                    terms=agreed,
                    committed=0 if committed is None else committed.exact,
                    carried_from=tuple(one.invoice_id for one in carried),
                    finalized_at=now,
                )
            )
    return drafts
