"""Sends invoices to Stripe: creates a draft with one item per line, compares it to the cent, then finalises it.

An invoice is mailed with its due date, whether a card is saved or not. Only where the contract says automatic payment
(`invoices.automatic_payment`) does Stripe charge the saved card. An invoice that credit notes have paid in full before
its push is finalised without being mailed or collected, so that its notes can follow.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.payments.customers import SEARCH_AFTER_S, TENANT_KEY, ensure_customer, ensure_email
from billing.payments.idempotency import idempotent_write
from billing.payments.invoices import INVOICE_KEY
from billing.payments.pushes import block_push, record_push
from billing.payments.stripe_gateway import StripeGateway
from billing.payments.stripe_types import Invoice, InvoiceLine
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import derived_uuid
from core.money import PICO_PER_CENT, pico_to_usd
from tenants.scoping import platform_wide

LINE_KEY = "penstock_line_id"
"""Metadata key of our line's id on the items of an invoice."""
MAX_ITEMS = 250
"""Items of one invoice (Stripe's limit)."""
FINAL_ERRORS = (Conflict, InvalidRequest, NotFound)
"""Errors that a repetition does not change."""


class Mismatch(Exception):
    """Stripe's draft differs from our invoice."""


async def push_invoice(database: Database, gateway: StripeGateway, invoice_id: UUID) -> bool:
    """Create and finalise Stripe's invoice for ours; returns whether it is open now.

    Idempotent, also after a crash: idempotency keys and metadata find what exists. When the draft differs from ours or
    Stripe refuses it, nothing is sent, the push is blocked and operators are notified. Raises NotFound for an unknown
    id, Unavailable when Stripe does not answer.
    """
    async with database.read() as connection:
        ours, lines = await _read(connection, invoice_id)
    if ours is None:
        raise NotFound(f"there is no invoice {invoice_id}")
    if ours.kind != "postpaid" or not ours.to_send or ours.total_cents <= 0:
        return False
    try:
        customer_id = await ensure_customer(database, gateway, ours.tenant_id)
        if not _automatic(ours):
            await ensure_email(database, gateway, ours.tenant_id, customer_id)
        draft = await _ensure_draft(gateway, ours, customer_id)
        items = invoice_items((str(line.id), int(line.cents), line.description) for line in lines)
        sent = await _add_lines(gateway, draft, ours, items)
        opened = await _open(gateway, draft.id, ours, items, sent)
    except (*FINAL_ERRORS, Mismatch) as error:
        async with database.system() as connection:
            await block_push(connection, "invoice", invoice_id, ours.tenant_id, str(error))
        return False
    async with database.system() as connection:
        await _store(connection, ours, opened, items, sent)
    return True


@platform_wide("an invoice names its organisation")
async def _read(connection: AsyncConnection, invoice_id: UUID) -> tuple[Row[Any] | None, Sequence[Row[Any]]]:
    ours = await connection.execute(
        text(
            "SELECT i.id, i.tenant_id, i.month, i.kind, i.status, i.total_cents, i.number, i.stripe_invoice_id, "
            "extract(epoch FROM i.created_at)::bigint AS created, extract(epoch FROM i.due_at)::bigint AS due, "
            "i.due_at < now() + interval '1 minute' AS is_due, i.automatic_payment, "
            "now() - i.created_at > make_interval(secs => :old) AS old, c.customer_id, c.default_payment_method, "
            "i.status = 'paid' AS credited, "
            "i.status = 'open' OR (i.status = 'paid' AND i.stripe_invoice_id IS NULL) AS to_send "
            "FROM invoices i LEFT JOIN stripe_customers c ON c.tenant_id = i.tenant_id WHERE i.id = :id"
        ),
        {"id": invoice_id, "old": SEARCH_AFTER_S},
    )
    lines = await connection.execute(
        text("SELECT id, cents, description FROM invoice_lines WHERE invoice_id = :id ORDER BY position"),
        {"id": invoice_id},
    )
    return ours.one_or_none(), lines.all()


async def _ensure_draft(gateway: StripeGateway, ours: Row[Any], customer_id: str) -> Invoice:
    """Stripe's invoice for ours, created as a draft when there is none."""
    if ours.stripe_invoice_id is not None:
        return await gateway.invoice(ours.stripe_invoice_id)

    async def find() -> Invoice | None:
        return await _find(gateway, ours, customer_id)

    params = {
        "customer": customer_id,
        "currency": "usd",
        "auto_advance": False,
        "pending_invoice_items_behavior": "exclude",
        "number": ours.number,
        "description": f"Inference in {ours.month:%B %Y}",
        "metadata": {
            INVOICE_KEY: str(ours.id),
            TENANT_KEY: str(ours.tenant_id),
            "month": f"{ours.month:%Y-%m}",
        },
        **_collection(ours),
    }
    try:
        return await idempotent_write(
            lambda key: gateway.create_invoice(params, key),
            find,
            f"penstock-invoice-{ours.id}",
            find_first=ours.old,
        )
    except Conflict:
        # The key was used with other parameters: a card was saved, or the due date passed, between two attempts.
        known = await find()
        if known is None:
            raise
        return known


def _automatic(ours: Row[Any]) -> bool:
    """Whether a saved card is charged: the contract says so, there is one, and something is to be paid."""
    return ours.automatic_payment and ours.default_payment_method is not None and not ours.credited


def _collection(ours: Row[Any]) -> dict[str, Any]:
    """Stripe's parameters of how the invoice is collected; its due date when that is ahead, otherwise due at once."""
    if _automatic(ours):
        return {"collection_method": "charge_automatically"}
    due = {"days_until_due": 0} if ours.is_due else {"due_date": ours.due}
    return {"collection_method": "send_invoice", **due}


async def _find(gateway: StripeGateway, ours: Row[Any], customer_id: str) -> Invoice | None:
    """Stripe's invoice for ours by its metadata: a crash may have prevented storing its id."""
    for found in await gateway.invoices(customer_id, ours.created - 300):
        if found.metadata.get(INVOICE_KEY) == str(ours.id) and found.status != "void":
            return found
    return None


class InvoiceItem(msgspec.Struct, frozen=True):
    """An item of Stripe's invoice: one of our lines, or the sum of those beyond MAX_ITEMS."""

    key: str
    cents: int
    description: str
    lines: tuple[str, ...]
    """Ids of our lines in it."""


def invoice_items(lines: Iterable[tuple[str, int, str]]) -> list[InvoiceItem]:
    """The items for our lines (id, cents, description), one each.

    With more than MAX_ITEMS lines, those with the largest amounts have an item each and the others share the last one.
    """
    found = [InvoiceItem(identity, cents, description, (identity,)) for identity, cents, description in lines]
    if len(found) <= MAX_ITEMS:
        return found
    ranked = sorted(found, key=lambda item: (-abs(item.cents), item.key))
    alone, rest = {item.key for item in ranked[: MAX_ITEMS - 1]}, ranked[MAX_ITEMS - 1 :]
    description = f"{len(rest)} further lines; the statement lists them"
    shared = InvoiceItem(
        f"rest-{len(rest)}", sum(item.cents for item in rest), description, tuple(item.key for item in rest)
    )
    return [*(item for item in found if item.key in alone), shared]


async def _add_lines(
    gateway: StripeGateway, draft: Invoice, ours: Row[Any], items: Sequence[InvoiceItem]
) -> list[InvoiceLine]:
    """Add the missing items to the draft in one call (MAX_ITEMS is its limit too); returns all lines of the draft."""
    sent = await gateway.invoice_lines(draft.id)
    there = {line.metadata.get(LINE_KEY) for line in sent}
    missing = [item for item in items if item.key not in there]
    if draft.status != "draft" or not missing:
        return sent
    start = datetime(ours.month.year, ours.month.month, 1, tzinfo=UTC)
    end = (start + timedelta(days=32)).replace(day=1)
    period = {"start": int(start.timestamp()), "end": int(end.timestamp())}
    params = [
        {
            "amount": item.cents,
            "description": item.description[:500],
            "metadata": {LINE_KEY: item.key},
            "period": period,
        }
        for item in missing
    ]
    await _add_page(gateway, draft.id, params, missing[-1].key)
    return await gateway.invoice_lines(draft.id)


async def _add_page(gateway: StripeGateway, draft_id: str, items: list[dict[str, Any]], last: str) -> None:
    """Add lines; a call adds all of its lines or none. `last` is the key of the last one."""

    async def make(key: str) -> bool:
        await gateway.add_lines(draft_id, items, key)
        return True

    async def find() -> bool | None:
        there = await gateway.invoice_lines(draft_id)
        return True if any(line.metadata.get(LINE_KEY) == last for line in there) else None

    key = derived_uuid(draft_id, *(item["metadata"][LINE_KEY] for item in items))
    await idempotent_write(make, find, f"penstock-lines-{key}")


async def _open(
    gateway: StripeGateway,
    draft_id: str,
    ours: Row[Any],
    items: Sequence[InvoiceItem],
    sent: list[InvoiceLine],
) -> Invoice:
    """Compare the draft with ours and finalise it; mail it unless it is paid. Raises Mismatch."""
    found = await gateway.invoice(draft_id)
    want = {item.key: item.cents for item in items}
    have = {line.metadata.get(LINE_KEY, line.id): line.cents for line in sent}
    if len(sent) != len(items) or want != have:
        wrong = sorted(key for key in want.keys() | have.keys() if want.get(key) != have.get(key))
        raise Mismatch(
            f"Stripe's invoice {draft_id} has {len(sent)} lines, ours {len(items)}; not equal: {', '.join(wrong[:5])}"
        )
    if found.total_cents != ours.total_cents:
        raise Mismatch(
            f"Stripe's total of {draft_id} is ${pico_to_usd(found.total_cents * PICO_PER_CENT)}, ours is "
            f"${pico_to_usd(ours.total_cents * PICO_PER_CENT)}"
        )
    if found.status == "draft":

        async def look() -> Invoice | None:
            now = await gateway.invoice(draft_id)
            return None if now.status == "draft" else now

        collect = not ours.credited
        found = await idempotent_write(
            lambda key: gateway.finalize_invoice(draft_id, key, collect=collect),
            look,
            f"penstock-open-{draft_id}" if collect else f"penstock-open-{draft_id}-credited",
        )
    if found.mailed and found.status == "open" and ours.stripe_invoice_id is None and not ours.credited:
        await gateway.send_invoice(draft_id, f"penstock-send-{draft_id}")
    return found


async def _store(
    connection: AsyncConnection,
    ours: Row[Any],
    opened: Invoice,
    items: Sequence[InvoiceItem],
    sent: list[InvoiceLine],
) -> None:
    """Store Stripe's ids of the invoice and its lines."""
    there = {line.metadata[LINE_KEY]: line.id for line in sent}
    pairs = [(each, there[item.key]) for item in items for each in item.lines]
    await connection.execute(
        text(
            "UPDATE invoices SET stripe_invoice_id = :stripe, applied_cents = :applied "
            "WHERE id = :id AND tenant_id = :tenant"
        ),
        {"stripe": opened.id, "applied": opened.applied_cents, "id": ours.id, "tenant": ours.tenant_id},
    )
    await connection.execute(
        text(
            "UPDATE invoice_lines l SET stripe_item_id = s.item "
            "FROM unnest(CAST(:ids AS text[]), CAST(:items AS text[])) AS s (id, item) "
            "WHERE l.id = s.id::uuid AND l.invoice_id = :invoice AND l.tenant_id = :tenant"
        ),
        {
            "ids": [each for each, _ in pairs],
            "items": [there for _, there in pairs],
            "invoice": ours.id,
            "tenant": ours.tenant_id,
        },
    )
    await record_push(connection, "invoice", ours.id, ours.tenant_id, "done", None)


async def void_invoice(database: Database, gateway: StripeGateway, invoice_id: UUID) -> bool:
    """Void Stripe's invoice of our void one; returns whether there was one. Raises Unavailable.

    One that was paid in part meanwhile stays: Stripe voids none with payments. Operators are notified when the payment
    is booked.
    """
    found = await _ended(database, gateway, invoice_id, "void")
    if found is not None and found.status in ("open", "uncollectible") and not found.paid_cents:
        await gateway.void_invoice(found.id, f"penstock-void-{found.id}")
    return found is not None


async def write_off_invoice(database: Database, gateway: StripeGateway, invoice_id: UUID) -> bool:
    """Mark Stripe's invoice of our written-off one uncollectible; returns whether there was one. Raises Unavailable."""
    found = await _ended(database, gateway, invoice_id, "uncollectible")
    if found is not None and found.status == "open":
        await gateway.write_off_invoice(found.id, f"penstock-write-off-{found.id}")
    return found is not None


async def _ended(database: Database, gateway: StripeGateway, invoice_id: UUID, status: str) -> Invoice | None:
    """Stripe's invoice of ours, when ours has `status`; None when Stripe has none."""
    async with database.read() as connection:
        ours, _ = await _read(connection, invoice_id)
    if ours is None or ours.status != status or ours.customer_id is None:
        return None
    if ours.stripe_invoice_id is not None:
        return await gateway.invoice(ours.stripe_invoice_id)
    return await _find(gateway, ours, ours.customer_id)
