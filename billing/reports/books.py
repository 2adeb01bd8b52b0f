"""The ledger's part of the usage report: uncollected amounts, adjustments, closed months and invoices."""

from collections.abc import Iterable
from datetime import date, datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.usage.query import TIME_DIMENSIONS, GroupKey, ReportQuery, bucket_start, is_tag
from core.money import pico_to_usd

# The usage rows of archived months may be dropped: then only organisation and hour are known.
_UNCOLLECTED = text(
    """
    SELECT date_trunc('hour', t.effective_at, 'UTC') AS hour, t.tenant_id, u.project_id, u.key_id, u.model, u.tier,
        u.region, u.price_version, u.simulated, u.gpu,
        (SELECT v.value FROM label_values v WHERE v.id = l.user_value) AS end_user,
        (SELECT jsonb_object_agg(v.name, v.value) FROM label_values v WHERE v.id = ANY (l.tag_values)) AS tags,
        sum(t.amount) AS amount
    FROM ledger_transfers t LEFT JOIN usage u ON u.request_id = t.source_id
    LEFT JOIN usage_labels l ON l.request_id = u.request_id
    WHERE t.kind = 'uncollectible' AND t.effective_at >= :start AND t.effective_at < :end
        AND NOT EXISTS (SELECT 1 FROM adjustments a WHERE a.id = t.source_id)
        AND (CAST(:tenant AS uuid) IS NULL OR t.tenant_id = :tenant)
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12
    """
)
# Revenue without a request: adjustments and shortfalls of committed spend, including their uncollectible part.
_BOOKED = text(
    """
    SELECT t.tenant_id, date_trunc('hour', t.effective_at, 'UTC') AS hour,
        sum(CASE WHEN c.code = 'revenue' THEN t.amount ELSE -t.amount END) AS amount
    FROM ledger_transfers t
    JOIN ledger_accounts c ON c.id = t.credit_account JOIN ledger_accounts d ON d.id = t.debit_account
    WHERE t.kind IN ('adjustment', 'commit', 'uncollectible') AND t.effective_at >= :start AND t.effective_at < :end
        AND (c.code = 'revenue' OR d.code = 'revenue')
        AND (t.kind <> 'uncollectible' OR EXISTS (SELECT 1 FROM adjustments a WHERE a.id = t.source_id))
        AND (CAST(:tenant AS uuid) IS NULL OR t.tenant_id = :tenant)
    GROUP BY 1, 2 ORDER BY 1, 2
    """
)
_LEDGER = text(
    """
    SELECT coalesce(sum(t.amount) FILTER (WHERE t.kind = 'usage'), 0) AS collected,
        coalesce(sum(t.amount) FILTER (WHERE t.kind = 'usage' AND d.code = 'credit'), 0) AS from_credit,
        coalesce(sum(CASE WHEN c.code = 'revenue' THEN t.amount ELSE -t.amount END), 0) AS revenue
    FROM ledger_transfers t
    JOIN ledger_accounts c ON c.id = t.credit_account JOIN ledger_accounts d ON d.id = t.debit_account
    WHERE t.effective_at >= :start AND t.effective_at < :end AND (c.code = 'revenue' OR d.code = 'revenue')
        AND (CAST(:tenant AS uuid) IS NULL OR t.tenant_id = :tenant)
    """
)
_INVOICES = text(
    "SELECT tenant_id, month, coalesce(number, id::text) AS name FROM invoices "
    "WHERE month = ANY(:months) AND status <> 'void' "
    "AND (CAST(:tenants AS uuid[]) IS NULL OR tenant_id = ANY(:tenants))"
)


class LedgerSums(msgspec.Struct, frozen=True):
    """The ledger's sums of a period, in exact decimal dollars."""

    revenue_usd: str
    """Must equal the report's cost plus adjustments."""
    collected_usd: str
    """Usage paid from credit or charged to the receivable."""
    from_credit_usd: str
    """Usage paid from prepaid credit; must equal the report's credits_applied_usd."""


class BookedAmount(msgspec.Struct, frozen=True):
    """An amount of an organisation and UTC hour that belongs to no usage row of the report."""

    tenant_id: UUID
    hour: datetime
    amount: int
    """Picodollars; negative = in the customer's favour."""


async def prepaid_tenants(connection: AsyncConnection) -> set[UUID]:
    """The prepaid organisations."""
    found = await connection.execute(text("SELECT tenant_id FROM billing_accounts WHERE mode = 'prepaid'"))
    return set(found.scalars())


async def uncollected(
    connection: AsyncConnection, query: ReportQuery
) -> list[tuple[GroupKey | None, BookedAmount]]:
    """Uncollectible usage of the period with its key in the report.

    The key is None when the grouping needs a dimension of a usage row that was dropped after its archive.
    """
    only_owner = all(name == "tenant" or name in TIME_DIMENSIONS for name in query.group_by)
    return [
        (
            _key(query, row) if only_owner or row.model is not None else None,
            BookedAmount(row.tenant_id, row.hour, int(row.amount)),
        )
        for row in await connection.execute(_UNCOLLECTED, _bound(query))
    ]


async def booked_amounts(connection: AsyncConnection, query: ReportQuery) -> list[BookedAmount]:
    """Adjustments and commitments booked in the period."""
    rows = await connection.execute(_BOOKED, _bound(query))
    return [BookedAmount(row.tenant_id, row.hour, int(row.amount)) for row in rows]


async def ledger_sums(connection: AsyncConnection, query: ReportQuery) -> LedgerSums:
    """The ledger's sums of the period, from its transfers."""
    row = (await connection.execute(_LEDGER, _bound(query))).one()
    return LedgerSums(
        revenue_usd=pico_to_usd(int(row.revenue)),
        collected_usd=pico_to_usd(int(row.collected)),
        from_credit_usd=pico_to_usd(int(row.from_credit)),
    )


async def closed_months(connection: AsyncConnection, months: list[date]) -> set[date]:
    """Those of `months` (first days) that are closed."""
    found = await connection.execute(
        text("SELECT month FROM billing_periods WHERE status = 'closed' AND month = ANY(:months)"),
        {"months": months},
    )
    return set(found.scalars())


async def invoice_names(
    connection: AsyncConnection, months: list[date], tenants: Iterable[UUID] | None = None
) -> dict[tuple[UUID, date], str]:
    """Invoice numbers (ids before a number exists) by organisation and month; `tenants` None = all."""
    bound = {"months": months, "tenants": None if tenants is None else list(tenants)}
    rows = await connection.execute(_INVOICES, bound)
    return {(row.tenant_id, row.month): row.name for row in rows}


def _bound(query: ReportQuery) -> dict[str, Any]:
    return {"start": query.start, "end": query.end, "tenant": query.tenant_id}


def _key(query: ReportQuery, row: Row[Any]) -> GroupKey:
    named = {"tenant": row.tenant_id, "project": row.project_id, "key": row.key_id}
    return tuple(
        bucket_start(row.hour, name)
        if name in TIME_DIMENSIONS
        else named[name]
        if name in named
        else (row.tags or {}).get(name)
        if is_tag(name)
        else getattr(row, name)
        for name in query.group_by
    )
