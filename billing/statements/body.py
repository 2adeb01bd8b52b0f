"""The body of a monthly statement, from usage rows and ledger; its totals are checked before it is signed.

Usage comes from the usage rows (by their rollups), account movements from the ledger. When both differ, no statement is
made.
"""

import json
from datetime import date, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger.months import bounds, month_name
from billing.statements.signing import format_instant
from billing.usage.sums import HOURLY_SUMS
from core.errors import Conflict, NotFound
from core.money import PICO_PER_CENT, pico_per_token_to_per_mtok, pico_to_usd, usd_to_pico

TYPE = "penstock.statement"
CLASSES = ("input", "cached_input", "output", "reasoning")
ACCOUNTS = {"credit": -1, "receivable": 1, "invoiced": 1, "disputed": 1}
"""Accounts that a statement shows, with the sign of a debit: prepaid credit, usage not invoiced yet, invoices not paid
yet, payments under dispute."""


async def statement_body(
    connection: AsyncConnection, tenant_id: UUID, month: date, *, revision: int = 1
) -> dict[str, Any]:
    """The statement of `month` (its first day); a draft (`final` false) while the month is not closed.

    The transaction should be REPEATABLE READ. Raises NotFound for an unknown organisation or a future month, Conflict
    when usage and ledger differ.
    """
    start, end = bounds(month)
    head = await _head(connection, tenant_id, month)
    usage, totals = await _usage(connection, tenant_id, start, end)
    accounts = await _accounts(connection, tenant_id, month, start, end)
    booked = await _booked(connection, tenant_id, start, end)
    cost = sum(int(line.pop("_cost")) for line in usage)
    if booked["total"] != cost:
        raise Conflict(
            f"the usage of {month_name(month)} costs ${pico_to_usd(cost)} and the ledger booked "
            f"${pico_to_usd(booked['total'])}: no statement is signed until they agree",
            details={"usage_usd": pico_to_usd(cost), "ledger_usd": pico_to_usd(booked["total"])},
        )
    return {
        "type": TYPE,
        "version": 1,
        "currency": "USD",
        "tenant": {"id": str(tenant_id), "name": head.name},
        "mode": head.mode,
        "month": month_name(month),
        "period": {"start": format_instant(start), "end": format_instant(end)},
        "final": head.closed,
        "revision": revision,
        "issued_at": format_instant(head.now),
        "usage": usage,
        "totals": {**totals, "uncollectible_usd": pico_to_usd(booked["uncollectible"])},
        "accounts": accounts,
        "lots": await _lots(connection, tenant_id, head.now),
        "adjustments": await _adjustments(connection, tenant_id, start, end),
        "invoice": await _invoice(connection, tenant_id, month),
        "payments": await _payments(connection, tenant_id, start, end),
        "sla_credits": await _sla(connection, tenant_id, month),
    }


async def _head(connection: AsyncConnection, tenant_id: UUID, month: date) -> Row[Any]:
    row = (
        await connection.execute(
            text(
                "SELECT t.name, b.mode, clock_timestamp() AS now, EXISTS (SELECT 1 FROM billing_periods p "
                "WHERE p.month = :month AND p.status = 'closed') AS closed "
                "FROM tenants t JOIN billing_accounts b ON b.tenant_id = t.id WHERE t.id = :tenant"
            ),
            {"tenant": tenant_id, "month": month},
        )
    ).one_or_none()
    if row is None:
        raise NotFound(f"there is no billing account of an organisation {tenant_id}")
    if bounds(month)[0] > row.now:
        raise NotFound(f"{month_name(month)} has not begun")
    return row


_USAGE = f"""
    WITH {HOURLY_SUMS}
    SELECT c.project_id, p.name AS project, c.model, c.tier, c.price_version, c.list_price_version,
        sum(c.requests) AS requests, sum(c.input_tokens - c.cached_input_tokens) AS input,
        sum(c.cached_input_tokens) AS cached_input, sum(c.output_tokens - c.reasoning_tokens) AS output,
        sum(c.reasoning_tokens) AS reasoning, sum(c.cost) AS cost, sum(c.list_cost) AS list_cost,
        v.input AS input_price, v.cached_input AS cached_input_price, v.output AS output_price,
        v.reasoning AS reasoning_price, v.model AS priced_as
    FROM usage_sums c JOIN price_versions v ON v.id = c.price_version LEFT JOIN projects p ON p.id = c.project_id
    WHERE c.tenant_id = :tenant
    GROUP BY c.project_id, p.name, c.model, c.tier, c.price_version, c.list_price_version, v.id
    ORDER BY p.name, c.project_id, c.model, c.tier, c.price_version, c.list_price_version
"""  # noqa: S608 - constants only


async def _usage(
    connection: AsyncConnection, tenant_id: UUID, start: datetime, end: datetime
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Lines by project, model, tier and price with their token classes, and the totals.

    Raises Conflict when tokens times price is not the cost of the rows.
    """
    lines: list[dict[str, Any]] = []
    sums = dict.fromkeys(("requests", *CLASSES, "cost", "list_cost"), 0)
    for row in await connection.execute(text(_USAGE), {"tenant": tenant_id, "start": start, "end": end}):
        facts = row._mapping
        classes, priced = [], 0
        for name in CLASSES:
            tokens, price = int(facts[name]), int(facts[f"{name}_price"])
            priced += tokens * price
            if tokens:
                classes.append(
                    {
                        "class": name,
                        "tokens": str(tokens),
                        "price_per_mtok_usd": pico_per_token_to_per_mtok(price),
                        "cost_usd": pico_to_usd(tokens * price),
                    }
                )
        cost, list_cost = int(row.cost), int(row.list_cost)
        if priced != cost:
            raise Conflict(
                f"{row.model} at price version {row.price_version}: the tokens cost ${pico_to_usd(priced)} and the "
                f"rows say ${pico_to_usd(cost)}: no statement is signed until they agree"
            )
        for name in sums:
            sums[name] += int(facts[name])
        lines.append(
            {
                "project_id": str(row.project_id),
                "project": row.project or "",
                "model": row.model,
                **({"adapter": row.priced_as} if row.priced_as != row.model else {}),
                "tier": row.tier,
                "price_version": row.price_version,
                "list_price_version": row.list_price_version,
                "requests": str(int(row.requests)),
                "classes": classes,
                "list_cost_usd": pico_to_usd(list_cost),
                "discount_usd": pico_to_usd(list_cost - cost),
                "cost_usd": pico_to_usd(cost),
                "_cost": cost,
            }
        )
    totals = {
        "requests": str(sums["requests"]),
        **{f"{name}_tokens": str(sums[name]) for name in CLASSES},
        "list_cost_usd": pico_to_usd(sums["list_cost"]),
        "discount_usd": pico_to_usd(sums["list_cost"] - sums["cost"]),
        "cost_usd": pico_to_usd(sums["cost"]),
    }
    return lines, totals


async def _booked(
    connection: AsyncConnection, tenant_id: UUID, start: datetime, end: datetime
) -> dict[str, int]:
    """Picodollars that the ledger booked for the month's requests, and their uncollectible part."""
    row = (
        await connection.execute(
            text(
                "SELECT coalesce(sum(amount), 0) AS total, "
                "coalesce(sum(amount) FILTER (WHERE kind = 'uncollectible'), 0) AS uncollectible "
                "FROM ledger_transfers t WHERE tenant_id = :tenant AND kind IN ('usage', 'uncollectible') "
                "AND at >= :start AND effective_at >= :start AND effective_at < :end AND NOT EXISTS "
                "(SELECT 1 FROM adjustments a WHERE a.tenant_id = t.tenant_id AND a.id = t.source_id)"
            ),
            {"tenant": tenant_id, "start": start, "end": end},
        )
    ).one()
    return {"total": int(row.total), "uncollectible": int(row.uncollectible)}


_MOVEMENTS = text(
    "SELECT a.code, t.kind, count(*) AS bookings, sum(CASE WHEN t.debit_account = a.id THEN t.amount "
    "ELSE -t.amount END) AS debit FROM ledger_transfers t JOIN ledger_accounts a ON a.tenant_id = t.tenant_id "
    "AND a.id IN (t.debit_account, t.credit_account) AND a.code = ANY(:codes) WHERE t.tenant_id = :tenant "
    "AND t.at >= :start AND t.effective_at >= :start AND t.effective_at < :end GROUP BY 1, 2 ORDER BY 1, 2"
)
_OPENING = text(
    "SELECT a.code, sum(CASE WHEN t.debit_account = a.id THEN t.amount ELSE -t.amount END) AS debit "
    "FROM ledger_transfers t JOIN ledger_accounts a ON a.tenant_id = t.tenant_id "
    "AND a.id IN (t.debit_account, t.credit_account) AND a.code = ANY(:codes) WHERE t.tenant_id = :tenant "
    "AND t.effective_at < :start GROUP BY 1"
)


async def _accounts(
    connection: AsyncConnection, tenant_id: UUID, month: date, start: datetime, end: datetime
) -> dict[str, Any]:
    """Opening balance, movements by kind and closing balance of each of ACCOUNTS, from the ledger."""
    bound = {"tenant": tenant_id, "start": start, "end": end, "codes": list(ACCOUNTS)}
    movements: dict[str, list[tuple[str, int, int]]] = {code: [] for code in ACCOUNTS}
    for row in await connection.execute(_MOVEMENTS, bound):
        movements[row.code].append((row.kind, row.bookings, ACCOUNTS[row.code] * int(row.debit)))
    opening = await _opening(connection, tenant_id, month, start)
    found = {}
    for code in ACCOUNTS:
        before = opening.get(code, 0)
        found[code] = {
            "opening_usd": pico_to_usd(before),
            "movements": [
                {"kind": kind, "bookings": str(count), "amount_usd": pico_to_usd(amount)}
                for kind, count, amount in movements[code]
            ],
            "closing_usd": pico_to_usd(before + sum(amount for *_, amount in movements[code])),
        }
    return found


async def _opening(
    connection: AsyncConnection, tenant_id: UUID, month: date, start: datetime
) -> dict[str, int]:
    """Balances at the start: from the previous final statement if there is one, so that old transfers are not read."""
    previous = await connection.scalar(
        text(
            "SELECT document FROM statements WHERE tenant_id = :tenant "
            "AND month = CAST(:month AS date) - interval '1 month' ORDER BY revision DESC LIMIT 1"
        ),
        {"tenant": tenant_id, "month": month},
    )
    if previous is not None:
        accounts = json.loads(previous)["body"]["accounts"]
        return {code: usd_to_pico(accounts[code]["closing_usd"]) for code in ACCOUNTS}
    rows = await connection.execute(_OPENING, {"tenant": tenant_id, "start": start, "codes": list(ACCOUNTS)})
    return {row.code: ACCOUNTS[row.code] * int(row.debit) for row in rows}


async def _lots(connection: AsyncConnection, tenant_id: UUID, now: datetime) -> dict[str, Any]:
    """Credit lots with credit left at `now`; they add up to the balance.

    Use that is not allocated to lots yet (billing/ledger/credits.py) is allocated here in the same order.
    """
    rows = list(
        await connection.execute(
            text(
                "SELECT g.id, g.kind, g.amount, g.remaining, g.expires_at, g.created_at, "
                "sum(g.remaining) OVER () - b.balance AS used FROM credit_grants g "
                "JOIN billing_accounts b ON b.tenant_id = g.tenant_id WHERE g.tenant_id = :tenant AND g.remaining > 0 "
                "ORDER BY (g.ended_at IS NOT NULL), g.priority, g.expires_at NULLS LAST, g.created_at, g.id"
            ),
            {"tenant": tenant_id},
        )
    )
    used = int(rows[0].used) if rows else 0
    left = []
    for row in rows:
        taken = min(used, int(row.remaining))
        used -= taken
        if taken == int(row.remaining):
            continue
        left.append(
            {
                "id": str(row.id),
                "kind": row.kind,
                "amount_usd": pico_to_usd(int(row.amount)),
                "remaining_usd": pico_to_usd(int(row.remaining) - taken),
                "created_at": format_instant(row.created_at),
                "expires_at": None if row.expires_at is None else format_instant(row.expires_at),
            }
        )
    return {"as_of": format_instant(now), "open": left}


async def _adjustments(
    connection: AsyncConnection, tenant_id: UUID, start: datetime, end: datetime
) -> list[dict[str, Any]]:
    rows = await connection.execute(
        text(
            "SELECT id, amount, reason, corrects, created_at FROM adjustments WHERE tenant_id = :tenant "
            "AND created_at >= :start AND created_at < :end ORDER BY created_at, id"
        ),
        {"tenant": tenant_id, "start": start, "end": end},
    )
    return [
        {
            "id": str(row.id),
            "at": format_instant(row.created_at),
            "amount_usd": pico_to_usd(int(row.amount)),
            "reason": row.reason,
            "corrects": None if row.corrects is None else month_name(row.corrects),
        }
        for row in rows
    ]


async def _invoice(connection: AsyncConnection, tenant_id: UUID, month: date) -> dict[str, Any] | None:
    """The month's invoice with its lines; None without one."""
    head = (
        await connection.execute(
            text(
                "SELECT id, number, exact, total_cents, due_at FROM invoices "
                "WHERE tenant_id = :tenant AND month = :month AND status NOT IN ('draft', 'void')"
            ),
            {"tenant": tenant_id, "month": month},
        )
    ).one_or_none()
    if head is None:
        return None
    rows = await connection.execute(
        text(
            "SELECT kind, description, exact, cents FROM invoice_lines WHERE tenant_id = :tenant "
            "AND invoice_id = :invoice ORDER BY position"
        ),
        {"tenant": tenant_id, "invoice": head.id},
    )
    return {
        "number": head.number or "",
        "due_at": None if head.due_at is None else format_instant(head.due_at),
        "exact_usd": pico_to_usd(int(head.exact)),
        "total_usd": _cents(head.total_cents),
        "lines": [
            {
                "kind": row.kind,
                "description": row.description,
                "exact_usd": pico_to_usd(int(row.exact)),
                "amount_usd": _cents(row.cents),
            }
            for row in rows
        ],
    }


def _cents(cents: int) -> str:
    return pico_to_usd(cents * PICO_PER_CENT)


async def _payments(
    connection: AsyncConnection, tenant_id: UUID, start: datetime, end: datetime
) -> list[dict[str, Any]]:
    """Payments in (positive) and out (negative): top-ups, paid invoices, refunds, disputes."""
    rows = await connection.execute(
        text(
            "SELECT kind, effective_at, amount, source_id FROM ledger_transfers WHERE tenant_id = :tenant "
            "AND at >= :start AND effective_at >= :start AND effective_at < :end AND kind IN "
            "('purchase', 'payment', 'refund', 'credit_note_refund', 'dispute', 'dispute_won') "
            "ORDER BY effective_at, id"
        ),
        {"tenant": tenant_id, "start": start, "end": end},
    )
    out = ("refund", "credit_note_refund", "dispute")
    return [
        {
            "at": format_instant(row.effective_at),
            "kind": row.kind,
            "amount_usd": pico_to_usd(-int(row.amount) if row.kind in out else int(row.amount)),
            "reference": str(row.source_id),
        }
        for row in rows
    ]


async def _sla(connection: AsyncConnection, tenant_id: UUID, month: date) -> list[dict[str, Any]]:
    """Service-level credits of the month with their evidence."""
    rows = await connection.execute(
        text(
            "SELECT contract_id, amount, evidence FROM sla_credits WHERE tenant_id = :tenant AND month = :month "
            "ORDER BY contract_id"
        ),
        {"tenant": tenant_id, "month": month},
    )
    return [
        {
            "contract_id": str(row.contract_id),
            "amount_usd": pico_to_usd(int(row.amount)),
            "evidence": row.evidence,
        }
        for row in rows
    ]
