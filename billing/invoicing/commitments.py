"""Committed spend: what contracts come to in a month, what usage counts towards it, and what late usage takes back.

Usage counts for the month in which it ended. What ended in the month is on its invoice; late usage is on the invoice of
a later month, which credits the shortfall that it would have spared its own month. Every `month` argument is the first
day of the month; amounts are picodollars.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import date
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.invoicing.lines import Commitment, LateUsage
from billing.ledger.months import bounds
from billing.pricing.proration import Span, prorate
from tenants.scoping import platform_wide


async def agreed(connection: AsyncConnection, month: date, tenants: Sequence[UUID]) -> dict[UUID, int]:
    """What the contracts of `tenants` commit them to in the month, each for the time that it holds."""
    start, end = bounds(month)
    rows = await connection.execute(
        text(
            "SELECT tenant_id, commit_monthly, effective FROM contracts WHERE tenant_id = ANY (:tenants) "
            "AND withdrawn_at IS NULL AND commit_monthly IS NOT NULL "
            "AND effective && tstzrange(CAST(:start AS timestamptz), CAST(:end AS timestamptz))"
        ),
        {"tenants": list(tenants), "start": start, "end": end},
    )
    spans: dict[UUID, list[Span]] = defaultdict(list)
    for row in rows:
        spans[row.tenant_id].append(Span(int(row.commit_monthly), row.effective.lower, row.effective.upper))
    return {tenant: prorate(held, month) for tenant, held in spans.items()}


async def billed(
    connection: AsyncConnection, month: date, tenants: Collection[UUID]
) -> dict[UUID, Commitment]:
    """The commitments of those `tenants` whose invoice of the month has one, and what counts towards each by now."""
    rows = await connection.execute(
        text(
            "SELECT i.tenant_id, i.committed, coalesce((SELECT sum(l.exact) FROM invoice_lines l "
            "WHERE l.invoice_id = i.id AND l.kind = 'usage'), 0) AS used FROM invoices i "
            "WHERE i.month = :month AND i.committed IS NOT NULL AND i.tenant_id = ANY (:tenants)"
        ),
        {"month": month, "tenants": list(tenants)},
    )
    found = {row.tenant_id: row for row in rows}
    more = await counted(connection, month, found)
    return {
        tenant: Commitment(int(row.committed), int(row.used) + more.get(tenant, 0))
        for tenant, row in found.items()
    }


async def counted(connection: AsyncConnection, month: date, tenants: Collection[UUID]) -> dict[UUID, int]:
    """By tenant: what counts towards the month's commitment beside the usage lines of its own invoice.

    These are approved corrections of that usage, and late usage on the invoices of other months.
    """
    rows = await connection.execute(
        text(
            "SELECT tenant_id, sum(amount) AS amount FROM ("
            "SELECT l.tenant_id, l.delta AS amount FROM correction_lines l "
            "JOIN corrections c ON c.id = l.correction_id WHERE c.month = :month "
            "AND c.status IN ('applying', 'approved') AND l.kind = 'usage' AND l.tenant_id = ANY (:tenants) "
            "UNION ALL SELECT tenant_id, cost FROM commitment_usage "
            "WHERE month = :month AND tenant_id = ANY (:tenants)) parts GROUP BY 1"
        ),
        {"month": month, "tenants": list(tenants)},
    )
    return {row.tenant_id: int(row.amount) for row in rows}


async def late_usage(
    connection: AsyncConnection, month: date, tenants: Collection[UUID]
) -> dict[UUID, tuple[LateUsage, ...]]:
    """By tenant: the late usage booked in the month, by the month it belongs to, and what it spares that month."""
    costs = await _late_costs(connection, month, tenants)
    found: dict[UUID, tuple[LateUsage, ...]] = {}
    for used_in in sorted({one for _, one in costs}):
        concerned = [tenant for tenant, one in costs if one == used_in]
        commitments = await billed(connection, used_in, concerned)
        for tenant in concerned:
            cost = costs[tenant, used_in]
            before = commitments.get(tenant, Commitment(0, 0))
            credit = before.shortfall - before.plus(cost).shortfall
            found[tenant] = (*found.get(tenant, ()), LateUsage(used_in, cost, credit))
    return found


@platform_wide("the requests of late usage name no organisation; it is that of their usage rows")
async def _late_costs(
    connection: AsyncConnection, month: date, tenants: Collection[UUID]
) -> dict[tuple[UUID, date], int]:
    """The cost of late usage booked in the month by tenant and the month it belongs to."""
    if not tenants:
        return {}
    start, end = bounds(month)
    rows = await connection.execute(
        text(
            "SELECT u.tenant_id, date_trunc('month', l.ended_at AT TIME ZONE 'UTC')::date AS used_in, "
            "sum(u.cost) AS cost FROM usage_late l JOIN usage u ON u.request_id = l.request_id "
            "WHERE l.ended_at < :start AND u.ended_at >= :start AND u.ended_at < :end "
            "AND u.outcome NOT IN ('engine_failed', 'zero_output') AND u.tenant_id = ANY (:tenants) "
            "GROUP BY 1, 2 HAVING sum(u.cost) > 0"
        ),
        {"start": start, "end": end, "tenants": list(tenants)},
    )
    return {(row.tenant_id, row.used_in): int(row.cost) for row in rows}
