"""Books an approved correction: adjustments, credit notes and a notice to each customer.

Customers are booked in chunks in the order of their ids. A chunk is one transaction, which also stores how far the
correction has come (`corrections.applied_to`): accounts are locked for a short time, and after a crash the next run
continues with the next customer.

Every booking is dated to the present. If the customer's invoice of the month is finalised, reductions become a credit
note on that invoice, by the cents that the invoice would have been lower. Everything else becomes an adjustment, which
is a line of the next invoice or prepaid credit. A reversal books the opposite of the adjustments of the correction that
it reverses; a credit note stays, and its opposite is charged on the next invoice.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence
from datetime import date
from itertools import groupby
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.invoicing.correction_lines import read_lines
from billing.invoicing.corrections import ApprovedCorrection
from billing.invoicing.credit_notes import (
    credit_cents,
    creditable_invoice,
    creditable_lines,
    issue_credit_note,
)
from billing.invoicing.lines import MINIMUM_CENTS
from billing.invoicing.rerate import COMMIT, CorrectionSpec, Difference
from billing.ledger.adjustments import adjust
from billing.ledger.months import month_name
from billing.notifications.notices import notify
from core.db import Database
from core.ids import derived_uuid
from core.money import pico_to_usd
from tenants.scoping import platform_wide

log = logging.getLogger(__name__)

CHUNK = 10
"""Customers per transaction; each keeps its account locked for about 6 ms per customer of the chunk."""


async def apply_correction(database: Database, correction_id: UUID) -> None:
    """Book an approved correction or reversal completely. Idempotent: what is booked already is skipped."""
    has_more = True
    while has_more:
        async with database.system() as connection:
            has_more = await _apply_chunk(connection, correction_id)


async def apply_all(database: Database) -> int:
    """Continue every approved correction that is not booked completely; returns their number.

    A correction that fails is logged and tried again by the next run.
    """
    async with database.read() as connection:
        found = await connection.scalars(
            text("SELECT id FROM corrections WHERE status = 'applying' ORDER BY decided_at, id")
        )
        waiting = list(found)
    for correction_id in waiting:
        try:
            await apply_correction(database, correction_id)
        except Exception:  # one failure must not block the other corrections; the next run tries again
            log.exception("the correction %s could not be booked to its end", correction_id)
    return len(waiting)


@platform_wide("a correction reaches many organisations, one after the other")
async def _apply_chunk(connection: AsyncConnection, correction_id: UUID) -> bool:
    """Book the next customers; False when none are left. The lock excludes invoice runs and other corrections."""
    await connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('penstock_invoices'))"))
    row = (
        await connection.execute(
            text("SELECT * FROM corrections WHERE id = :id AND status = 'applying' FOR UPDATE"),
            {"id": correction_id},
        )
    ).one_or_none()
    if row is None:
        return False
    tenants = list(
        await connection.scalars(
            text(
                "SELECT DISTINCT tenant_id FROM correction_lines WHERE correction_id = :id "
                "AND (CAST(:done AS uuid) IS NULL OR tenant_id > :done) ORDER BY tenant_id LIMIT :limit"
            ),
            {"id": correction_id, "done": row.applied_to, "limit": CHUNK},
        )
    )
    refund = msgspec.convert(row.spec, CorrectionSpec).refund
    correction = ApprovedCorrection(row.id, row.month, row.reason, row.requested_by, row.decided_by, refund)
    await _book_tenants(
        connection, correction, row.reverses, await read_lines(connection, row.id, tenants=tenants)
    )
    has_more = len(tenants) == CHUNK
    await connection.execute(
        text("UPDATE corrections SET status = :status, applied_to = :done WHERE id = :id"),
        {
            "status": "applying" if has_more else "approved",
            "done": tenants[-1] if tenants else row.applied_to,
            "id": correction_id,
        },
    )
    return has_more


async def _book_tenants(
    connection: AsyncConnection,
    correction: ApprovedCorrection,
    reverses: UUID | None,
    lines: Sequence[Difference],
) -> None:
    """Book tenant by tenant in the order of their ids, and notify each."""
    ordered = sorted(lines, key=lambda line: line.tenant_id)
    for tenant_id, group in groupby(ordered, key=lambda line: line.tenant_id):
        tenant_lines = list(group)
        if reverses is None:
            note = await _book_tenant(connection, correction, tenant_id, tenant_lines)
        else:
            await _book_reversal(connection, correction, tenant_id, reverses, tenant_lines)
            note = None
        await _notify_customer(
            connection, correction, tenant_id, sum(line.delta for line in tenant_lines), note
        )


async def _book_tenant(
    connection: AsyncConnection, correction: ApprovedCorrection, tenant_id: UUID, lines: list[Difference]
) -> UUID | None:
    """Book one tenant's adjustments and credit note; returns the credit note's id, None without one.

    The shortfall of an earlier month that late usage lowers is on no line of this month's invoice: it becomes an
    adjustment of its own that names its month.
    """
    for line in lines:
        if line.kind == COMMIT and line.used_in:
            part = f"commit {month_name(line.used_in)}"
            await _adjust(connection, correction, tenant_id, part, -line.delta, corrects=line.used_in)
    lines = [line for line in lines if line.kind != COMMIT or not line.used_in]
    credited = [line for line in lines if line.delta < 0]
    invoice = await creditable_invoice(connection, tenant_id, correction.month)
    cents = sum(credit_cents(line) for line in credited)
    invoice_lines = {} if invoice is None else await creditable_lines(connection, invoice)
    if (
        invoice is None
        or not 0 < cents <= invoice.total_cents - invoice.credited
        or (invoice.status == "open" and 0 < invoice.open_cents - cents < MINIMUM_CENTS)
        or not invoice_lines.keys() >= {line.key for line in credited}
    ):
        # A credit note is impossible: there is no invoice, the credit is below a cent or more than is left of the
        # invoice, it would leave less to pay than Stripe can charge, or a line has no counterpart on the invoice (after
        # usage rows are dropped, late usage cannot be told apart). The adjustment carries the whole difference.
        await _adjust(connection, correction, tenant_id, "net", -sum(line.delta for line in lines))
        return None
    charged = sum(line.delta for line in lines if line.delta > 0)
    adjustment = await _adjust(
        connection, correction, tenant_id, "credit", -sum(line.delta for line in credited)
    )
    note = await issue_credit_note(connection, correction, invoice, adjustment, credited, invoice_lines)
    await _adjust(connection, correction, tenant_id, "charge", -charged)
    return note


async def _adjust(
    connection: AsyncConnection,
    correction: ApprovedCorrection,
    tenant_id: UUID,
    part: str,
    amount: int,
    never_paid: int = 0,
    corrects: date | None = None,
) -> UUID:
    adjustment_id = derived_uuid("correction", correction.id, tenant_id, part)
    if amount:
        await adjust(
            connection,
            adjustment_id=adjustment_id,
            tenant_id=tenant_id,
            amount=amount,
            reason=correction.reason,
            created_by=correction.requested_by,
            approved_by=correction.approved_by,
            corrects=corrects or correction.month,
            facts={"correction_id": str(correction.id)},
            never_paid=never_paid,
        )
    return adjustment_id


async def _book_reversal(
    connection: AsyncConnection,
    correction: ApprovedCorrection,
    tenant_id: UUID,
    reverses: UUID,
    lines: Sequence[Difference],
) -> None:
    """Book the opposite of every adjustment of the reversed correction for the tenant, the credits first.

    The part of a charge that was uncollectible was never paid: it reverses the expense and becomes no credit. Where
    other corrections or late usage have changed a commitment's shortfall since, `lines` say what it becomes, and the
    difference is an adjustment of its own.
    """
    rows = await connection.execute(
        text(
            "SELECT id, amount, uncollectible, corrects FROM adjustments WHERE tenant_id = :tenant_id "
            "AND facts->>'correction_id' = :correction ORDER BY amount, id"
        ),
        {"tenant_id": tenant_id, "correction": str(reverses)},
    )
    for row in rows.all():
        await _adjust(
            connection,
            correction,
            tenant_id,
            f"reverse {row.id}",
            -int(row.amount),
            never_paid=int(row.uncollectible),
            corrects=row.corrects,
        )
    rest: dict[date, int] = defaultdict(int)
    for line in [*lines, *await read_lines(connection, reverses, tenants=[tenant_id])]:
        if line.kind == COMMIT:
            rest[line.used_in or correction.month] += line.delta
    for month, delta in sorted(rest.items()):
        part = f"reverse commit {month_name(month)}"
        await _adjust(connection, correction, tenant_id, part, -delta, corrects=month)


@platform_wide("each notice names its organisation")
async def _notify_customer(
    connection: AsyncConnection,
    correction: ApprovedCorrection,
    tenant_id: UUID,
    delta: int,
    note: UUID | None,
) -> None:
    """Notify the customer of the amount (`delta` in picodollars), the month, the reason and where it will appear."""
    amount = pico_to_usd(abs(delta))
    month = month_name(correction.month)
    if delta <= 0:
        subject = f"Correction of {month}: ${amount} in your favour"
    else:
        subject = f"Correction of {month}: ${amount} more"
    where = (
        "A credit note on your invoice follows."
        if note is not None
        else "You see it on your next invoice, or in your prepaid credit."
    )
    await notify(
        connection,
        tenant_id=tenant_id,
        kind="correction.applied",
        subject=subject,
        body=f"We have corrected what {month} cost by ${pico_to_usd(delta)}. Reason: {correction.reason}. {where}",
        facts={
            "correction_id": str(correction.id),
            "month": month,
            "delta_usd": pico_to_usd(delta),
            "credit_note_id": None if note is None else str(note),
        },
        key=f"correction.applied {correction.id} {tenant_id}",
    )
