"""The inputs of a month's invoices, read from PostgreSQL: usage sums, adjustments, SLA credits, contract terms.

Every `month` argument is the first day of the month; amounts are picodollars.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from datetime import date, datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.invoicing.lines import CLASSES, CarriedAmount, Movement, UsageGroup
from billing.ledger.months import bounds
from tenants.scoping import platform_wide

DEFAULT_PAYMENT_DAYS = 30
"""Days until an invoice is due for a customer without a contract."""


class CustomerUsage(msgspec.Struct, frozen=True):
    """A tenant's billing mode and its usage in the month."""

    tenant_id: UUID
    mode: str
    groups: tuple[UsageGroup, ...]


class ContractTerms(msgspec.Struct, frozen=True):
    """The terms of a contract that an invoice needs."""

    payment_days: int = DEFAULT_PAYMENT_DAYS
    automatic_payment: bool = False
    """Whether a saved card is charged; otherwise the invoice is mailed with its due date."""


_OF_MODELS = (
    "(CAST(:models AS text[]) IS NULL OR {0}model = ANY (:models) OR {0}price_version IN "
    "(SELECT id FROM price_versions WHERE model = ANY (:models)))"
)
"""The condition on rows whose model, or the adapter whose own price they have, is among `models`."""
# Usage whose true end lies in an earlier month is late usage: it is billed in this month on separate lines by the
# month that it belongs to. Its rows tell it until the month is invoiced, and then the invoice's lines, which stay when
# the rows are archived. Lines of before `used_in` count for the month before their invoice's.
_USAGE_CTES = f"""
    late AS (
        SELECT u.tenant_id, u.model, u.tier, u.price_version,
            date_trunc('month', l.ended_at AT TIME ZONE 'UTC')::date AS used_in,
            sum(u.input_tokens - u.cached_input_tokens) AS input, sum(u.cached_input_tokens) AS cached_input,
            sum(u.output_tokens - u.reasoning_tokens) AS output, sum(u.reasoning_tokens) AS reasoning,
            sum(u.cost) AS cost
        FROM usage_late l JOIN usage u ON u.request_id = l.request_id
        WHERE l.ended_at < :start AND u.ended_at >= :start AND u.ended_at < :until
            AND u.outcome NOT IN ('engine_failed', 'zero_output')
            AND (CAST(:tenants AS uuid[]) IS NULL OR u.tenant_id = ANY (:tenants))
            AND {_OF_MODELS.format("u.")}
            AND NOT EXISTS (SELECT 1 FROM invoices i WHERE i.tenant_id = u.tenant_id AND i.month = :month)
        GROUP BY 1, 2, 3, 4, 5
        UNION ALL
        SELECT l.tenant_id, l.model, l.tier, l.price_version,
            coalesce(l.used_in, (i.month - interval '1 month')::date),
            coalesce(sum(l.tokens) FILTER (WHERE l.class = 'input'), 0),
            coalesce(sum(l.tokens) FILTER (WHERE l.class = 'cached_input'), 0),
            coalesce(sum(l.tokens) FILTER (WHERE l.class = 'output'), 0),
            coalesce(sum(l.tokens) FILTER (WHERE l.class = 'reasoning'), 0), sum(l.exact)
        FROM invoices i JOIN invoice_lines l ON l.invoice_id = i.id AND l.kind = 'late_usage'
        WHERE i.month = :month AND (CAST(:tenants AS uuid[]) IS NULL OR l.tenant_id = ANY (:tenants))
            AND {_OF_MODELS.format("l.")}
        GROUP BY 1, 2, 3, 4, 5),
    billed AS (
        SELECT tenant_id, model, tier, price_version, sum(input_tokens - cached_input_tokens) AS input,
            sum(cached_input_tokens) AS cached_input, sum(output_tokens - reasoning_tokens) AS output,
            sum(reasoning_tokens) AS reasoning, sum(cost) AS cost
        FROM usage_hours WHERE hour >= :start AND hour < :until
            AND (CAST(:tenants AS uuid[]) IS NULL OR tenant_id = ANY (:tenants))
            AND {_OF_MODELS.format("")}
        GROUP BY 1, 2, 3, 4),
    parts AS (
        SELECT 'usage' AS kind, b.tenant_id, b.model, b.tier, b.price_version, CAST(NULL AS date) AS used_in,
            b.input - coalesce(l.input, 0) AS input, b.cached_input - coalesce(l.cached_input, 0) AS cached_input,
            b.output - coalesce(l.output, 0) AS output, b.reasoning - coalesce(l.reasoning, 0) AS reasoning,
            b.cost - coalesce(l.cost, 0) AS cost
        FROM billed b LEFT JOIN (
            SELECT tenant_id, model, tier, price_version, sum(input) AS input, sum(cached_input) AS cached_input,
                sum(output) AS output, sum(reasoning) AS reasoning, sum(cost) AS cost
            FROM late GROUP BY 1, 2, 3, 4) l USING (tenant_id, model, tier, price_version)
        UNION ALL
        SELECT 'late_usage', tenant_id, model, tier, price_version, used_in, input, cached_input, output, reasoning,
            cost
        FROM late),
    groups AS (
        SELECT g.*, p.input AS input_price, p.cached_input AS cached_input_price, p.output AS output_price,
            p.reasoning AS reasoning_price, CASE WHEN p.model <> g.model THEN p.model ELSE '' END AS adapter
        FROM parts g JOIN price_versions p ON p.id = g.price_version
        WHERE g.input + g.cached_input + g.output + g.reasoning <> 0 OR g.cost <> 0)
"""  # noqa: S608 - constants only
_CUSTOMERS = f"""
    WITH {_USAGE_CTES}
    SELECT b.tenant_id AS customer, b.mode, g.* FROM billing_accounts b LEFT JOIN groups g ON g.tenant_id = b.tenant_id
    ORDER BY b.tenant_id, g.model, g.tier, g.price_version, g.kind DESC, g.used_in
"""  # noqa: S608 - constants only
_USAGE = f"""
    WITH {_USAGE_CTES}
    SELECT g.* FROM groups g ORDER BY tenant_id, model, tier, price_version, kind DESC, used_in
"""  # noqa: S608 - constants only


@platform_wide("the invoice run reads every organisation, one after the other")
async def customers(connection: AsyncConnection, month: date) -> AsyncIterator[CustomerUsage]:
    """Every tenant in id order with its usage of the month, streamed."""
    start, end = bounds(month)
    rows = await connection.stream(
        text(_CUSTOMERS), {"month": month, "start": start, "until": end, "tenants": None, "models": None}
    )
    tenant_id: UUID | None = None
    mode = ""
    groups: list[UsageGroup] = []
    async for row in rows:
        if row.customer != tenant_id:
            if tenant_id is not None:
                yield CustomerUsage(tenant_id, mode, tuple(groups))
            tenant_id, mode, groups = row.customer, row.mode, []
        if row.kind is not None:
            groups.append(_group(row))
    if tenant_id is not None:
        yield CustomerUsage(tenant_id, mode, tuple(groups))


async def usage_groups(
    connection: AsyncConnection,
    month: date,
    until: datetime,
    *,
    tenants: Collection[UUID] | None = None,
    models: Collection[str] | None = None,
) -> list[UsageGroup]:
    """The usage of a month that ended before `until`, by tenant, model, tier and price version.

    Restricted to `tenants` and `models`; None = all.
    """
    start, _ = bounds(month)
    rows = await connection.execute(
        text(_USAGE),
        {
            "month": month,
            "start": start,
            "until": until,
            "tenants": None if tenants is None else list(tenants),
            "models": None if models is None else list(models),
        },
    )
    return [_group(row) for row in rows]


def _group(row: Row[Any]) -> UsageGroup:
    return UsageGroup(
        tenant_id=row.tenant_id,
        kind=row.kind,
        model=row.model,
        tier=row.tier,
        price_version=row.price_version,
        tokens={name: int(row._mapping[name]) for name in CLASSES},
        prices={name: int(row._mapping[f"{name}_price"]) for name in CLASSES},
        cost=int(row.cost),
        used_in=row.used_in,
        adapter=row.adapter,
    )


# An adjustment belongs to the month in which it was booked, less what a credit note took off an earlier invoice.
_MOVEMENTS = """
    SELECT a.tenant_id, 'adjustment' AS kind, a.id AS source_id,
        -a.amount + coalesce((SELECT sum(n.exact) FROM credit_notes n WHERE n.adjustment_id = a.id), 0) AS amount,
        concat_ws(': ', 'Adjustment' || coalesce(' of ' || to_char(a.corrects, 'YYYY-MM'), ''), a.reason)
            AS description,
        (SELECT min(t.effective_at) FROM ledger_transfers t
            WHERE t.source_id = a.id AND t.kind IN ('adjustment', 'uncollectible')) AS at
    FROM adjustments a WHERE a.tenant_id = ANY (:tenants)
    UNION ALL
    SELECT t.tenant_id, 'sla', t.source_id, -t.amount, 'Service level credit', t.effective_at
    FROM ledger_transfers t JOIN ledger_accounts c ON c.id = t.credit_account AND c.code = 'receivable'
    WHERE t.kind = 'sla_credit' AND t.tenant_id = ANY (:tenants) AND t.at >= :start
"""


async def movements(
    connection: AsyncConnection, month: date, tenants: Sequence[UUID]
) -> dict[UUID, list[Movement]]:
    """Adjustments and SLA credits booked in the month, by tenant, in the order of booking."""
    start, end = bounds(month)
    rows = await connection.execute(
        text(
            f"SELECT * FROM ({_MOVEMENTS}) m "  # noqa: S608 - constants only
            "WHERE at >= :start AND at < :end ORDER BY tenant_id, at, source_id"
        ),
        {"tenants": list(tenants), "start": start, "end": end},
    )
    found: dict[UUID, list[Movement]] = {}
    for row in rows:
        movement = Movement(row.kind, row.source_id, int(row.amount), row.description)
        found.setdefault(row.tenant_id, []).append(movement)
    return found


async def terms(
    connection: AsyncConnection, month: date, tenants: Sequence[UUID]
) -> dict[UUID, ContractTerms]:
    """Terms by tenant of the contract in force at the end of the month; tenants without one are missing."""
    _, end = bounds(month)
    rows = await connection.execute(
        text(
            "SELECT tenant_id, payment_days, automatic_payment FROM contracts "
            "WHERE tenant_id = ANY (:tenants) AND withdrawn_at IS NULL "
            "AND effective @> (CAST(:end AS timestamptz) - interval '1 microsecond')"
        ),
        {"tenants": list(tenants), "end": end},
    )
    return {
        row.tenant_id: ContractTerms(payment_days=row.payment_days, automatic_payment=row.automatic_payment)
        for row in rows
    }


async def carries(
    connection: AsyncConnection, month: date, tenants: Sequence[UUID]
) -> dict[UUID, list[CarriedAmount]]:
    """By tenant: the amounts of earlier months' invoices that no later invoice has taken over."""
    rows = await connection.execute(
        text(
            "SELECT id, tenant_id, number, carry_exact, carry_cents FROM invoices WHERE tenant_id = ANY (:tenants) "
            "AND carried_to IS NULL AND (carry_exact <> 0 OR carry_cents <> 0) AND month < :month ORDER BY month"
        ),
        {"tenants": list(tenants), "month": month},
    )
    found: dict[UUID, list[CarriedAmount]] = {}
    for row in rows:
        carry = CarriedAmount(row.id, row.number or "", int(row.carry_exact), row.carry_cents)
        found.setdefault(row.tenant_id, []).append(carry)
    return found
