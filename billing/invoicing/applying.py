"""What follows when a correction is approved: adjustments, credit notes, bookings and a word to each customer.

Some customers at a time, in the order of their ids, each chunk a transaction with the note of how far it has come: so
nobody's account stays locked for long, and after a crash the next one goes on with whoever is next, each exactly once.

Everything is booked in the present. A customer whose invoice of the month is finalised gets what is in its favour as a
credit note on that invoice, to the cent that the invoice would have been lower by; everything else is an adjustment:
a line of the next invoice, or prepaid credit. A reversal mirrors the adjustments of the correction it undoes; a credit
note stays what it is, and the opposite is charged on the next invoice.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from itertools import groupby
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.invoicing.correction_lines import read_lines
from billing.invoicing.lines import CLASSES
from billing.invoicing.rerate import Difference, Key, Spec
from billing.invoicing.writing import Booking, book_all, rounding
from billing.ledger.adjustments import adjust
from billing.ledger.months import month_name
from billing.ledger.transfers import booking_errors
from billing.notifications.notices import notify
from core.db import Database
from core.ids import derived_uuid
from core.money import PICO_PER_CENT, pico_to_usd, round_to_cents
from core.outbox import enqueue
from tenants.scoping import platform_wide

log = logging.getLogger(__name__)

CHUNK = 10
"""Customers of one transaction: their accounts are locked while it books, about 6 ms each."""


class Decision(msgspec.Struct, frozen=True):
    """An approved correction and the people behind it."""

    id: UUID
    month: date
    reason: str
    requested_by: str
    approved_by: str
    refund: bool = False


async def apply_correction(database: Database, correction_id: UUID) -> None:
    """Book an approved correction, or the reversal of one, to its end; whatever is booked already stays as it is."""
    going = True
    while going:
        async with database.system() as connection:
            going = await _apply_chunk(connection, correction_id)


async def apply_all(database: Database) -> int:
    """The job: go on with what was approved and is not booked to its end; returns how many corrections that were."""
    async with database.read() as connection:
        found = await connection.scalars(
            text("SELECT id FROM corrections WHERE status = 'applying' ORDER BY decided_at, id")
        )
        waiting = list(found)
    for correction_id in waiting:
        try:
            await apply_correction(database, correction_id)
        except Exception:  # the others must not wait for it; the next run tries again
            log.exception("the correction %s could not be booked to its end", correction_id)
    return len(waiting)


@platform_wide("a correction reaches many organisations, one after the other")
async def _apply_chunk(connection: AsyncConnection, correction_id: UUID) -> bool:
    """Book the next customers; False when that were the last. No invoice run and no other correction beside it."""
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
    refund = msgspec.convert(row.spec, Spec).refund
    decision = Decision(row.id, row.month, row.reason, row.requested_by, row.decided_by, refund)
    await _apply(connection, decision, row.reverses, await read_lines(connection, row.id, tenants=tenants))
    going = len(tenants) == CHUNK
    await connection.execute(
        text("UPDATE corrections SET status = :status, applied_to = :done WHERE id = :id"),
        {
            "status": "applying" if going else "approved",
            "done": tenants[-1] if tenants else row.applied_to,
            "id": correction_id,
        },
    )
    return going


async def _apply(
    connection: AsyncConnection, decision: Decision, reverses: UUID | None, lines: Sequence[Difference]
) -> None:
    """Book tenant by tenant, in the order of their ids."""
    ordered = sorted(lines, key=lambda line: line.tenant_id)
    for tenant_id, group in groupby(ordered, key=lambda line: line.tenant_id):
        mine = list(group)
        if reverses is None:
            note = await _correct(connection, decision, tenant_id, mine)
        else:
            await _mirror(connection, decision, tenant_id, reverses)
            note = None
        await _tell(connection, decision, tenant_id, sum(line.delta for line in mine), note)


async def _correct(
    connection: AsyncConnection, decision: Decision, tenant_id: UUID, lines: list[Difference]
) -> UUID | None:
    """Adjustments of one tenant; returns its credit note, if it gets one."""
    credited = [line for line in lines if line.delta < 0]
    invoice = await _finalised(connection, tenant_id, decision.month)
    cents = sum(_credit_cents(line) for line in credited)
    billed = {} if invoice is None else await _billed(connection, invoice)
    if (
        invoice is None
        or not 0 < cents <= invoice.total_cents - invoice.credited
        or not billed.keys() >= {line.key for line in credited}
    ):
        # Nothing to credit against, less than a cent, more than is left of the invoice, or usage that is on another
        # line there (which was late cannot be told any more when the rows are dropped): carried by the adjustment.
        await _adjust(connection, decision, tenant_id, "net", -sum(line.delta for line in lines))
        return None
    charged = sum(line.delta for line in lines if line.delta > 0)
    adjustment = await _adjust(
        connection, decision, tenant_id, "credit", -sum(line.delta for line in credited)
    )
    note = await _credit_note(connection, decision, invoice, adjustment, credited, billed)
    await _adjust(connection, decision, tenant_id, "charge", -charged)
    return note


def _credit_cents(line: Difference) -> int:
    """By how many cents the invoice line would have been lower."""
    return round_to_cents(line.old_exact) - round_to_cents(line.new_exact)


async def _adjust(
    connection: AsyncConnection,
    decision: Decision,
    tenant_id: UUID,
    part: str,
    amount: int,
    never_paid: int = 0,
) -> UUID:
    adjustment_id = derived_uuid("correction", decision.id, tenant_id, part)
    if amount:
        await adjust(
            connection,
            adjustment_id=adjustment_id,
            tenant_id=tenant_id,
            amount=amount,
            reason=decision.reason,
            created_by=decision.requested_by,
            approved_by=decision.approved_by,
            corrects=decision.month,
            facts={"correction_id": str(decision.id)},
            never_paid=never_paid,
        )
    return adjustment_id


async def _mirror(connection: AsyncConnection, decision: Decision, tenant_id: UUID, reverses: UUID) -> None:
    """The opposite of every adjustment that the reversed correction made for the tenant: what credits first.

    What such a charge could not collect was never paid, so it comes back from the expense and not as credit.
    """
    rows = await connection.execute(
        text(
            "SELECT id, amount, uncollectible FROM adjustments WHERE tenant_id = :tenant_id "
            "AND facts->>'correction_id' = :correction ORDER BY amount, id"
        ),
        {"tenant_id": tenant_id, "correction": str(reverses)},
    )
    for row in rows.all():
        never_paid = int(row.uncollectible)
        await _adjust(connection, decision, tenant_id, f"reverse {row.id}", -int(row.amount), never_paid)


async def _finalised(connection: AsyncConnection, tenant_id: UUID, month: date) -> Row[Any] | None:
    """The tenant's postpaid invoice of the month that something can be credited on, with what was credited so far."""
    row: Row[Any] | None = (
        await connection.execute(
            text(
                "SELECT i.id, i.tenant_id, i.number, i.status, i.total_cents, (SELECT coalesce(sum(n.cents), 0) "
                "FROM credit_notes n WHERE n.invoice_id = i.id AND n.status <> 'void') AS credited FROM invoices i "
                "WHERE i.tenant_id = :tenant_id AND i.month = :month AND i.kind = 'postpaid' "
                "AND i.status IN ('open', 'paid') FOR UPDATE"
            ),
            {"tenant_id": tenant_id, "month": month},
        )
    ).one_or_none()
    return row


async def _credit_note(
    connection: AsyncConnection,
    decision: Decision,
    invoice: Row[Any],
    adjustment_id: UUID,
    lines: Sequence[Difference],
    billed: Mapping[Key, Row[Any]],
) -> UUID:
    """Write and book a credit note, and leave word for Stripe.

    The adjustment has lowered what the customer owes; the note takes that off the invoice: receivable -> invoiced, in
    the same month as the adjustment, so that no later invoice shows it again.
    """
    note_id = derived_uuid("credit note", decision.id, invoice.tenant_id)
    exact = -sum(line.delta for line in lines)
    cents = sum(map(_credit_cents, lines))
    pays = "invoice" if invoice.status == "open" else "refund" if decision.refund else "balance"
    await connection.execute(
        text(
            "INSERT INTO credit_notes (id, invoice_id, tenant_id, reason, exact, cents, pays, correction_id, "
            "adjustment_id, created_at) VALUES (:id, :invoice, :tenant_id, :reason, :exact, :cents, :pays, "
            ":correction, :adjustment, clock_timestamp())"
        ),
        {
            "id": note_id,
            "invoice": invoice.id,
            "tenant_id": invoice.tenant_id,
            "reason": decision.reason,
            "exact": exact,
            "cents": cents,
            "pays": pays,
            "correction": decision.id,
            "adjustment": adjustment_id,
        },
    )
    await _note_lines(connection, note_id, invoice, lines, billed)
    await _book_note(
        connection, note_id, invoice.tenant_id, adjustment_id, exact=exact, cents=cents, pays=pays
    )
    if pays == "invoice" and invoice.credited + cents == invoice.total_cents:
        await connection.execute(
            text(
                "UPDATE invoices SET status = 'paid', paid_at = clock_timestamp() "
                "WHERE id = :id AND tenant_id = :tenant_id"
            ),
            {"id": invoice.id, "tenant_id": invoice.tenant_id},
        )
    await enqueue(connection, "stripe.push_credit_note", {"credit_note_id": str(note_id)})
    return note_id


async def _billed(connection: AsyncConnection, invoice: Row[Any]) -> dict[Key, Row[Any]]:
    """The lines of an invoice that a correction can be about."""
    found = await connection.execute(
        text(
            "SELECT id, kind, model, class AS token_class, tier, coalesce(price_version, 0) AS price_version, "
            "description FROM invoice_lines WHERE invoice_id = :invoice AND tenant_id = :tenant_id "
            "AND (class = ANY (:classes) OR kind = 'commit')"
        ),
        {"invoice": invoice.id, "tenant_id": invoice.tenant_id, "classes": list(CLASSES)},
    )
    return {
        Key(invoice.tenant_id, row.kind, row.model, row.token_class, row.tier, row.price_version): row
        for row in found
    }


async def _note_lines(
    connection: AsyncConnection,
    note_id: UUID,
    invoice: Row[Any],
    lines: Sequence[Difference],
    billed: Mapping[Key, Row[Any]],
) -> None:
    """One line per corrected line of the invoice."""
    await connection.execute(
        text(
            "INSERT INTO credit_note_lines (id, credit_note_id, tenant_id, invoice_line_id, exact, cents, description) "
            "VALUES (:id, :note, :tenant_id, :line, :exact, :cents, :description)"
        ),
        [
            {
                "id": derived_uuid("credit note line", note_id, position),
                "note": note_id,
                "tenant_id": invoice.tenant_id,
                "line": billed[line.key].id,
                "exact": -line.delta,
                "cents": _credit_cents(line),
                "description": f"Credit: {billed[line.key].description}",
            }
            for position, line in enumerate(lines, 1)
        ],
    )


async def _book_note(
    connection: AsyncConnection,
    note_id: UUID,
    tenant_id: UUID,
    adjustment_id: UUID,
    *,
    exact: int,
    cents: int,
    pays: str,
) -> None:
    at: datetime = (
        await connection.execute(
            text(
                "SELECT effective_at FROM ledger_transfers WHERE source_id = :id AND tenant_id = :tenant_id "
                "AND kind = 'adjustment'"
            ),
            {"id": adjustment_id, "tenant_id": tenant_id},
        )
    ).scalar_one()
    bookings = [
        Booking("credit_note", tenant_id, "receivable", "invoiced", exact, note_id, at),
        *rounding("credit_note_rounding", tenant_id, note_id, exact=-exact, cents=-cents),
    ]
    if pays == "refund":
        bookings.append(
            Booking("credit_note_refund", tenant_id, "invoiced", "cash", cents * PICO_PER_CENT, note_id, at)
        )
    with booking_errors():
        await book_all(connection, bookings)


@platform_wide("each notice names its organisation")
async def _tell(
    connection: AsyncConnection, decision: Decision, tenant_id: UUID, delta: int, note: UUID | None
) -> None:
    """What the customer hears: how much, for which month, why, and where it will see it."""
    amount = pico_to_usd(abs(delta))
    month = month_name(decision.month)
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
        body=f"We have corrected what {month} cost by ${pico_to_usd(delta)}. Reason: {decision.reason}. {where}",
        facts={
            "correction_id": str(decision.id),
            "month": month,
            "delta_usd": pico_to_usd(delta),
            "credit_note_id": None if note is None else str(note),
        },
        key=f"correction.applied {decision.id} {tenant_id}",
    )
