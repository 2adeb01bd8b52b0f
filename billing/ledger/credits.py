"""Credit lots of prepaid customers: purchased, promotional, service level, adjustment; with expiry and priority.

Settlement changes only `billing_accounts.balance`. `penstock_allocate` later draws the used credit from the lots, in
the order of priority (lower first), expiry and age. So `sum(remaining) >= balance` always holds, with equality after an
allocation. Every function here allocates first, with the account locked. Each draw is a row of `grant_draws`.
"""

from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger import transfers
from billing.ledger.transfers import booking_errors
from core.db import Database
from core.each import for_each
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import derived_uuid
from core.money import pico_to_usd
from tenants.scoping import platform_wide

LotKind = Literal["purchased", "promotional", "sla", "adjustment"]

LOT_KINDS: tuple[LotKind, ...] = ("purchased", "promotional", "sla", "adjustment")
PRIORITIES: dict[LotKind, int] = {"promotional": 10, "sla": 20, "adjustment": 30, "purchased": 40}
"""Default priority by kind: free credit is used before purchased credit."""
MAX_PRIORITY = 1000
"""The largest priority, which is used last."""

_EXPIRY_ACCOUNTS = {
    "purchased": "breakage",
    "adjustment": "breakage",
    "promotional": "promotions",
    "sla": "sla_credits",
}
"""The account that an expired lot is credited to, by kind of lot."""
_COUNTER_ACCOUNTS = {"refund": "cash", "clawback": "disputed"}


class Lot(msgspec.Struct, frozen=True):
    """One credit lot for display; amounts are exact decimal dollars."""

    id: UUID
    tenant_id: UUID
    kind: str
    """purchased | promotional | sla | adjustment"""
    priority: int
    """Lower is used first."""
    amount_usd: str
    remaining_usd: str
    """Not used, expired or returned, as of the last allocation."""
    used_usd: str
    expired_usd: str
    returned_usd: str
    """Refunded, or withdrawn because of a dispute."""
    expires_at: str | None
    created_at: str
    reason: str
    created_by: str


async def add_lot(
    connection: AsyncConnection,
    *,
    lot_id: UUID,
    tenant_id: UUID,
    amount: int,
    kind: LotKind,
    reason: str,
    created_by: str,
    expires_at: datetime | None = None,
    priority: int | None = None,
) -> bool:
    """Add a lot of `amount` picodollars to a prepaid account and book it; idempotent by `lot_id`.

    The transfer is a `purchase`, `grant`, `sla_credit` or `adjustment` with the lot's id as source. `priority` (0 to
    MAX_PRIORITY, lower is used first) defaults to that of the kind; `expires_at` needs a time zone, None = never.
    Returns whether the lot is new. Raises InvalidRequest for an amount that is not positive, an unknown kind, or a
    priority or expiry out of range; Conflict for a postpaid account or another lot of the same id.
    """
    if amount <= 0:
        raise InvalidRequest("the amount of a credit must be above 0", param="amount_usd")
    if kind not in LOT_KINDS:
        raise InvalidRequest(f"kind must be one of {', '.join(LOT_KINDS)}, not {kind[:40]!r}", param="kind")
    order = PRIORITIES[kind] if priority is None else priority
    if not 0 <= order <= MAX_PRIORITY:
        raise InvalidRequest(f"priority must be 0 to {MAX_PRIORITY}, not {priority}", param="priority")
    if expires_at is not None:
        await _check_expiry(connection, lot_id, tenant_id, expires_at)
    with booking_errors():
        made = await connection.execute(
            text(
                "SELECT penstock_add_lot(:lot_id, :tenant_id, :amount, :kind, CAST(:priority AS smallint), "
                "CAST(:expires_at AS timestamptz), :reason, :by)"
            ),
            {
                "lot_id": lot_id,
                "tenant_id": tenant_id,
                "amount": amount,
                "kind": kind,
                "priority": order,
                "expires_at": expires_at,
                "reason": reason,
                "by": created_by,
            },
        )
    return bool(made.scalar_one())


async def _check_expiry(
    connection: AsyncConnection, lot_id: UUID, tenant_id: UUID, expires_at: datetime
) -> None:
    """Refuse an expiry without a time zone, or in the past unless the lot exists (a retry may come after it)."""
    if expires_at.tzinfo is None:
        raise InvalidRequest("expires_at needs a time zone, such as Z", param="expires_at")
    row = (
        await connection.execute(
            text(
                "SELECT clock_timestamp() AS now, EXISTS (SELECT 1 FROM credit_grants "
                "WHERE id = :lot_id AND tenant_id = :tenant_id) AS known"
            ),
            {"lot_id": lot_id, "tenant_id": tenant_id},
        )
    ).one()
    if expires_at <= row.now and not row.known:
        raise InvalidRequest(f"expires_at {expires_at.isoformat()} is past", param="expires_at")


async def allocate(connection: AsyncConnection, tenant_id: UUID) -> int:
    """Draw the credit used so far from the lots; locks the account. Returns the picodollars drawn now."""
    allocated = await connection.execute(
        text("SELECT penstock_allocate(:tenant_id)"), {"tenant_id": tenant_id}
    )
    return int(allocated.scalar_one())


async def debit_lot(
    connection: AsyncConnection,
    *,
    lot_id: UUID,
    amount: int | None,
    kind: Literal["refund", "clawback"],
    source_id: UUID,
) -> int:
    """Withdraw `amount` picodollars (None = all) from a lot, at most what remains in it and no open hold needs.

    Books `refund` (credit -> cash) or `clawback` (credit -> disputed); idempotent by `source_id`. Returns the
    picodollars withdrawn, which may be 0. Raises NotFound, InvalidRequest for a negative amount, Conflict when the
    source has debited another lot.
    """
    if amount is not None and amount < 0:
        raise InvalidRequest("the amount to take back must not be negative", param="amount_usd")
    tenant_id = await _tenant_of(connection, lot_id)
    await allocate(connection, tenant_id)
    existing = await _find_draw(connection, tenant_id, kind, source_id)
    if existing is not None:
        if existing.grant_id != lot_id:
            raise Conflict(f"the {kind} {source_id} was taken from another credit already")
        return int(existing.amount)
    remaining, free = await _remaining_and_free(connection, tenant_id, lot_id)
    debited = min(remaining, free) if amount is None else min(remaining, free, amount)
    await _draw(connection, tenant_id, lot_id, kind, debited, source_id)
    if debited:
        await transfers.book(
            connection, kind, tenant_id, "credit", _COUNTER_ACCOUNTS[kind], debited, source_id
        )
    return debited


async def reverse_clawback(connection: AsyncConnection, *, lot_id: UUID, source_id: UUID) -> int:
    """Return the credit of the clawback `source_id` to its lot, after a dispute was won.

    Books `clawback_return` (disputed -> credit); idempotent by `source_id`. Returns the picodollars returned. Raises
    NotFound, Conflict when the lot has no such clawback.
    """
    tenant_id = await _tenant_of(connection, lot_id)
    await allocate(connection, tenant_id)
    clawback = await _find_draw(connection, tenant_id, "clawback", source_id)
    if clawback is None or clawback.grant_id != lot_id:
        raise Conflict(f"no clawback {source_id} was taken from the credit {lot_id}")
    amount = int(clawback.amount)
    if await _find_draw(connection, tenant_id, "clawback_return", source_id) is not None:
        return amount
    await _draw(connection, tenant_id, lot_id, "clawback_return", -amount, source_id)
    if amount:
        await transfers.book(
            connection, "clawback_return", tenant_id, "disputed", "credit", amount, source_id
        )
    return amount


async def give_sla_credit(
    connection: AsyncConnection,
    *,
    credit_id: UUID,
    tenant_id: UUID,
    amount: int,
    reason: str,
    created_by: str,
    effective_at: datetime | None = None,
) -> bool:
    """Credit `amount` picodollars for a missed service level: a lot if the customer is prepaid, less owed if postpaid.

    `effective_at` dates a postpaid customer's credit (None = now); a lot is always dated now. Idempotent by
    `credit_id`; returns whether it is new. Raises NotFound, InvalidRequest for an amount that is not positive, Conflict
    as `transfers.book` and `add_lot`.
    """
    mode = await _mode_of(connection, tenant_id)
    if mode == "prepaid":
        return await add_lot(
            connection,
            lot_id=credit_id,
            tenant_id=tenant_id,
            amount=amount,
            kind="sla",
            reason=reason,
            created_by=created_by,
        )
    if amount <= 0:
        raise InvalidRequest("the amount of a credit must be above 0", param="amount_usd")
    return await transfers.book(
        connection, "sla_credit", tenant_id, "sla_credits", "receivable", amount, credit_id, effective_at
    )


async def expire(connection: AsyncConnection, tenant_id: UUID) -> int:
    """Expire the tenant's lots that are past their expiry; returns the picodollars that expired.

    Use before the expiry is allocated first. What remains and no open hold needs is booked as `expiry`; a part that
    open holds need expires at a later run.
    """
    await allocate(connection, tenant_id)
    rows = await connection.execute(
        text(
            "SELECT g.id, g.kind, (SELECT count(*) FROM grant_draws d WHERE d.grant_id = g.id "
            "AND d.kind = 'expiry') AS times FROM credit_grants g WHERE g.tenant_id = :tenant_id "
            "AND g.remaining > 0 AND g.ended_at IS NOT NULL ORDER BY g.expires_at, g.id"
        ),
        {"tenant_id": tenant_id},
    )
    expired = 0
    for lot in rows.all():
        remaining, free = await _remaining_and_free(connection, tenant_id, lot.id)
        amount = min(remaining, free)
        if not amount:
            continue
        source_id = derived_uuid(lot.id, "expiry", lot.times)
        await _draw(connection, tenant_id, lot.id, "expiry", amount, source_id)
        await transfers.book(
            connection, "expiry", tenant_id, "credit", _EXPIRY_ACCOUNTS[lot.kind], amount, source_id
        )
        expired += amount
    return expired


async def expire_all(database: Database) -> int:
    """Expire the due lots of every tenant, one transaction each; returns the number of tenants with due lots.

    Raises an ExceptionGroup of the tenants that failed, after all the others.
    """
    return await _for_each_tenant(
        database,
        "SELECT DISTINCT tenant_id FROM credit_grants WHERE remaining > 0 AND expires_at <= clock_timestamp()",
        expire,
    )


async def allocate_all(database: Database) -> int:
    """Allocate the use of every tenant, one transaction each; returns the number of tenants with unallocated use.

    Raises an ExceptionGroup of the tenants that failed, after all the others.
    """
    return await _for_each_tenant(
        database,
        "SELECT g.tenant_id FROM credit_grants g JOIN billing_accounts b ON b.tenant_id = g.tenant_id "
        "WHERE g.remaining > 0 GROUP BY g.tenant_id, b.balance HAVING sum(g.remaining) > b.balance",
        allocate,
    )


async def _for_each_tenant(database: Database, due: str, act: Any) -> int:
    """Run `act(connection, tenant_id)` for each tenant that the query `due` returns; returns their number.

    A tenant that fails is logged and does not stop the others. Raises an ExceptionGroup of the failures at the end, so
    that the job counts as failed.
    """
    async with database.read() as connection:
        tenants = list(await connection.scalars(text(due)))

    async def one(tenant_id: UUID) -> None:
        async with database.system() as connection:
            await act(connection, tenant_id)

    await for_each(sorted(tenants), one, "the credit of organisation")
    return len(tenants)


async def list_lots(connection: AsyncConnection, tenant_id: UUID, *, spent: bool = False) -> list[Lot]:
    """A tenant's lots in the order of their use; `spent` includes lots with nothing left."""
    rows = await connection.execute(
        text(
            "SELECT g.*, coalesce(d.used, 0) AS used, coalesce(d.expired, 0) AS expired, "
            "coalesce(d.returned, 0) AS returned FROM credit_grants g LEFT JOIN LATERAL ("
            "SELECT sum(amount) FILTER (WHERE kind = 'use') AS used, "
            "sum(amount) FILTER (WHERE kind = 'expiry') AS expired, "
            "sum(amount) FILTER (WHERE kind IN ('refund', 'clawback', 'clawback_return')) AS returned "
            "FROM grant_draws WHERE grant_id = g.id) d ON true "
            "WHERE g.tenant_id = :tenant_id AND (:spent OR g.remaining > 0) "
            "ORDER BY (g.ended_at IS NOT NULL), g.priority, g.expires_at NULLS LAST, g.created_at, g.id"
        ),
        {"tenant_id": tenant_id, "spent": spent},
    )
    return [_view(row) for row in rows]


async def _remaining_and_free(connection: AsyncConnection, tenant_id: UUID, lot_id: UUID) -> tuple[int, int]:
    """Picodollars that remain in a lot, and that are free of holds in the balance. The account must be locked."""
    row = (
        await connection.execute(
            text(
                "SELECT g.remaining, b.balance - b.held AS free FROM credit_grants g "
                "JOIN billing_accounts b ON b.tenant_id = g.tenant_id "
                "WHERE g.id = :lot_id AND g.tenant_id = :tenant_id"
            ),
            {"lot_id": lot_id, "tenant_id": tenant_id},
        )
    ).one()
    return int(row.remaining), max(int(row.free), 0)


async def _draw(
    connection: AsyncConnection, tenant_id: UUID, lot_id: UUID, kind: str, amount: int, source_id: UUID
) -> None:
    del tenant_id  # locked by the caller; the lot names it
    await connection.execute(
        text("SELECT penstock_draw(:lot_id, :kind, :amount, :source_id)"),
        {"lot_id": lot_id, "kind": kind, "amount": amount, "source_id": source_id},
    )


async def _find_draw(
    connection: AsyncConnection, tenant_id: UUID, kind: str, source_id: UUID
) -> Row[Any] | None:
    """The draw of this kind and source, or None."""
    rows = await connection.execute(
        text(
            "SELECT grant_id, amount FROM grant_draws "
            "WHERE source_id = :source_id AND kind = :kind AND tenant_id = :tenant_id"
        ),
        {"source_id": source_id, "kind": kind, "tenant_id": tenant_id},
    )
    return rows.one_or_none()


@platform_wide("the lot of a refund or dispute identifies the organisation")
async def _tenant_of(connection: AsyncConnection, lot_id: UUID) -> UUID:
    row = (
        await connection.execute(
            text("SELECT tenant_id FROM credit_grants WHERE id = :lot_id"), {"lot_id": lot_id}
        )
    ).one_or_none()
    if row is None:
        raise NotFound(f"there is no credit with the id {lot_id}")
    tenant_id: UUID = row.tenant_id
    return tenant_id


async def _mode_of(connection: AsyncConnection, tenant_id: UUID) -> str:
    mode = await connection.scalar(
        text("SELECT mode FROM billing_accounts WHERE tenant_id = :tenant_id"), {"tenant_id": tenant_id}
    )
    if mode is None:
        raise NotFound(f"there is no billing account of an organisation {tenant_id}")
    return str(mode)


def _view(row: Row[Any]) -> Lot:
    return Lot(
        id=row.id,
        tenant_id=row.tenant_id,
        kind=row.kind,
        priority=row.priority,
        amount_usd=pico_to_usd(int(row.amount)),
        remaining_usd=pico_to_usd(int(row.remaining)),
        used_usd=pico_to_usd(int(row.used)),
        expired_usd=pico_to_usd(int(row.expired)),
        returned_usd=pico_to_usd(int(row.returned)),
        expires_at=None if row.expires_at is None else row.expires_at.astimezone(UTC).isoformat(),
        created_at=row.created_at.astimezone(UTC).isoformat(),
        reason=row.reason,
        created_by=row.created_by,
    )
