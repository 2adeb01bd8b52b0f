"""Refunds of payments of written-off invoices: what is paid back is an expense again, since it is no longer owed."""

from typing import Any
from uuid import UUID

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger import transfers
from billing.payments import cash
from billing.payments.invoices import recovery_source
from core.ids import derived_uuid
from core.money import PICO_PER_CENT


async def write_off_again(
    connection: AsyncConnection, payment: Row[Any], intent: str, refund_id: UUID
) -> None:
    """Book a refund of an invoice that was written off as uncollectible again; once for each refund.

    Of a payment that reversed the write-off it is as much as that payment reversed, less earlier refunds of it. The
    refund is stored and booked against `invoiced` already.
    """
    if not await _booked(connection, payment.tenant_id, [payment.invoice_id]):
        return
    rows = await connection.execute(
        text(
            "SELECT id, cents FROM stripe_refunds WHERE payment_intent = :pi AND tenant_id = :tenant "
            "AND credit_note_id IS NULL AND status <> 'failed'"
        ),
        {"pi": intent, "tenant": payment.tenant_id},
    )
    refunds = {row.id: int(row.cents) * PICO_PER_CENT for row in rows}
    amount = refunds.get(refund_id, 0)
    recovered = await _booked(
        connection, payment.tenant_id, [recovery_source(payment.invoice_id, cash.source_id(intent))]
    )
    if recovered:
        earlier = [_source(one) for one in refunds if one != refund_id]
        amount = min(amount, recovered - await _booked(connection, payment.tenant_id, earlier))
    if amount > 0:
        await transfers.book(
            connection,
            "write_off",
            payment.tenant_id,
            "uncollectible",
            "invoiced",
            amount,
            _source(refund_id),
        )


async def undo_for_failed_refund(connection: AsyncConnection, tenant_id: UUID, refund_id: UUID) -> None:
    """Reverse `write_off_again` of a refund that failed: the money is ours as before."""
    amount = await _booked(connection, tenant_id, [_source(refund_id)])
    if amount:
        back = derived_uuid(refund_id, "written off", "failed")
        await transfers.book(connection, "write_off", tenant_id, "invoiced", "uncollectible", amount, back)


def _source(refund_id: UUID) -> UUID:
    """The ledger source of the expense that a refund brings back."""
    return derived_uuid(refund_id, "written off")


async def _booked(connection: AsyncConnection, tenant_id: UUID, sources: list[UUID]) -> int:
    """Picodollars of the transfers of the kind write_off with these sources."""
    found = await connection.execute(
        text(
            "SELECT coalesce(sum(amount), 0) FROM ledger_transfers WHERE kind = 'write_off' AND tenant_id = :tenant "
            "AND source_id = ANY(CAST(:sources AS uuid[]))"
        ),
        {"tenant": tenant_id, "sources": sources},
    )
    return int(found.scalar_one())
