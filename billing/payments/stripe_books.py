"""A month's figures from our books, as the comparison with Stripe needs them."""

from datetime import date, datetime
from typing import Any

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger import months
from billing.payments.stripe_compared import CallBudget, Compared
from tenants.scoping import platform_wide


class Books(msgspec.Struct):
    """A month's figures from our books."""

    began_at: datetime
    invoices: list[Row[Any]]
    lines: dict[str, dict[str, int]]
    cash: dict[str, Row[Any]]
    tokens: list[Row[Any]]
    meter_id: str | None
    problems: list[str]
    compared: Compared
    budget: CallBudget
    waiting: int = 0

    def may_ask(self, calls: int) -> bool:
        """Whether an object may be asked for with `calls` calls; otherwise it is counted as waiting."""
        allowed = self.budget.take(calls)
        self.waiting += not allowed
        return allowed


def unix_bounds(month: date) -> tuple[int, int]:
    """Unix seconds of a UTC month's start and end."""
    start, end = months.bounds(month)
    return int(start.timestamp()), int(end.timestamp())


_INVOICES = """
    SELECT i.id::text AS id, i.tenant_id, i.status, i.number, i.total_cents, i.stripe_invoice_id,
        extract(epoch FROM i.created_at)::bigint AS created,
        (SELECT max(e.received_at) FROM stripe_events e WHERE e.object_id = i.stripe_invoice_id) AS changed_at,
        (SELECT coalesce(sum(p.cents), 0) FROM stripe_payments p WHERE p.invoice_id = i.id)::bigint AS paid,
        (SELECT coalesce(sum(r.cents), 0) FROM stripe_refunds r JOIN stripe_payments p USING (payment_intent)
            WHERE p.invoice_id = i.id AND r.status = 'succeeded')::bigint AS refunded,
        (SELECT coalesce(sum(n.cents), 0) FROM credit_notes n WHERE n.invoice_id = i.id AND n.status <> 'void')::bigint
            AS credited
    FROM invoices i WHERE i.month = :month AND i.kind = 'postpaid' AND i.total_cents > 0
        AND i.status NOT IN ('draft', 'settled') ORDER BY i.id
"""
_LINES = """
    SELECT l.invoice_id::text AS invoice_id, l.id::text AS id, l.cents FROM invoice_lines l
    JOIN invoices i ON i.id = l.invoice_id WHERE i.month = :month AND i.kind = 'postpaid'
"""
_TOKENS = """
    SELECT u.tenant_id, c.customer_id, sum(u.input_tokens + u.output_tokens)::bigint AS tokens
    FROM usage_hours u LEFT JOIN stripe_customers c ON c.tenant_id = u.tenant_id
    WHERE u.hour >= to_timestamp(:start) AND u.hour < to_timestamp(:end)
    GROUP BY u.tenant_id, c.customer_id HAVING sum(u.input_tokens + u.output_tokens) > 0
"""
_PROBLEM_QUERIES = {
    "an event of Stripe is not applied": """
        SELECT id || ' ' || type || coalesce(': ' || error, '') FROM stripe_events WHERE applied_at IS NULL
            AND created_at < to_timestamp(:end) AND received_at < now() - interval '5 minutes' LIMIT 20""",
    "blocked": """
        SELECT p.kind || ' ' || p.object_id || coalesce(': ' || p.error, '') FROM stripe_pushes p
        LEFT JOIN credit_notes n ON p.kind = 'credit_note' AND n.id = p.object_id
        JOIN invoices i ON i.id = coalesce(n.invoice_id, p.object_id)
        WHERE p.status = 'blocked' AND i.month = :month LIMIT 20""",
    "a credit note is not in Stripe": """
        SELECT n.id::text FROM credit_notes n JOIN invoices i ON i.id = n.invoice_id
        WHERE i.month = :month AND n.status = 'issued' LIMIT 20""",
    "a refund is not sent": """
        SELECT id::text FROM stripe_refunds WHERE status = 'requested' AND created_at < to_timestamp(:end)
            AND created_at < now() - interval '1 day' LIMIT 20""",
    "tokens are too old for the meter": """
        SELECT tenant_id || ' ' || hour FROM stripe_meter_events WHERE state = 'too_old'
            AND hour >= to_timestamp(:start) AND hour < to_timestamp(:end) LIMIT 20""",
    "the ledger's cash is not what Stripe moved": """
        SELECT format('ledger %s, Stripe %s, on its way %s, past Stripe %s (cents)', l.cents, s.cents, w.cents,
            o.cents + g.cents)
        FROM (SELECT coalesce(sum(m.debit - m.credit), 0) / 10000000000 AS cents FROM penstock_ledger_sums() m
                JOIN ledger_accounts a ON a.id = m.account WHERE a.code = 'cash') l,
            (SELECT coalesce(sum(cents - fee_cents), 0) AS cents FROM stripe_cash) s,
            (SELECT coalesce(sum(r.cents), 0) AS cents FROM stripe_refunds r WHERE NOT EXISTS (
                SELECT 1 FROM stripe_cash m WHERE m.object_id = r.refund_id) AND r.status <> 'failed') w,
            (SELECT coalesce(sum(p.cents), 0) AS cents FROM stripe_payments p WHERE NOT EXISTS (
                SELECT 1 FROM stripe_cash m WHERE m.object_id = p.payment_intent)) o,
            (SELECT coalesce(sum(t.amount), 0) / 10000000000 AS cents FROM ledger_transfers t
                JOIN credit_grants c ON c.id = t.source_id
                WHERE t.kind = 'purchase' AND c.created_by <> 'stripe') g
        WHERE l.cents <> s.cents - w.cents + o.cents + g.cents""",
}
"""Queries whose rows are problems, by the message of the problem."""


@platform_wide("a month's books are those of every organisation")
async def read_books(
    connection: AsyncConnection, month: date, budget: CallBudget, *, only_changed: bool
) -> Books:
    """The figures of `month`; objects are asked for within `budget`, with `only_changed` only those that changed."""
    start, end = unix_bounds(month)
    began = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
    invoices = (await connection.execute(text(_INVOICES), {"month": month})).all()
    lines: dict[str, dict[str, int]] = {}
    for row in await connection.execute(text(_LINES), {"month": month}):
        lines.setdefault(row.invoice_id, {})[row.id] = row.cents
    cash = await connection.execute(
        text(
            "SELECT txn_id, cents, fee_cents, object_id FROM stripe_cash "
            "WHERE at >= to_timestamp(:start) AND at < to_timestamp(:end)"
        ),
        {"start": start, "end": end},
    )
    tokens = (await connection.execute(text(_TOKENS), {"start": start, "end": end})).all()
    meter_id = (await connection.execute(text("SELECT meter_id FROM stripe_state"))).scalar_one()
    problems = []
    for meaning, statement in _PROBLEM_QUERIES.items():
        wanted = {"month": month, "start": start, "end": end}
        params = {name: value for name, value in wanted.items() if f":{name}" in statement}
        problems += [f"{meaning}: {row[0]}" for row in await connection.execute(text(statement), params)]
    compared = await Compared.load(connection, month, began, only_changed=only_changed)
    return Books(
        began,
        list(invoices),
        lines,
        {row.txn_id: row for row in cash},
        list(tokens),
        meter_id,
        problems,
        compared,
        budget,
    )
