"""Books what happens to our invoices in Stripe: payments, failed attempts, uncollectible ones."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger import transfers
from billing.notifications import notices
from billing.payments import cash
from billing.payments.book_updates import BookUpdate, UpdateOutcome
from billing.payments.customers import require_usd
from billing.payments.stripe_gateway import StripeGateway
from billing.payments.stripe_types import Invoice, InvoicePayment, PaymentIntent
from core.ids import derived_uuid
from core.money import PICO_PER_CENT, pico_to_usd
from tenants.scoping import platform_wide

INVOICE_KEY = "penstock_invoice_id"
"""Metadata key of our invoice id on Stripe's invoices."""

InvoiceAndIntent = tuple[InvoicePayment, PaymentIntent | None]
"""A payment of an invoice and its payment intent; None = paid outside of Stripe."""


async def prepare_invoice(gateway: StripeGateway, stripe_id: str) -> BookUpdate:
    """The book update of an invoice, with its payments."""
    invoice = await gateway.invoice(stripe_id)
    paid: list[InvoiceAndIntent] = []
    for _, one in await gateway.invoice_payments(invoice_id=stripe_id):
        if one.status == "paid":
            intent = one.payment_intent
            paid.append((one, None if intent is None else await gateway.payment_intent(intent)))

    async def update(connection: AsyncConnection) -> UpdateOutcome:
        return await apply_invoice(connection, invoice, paid)

    return update


@platform_wide("an invoice names its organisation")
async def apply_invoice(
    connection: AsyncConnection, invoice: Invoice, paid: list[InvoiceAndIntent]
) -> UpdateOutcome:
    """Book new payments and fees, and update our invoice's status. Raises Conflict for a currency other than USD."""
    ours = await _lock_ours(connection, invoice)
    if ours is None:
        return "foreign"
    require_usd(invoice.currency, f"invoice {invoice.id}")
    await _store_applied(connection, ours, invoice)
    for one, payment in paid:
        before = await _open_cents(connection, ours)
        await _book_payment(connection, ours, one, payment)
        if ours.status == "uncollectible":
            left = await _open_cents(connection, ours)
            await _recover(connection, ours, cash.source_id(_payment_id(one, payment)), before, left)
    if invoice.status == "paid" and ours.status in ("open", "uncollectible"):
        await _mark_paid(connection, ours, invoice)
    elif ours.status == "void" and paid:
        await _notify_paid_void(connection, ours, invoice)
    elif invoice.status == "uncollectible" and ours.status == "open":
        await _mark_uncollectible(connection, ours)
    elif (
        invoice.status == "open"
        and ours.status == "open"
        and invoice.attempts
        and invoice.remaining_cents > 0
    ):
        await _notify_customer(
            connection, ours, "invoice.payment_failed", f"Invoice {ours.number} could not be paid",
            f"Attempt {invoice.attempts} to collect invoice {ours.number} failed. Please check the payment method.",
            f"stripe-failed-{ours.id}-{invoice.attempts}",
        )  # fmt: skip
    return "applied"


async def _lock_ours(connection: AsyncConnection, invoice: Invoice) -> Row[Any] | None:
    """Our invoice, locked; found by Stripe's id, or by our metadata when a crash prevented storing that id."""
    return (
        await connection.execute(
            text(
                "SELECT i.id, i.tenant_id, i.status, i.number, i.total_cents FROM invoices i "
                "JOIN stripe_customers c ON c.tenant_id = i.tenant_id AND c.customer_id = :customer "
                "WHERE i.stripe_invoice_id = :stripe_id "
                "OR (i.stripe_invoice_id IS NULL AND i.id::text = :ours) FOR UPDATE OF i"
            ),
            {
                "customer": invoice.customer,
                "stripe_id": invoice.id,
                "ours": invoice.metadata.get(INVOICE_KEY, ""),
            },
        )
    ).one_or_none()


async def _store_applied(connection: AsyncConnection, ours: Row[Any], invoice: Invoice) -> None:
    """Store what Stripe took from the customer's balance; a void invoice has given it back."""
    if invoice.status in ("open", "paid", "uncollectible"):
        await connection.execute(
            text(
                "UPDATE invoices SET applied_cents = :applied "
                "WHERE id = :id AND tenant_id = :tenant AND applied_cents <> :applied"
            ),
            {"applied": invoice.applied_cents, "id": ours.id, "tenant": ours.tenant_id},
        )


@platform_wide("by the id of the locked invoice")
async def _open_cents(connection: AsyncConnection, ours: Row[Any]) -> int:
    """The cents of our invoice that are neither paid nor credited."""
    return int(
        (await connection.execute(text("SELECT penstock_open_cents(:id)"), {"id": ours.id})).scalar_one()
    )


async def _recover(connection: AsyncConnection, ours: Row[Any], by: UUID, before: int, left: int) -> None:
    """Reverse the write-off as far as `by` lowered the open cents from `before` to `left`; each `by` reverses it once.

    `by` is the source of a payment, or the invoice's id for its status. What was not written off, such as a payment
    that was refunded later, is no expense and is not reversed.
    """
    if (recovered := min(before, await _written_off_cents(connection, ours)) - max(left, 0)) > 0:
        source = recovery_source(ours.id, by)
        amount = recovered * PICO_PER_CENT
        await transfers.book(
            connection, "write_off", ours.tenant_id, "invoiced", "uncollectible", amount, source
        )


def recovery_source(invoice_id: UUID, by: UUID) -> UUID:
    """The ledger source of what `by` recovered of a written-off invoice."""
    return derived_uuid(invoice_id, "recovered", by)


@platform_wide("by the id of the locked invoice")
async def _written_off_cents(connection: AsyncConnection, ours: Row[Any]) -> int:
    """The cents of our invoice that are booked as uncollectible: its write-off less what was recovered."""
    payments = await connection.execute(
        text("SELECT payment_intent FROM stripe_payments WHERE invoice_id = :id"), {"id": ours.id}
    )
    recovering = [ours.id, *(cash.source_id(intent) for intent in payments.scalars())]
    booked = await connection.execute(
        text(
            "SELECT coalesce(sum(CASE WHEN source_id = :id THEN amount ELSE -amount END), 0) FROM ledger_transfers "
            "WHERE kind = 'write_off' AND tenant_id = :tenant AND source_id = ANY(CAST(:sources AS uuid[]))"
        ),
        {
            "id": ours.id,
            "tenant": ours.tenant_id,
            "sources": [ours.id, *(recovery_source(ours.id, by) for by in recovering)],
        },
    )
    return int(booked.scalar_one()) // PICO_PER_CENT


def _payment_id(one: InvoicePayment, payment: PaymentIntent | None) -> str:
    """What identifies a payment; one outside of Stripe by the invoice payment's own id."""
    return one.id if payment is None else payment.id


async def _book_payment(
    connection: AsyncConnection, ours: Row[Any], one: InvoicePayment, payment: PaymentIntent | None
) -> None:
    """Book cash against `invoiced`."""
    intent = _payment_id(one, payment)
    if one.paid_cents <= 0:
        return
    await connection.execute(
        text(
            "INSERT INTO stripe_payments (payment_intent, tenant_id, purpose, invoice_id, cents, charge_id) "
            "VALUES (:pi, :tenant, 'invoice', :invoice, :cents, :charge) ON CONFLICT DO NOTHING"
        ),
        {
            "pi": intent,
            "tenant": ours.tenant_id,
            "invoice": ours.id,
            "cents": one.paid_cents,
            "charge": None if payment is None else payment.charge_id,
        },
    )
    amount = one.paid_cents * PICO_PER_CENT
    await transfers.book(
        connection, "payment", ours.tenant_id, "cash", "invoiced", amount, cash.source_id(intent)
    )
    if payment is not None:
        await cash.record_transaction(
            connection, ours.tenant_id, "payment", payment.id, payment.balance_transaction
        )


async def _mark_paid(connection: AsyncConnection, ours: Row[Any], invoice: Invoice) -> None:
    """Mark our invoice paid; for one that was written off, reverse what is left of the expense."""
    at = datetime.now(UTC) if invoice.paid_at is None else datetime.fromtimestamp(invoice.paid_at, UTC)
    await connection.execute(
        text("UPDATE invoices SET status = 'paid', paid_at = :at WHERE id = :id AND tenant_id = :tenant"),
        {"at": at, "id": ours.id, "tenant": ours.tenant_id},
    )
    if ours.status == "uncollectible":
        await _recover(connection, ours, ours.id, await _open_cents(connection, ours), 0)


async def _notify_paid_void(connection: AsyncConnection, ours: Row[Any], invoice: Invoice) -> None:
    """Notify operators that money for a void invoice arrived before Stripe voided it: it must be refunded by hand."""
    amount = pico_to_usd(invoice.paid_cents * PICO_PER_CENT)
    await notices.notify(
        connection,
        tenant_id=None,
        kind="stripe.event",
        subject=f"The void invoice {ours.number} was paid",
        body=f"{invoice.id} was paid before it could be void in Stripe: ${amount} is the customer's. "
        "Pay it back by a refund in Stripe's dashboard; it will be booked.",
        facts={"object": invoice.id, "tenant_id": str(ours.tenant_id)},
        key=f"stripe-paid-void-{ours.id}",
    )


async def _mark_uncollectible(connection: AsyncConnection, ours: Row[Any]) -> None:
    """Mark our invoice uncollectible, book its open amount as an expense and notify the customer.

    The amount is what our books have open: a credit note may not have reached Stripe yet.
    """
    cents = await _open_cents(connection, ours)
    await connection.execute(
        text("UPDATE invoices SET status = 'uncollectible' WHERE id = :id AND tenant_id = :tenant"),
        {"id": ours.id, "tenant": ours.tenant_id},
    )
    if cents > 0:
        amount = cents * PICO_PER_CENT
        await transfers.book(
            connection, "write_off", ours.tenant_id, "uncollectible", "invoiced", amount, ours.id
        )
    await _notify_customer(
        connection, ours, "invoice.uncollectible", f"Invoice {ours.number} is uncollectible",
        f"${pico_to_usd(max(cents, 0) * PICO_PER_CENT)} of invoice {ours.number} was not paid.",
        f"stripe-uncollectible-{ours.id}",
    )  # fmt: skip


async def _notify_customer(
    connection: AsyncConnection, ours: Row[Any], kind: str, subject: str, body: str, key: str
) -> None:
    await notices.notify(
        connection,
        tenant_id=ours.tenant_id,
        kind=kind,
        subject=subject,
        body=body,
        facts={"invoice_id": str(ours.id), "number": ours.number},
        key=key,
    )
