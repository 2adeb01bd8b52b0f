"""Sends credit notes to Stripe: on an open invoice, to the customer's balance, or as a refund."""

from typing import Any
from uuid import UUID

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.payments.customers import TENANT_KEY
from billing.payments.idempotency import idempotent_write
from billing.payments.push_invoices import FINAL_ERRORS
from billing.payments.pushes import block_push, record_push
from billing.payments.refunds import apply_refund
from billing.payments.stripe_gateway import StripeGateway
from billing.payments.stripe_types import CreditNote
from core.db import Database
from core.errors import NotFound, Unavailable
from tenants.scoping import platform_wide

NOTE_KEY = "penstock_credit_note_id"
"""Metadata key of our credit note's id on Stripe's."""
MAX_LINES = 100
"""A credit note with more lines is sent with its amount only."""


async def push_credit_note(database: Database, gateway: StripeGateway, note_id: UUID) -> bool:
    """Create Stripe's credit note for ours; returns whether it exists now. Idempotent, also after a crash.

    When Stripe refuses it, the push is blocked and operators are notified. Raises NotFound for an unknown id,
    Unavailable while the invoice is not in Stripe or Stripe does not answer.
    """
    async with database.read() as connection:
        ours, lines = await _read(connection, note_id)
    if ours is None:
        raise NotFound(f"there is no credit note {note_id}")
    if ours.status == "void":
        return False
    if ours.stripe_invoice_id is None:
        raise Unavailable(f"credit note {note_id} waits for its invoice to be sent")
    try:
        made = await _ensure_credit_note(gateway, ours, lines)
    except FINAL_ERRORS as error:
        async with database.system() as connection:
            await block_push(connection, "credit_note", note_id, ours.tenant_id, str(error))
        return False
    refunds = [await gateway.refund(refund_id) for refund_id in made.refunds]
    async with database.system() as connection:
        await connection.execute(
            text(
                "UPDATE credit_notes SET status = 'pushed', stripe_credit_note_id = :stripe "
                "WHERE id = :id AND tenant_id = :tenant"
            ),
            {"stripe": made.id, "id": note_id, "tenant": ours.tenant_id},
        )
        await record_push(connection, "credit_note", note_id, ours.tenant_id, "done", None)
        for refund in refunds:
            await apply_refund(connection, refund, credit_note_id=note_id)
    return True


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
async def _read(connection: AsyncConnection, note_id: UUID) -> tuple[Row[Any] | None, list[Row[Any]]]:
    ours = await connection.execute(
        text(
            "SELECT n.id, n.tenant_id, n.cents, n.reason, n.status, n.pays, n.stripe_credit_note_id, "
            "i.stripe_invoice_id FROM credit_notes n JOIN invoices i ON i.id = n.invoice_id WHERE n.id = :id"
        ),
        {"id": note_id},
    )
    lines = await connection.execute(text(_LINES), {"id": note_id})
    return ours.one_or_none(), list(lines.all())


async def _ensure_credit_note(gateway: StripeGateway, ours: Row[Any], lines: list[Row[Any]]) -> CreditNote:
    if ours.stripe_credit_note_id is not None:
        return await gateway.credit_note(ours.stripe_credit_note_id)

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
    if ours.pays == "balance":
        params["credit_amount"] = ours.cents
    elif ours.pays == "refund":
        params["refund_amount"] = ours.cents
    return await idempotent_write(
        lambda key: gateway.create_credit_note(params, key),
        find,
        f"penstock-note-{ours.id}",
        find_first=True,
    )
