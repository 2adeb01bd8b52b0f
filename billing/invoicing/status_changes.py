"""Void or write off a finalised invoice (Stripe's statuses `void` and `uncollectible`); lines and number stay.

Voiding reverses the invoice's bookings, and the next invoice carries its amount to the cent. What Stripe took from
the customer's balance for it returns there. Writing off moves what is open, which is the total less payments, credit
notes and what was taken from the balance, to the expense account `uncollectible`.
"""

from typing import Any
from uuid import UUID

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.invoicing.bookings import Booking, book_all, rounding_bookings
from billing.ledger.transfers import booking_errors
from core.errors import Conflict, NotFound
from core.ids import derived_uuid
from core.money import PICO_PER_CENT, pico_to_usd
from core.outbox import enqueue
from tenants.scoping import platform_wide


async def void_invoice(connection: AsyncConnection, invoice_id: UUID) -> None:
    """Void an open invoice. Raises NotFound; Conflict when it is not open, has a credit note or was paid in part."""
    invoice = await _open_invoice(connection, invoice_id, "voided")
    if invoice.credited:
        raise Conflict(f"{invoice.number} has a credit note: credit the rest of it instead of voiding it")
    if invoice.paid:
        paid = pico_to_usd(int(invoice.paid) * PICO_PER_CENT)
        raise Conflict(
            f"${paid} of {invoice.number} was paid: credit or write off the rest instead of voiding it"
        )
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


async def lock_to_write_off(connection: AsyncConnection, invoice_id: UUID) -> int:
    """The open cents of an invoice, which do not change until the transaction ends. Raises as `write_off_invoice`."""
    return _to_write_off(await _open_invoice(connection, invoice_id, "written off"))


def _to_write_off(invoice: Row[Any]) -> int:
    """The open cents of a locked invoice. Raises Conflict when nothing is open."""
    cents = int(invoice.open_cents)
    if cents <= 0:
        raise Conflict(f"nothing of {invoice.number} is open: it is paid when Stripe's event is applied")
    return cents


async def write_off_invoice(
    connection: AsyncConnection, invoice_id: UUID, *, at_most: int | None = None
) -> int:
    """Write off what is open of an invoice; returns its cents.

    Raises NotFound; Conflict when nothing is open, or more than `at_most` cents.
    """
    invoice = await _open_invoice(connection, invoice_id, "written off")
    cents = _to_write_off(invoice)
    if at_most is not None and cents > at_most:
        raise Conflict(
            f"${pico_to_usd(cents * PICO_PER_CENT)} of {invoice.number} is open, and a write-off of "
            f"${pico_to_usd(at_most * PICO_PER_CENT)} was requested: reject it and request the write-off again"
        )
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
    """The locked invoice with its `credited`, `paid` and `open_cents`. Excludes invoice runs, corrections, payments.

    Raises NotFound, Conflict when it is not open; `action` completes the message.
    """
    await connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('penstock_invoices'))"))
    # The sums are read by a statement of their own: one that waited for the lock would not see the payment behind it.
    await connection.execute(text("SELECT 1 FROM invoices WHERE id = :id FOR UPDATE"), {"id": invoice_id})
    row: Row[Any] | None = (
        await connection.execute(
            text(
                "SELECT i.*, (SELECT coalesce(sum(n.cents), 0) FROM credit_notes n "
                "WHERE n.invoice_id = i.id AND n.status <> 'void') AS credited, "
                "(SELECT coalesce(sum(p.cents), 0) FROM stripe_payments p WHERE p.invoice_id = i.id) AS paid, "
                "penstock_open_cents(i.id) AS open_cents FROM invoices i WHERE i.id = :id"
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
