"""Writes drafts as invoices: rows, lines, numbers, notices and bookings, in the caller's transaction.

Bookings come last and in the order of the tenants' ids: accounts are locked for a short time and in the common order.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.invoicing.bookings import Booking, book_all, rounding_bookings
from billing.invoicing.lines import LateUsage, Totals
from billing.invoicing.sources import ContractTerms
from billing.ledger.months import bounds, month_name
from billing.notifications.notices import notify
from core.ids import derived_uuid
from core.money import PICO_PER_CENT, pico_to_usd
from tenants.scoping import platform_wide


class Draft(msgspec.Struct, frozen=True):
    """A complete invoice that is not written yet."""

    id: UUID
    tenant_id: UUID
    postpaid: bool
    totals: Totals
    terms: ContractTerms
    committed: int
    """Picodollars of committed spend in the month; 0 = none."""
    shortfall: int
    """Picodollars that usage lacks to it, to book."""
    late: tuple[LateUsage, ...]
    """Usage of earlier months, which counts towards their commitments."""
    carried_from: tuple[UUID, ...]
    """Invoices whose carried amounts are on this one."""
    finalized_at: datetime

    @property
    def status(self) -> str:
        """`open` when there is something to pay, else `settled`."""
        return "open" if self.postpaid and self.totals.cents > 0 else "settled"


@platform_wide("the invoice run writes for many organisations at once; every row names its own")
async def write_invoices(connection: AsyncConnection, month: date, drafts: Sequence[Draft]) -> None:
    """Write `drafts` of `month` (its first day). The caller must hold the advisory lock `penstock_invoices`."""
    if not drafts:
        return
    numbers = await _numbers(connection, month, [draft for draft in drafts if draft.postpaid])
    await _insert(connection, "invoices", [_invoice_row(month, draft, numbers) for draft in drafts])
    await _insert(connection, "invoice_lines", [line for draft in drafts for line in _line_rows(draft)])
    await _insert(connection, "commitment_usage", [row for draft in drafts for row in _late_rows(draft)])
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
    await _enqueue_and_notify(connection, month, payable, numbers)
    await book_all(connection, [one for draft in drafts for one in _bookings(month, draft)])


async def _numbers(connection: AsyncConnection, month: date, drafts: Sequence[Draft]) -> dict[UUID, str]:
    """The next numbers of the month, such as PS-2026-11-000123; a rollback returns them, so none is ever missing."""
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


def _invoice_row(month: date, draft: Draft, numbers: dict[UUID, str]) -> dict[str, Any]:
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
        "automatic_payment": draft.terms.automatic_payment,
        "committed": str(draft.committed) if draft.committed else None,
    }


def _line_rows(draft: Draft) -> Iterable[dict[str, Any]]:
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
            "used_in": line.used_in,
        }


def _late_rows(draft: Draft) -> Iterable[dict[str, Any]]:
    for late in draft.late:
        if late.cost == 0:
            continue
        yield {
            "tenant_id": draft.tenant_id,
            "month": late.month,
            "invoice_id": draft.id,
            "cost": str(late.cost),
        }


async def _insert(connection: AsyncConnection, table: str, rows: Sequence[dict[str, Any]]) -> None:
    """Insert many rows with one statement."""
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


async def _enqueue_and_notify(
    connection: AsyncConnection, month: date, drafts: Sequence[Draft], numbers: dict[UUID, str]
) -> None:
    """Queue payable invoices for Stripe and notify their customers."""
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


def _bookings(month: date, draft: Draft) -> Iterable[Booking]:
    if not draft.postpaid:
        return
    last = bounds(month)[1] - timedelta(microseconds=1)
    if draft.shortfall:
        source = derived_uuid("commit", draft.tenant_id, month)
        yield Booking("commit", draft.tenant_id, "receivable", "revenue", draft.shortfall, source, last)
    for late in draft.late:
        if (
            late.credit
        ):  # the month it belongs to may be closed, so it is taken back in this one, like the usage
            source = derived_uuid("commit", draft.tenant_id, month, late.month)
            yield Booking("commit", draft.tenant_id, "revenue", "receivable", late.credit, source, last)
    if draft.totals.exact > 0:
        yield Booking("invoice", draft.tenant_id, "invoiced", "receivable", draft.totals.exact, draft.id)
        yield from rounding_bookings(
            "rounding", draft.tenant_id, draft.id, exact=draft.totals.exact, cents=draft.totals.cents
        )
