"""Adjustments: dated corrections of what a customer owes. Nothing is rewritten; a correction is booked when it is made.

A positive amount is in the customer's favour: less revenue, and credit (prepaid: a lot) or less owed (postpaid). A
negative one is the reverse; a prepaid customer pays what is free of the balance and the rest is uncollectible.
"""

from datetime import date
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger import credits, transfers
from billing.ledger.tables import adjustments
from core.errors import Conflict, InvalidRequest, NotFound
from core.money import pico_to_usd
from tenants.scoping import platform_wide

MAX_LIST = 1000


class Adjustment(msgspec.Struct, frozen=True):
    """One correction; amounts are exact decimal dollars."""

    id: UUID
    tenant_id: UUID
    amount_usd: str
    """Above 0: in the customer's favour."""
    uncollectible_usd: str
    """What of a charge the prepaid balance did not cover, or what of that a reversal takes back."""
    reason: str
    corrects: str | None
    """The month that was wrong, YYYY-MM."""
    facts: dict[str, Any] | None
    created_by: str
    approved_by: str | None
    created_at: str


async def adjust(
    connection: AsyncConnection,
    *,
    adjustment_id: UUID,
    tenant_id: UUID,
    amount: int,
    reason: str,
    created_by: str,
    corrects: date | None = None,
    facts: dict[str, Any] | None = None,
    approved_by: str | None = None,
    never_paid: int = 0,
) -> None:
    """Book a correction of `amount` picodollars (above 0: in the customer's favour), in the caller's transaction.

    Idempotent by `adjustment_id`. `corrects` is the first day of the month that was wrong. `never_paid` is what of an
    amount above 0 the charge that it undoes could not collect: it lowers that expense and gives nobody credit. Raises
    InvalidRequest, NotFound, Conflict for the same id with other facts.
    """
    if amount == 0:
        raise InvalidRequest("an adjustment of 0 changes nothing", param="amount_usd")
    if not 0 <= never_paid <= max(amount, 0):
        raise InvalidRequest("what was never paid is a part of an amount above 0", param="never_paid")
    if corrects is not None and corrects.day != 1:
        raise InvalidRequest("corrects must be the first day of a month", param="corrects")
    account = (
        await connection.execute(
            text(
                "SELECT mode, balance - held AS free FROM billing_accounts "
                "WHERE tenant_id = :tenant_id FOR UPDATE"
            ),
            {"tenant_id": tenant_id},
        )
    ).one_or_none()
    if account is None:
        raise NotFound(f"there is no billing account of an organisation {tenant_id}")
    if await _is_booked(connection, adjustment_id, tenant_id, amount):
        return
    uncollectible = never_paid
    if account.mode == "prepaid" and amount < 0:
        uncollectible = max(-amount - max(int(account.free), 0), 0)
    await connection.execute(
        insert(adjustments).values(
            id=adjustment_id,
            tenant_id=tenant_id,
            amount=amount,
            uncollectible=uncollectible,
            reason=reason,
            corrects=corrects,
            facts=facts,
            created_by=created_by,
            approved_by=approved_by,
        )
    )
    collected = abs(amount) - uncollectible
    if collected and account.mode == "prepaid" and amount > 0:
        await credits.add_lot(
            connection,
            lot_id=adjustment_id,
            tenant_id=tenant_id,
            amount=collected,
            kind="adjustment",
            reason=reason,
            created_by=created_by,
        )
        collected = 0
    customer_account = "credit" if account.mode == "prepaid" else "receivable"
    for kind, counter_account, part in (
        ("adjustment", customer_account, collected),
        ("uncollectible", "uncollectible", uncollectible),
    ):
        if part:
            debit, credit = ("revenue", counter_account) if amount > 0 else (counter_account, "revenue")
            await transfers.book(connection, kind, tenant_id, debit, credit, part, adjustment_id)


async def _is_booked(connection: AsyncConnection, adjustment_id: UUID, tenant_id: UUID, amount: int) -> bool:
    """Whether this very adjustment is booked. Raises Conflict when another one has the id."""
    row = (
        await connection.execute(
            select(adjustments.c.tenant_id, adjustments.c.amount).where(adjustments.c.id == adjustment_id)
        )
    ).one_or_none()
    if row is None:
        return False
    if row.tenant_id != tenant_id or int(row.amount) != amount:
        raise Conflict(f"the adjustment {adjustment_id} was booked already with other facts")
    return True


@platform_wide("finance lists the adjustments of all organisations")
async def list_adjustments(
    connection: AsyncConnection, *, tenant_id: UUID | None = None, month: date | None = None, limit: int = 100
) -> list[Adjustment]:
    """The newest first; `month` (its first day) narrows to those booked in it."""
    query = select(adjustments).order_by(adjustments.c.created_at.desc(), adjustments.c.id)
    if tenant_id is not None:
        query = query.where(adjustments.c.tenant_id == tenant_id)
    if month is not None:
        query = query.where(
            text("date_trunc('month', created_at AT TIME ZONE 'UTC')::date = :month").bindparams(month=month)
        )
    return [_view(row) for row in await connection.execute(query.limit(min(limit, MAX_LIST)))]


def _view(row: Row[Any]) -> Adjustment:
    return Adjustment(
        id=row.id,
        tenant_id=row.tenant_id,
        amount_usd=pico_to_usd(int(row.amount)),
        uncollectible_usd=pico_to_usd(int(row.uncollectible)),
        reason=row.reason,
        corrects=None if row.corrects is None else f"{row.corrects:%Y-%m}",
        facts=row.facts,
        created_by=row.created_by,
        approved_by=row.approved_by,
        created_at=row.created_at.isoformat(),
    )
