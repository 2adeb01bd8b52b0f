"""Requests to refund bought credit: how much can be refunded, and taking the credit back."""

from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger import credits
from billing.payments import auto_topup_rules, lots
from core.errors import Conflict, InvalidRequest, NotFound
from core.money import PICO_PER_CENT, pico_to_usd
from core.outbox import enqueue

TOPIC = "stripe.refund"
"""Outbox topic of refunds to send."""


class RequestedRefund(msgspec.Struct, frozen=True):
    """A requested refund."""

    id: UUID
    """The refund's id, or the approval's while it waits for one."""
    tenant_id: UUID
    amount_usd: str
    payment_intent: str
    status: str = "requested"
    """requested (booked, to be sent) | waiting (for a second person's approval) | rejected"""


async def refundable(
    connection: AsyncConnection,
    *,
    refund_id: UUID,
    tenant_id: UUID,
    payment_intent: str,
    cents: int | None,
) -> tuple[int, int]:
    """(cents of this refund, cents of all refunds of the purchase with it); (0, 0) when it is booked already.

    The approval limit applies to the sum, so that many small refunds count as one. Arguments and errors as
    `request_refund`. The account stays locked.
    """
    if await _existing(connection, tenant_id, refund_id) is not None:
        return 0, 0
    lot_id = await _refundable_lot(connection, tenant_id, payment_intent)
    wanted = _checked_amount(cents, await _remaining_cents(connection, tenant_id, lot_id))
    before = await connection.execute(
        text(
            "SELECT coalesce(sum(cents), 0) FROM stripe_refunds WHERE payment_intent = :pi AND tenant_id = :tenant "
            "AND status <> 'failed'"
        ),
        {"pi": payment_intent, "tenant": tenant_id},
    )
    return wanted, wanted + int(before.scalar_one())


def _checked_amount(cents: int | None, left: int) -> int:
    """The cents to refund of the `left` ones. Raises InvalidRequest for 0 or less, Conflict when less is left."""
    wanted = left if cents is None else cents
    if wanted <= 0 and left > 0:
        raise InvalidRequest("the amount of a refund must be above 0", param="amount_usd")
    if wanted > left or left == 0:
        raise Conflict(
            f"${pico_to_usd(left * PICO_PER_CENT)} of this purchase is left; no more can be refunded"
        )
    return wanted


async def request_refund(
    connection: AsyncConnection,
    *,
    refund_id: UUID,
    tenant_id: UUID,
    payment_intent: str,
    cents: int | None,
    reason: str,
    by: str,
) -> RequestedRefund:
    """Take bought credit back, queue its refund and disable automatic top-up, in the caller's transaction.

    Idempotent by `refund_id`.

    `cents` None = all that is left, in whole cents; `by` names the person. Raises NotFound when the payment bought no
    credit of this tenant, InvalidRequest for `cents` of 0 or less, Conflict when less is left or not held, or when the
    payment is disputed.
    """
    done = await _existing(connection, tenant_id, refund_id)
    if done is not None:
        return _requested(done)
    lot_id = await _refundable_lot(connection, tenant_id, payment_intent)
    cents = _checked_amount(cents, await _remaining_cents(connection, tenant_id, lot_id))
    taken = await credits.debit_lot(
        connection, lot_id=lot_id, amount=cents * PICO_PER_CENT, kind="refund", source_id=refund_id
    )
    if taken != cents * PICO_PER_CENT:
        raise Conflict(f"only ${pico_to_usd(taken)} is not held by requests that run now; try again shortly")
    made = await connection.execute(
        text(
            "INSERT INTO stripe_refunds (id, tenant_id, payment_intent, lot_id, cents, status, reason, created_by) "
            "VALUES (:id, :tenant, :pi, :lot, :cents, 'requested', :reason, :by) "
            "RETURNING id, tenant_id, cents, payment_intent"
        ),
        {
            "id": refund_id,
            "tenant": tenant_id,
            "pi": payment_intent,
            "lot": lot_id,
            "cents": cents,
            "reason": reason,
            "by": by,
        },
    )
    await auto_topup_rules.disable(connection, tenant_id, auto_topup_rules.REFUNDED)
    await enqueue(connection, TOPIC, {"refund_id": str(refund_id)})
    return _requested(made.one())


def _requested(row: Row[Any]) -> RequestedRefund:
    return RequestedRefund(
        id=row.id,
        tenant_id=row.tenant_id,
        amount_usd=pico_to_usd(row.cents * PICO_PER_CENT),
        payment_intent=row.payment_intent,
    )


async def _existing(connection: AsyncConnection, tenant_id: UUID, refund_id: UUID) -> Row[Any] | None:
    found = await connection.execute(
        text(
            "SELECT id, tenant_id, cents, payment_intent FROM stripe_refunds "
            "WHERE id = :id AND tenant_id = :tenant"
        ),
        {"id": refund_id, "tenant": tenant_id},
    )
    return found.one_or_none()


async def _refundable_lot(connection: AsyncConnection, tenant_id: UUID, payment_intent: str) -> UUID:
    """The lot to refund from. Raises NotFound, Conflict while the payment is disputed."""
    found = await connection.execute(
        text(
            "SELECT (SELECT count(*) FROM stripe_disputes d WHERE d.payment_intent = p.payment_intent "
            "AND d.status NOT IN ('won', 'warning_closed')) AS disputes FROM stripe_payments p "
            "WHERE p.payment_intent = :pi AND p.tenant_id = :tenant AND p.purpose = 'topup'"
        ),
        {"pi": payment_intent, "tenant": tenant_id},
    )
    disputes = found.scalar_one_or_none()
    if disputes is None:
        raise NotFound(f"this organisation bought no credit with the payment {payment_intent[:80]}")
    if disputes:
        raise Conflict("this payment is disputed: a refund would be paid twice")
    return await _largest_lot(connection, tenant_id, payment_intent)


async def _largest_lot(connection: AsyncConnection, tenant_id: UUID, payment_intent: str) -> UUID:
    """The lot of a purchase with the most credit left: a failed refund returns its credit to a lot of its own."""
    await credits.allocate(connection, tenant_id)
    lot_ids = await lots.lots_of(connection, tenant_id, payment_intent)
    found = await connection.execute(
        text(
            "SELECT id FROM credit_grants WHERE id = ANY(CAST(:lots AS uuid[])) AND tenant_id = :tenant "
            "ORDER BY remaining DESC, id LIMIT 1"
        ),
        {"lots": lot_ids, "tenant": tenant_id},
    )
    lot_id: UUID = found.scalar_one()
    return lot_id


async def _remaining_cents(connection: AsyncConnection, tenant_id: UUID, lot_id: UUID) -> int:
    """Whole cents left of a lot, whose account is locked."""
    found = await connection.execute(
        text("SELECT remaining FROM credit_grants WHERE id = :lot AND tenant_id = :tenant"),
        {"lot": lot_id, "tenant": tenant_id},
    )
    return int(found.scalar_one()) // PICO_PER_CENT
