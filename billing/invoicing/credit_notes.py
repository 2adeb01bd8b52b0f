"""Credit notes on finalised invoices: which lines can be credited, the note with its lines, and its bookings."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.invoicing.bookings import Booking, book_all, rounding_bookings
from billing.invoicing.corrections import ApprovedCorrection
from billing.invoicing.lines import CLASSES
from billing.invoicing.rerate import Difference, LineKey
from billing.ledger.transfers import booking_errors
from core.ids import derived_uuid
from core.money import round_to_cents
from core.outbox import enqueue


def credit_cents(line: Difference) -> int:
    """The cents by which the invoice line would have been lower under the new price."""
    return round_to_cents(line.old_exact) - round_to_cents(line.new_exact)


async def creditable_invoice(connection: AsyncConnection, tenant_id: UUID, month: date) -> Row[Any] | None:
    """The tenant's open or paid postpaid invoice of `month`, locked; None without one.

    With it: `credited`, the cents of its credit notes, and `open_cents`, what is neither paid nor credited.
    """
    params = {"tenant_id": tenant_id, "month": month}
    # The sums are read by a statement of their own: one that waited for the lock would not see the payment behind it.
    await connection.execute(
        text("SELECT 1 FROM invoices WHERE tenant_id = :tenant_id AND month = :month FOR UPDATE"), params
    )
    row: Row[Any] | None = (
        await connection.execute(
            text(
                "SELECT i.id, i.tenant_id, i.number, i.status, i.total_cents, (SELECT coalesce(sum(n.cents), 0) "
                "FROM credit_notes n WHERE n.invoice_id = i.id AND n.status <> 'void') AS credited, "
                "penstock_open_cents(i.id) AS open_cents FROM invoices i "
                "WHERE i.tenant_id = :tenant_id AND i.month = :month AND i.kind = 'postpaid' "
                "AND i.status IN ('open', 'paid')"
            ),
            params,
        )
    ).one_or_none()
    return row


async def issue_credit_note(
    connection: AsyncConnection,
    correction: ApprovedCorrection,
    invoice: Row[Any],
    adjustment_id: UUID,
    lines: Sequence[Difference],
    invoice_lines: Mapping[LineKey, Row[Any]],
) -> UUID:
    """Write and book a credit note for `lines` and queue it for Stripe; returns its id.

    `invoice_lines` are the invoice's lines by key (`creditable_lines`). The adjustment has lowered the receivable; the
    note books the same amount from the invoice (receivable -> invoiced) in the adjustment's month, so that no later
    invoice shows it again. `pays` is what is expected now; the push decides it, and books a refund.
    """
    note_id = derived_uuid("credit note", correction.id, invoice.tenant_id)
    exact = -sum(line.delta for line in lines)
    cents = sum(map(credit_cents, lines))
    pays = "invoice" if invoice.status == "open" else "refund" if correction.refund else "balance"
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
            "reason": correction.reason,
            "exact": exact,
            "cents": cents,
            "pays": pays,
            "correction": correction.id,
            "adjustment": adjustment_id,
        },
    )
    await _insert_lines(connection, note_id, invoice, lines, invoice_lines)
    await _book(connection, note_id, invoice.tenant_id, adjustment_id, exact=exact, cents=cents)
    if pays == "invoice" and cents >= invoice.open_cents:
        await connection.execute(
            text(
                "UPDATE invoices SET status = 'paid', paid_at = clock_timestamp() "
                "WHERE id = :id AND tenant_id = :tenant_id"
            ),
            {"id": invoice.id, "tenant_id": invoice.tenant_id},
        )
    await enqueue(connection, "stripe.push_credit_note", {"credit_note_id": str(note_id)})
    return note_id


async def creditable_lines(connection: AsyncConnection, invoice: Row[Any]) -> dict[LineKey, Row[Any]]:
    """The usage and commitment lines of an invoice by key: those that a correction can change."""
    found = await connection.execute(
        text(
            "SELECT id, kind, model, class AS token_class, tier, coalesce(price_version, 0) AS price_version, "
            "description, used_in FROM invoice_lines WHERE invoice_id = :invoice AND tenant_id = :tenant_id "
            "AND (class = ANY (:classes) OR (kind = 'commit' AND exact > 0))"
        ),
        {"invoice": invoice.id, "tenant_id": invoice.tenant_id, "classes": list(CLASSES)},
    )
    return {
        LineKey(
            invoice.tenant_id, row.kind, row.model, row.token_class, row.tier, row.price_version, row.used_in
        ): row
        for row in found
    }


async def _insert_lines(
    connection: AsyncConnection,
    note_id: UUID,
    invoice: Row[Any],
    lines: Sequence[Difference],
    invoice_lines: Mapping[LineKey, Row[Any]],
) -> None:
    """Write one credit note line per corrected line of the invoice."""
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
                "line": invoice_lines[line.key].id,
                "exact": -line.delta,
                "cents": credit_cents(line),
                "description": f"Credit: {invoice_lines[line.key].description}",
            }
            for position, line in enumerate(lines, 1)
        ],
    )


async def _book(
    connection: AsyncConnection,
    note_id: UUID,
    tenant_id: UUID,
    adjustment_id: UUID,
    *,
    exact: int,
    cents: int,
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
        *rounding_bookings("credit_note_rounding", tenant_id, note_id, exact=-exact, cents=-cents),
    ]
    with booking_errors():
        await book_all(connection, bookings)
