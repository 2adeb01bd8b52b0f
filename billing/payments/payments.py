"""Payments of credit (booked as a lot) and of invoices. Each payment intent is booked once."""

from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger import credits
from billing.payments import auto_topup_rules, cash, invoices
from billing.payments.book_updates import BookUpdate, UpdateOutcome, not_ours
from billing.payments.customers import require_usd, tenant_of
from billing.payments.stripe_gateway import StripeGateway
from billing.payments.stripe_types import PaymentIntent
from core.errors import Conflict
from core.money import PICO_PER_CENT
from tenants.scoping import platform_wide

TOPUP_KEY = "penstock_topup_id"
"""Metadata key of the purchase's id on payments and Checkout sessions."""


async def prepare_payment(gateway: StripeGateway, payment_intent: str) -> BookUpdate:
    """The book update of a payment intent: of a purchase of credit, or of the invoice that it pays."""
    payment = await gateway.payment_intent(payment_intent)
    if TOPUP_KEY not in payment.metadata:
        paid = await gateway.invoice_payments(payment_intent=payment_intent)
        return await invoices.prepare_invoice(gateway, paid[0][0]) if paid else not_ours

    async def update(connection: AsyncConnection) -> UpdateOutcome:
        return await apply_topup(connection, payment)

    return update


@platform_wide("a payment names its customer")
async def apply_topup(connection: AsyncConnection, payment: PaymentIntent) -> UpdateOutcome:
    """Book a succeeded payment of a purchase as a credit lot with its fee, or store its failure.

    Raises Conflict for a currency other than USD, or when the purchase is not the customer's.
    """
    tenant_id = await tenant_of(connection, payment.customer)
    if tenant_id is None:
        return "foreign"
    topup_id = payment.metadata[TOPUP_KEY]
    row = (
        await connection.execute(
            text(
                "SELECT id, cents, kind, status FROM stripe_topups "
                "WHERE tenant_id = :tenant AND id::text = :id FOR UPDATE"
            ),
            {"tenant": tenant_id, "id": topup_id},
        )
    ).one_or_none()
    if row is None:
        raise Conflict(
            f"payment {payment.id} names the purchase {topup_id[:60]!r}, which is none of its customer's"
        )
    if payment.status == "succeeded":
        require_usd(payment.currency, f"payment {payment.id}")
        await _credit(connection, tenant_id, row.id, payment)
        await _end(connection, row.id, "succeeded", payment, None)
        if row.kind == "auto" and row.status == "pending":
            await auto_topup_rules.record_success(connection, tenant_id)
    elif payment.status == "canceled" and row.status == "pending":
        error = payment.error or "the payment was cancelled"
        await _end(connection, row.id, "failed", payment, error)
        if row.kind == "auto":
            await auto_topup_rules.record_failure(connection, tenant_id, error)
    else:
        await connection.execute(
            text(
                "UPDATE stripe_topups SET payment_intent = :pi, error = :error WHERE id = :id AND status = 'pending'"
            ),
            {"pi": payment.id, "error": payment.error, "id": row.id},
        )
    return "applied"


async def _credit(
    connection: AsyncConnection, tenant_id: UUID, topup_id: UUID, payment: PaymentIntent
) -> None:
    """Store the payment, add the credit lot and record the balance transaction."""
    await connection.execute(
        text(
            "INSERT INTO stripe_payments (payment_intent, tenant_id, purpose, topup_id, cents, charge_id) "
            "VALUES (:pi, :tenant, 'topup', :topup, :cents, :charge) ON CONFLICT DO NOTHING"
        ),
        {
            "pi": payment.id,
            "tenant": tenant_id,
            "topup": topup_id,
            "cents": payment.received_cents,
            "charge": payment.charge_id,
        },
    )
    await credits.add_lot(
        connection,
        lot_id=cash.source_id(payment.id),
        tenant_id=tenant_id,
        amount=payment.received_cents * PICO_PER_CENT,
        kind="purchased",
        reason="Bought credit",
        created_by="stripe",
    )
    await cash.record_transaction(connection, tenant_id, "payment", payment.id, payment.balance_transaction)


@platform_wide("by the purchase's own id")
async def _end(
    connection: AsyncConnection, topup_id: UUID, status: str, payment: PaymentIntent, error: str | None
) -> None:
    await connection.execute(
        text(
            "UPDATE stripe_topups SET status = :status, payment_intent = :pi, payment_method = :method, "
            "error = :error, ended_at = coalesce(ended_at, clock_timestamp()) WHERE id = :id"
        ),
        {
            "status": status,
            "pi": payment.id,
            "method": payment.payment_method,
            "error": error,
            "id": topup_id,
        },
    )
