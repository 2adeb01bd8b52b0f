"""Refunds of bought credit, of credit notes, and those made in Stripe's dashboard.

Ours are booked on request (refund_requests.py), sent by a job, and reversed when they fail. All others are booked from
Stripe's events.
"""

from typing import Any
from uuid import UUID

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger import credits, transfers
from billing.notifications import notices
from billing.payments import auto_topup_rules, cash, disputes, lots, refunded_write_offs
from billing.payments.book_updates import BookUpdate, UpdateOutcome, apply_update
from billing.payments.idempotency import idempotent_write
from billing.payments.payments import prepare_payment
from billing.payments.stripe_gateway import StripeGateway
from billing.payments.stripe_types import Refund
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import derived_uuid
from core.money import PICO_PER_CENT, pico_to_usd
from tenants.scoping import platform_wide

REFUND_KEY = "penstock_refund_id"
"""Metadata key of our refund's id on Stripe's refunds."""
NOTE_KEY = "penstock_credit_note_id"
"""Metadata key of our credit note's id on Stripe's credit notes."""


async def send_refund(database: Database, gateway: StripeGateway, refund_id: UUID) -> bool:
    """Create Stripe's refund for a requested one; returns False when there was nothing to do. Idempotent.

    A refund that Stripe refuses is reversed. Raises Unavailable when Stripe does not answer.
    """
    async with database.read() as connection:
        row = await _open_refund(connection, refund_id)
    if row is None:
        return False
    metadata = {REFUND_KEY: str(refund_id)}

    async def find() -> Refund | None:
        known = await gateway.refunds_of(row.payment_intent)
        return next((each for each in known if each.metadata == metadata), None)

    try:
        made = await idempotent_write(
            lambda key: gateway.create_refund(row.payment_intent, row.cents, metadata, key),
            find,
            f"penstock-refund-{refund_id}",
            find_first=True,
        )
    except (Conflict, InvalidRequest, NotFound) as error:
        async with database.system() as connection:
            await _reverse_failed(connection, row, error.message, None)
        return True
    await apply_update(database, await prepare_refund(gateway, made.id))
    return True


@platform_wide("by the refund's own id")
async def _open_refund(connection: AsyncConnection, refund_id: UUID) -> Row[Any] | None:
    found = await connection.execute(
        text(
            "SELECT id, tenant_id, payment_intent, lot_id, credit_note_id, cents, status FROM stripe_refunds "
            "WHERE id = :id AND status = 'requested'"
        ),
        {"id": refund_id},
    )
    return found.one_or_none()


async def prepare_refund(gateway: StripeGateway, stripe_id: str) -> BookUpdate:
    """The book update of a refund; it applies the update of the refunded payment first."""
    refund = await gateway.refund(stripe_id)
    before = None if refund.payment_intent is None else await prepare_payment(gateway, refund.payment_intent)
    credit_note_id = await _credit_note_of(gateway, refund)

    async def update(connection: AsyncConnection) -> UpdateOutcome:
        if before is not None:
            await before(connection)
        return await apply_refund(connection, refund, credit_note_id)

    return update


async def _credit_note_of(gateway: StripeGateway, refund: Refund) -> UUID | None:
    """Our credit note that the refund pays; None for any other refund."""
    if refund.payment_intent is None or REFUND_KEY in refund.metadata:
        return None
    for invoice_id, _ in await gateway.invoice_payments(payment_intent=refund.payment_intent):
        for note in await gateway.credit_notes(invoice_id):
            if refund.id in note.refunds and NOTE_KEY in note.metadata:
                return UUID(note.metadata[NOTE_KEY])
    return None


@platform_wide("a refund names its payment, and that its organisation")
async def apply_refund(
    connection: AsyncConnection, refund: Refund, credit_note_id: UUID | None = None
) -> UpdateOutcome:
    """Store a refund's status, reverse a failed one, and book one that was made in Stripe.

    `credit_note_id` is our credit note that the refund pays; None for any other refund.
    """
    payment = (
        await connection.execute(
            text(
                "SELECT tenant_id, purpose, invoice_id FROM stripe_payments WHERE payment_intent = :pi FOR UPDATE"
            ),
            {"pi": refund.payment_intent},
        )
    ).one_or_none()
    if payment is None:
        return "foreign"
    row = await _lock_refund(connection, payment.tenant_id, refund)
    if row is None:
        row = await _book_external(connection, payment, refund, credit_note_id)
    await cash.record_transaction(connection, row.tenant_id, "refund", refund.id, refund.balance_transaction)
    if refund.status in ("failed", "canceled"):
        await _reverse_failed(connection, row, refund.error or f"the refund is {refund.status}", refund)
        return "applied"
    status = "succeeded" if refund.status == "succeeded" else "pending"
    await connection.execute(
        text(
            "UPDATE stripe_refunds SET status = :status, refund_id = :refund, "
            "ended_at = CASE WHEN :status = 'succeeded' THEN coalesce(ended_at, clock_timestamp()) END "
            "WHERE id = :id AND tenant_id = :tenant AND status <> 'failed'"
        ),
        {"status": status, "refund": refund.id, "id": row.id, "tenant": row.tenant_id},
    )
    return "applied"


async def _lock_refund(connection: AsyncConnection, tenant_id: UUID, refund: Refund) -> Row[Any] | None:
    found = await connection.execute(
        text(
            "SELECT id, tenant_id, payment_intent, lot_id, credit_note_id, cents, status FROM stripe_refunds "
            "WHERE tenant_id = :tenant AND (refund_id = :refund "
            "OR (refund_id IS NULL AND status <> 'failed' AND id::text = :ours)) FOR UPDATE"
        ),
        {"tenant": tenant_id, "refund": refund.id, "ours": refund.metadata.get(REFUND_KEY, "")},
    )
    return found.one_or_none()


async def _book_external(
    connection: AsyncConnection, payment: Row[Any], refund: Refund, credit_note_id: UUID | None
) -> Row[Any]:
    """Book a refund without a request: of a credit note, or made in Stripe's dashboard.

    A refund of a purchase takes the credit that is left; the rest is an expense. A refund of an invoice is booked
    against `invoiced`, which the credit note has lowered; without a note, one of a written-off invoice is an expense.
    """
    refund_id = derived_uuid("stripe", refund.id)
    amount = refund.cents * PICO_PER_CENT
    lot_id = None
    if payment.purpose == "topup":
        lot_ids = await lots.lots_of(connection, payment.tenant_id, refund.payment_intent or "")
        lot_id = lot_ids[0]
        taken = await lots.debit_lots(
            connection, lot_ids=lot_ids, amount=amount, kind="refund", source=refund_id
        )
        if taken < amount:
            await transfers.book(
                connection, "write_off", payment.tenant_id, "uncollectible", "cash", amount - taken, refund_id
            )
        await auto_topup_rules.disable(connection, payment.tenant_id, auto_topup_rules.REFUNDED)
    else:
        source = credit_note_id or refund_id
        if not await _is_booked(connection, payment.tenant_id, source):
            await transfers.book(
                connection, "credit_note_refund", payment.tenant_id, "invoiced", "cash", amount, source
            )
    made = await connection.execute(
        text(
            "INSERT INTO stripe_refunds (id, tenant_id, payment_intent, lot_id, credit_note_id, cents, status, "
            "refund_id, reason, created_by) VALUES (:id, :tenant, :pi, :lot, :note, :cents, 'pending', :refund, "
            ":reason, 'stripe') RETURNING id, tenant_id, payment_intent, lot_id, credit_note_id, cents, status"
        ),
        {
            "id": refund_id,
            "tenant": payment.tenant_id,
            "pi": refund.payment_intent,
            "lot": lot_id,
            "note": credit_note_id,
            "cents": refund.cents,
            "refund": refund.id,
            "reason": "credit note" if credit_note_id else "made in Stripe",
        },
    )
    stored = made.one()
    if payment.purpose == "invoice" and credit_note_id is None:
        await refunded_write_offs.write_off_again(connection, payment, refund.payment_intent or "", refund_id)
    return stored


async def _is_booked(connection: AsyncConnection, tenant_id: UUID, source: UUID) -> bool:
    """Whether the refund of this source is booked already: earlier versions booked it when the note was issued."""
    found = await connection.execute(
        text(
            "SELECT count(*) FROM ledger_transfers WHERE source_id = :source AND kind = 'credit_note_refund' "
            "AND tenant_id = :tenant"
        ),
        {"source": source, "tenant": tenant_id},
    )
    return bool(found.scalar_one())


async def _reverse_failed(
    connection: AsyncConnection, row: Row[Any], error: str, refund: Refund | None
) -> None:
    """Reverse a failed refund, once: return the credit to the customer, or the amount to `invoiced`."""
    found = await connection.execute(
        text(
            "UPDATE stripe_refunds SET status = 'failed', error = :error, refund_id = coalesce(refund_id, :refund), "
            "ended_at = clock_timestamp() WHERE id = :id AND tenant_id = :tenant AND status <> 'failed' RETURNING id"
        ),
        {
            "error": error[:500],
            "refund": None if refund is None else refund.id,
            "id": row.id,
            "tenant": row.tenant_id,
        },
    )
    if refund is not None:
        await cash.record_transaction(
            connection, row.tenant_id, "refund_failure", refund.id, refund.failure_balance_transaction
        )
    if found.one_or_none() is None:
        return
    mirror, amount = lots.returned_lot_id(row.id), row.cents * PICO_PER_CENT
    if row.lot_id is None:
        await transfers.book(connection, "payment", row.tenant_id, "cash", "invoiced", amount, mirror)
        await refunded_write_offs.undo_for_failed_refund(connection, row.tenant_id, row.id)
    else:
        amount -= await _reverse_expense(connection, row)
        if amount:
            await credits.add_lot(
                connection,
                lot_id=mirror,
                tenant_id=row.tenant_id,
                amount=amount,
                kind="purchased",
                reason="A refund failed: the credit is back",
                created_by="stripe",
            )
            await disputes.claw_back_returned_credit(connection, row.tenant_id, row.payment_intent, row.id)
    await notices.notify(
        connection,
        tenant_id=None,
        kind="stripe.refund_failed",
        subject=f"A refund of ${pico_to_usd(row.cents * PICO_PER_CENT)} failed",
        body=f"Refund {row.id} of payment {row.payment_intent}: {error[:500]}. The credit was given back.",
        facts={"refund_id": str(row.id), "tenant_id": str(row.tenant_id)},
        key=f"stripe-refund-failed-{row.id}",
    )


async def _reverse_expense(connection: AsyncConnection, row: Row[Any]) -> int:
    """Reverse the expense of a refund made in Stripe; returns its picodollars."""
    found = await connection.execute(
        text(
            "SELECT amount FROM ledger_transfers WHERE source_id = :id AND kind = 'write_off' AND tenant_id = :tenant"
        ),
        {"id": row.id, "tenant": row.tenant_id},
    )
    amount = int(found.scalar_one_or_none() or 0)
    if amount:
        back = derived_uuid(row.id, "failed")
        await transfers.book(connection, "write_off", row.tenant_id, "cash", "uncollectible", amount, back)
    return amount
