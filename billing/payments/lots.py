"""The credit lots of one purchase: its own lot, and one for each of its refunds that failed.

A refund or dispute takes credit back from all of them: they were paid for with the same money.
"""

from typing import Literal
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger import credits
from billing.payments import cash
from core.ids import derived_uuid
from tenants.scoping import platform_wide


def returned_lot_id(refund_id: UUID) -> UUID:
    """The id of the lot, and of the transfers' source, that a failed refund makes."""
    return derived_uuid(refund_id, "failed")


async def lots_of(connection: AsyncConnection, tenant_id: UUID, payment_intent: str) -> list[UUID]:
    """The lots of a payment, the purchase's own first."""
    rows = await connection.execute(
        text(
            "SELECT id FROM stripe_refunds WHERE payment_intent = :pi AND tenant_id = :tenant "
            "AND status = 'failed' AND lot_id IS NOT NULL ORDER BY id"
        ),
        {"pi": payment_intent, "tenant": tenant_id},
    )
    wanted = [cash.source_id(payment_intent), *(returned_lot_id(row.id) for row in rows)]
    known = await connection.execute(
        text("SELECT id FROM credit_grants WHERE tenant_id = :tenant AND id = ANY(CAST(:ids AS uuid[]))"),
        {"tenant": tenant_id, "ids": wanted},
    )
    there = set(known.scalars())
    return [lot_id for lot_id in wanted if lot_id in there]


async def debit_lots(
    connection: AsyncConnection,
    *,
    lot_ids: list[UUID],
    amount: int,
    kind: Literal["refund", "clawback"],
    source: UUID,
) -> int:
    """Take up to `amount` picodollars from the lots in order; returns the picodollars taken. Idempotent by `source`."""
    taken = 0
    for number, lot_id in enumerate(lot_ids):
        taken += await credits.debit_lot(
            connection,
            lot_id=lot_id,
            amount=amount - taken,
            kind=kind,
            source_id=_lot_source(source, lot_id, number),
        )
    return taken


async def reverse_clawback(connection: AsyncConnection, *, lot_ids: list[UUID], source: UUID) -> int:
    """Return what the clawback `source` took from these lots; returns the picodollars. Idempotent by `source`."""
    given = 0
    for number, lot_id in enumerate(lot_ids):
        drawn = _lot_source(source, lot_id, number)
        if await _clawback_draw(connection, drawn) is not None:
            given += await credits.reverse_clawback(connection, lot_id=lot_id, source_id=drawn)
    return given


async def clawed_back(connection: AsyncConnection, *, lot_ids: list[UUID], source: UUID) -> int | None:
    """Picodollars that the clawback `source` took from these lots; None = it was not attempted."""
    found = [
        await _clawback_draw(connection, _lot_source(source, lot_id, number))
        for number, lot_id in enumerate(lot_ids)
    ]
    tried = [amount for amount in found if amount is not None]
    return sum(tried) if tried else None


def _lot_source(source: UUID, lot_id: UUID, number: int) -> UUID:
    """The source for the lot at index `number`: draws are unique per source, so each further lot has its own."""
    return source if number == 0 else derived_uuid(source, lot_id)


@platform_wide("a source is one dispute's or refund's")
async def _clawback_draw(connection: AsyncConnection, source: UUID) -> int | None:
    found = await connection.execute(
        text("SELECT amount FROM grant_draws WHERE source_id = :source AND kind = 'clawback'"),
        {"source": source},
    )
    amount = found.scalar_one_or_none()
    return None if amount is None else int(amount)
