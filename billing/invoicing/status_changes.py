"""Void or write off a finalised invoice (Stripe's statuses `void` and `uncollectible`); lines and number stay.

Voiding reverses the invoice's bookings, and the next invoice carries its amount to the cent. Writing off moves the open
amount to the expense account `uncollectible`.
"""

from typing import Any
from uuid import UUID

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.invoicing.bookings import Booking, book_all, rounding_bookings
from billing.ledger.transfers import booking_errors
from core.errors import Conflict, NotFound
from core.ids import derived_uuid
from core.money import PICO_PER_CENT
from core.outbox import enqueue
from tenants.scoping import platform_wide


async def void_invoice(connection: AsyncConnection, invoice_id: UUID) -> None:
    """Void an open invoice. Raises NotFound; Conflict when it is not open or has a credit note."""
    invoice = await _open_invoice(connection, invoice_id, "voided")
    if invoice.credited:
        raise Conflict(f"{invoice.number} has a credit note: credit the rest of it instead of voiding it")
    exact, cents = int(invoice.exact), invoice.total_cents
    source = derived_uuid("void", invoice_id)
    bookings = [
        Booking("invoice", invoice.tenant_id, "receivable", "invoiced", exact, source),
        *rounding_bookings("rounding", invoice.tenant_id, source, exact=-exact, cents=-cents),
    ]
    await connection.execute(
        text(
            "UPDATE invoices SET status = 'void', carry_exact = :exact, carry_cents = :cents "
            "WHERE id = :id AND tenant_id = :tenant_id"
        ),
        {"exact": exact, "cents": cents, "id": invoice_id, "tenant_id": invoice.tenant_id},
    )
    await enqueue(connection, "stripe.void_invoice", {"invoice_id": str(invoice_id)})
    with booking_errors():
        await book_all(connection, bookings)


async def write_off_invoice(connection: AsyncConnection, invoice_id: UUID) -> int:
    """Write off an open invoice; returns the cents written off. Raises NotFound; Conflict when it is not open."""
    invoice = await _open_invoice(connection, invoice_id, "written off")
    cents: int = invoice.total_cents - int(invoice.credited)
    await connection.execute(
        text("UPDATE invoices SET status = 'uncollectible' WHERE id = :id AND tenant_id = :tenant_id"),
        {"id": invoice_id, "tenant_id": invoice.tenant_id},
    )
    await enqueue(connection, "stripe.write_off_invoice", {"invoice_id": str(invoice_id)})
    with booking_errors():
        await book_all(
            connection,
            [
                Booking(
                    "write_off",
                    invoice.tenant_id,
                    "uncollectible",
                    "invoiced",
                    cents * PICO_PER_CENT,
                    invoice_id,
                )
            ],
        )
    return cents


@platform_wide("an invoice is found by its id")
async def _open_invoice(connection: AsyncConnection, invoice_id: UUID, action: str) -> Row[Any]:
    """The invoice with its `credited` cents, locked. Excludes invoice runs and corrections.

    Raises NotFound, Conflict when it is not open; `action` completes the message.
    """
    await connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('penstock_invoices'))"))
    row: Row[Any] | None = (
        await connection.execute(
            text(
                "SELECT i.*, (SELECT coalesce(sum(n.cents), 0) FROM credit_notes n "
                "WHERE n.invoice_id = i.id AND n.status <> 'void') AS credited "
                "FROM invoices i WHERE i.id = :id FOR UPDATE"
            ),
            {"id": invoice_id},
        )
    ).one_or_none()
    if row is None:
        raise NotFound(f"there is no invoice {invoice_id}")
    if row.status != "open":
        raise Conflict(
            f"the invoice {row.number or row.id} is {row.status}: only an open one can be {action}"
        )
    return row
