"""Writes finished drafts: invoices, lines, numbers, bookings and what others must do next, in the caller's transaction.

Bookings come last, in the order of the tenants' ids, so that accounts are locked for a short time and in the one order
that everybody keeps.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.invoicing.lines import Totals
from billing.invoicing.sources import Terms
from billing.ledger.months import bounds, month_name
from billing.notifications.notices import notify
from core.ids import derived_uuid
from core.money import PICO_PER_CENT, pico_to_usd
from tenants.scoping import platform_wide


class Draft(msgspec.Struct, frozen=True):
    """An invoice that is not written yet."""

    id: UUID
    tenant_id: UUID
    postpaid: bool
    totals: Totals
    terms: Terms
    committed: int
    """Picodollars of the commitment's shortfall, still to be booked."""
    carried_from: tuple[UUID, ...]
    finalized_at: datetime

    @property
    def status(self) -> str:
        """open when there is something to pay, else settled."""
        return "open" if self.postpaid and self.totals.cents > 0 else "settled"


@platform_wide("the invoice run writes for many organisations at once; every row names its own")
async def write_invoices(connection: AsyncConnection, month: date, drafts: Sequence[Draft]) -> None:
    """Write all of `drafts`; the caller holds the lock of the invoice run."""
    if not drafts:
        return
    numbers = await _numbers(connection, month, [draft for draft in drafts if draft.postpaid])
    await _insert(connection, "invoices", [_invoice(month, draft, numbers) for draft in drafts])
    await _insert(connection, "invoice_lines", [line for draft in drafts for line in _lines(draft)])
    carried = [(source, draft.id) for draft in drafts for source in draft.carried_from]
    if carried:
        await connection.execute(
            text(
                "UPDATE invoices SET carried_to = c.target "
                "FROM unnest(CAST(:sources AS uuid[]), CAST(:targets AS uuid[])) AS c (source, target) "
                "WHERE invoices.id = c.source"
            ),
            {"sources": [source for source, _ in carried], "targets": [target for _, target in carried]},
        )
    payable = [draft for draft in drafts if draft.status == "open"]
    await _tell(connection, month, payable, numbers)
    await book_all(connection, [one for draft in drafts for one in _bookings(month, draft)])


async def _numbers(connection: AsyncConnection, month: date, drafts: Sequence[Draft]) -> dict[UUID, str]:
    """The next numbers of the month: PS-2026-11-000123. Taken in this transaction, so that none is ever missing."""
    if not drafts:
        return {}
    last = (
        await connection.execute(
            text(
                "INSERT INTO invoice_numbers (month, last) VALUES (:month, :count) "
                "ON CONFLICT (month) DO UPDATE SET last = invoice_numbers.last + :count RETURNING last"
            ),
            {"month": month, "count": len(drafts)},
        )
    ).scalar_one()
    first = int(last) - len(drafts) + 1
    return {draft.id: f"PS-{month_name(month)}-{first + i:06d}" for i, draft in enumerate(drafts)}


def _invoice(month: date, draft: Draft, numbers: dict[UUID, str]) -> dict[str, Any]:
    payable = draft.status == "open"
    due = draft.finalized_at + timedelta(days=draft.terms.payment_days)
    return {
        "id": draft.id,
        "tenant_id": draft.tenant_id,
        "month": month,
        "kind": "postpaid" if draft.postpaid else "prepaid",
        "status": draft.status,
        "exact": str(draft.totals.exact),
        "total_cents": draft.totals.cents,
        "number": numbers.get(draft.id),
        "due_at": due if payable else None,
        "finalized_at": draft.finalized_at,
        "created_at": draft.finalized_at,
        "carry_exact": str(draft.totals.carry_exact),
        "carry_cents": draft.totals.carry_cents,
    }


def _lines(draft: Draft) -> Iterable[dict[str, Any]]:
    for position, line in enumerate(draft.totals.lines, 1):
        yield {
            "id": derived_uuid("invoice line", draft.id, position),
            "invoice_id": draft.id,
            "tenant_id": draft.tenant_id,
            "position": position,
            "kind": line.kind,
            "model": line.model,
            "class": line.token_class,
            "tier": line.tier,
            "price_version": line.price_version,
            "tokens": str(line.tokens),
            "unit_price": None if line.unit_price is None else str(line.unit_price),
            "exact": str(line.exact),
            "cents": line.cents,
            "description": line.description,
            "adjustment_id": line.adjustment_id,
        }


async def _insert(connection: AsyncConnection, table: str, rows: Sequence[dict[str, Any]]) -> None:
    """Insert many rows with one statement; both tables have a tenant_id in every row."""
    if not rows:
        return
    columns = ", ".join(rows[0])
    await connection.execute(
        text(
            f"INSERT INTO {table} ({columns}) "  # noqa: S608 - names of our own
            f"SELECT {columns} FROM jsonb_populate_recordset(CAST(NULL AS {table}), CAST(:rows AS jsonb))"
        ),
        {"rows": msgspec.json.encode(rows).decode()},
    )


async def _tell(
    connection: AsyncConnection, month: date, drafts: Sequence[Draft], numbers: dict[UUID, str]
) -> None:
    """What follows an invoice that is to be paid: Stripe gets it, the customer hears of it."""
    if not drafts:
        return
    await connection.execute(
        text(
            "INSERT INTO outbox (topic, payload) SELECT 'stripe.push_invoice', value "
            "FROM jsonb_array_elements(CAST(:payloads AS jsonb))"
        ),
        {"payloads": json.dumps([{"invoice_id": str(draft.id)} for draft in drafts])},
    )
    for draft in drafts:
        number, total = numbers[draft.id], pico_to_usd(draft.totals.cents * PICO_PER_CENT)
        due = (draft.finalized_at + timedelta(days=draft.terms.payment_days)).date().isoformat()
        await notify(
            connection,
            tenant_id=draft.tenant_id,
            kind="invoice.finalized",
            subject=f"Invoice {number} for {month_name(month)}: ${total}",
            body=f"Your invoice {number} for {month_name(month)} is ready. ${total} is due on {due}.",
            facts={"invoice_id": str(draft.id), "number": number, "total_usd": total, "due": due},
            key=f"invoice.finalized {draft.id}",
        )


class Booking(msgspec.Struct, frozen=True):
    """One transfer: see `penstock_book`."""

    kind: str
    tenant_id: UUID
    debit: str
    credit: str
    amount: int
    source_id: UUID
    effective_at: datetime | None = None


def rounding(kind: str, tenant_id: UUID, source_id: UUID, *, exact: int, cents: int) -> list[Booking]:
    """What brings a customer's invoiced amount from the exact sum to whole cents."""
    difference = cents * PICO_PER_CENT - exact
    if difference == 0:
        return []
    debit, credit = ("invoiced", "rounding") if difference > 0 else ("rounding", "invoiced")
    return [Booking(kind, tenant_id, debit, credit, abs(difference), source_id)]


def _bookings(month: date, draft: Draft) -> Iterable[Booking]:
    if not draft.postpaid:
        return
    if draft.committed and draft.terms.commit_source is not None:
        last = bounds(month)[1] - timedelta(microseconds=1)
        source = draft.terms.commit_source
        yield Booking("commit", draft.tenant_id, "receivable", "revenue", draft.committed, source, last)
    if draft.totals.exact > 0:
        yield Booking("invoice", draft.tenant_id, "invoiced", "receivable", draft.totals.exact, draft.id)
        yield from rounding(
            "rounding", draft.tenant_id, draft.id, exact=draft.totals.exact, cents=draft.totals.cents
        )


async def book_all(connection: AsyncConnection, bookings: Sequence[Booking]) -> None:
    """Book many transfers in one round trip, accounts in the order of their ids; each is idempotent by its source."""
    if not bookings:
        return
    rows = [
        {**msgspec.to_builtins(one), "amount": str(one.amount), "position": i}
        for i, one in enumerate(bookings)
    ]
    await connection.execute(
        text(
            "SELECT count(penstock_book(kind, tenant_id, debit, credit, amount, source_id, effective_at)) FROM ("
            "SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS b (kind text, tenant_id uuid, debit text, "
            "credit text, amount numeric, source_id uuid, effective_at timestamptz, position integer) "
            "ORDER BY tenant_id, position) ordered"
        ),
        {"rows": json.dumps(rows)},
    )
