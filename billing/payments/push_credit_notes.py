"""Sends credit notes to Stripe: on an open invoice, to the customer's balance, or as a refund.

How a note pays is decided from Stripe's invoice at the push, because a payment may have arrived since the note was
issued. A note first lowers what remains to be paid; the rest was paid already and is paid back when the correction says
so and the payment allows it, otherwise it stays on the customer's balance
(https://docs.stripe.com/api/credit_notes/create).
"""

from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.payments.customers import TENANT_KEY
from billing.payments.idempotency import idempotent_write
from billing.payments.push_invoices import FINAL_ERRORS, push_invoice
from billing.payments.pushes import block_push, record_push
from billing.payments.refunds import NOTE_KEY, prepare_refund
from billing.payments.stripe_gateway import StripeGateway
from billing.payments.stripe_types import CreditNote, Invoice
from core.db import Database
from core.errors import InvalidRequest, NotFound, Unavailable
from tenants.scoping import platform_wide

MAX_LINES = 100
"""A credit note with more lines is sent with its amount only."""
MAX_TRIES = 3
"""Tries of one push; each follows a payment that arrived between reading Stripe's invoice and creating the note."""


class Split(msgspec.Struct, frozen=True):
    """How a credit note pays, in cents."""

    lowers: int
    """Of what remains to be paid."""
    refund: int
    """Paid back."""
    balance: int
    """Left on the customer's balance."""


def split(cents: int, invoice: Invoice, refundable: int) -> Split:
    """Divide a note of `cents` as Stripe does. `refundable` are the cents of the payment that may be paid back."""
    lowers = min(cents, invoice.remaining_cents) if invoice.status in ("open", "uncollectible") else 0
    refund = min(cents - lowers, refundable)
    return Split(lowers, refund, cents - lowers - refund)


async def push_credit_note(database: Database, gateway: StripeGateway, note_id: UUID) -> bool:
    """Create Stripe's credit note for ours; returns whether it exists now. Idempotent, also after a crash.

    Sends the note's invoice first when it is not in Stripe. When Stripe refuses the note, the push is blocked and
    operators are notified. Raises NotFound for an unknown id, Unavailable while the invoice cannot be sent or Stripe
    does not answer.
    """
    ours, lines = await _read(database, note_id)
    if ours.status == "void":
        return False
    if ours.stripe_invoice_id is None:
        if ours.invoice_status in ("void", "uncollectible"):
            await _store_unsent(database, ours)
            return False
        await push_invoice(database, gateway, ours.invoice_id)
        ours, lines = await _read(database, note_id)
    if ours.stripe_invoice_id is None:
        raise Unavailable(f"credit note {note_id} waits for its invoice to be sent")
    try:
        made = await _ensure_credit_note(gateway, ours, lines)
    except FINAL_ERRORS as error:
        async with database.system() as connection:
            await block_push(connection, "credit_note", note_id, ours.tenant_id, str(error))
        return False
    refunds = [await prepare_refund(gateway, refund_id) for refund_id in made.refunds]
    async with database.system() as connection:
        for update in refunds:
            await update(connection)
        await _store(connection, ours, made)
    return True


async def _store(connection: AsyncConnection, ours: Row[Any], made: CreditNote) -> None:
    """Store Stripe's id of the note and how it paid."""
    balance = made.after_payment_cents - made.refunded_cents
    await connection.execute(
        text(
            "UPDATE credit_notes SET status = 'pushed', stripe_credit_note_id = :stripe, pays = :pays, "
            "balance_cents = :balance, refund_cents = :refund WHERE id = :id AND tenant_id = :tenant"
        ),
        {
            "stripe": made.id,
            "pays": "refund" if made.refunded_cents else "balance" if balance else "invoice",
            "balance": balance,
            "refund": made.refunded_cents,
            "id": ours.id,
            "tenant": ours.tenant_id,
        },
    )
    await record_push(connection, "credit_note", ours.id, ours.tenant_id, "done", None)


async def _store_unsent(database: Database, ours: Row[Any]) -> None:
    """Mark a note done whose invoice ended before it was sent: Stripe has nothing that it could credit."""
    async with database.system() as connection:
        await connection.execute(
            text("UPDATE credit_notes SET status = 'pushed' WHERE id = :id AND tenant_id = :tenant"),
            {"id": ours.id, "tenant": ours.tenant_id},
        )
        await record_push(connection, "credit_note", ours.id, ours.tenant_id, "done", None)


_LINES = """
    SELECT l.cents, i.stripe_item_id,
        sum(l.cents) OVER (PARTITION BY i.stripe_item_id) <= item.cents - before.cents AS fits
    FROM credit_note_lines l JOIN credit_notes n ON n.id = l.credit_note_id
    JOIN invoice_lines i ON i.id = l.invoice_line_id,
    LATERAL (SELECT sum(s.cents) AS cents FROM invoice_lines s
        WHERE s.invoice_id = i.invoice_id AND s.stripe_item_id = i.stripe_item_id) item,
    LATERAL (SELECT coalesce(sum(greatest(e.cents, 0)), 0) AS cents FROM credit_notes en
        JOIN credit_note_lines e ON e.credit_note_id = en.id JOIN invoice_lines s ON s.id = e.invoice_line_id
        WHERE en.invoice_id = i.invoice_id AND s.stripe_item_id = i.stripe_item_id
            AND (en.created_at, en.id) < (n.created_at, n.id)) before
    WHERE l.credit_note_id = :id ORDER BY l.id
"""
"""The credit note's lines; `fits` when the amount of Stripe's line covers it beside all earlier notes. Void notes count
too, so that every attempt sends the same parameters."""


@platform_wide("a credit note names its organisation")
async def _read(database: Database, note_id: UUID) -> tuple[Row[Any], list[Row[Any]]]:
    """The credit note and its lines. `refund`: what was paid already is to be paid back. Raises NotFound."""
    async with database.read() as connection:
        found = await connection.execute(
            text(
                "SELECT n.id, n.tenant_id, n.cents, n.reason, n.status, n.stripe_credit_note_id, n.invoice_id, "
                "i.stripe_invoice_id, i.status AS invoice_status, n.pays = 'refund' OR coalesce(("
                "SELECT (c.spec->>'refund')::boolean FROM corrections c WHERE c.id = n.correction_id), false) "
                "AS refund FROM credit_notes n JOIN invoices i ON i.id = n.invoice_id WHERE n.id = :id"
            ),
            {"id": note_id},
        )
        ours = found.one_or_none()
        if ours is None:
            raise NotFound(f"there is no credit note {note_id}")
        lines = await connection.execute(text(_LINES), {"id": note_id})
        return ours, list(lines.all())


async def _ensure_credit_note(gateway: StripeGateway, ours: Row[Any], lines: list[Row[Any]]) -> CreditNote:
    """Stripe's credit note for ours; created by the present state of Stripe's invoice when there is none."""
    if ours.stripe_credit_note_id is not None:
        return await gateway.credit_note(ours.stripe_credit_note_id)
    parts = await _decide(gateway, ours)
    for _ in range(MAX_TRIES - 1):
        try:
            return await _create(gateway, ours, lines, parts)
        except InvalidRequest:
            before, parts = parts, await _decide(gateway, ours)
            if parts == before:
                raise
    return await _create(gateway, ours, lines, parts)


async def _decide(gateway: StripeGateway, ours: Row[Any]) -> Split:
    """How the note pays by the present state of Stripe's invoice."""
    invoice = await gateway.invoice(ours.stripe_invoice_id)
    parts = split(ours.cents, invoice, 0)
    if not ours.refund or not parts.balance:
        return parts
    return split(ours.cents, invoice, await _refundable(gateway, ours.stripe_invoice_id))


async def _refundable(gateway: StripeGateway, stripe_invoice_id: str) -> int:
    """The cents of the invoice's payment that are not refunded; 0 unless one payment in Stripe has paid it.

    Stripe refunds the charge of the invoice; with several charges the credit stays on the customer's balance.
    """
    known = await gateway.invoice_payments(invoice_id=stripe_invoice_id)
    paid = [one for _, one in known if one.status == "paid" and one.payment_intent is not None]
    if len(paid) != 1 or paid[0].payment_intent is None:
        return 0
    back = await gateway.refunds_of(paid[0].payment_intent)
    return max(
        0, paid[0].paid_cents - sum(one.cents for one in back if one.status not in ("failed", "canceled"))
    )


async def _create(gateway: StripeGateway, ours: Row[Any], lines: list[Row[Any]], parts: Split) -> CreditNote:
    async def find() -> CreditNote | None:
        known = await gateway.credit_notes(ours.stripe_invoice_id)
        return next((each for each in known if each.metadata.get(NOTE_KEY) == str(ours.id)), None)

    params: dict[str, Any] = {
        "invoice": ours.stripe_invoice_id,
        "memo": ours.reason[:500],
        "metadata": {NOTE_KEY: str(ours.id), TENANT_KEY: str(ours.tenant_id)},
    }
    whole = sum(line.cents for line in lines) == ours.cents and all(line.cents > 0 for line in lines)
    # After corrections in both directions, a line's credit may exceed what its invoice line billed; the sum does not.
    if whole and 0 < len(lines) <= MAX_LINES and all(line.stripe_item_id and line.fits for line in lines):
        params["lines"] = [
            {"type": "invoice_line_item", "invoice_line_item": line.stripe_item_id, "amount": line.cents}
            for line in lines
        ]
    else:
        params["amount"] = ours.cents
    if parts.balance:
        params["credit_amount"] = parts.balance
    if parts.refund:
        params["refund_amount"] = parts.refund
    return await idempotent_write(
        lambda key: gateway.create_credit_note(params, key),
        find,
        f"penstock-note-{ours.id}-{parts.lowers}-{parts.refund}",
        find_first=True,
    )
