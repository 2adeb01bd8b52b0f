"""Adjustments: dated corrections of what a customer owes. Earlier bookings are never changed.

A positive amount is in the customer's favour: it lowers revenue, and gives credit (a lot) to a prepaid customer or
lowers what a postpaid customer owes. A negative amount is the reverse. From a prepaid customer it collects the balance
that no open hold needs, and books the rest as uncollectible.
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
"""Adjustments in one list at most."""


class Adjustment(msgspec.Struct, frozen=True):
    """One adjustment; amounts are exact decimal dollars."""

    id: UUID
    tenant_id: UUID
    amount_usd: str
    """Positive in the customer's favour."""
    uncollectible_usd: str
    """The part of a charge that the prepaid balance did not cover, or of a reversal that gives no credit for it."""
    reason: str
    corrects: str | None
    """The corrected month, YYYY-MM."""
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
) -> bool:
    """Book a correction of `amount` picodollars, positive in the customer's favour, in the caller's transaction.

    Idempotent by `adjustment_id`: returns whether it is new. `corrects` is the first day of the corrected month. When a
    positive amount reverses a charge, `never_paid` is the uncollectible part of that charge: it lowers that expense and
    gives no credit. Raises InvalidRequest for an amount of 0 or arguments out of range, NotFound without an account,
    Conflict when the id is booked with another tenant or amount.
    """
    if amount == 0:
        raise InvalidRequest("an adjustment of 0 changes nothing", param="amount_usd")
    if not 0 <= never_paid <= max(amount, 0):
        raise InvalidRequest("what was never paid is a part of an amount above 0", param="never_paid")
    if corrects is not None and corrects.day != 1:
        raise InvalidRequest("corrects must be the first day of a month", param="corrects")
    prepaid, free = await _lock_account(connection, tenant_id)
    if await _is_booked(connection, adjustment_id, tenant_id, amount):
        return False
    uncollectible = max(-amount - free, 0) if prepaid and amount < 0 else never_paid
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
    if collected and prepaid and amount > 0:
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
    customer_account = "credit" if prepaid else "receivable"
    for kind, counter_account, part in (
        ("adjustment", customer_account, collected),
        ("uncollectible", "uncollectible", uncollectible),
    ):
        if part:
            debit, credit = ("revenue", counter_account) if amount > 0 else (counter_account, "revenue")
            await transfers.book(connection, kind, tenant_id, debit, credit, part, adjustment_id)
    return True


async def _lock_account(connection: AsyncConnection, tenant_id: UUID) -> tuple[bool, int]:
    """Lock the billing account: whether it is prepaid, and the picodollars that no open hold needs. Raises NotFound."""
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
    return account.mode == "prepaid", max(int(account.free), 0)


async def _is_booked(connection: AsyncConnection, adjustment_id: UUID, tenant_id: UUID, amount: int) -> bool:
    """Whether this adjustment is booked. Raises Conflict when another tenant or amount has its id."""
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
    """At most `limit` adjustments (up to MAX_LIST), the newest first, of one tenant and of the month they were booked
    in (its first day).
    """
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
