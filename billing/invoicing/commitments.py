"""Committed spend: what contracts come to in a month, what usage counts towards it, and what late usage takes back.

Usage counts for the month in which it ended, at its corrected price. What ended in the month is on its invoice; late
usage is on the invoice of a later month, which credits the shortfall that it would have spared its own month. Every
`month` argument is the first day of the month; amounts are picodollars.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import date
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.invoicing.lines import Commitment, LateUsage, UsageGroup
from billing.ledger.months import bounds
from billing.pricing.proration import Span, prorate


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

    These are approved corrections of that usage, late usage on the invoices of other months, and approved corrections
    of it.
    """
    rows = await connection.execute(
        text(
            "SELECT tenant_id, sum(amount) AS amount FROM ("
            "SELECT l.tenant_id, l.delta AS amount FROM correction_lines l "
            "JOIN corrections c ON c.id = l.correction_id WHERE c.month = :month "
            "AND c.status IN ('applying', 'approved') AND l.kind = 'usage' AND l.tenant_id = ANY (:tenants) "
            "UNION ALL SELECT tenant_id, cost FROM commitment_usage "
            "WHERE month = :month AND tenant_id = ANY (:tenants) "
            "UNION ALL SELECT l.tenant_id, l.delta FROM correction_lines l "
            "JOIN corrections c ON c.id = l.correction_id "
            "JOIN invoices i ON i.tenant_id = l.tenant_id AND i.month = c.month AND i.kind = 'postpaid' "
            "WHERE l.kind = 'late_usage' AND l.used_in = :month AND l.tenant_id = ANY (:tenants) "
            "AND c.status IN ('applying', 'approved')) parts GROUP BY 1"
        ),
        {"month": month, "tenants": list(tenants)},
    )
    return {row.tenant_id: int(row.amount) for row in rows}


async def invoiced(connection: AsyncConnection, month: date, tenants: Collection[UUID]) -> set[UUID]:
    """Those `tenants` that have a postpaid invoice of the month: its late usage counts towards its commitments."""
    rows = await connection.scalars(
        text(
            "SELECT tenant_id FROM invoices WHERE month = :month AND kind = 'postpaid' "
            "AND tenant_id = ANY (:tenants)"
        ),
        {"month": month, "tenants": list(tenants)},
    )
    return set(rows)


async def late_usage(
    connection: AsyncConnection, month: date, groups: Sequence[UsageGroup]
) -> dict[UUID, tuple[LateUsage, ...]]:
    """By tenant: the late usage among `groups` of the month, which is not invoiced yet, by the month it belongs to, and
    what it spares that month.
    """
    costs: dict[tuple[date, UUID], int] = defaultdict(int)
    for group in groups:
        if group.used_in is not None:
            costs[group.used_in, group.tenant_id] += group.cost
    corrected = await _late_corrections(connection, month, {tenant for _, tenant in costs})
    found: dict[UUID, tuple[LateUsage, ...]] = {}
    for used_in in sorted({one for one, _ in costs}):
        concerned = sorted(tenant for one, tenant in costs if one == used_in)
        commitments = await billed(connection, used_in, concerned)
        for tenant in concerned:
            cost, more = costs[used_in, tenant], corrected.get((used_in, tenant), 0)
            before = commitments.get(tenant, Commitment(0, 0))
            credit = before.shortfall - before.plus(cost + more).shortfall
            found[tenant] = (*found.get(tenant, ()), LateUsage(used_in, cost, more, credit))
    return found


async def _late_corrections(
    connection: AsyncConnection, month: date, tenants: Collection[UUID]
) -> dict[tuple[date, UUID], int]:
    """What approved corrections of the month add to its late usage, by the month it belongs to and the tenant."""
    rows = await connection.execute(
        text(
            "SELECT l.used_in, l.tenant_id, sum(l.delta) AS delta FROM correction_lines l "
            "JOIN corrections c ON c.id = l.correction_id WHERE c.month = :month AND l.kind = 'late_usage' "
            "AND c.status IN ('applying', 'approved') AND l.used_in IS NOT NULL AND l.tenant_id = ANY (:tenants) "
            "GROUP BY 1, 2"
        ),
        {"month": month, "tenants": list(tenants)},
    )
    return {(row.used_in, row.tenant_id): int(row.delta) for row in rows}
