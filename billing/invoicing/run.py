"""The invoice run: makes every tenant's invoice of a month exactly once, also when run repeatedly or concurrently.

A postpaid invoice books the shortfall of the commitment, and what late usage takes back of an earlier month's
(`commit`). It moves the exact sum of its lines from receivable to invoiced (`invoice`) and books the difference to
cents (`rounding`). A prepaid invoice books nothing; it lists what credit paid for. Tenants are processed in small
transactions: after a crash the next run continues with the remaining tenants and the next number.
"""

from collections.abc import AsyncIterator, Callable
from datetime import date, datetime

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.invoicing import commitments, sources
from billing.invoicing.drafts import Draft, write_invoices
from billing.invoicing.lines import (
    Commitment,
    carried_lines,
    commit_line,
    late_commit_lines,
    movement_lines,
    total_lines,
    usage_lines,
)
from billing.invoicing.sources import ContractTerms, CustomerUsage
from billing.ledger.months import bounds, final_at, month_name
from billing.usage import rollups
from core.db import Database
from core.errors import Conflict
from core.ids import derived_uuid
from tenants.scoping import platform_wide

CHUNK = 100
"""Tenants per transaction; their accounts are locked for some tens of milliseconds."""

Progress = Callable[[int, int], None]
"""Called with the number of tenants done and their total."""


class InvoiceRun(msgspec.Struct, frozen=True):
    """The result of a run."""

    month: str
    tenants: int
    made: int
    """New invoices."""
    lines: int
    """Lines of the new invoices."""
    total_cents: int
    """Sum of the new postpaid invoices."""


async def make_invoices(database: Database, month: date, *, progress: Progress | None = None) -> InvoiceRun:
    """Make the missing invoices of `month` (its first day).

    Does nothing for a month that is closed or whose run is complete. Raises Conflict during the month and its late
    window, and while its hours are not rolled up.
    """
    async with database.read() as connection:
        if await finished_at(connection, month) is not None:
            return InvoiceRun(month_name(month), 0, 0, 0, 0)
    await rollups.roll_up(database)
    made = lines = cents = done = 0
    async with database.read() as reader:
        if not await _can_invoice(reader, month):
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
    """When the invoice run of the month was completed; None = not yet."""
    at: datetime | None = (
        await connection.execute(
            text("SELECT finished_at FROM invoice_runs WHERE month = :month"), {"month": month}
        )
    ).scalar_one_or_none()
    return at


async def _can_invoice(connection: AsyncConnection, month: date) -> bool:
    """False when the month is closed. Raises Conflict when it is not final or its rollups are not complete."""
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


async def _chunks(customers: AsyncIterator[CustomerUsage]) -> AsyncIterator[list[CustomerUsage]]:
    chunk: list[CustomerUsage] = []
    async for customer in customers:
        chunk.append(customer)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


async def _draft(connection: AsyncConnection, month: date, chunk: list[CustomerUsage]) -> list[Draft]:
    """The missing invoices of a chunk of tenants. Locks out other runs and corrections until the transaction ends."""
    await connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('penstock_invoices'))"))
    tenants = [customer.tenant_id for customer in chunk]
    invoiced = set(
        (
            await connection.execute(
                text("SELECT tenant_id FROM invoices WHERE month = :month AND tenant_id = ANY (:tenants)"),
                {"month": month, "tenants": tenants},
            )
        ).scalars()
    )
    missing = [customer for customer in chunk if customer.tenant_id not in invoiced]
    if not missing:
        return []
    tenants = [customer.tenant_id for customer in missing]
    movements = await sources.movements(connection, month, tenants)
    terms = await sources.terms(connection, month, tenants)
    carries = await sources.carries(connection, month, tenants)
    agreed = await commitments.agreed(connection, month, tenants)
    counted = await commitments.counted(connection, month, tenants)
    groups = [group for customer in missing if customer.mode == "postpaid" for group in customer.groups]
    late_usage = await commitments.late_usage(connection, month, groups)
    now: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
    drafts = []
    for customer in missing:
        tenant_id = customer.tenant_id
        postpaid = customer.mode == "postpaid"
        contract = terms.get(tenant_id, ContractTerms())
        billed_lines = [line for group in customer.groups for line in usage_lines(group)]
        # Re-rated usage counts towards the commitment at its corrected price; its adjustment is a line of its own.
        used = sum(line.exact for line in billed_lines if line.kind == "usage") + counted.get(tenant_id, 0)
        commitment = Commitment(agreed.get(tenant_id, 0) if postpaid else 0, used)
        shortfall = commit_line(commitment)
        late = late_usage.get(tenant_id, ())
        carried = carries.get(tenant_id, []) if postpaid else []
        lines = [
            *billed_lines,
            *([shortfall] if shortfall else []),
            *late_commit_lines(late),
            *(movement_lines(movements.get(tenant_id, [])) if postpaid else []),
            *carried_lines(carried),
        ]
        if lines:
            drafts.append(
                Draft(
                    id=derived_uuid("invoice", tenant_id, month),
                    tenant_id=tenant_id,
                    postpaid=postpaid,
                    totals=total_lines(lines),
                    terms=contract,
                    committed=commitment.committed,
                    shortfall=commitment.shortfall,
                    late=late,
                    carried_from=tuple(one.invoice_id for one in carried),
                    finalized_at=now,
                )
            )
    return drafts
