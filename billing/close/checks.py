"""The checklist of a month's close: what must be true before the month is frozen.

A check is `async (connection, month) -> CheckResult`. `connection` is a read-only transaction that sees all tenants,
`month` the first day of the month. The detail of a failed check says what to do. To add a check, list it in CHECKS.
"""

from datetime import date
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.economics.close_checks import engines_explained, gpu_invoice_entered, hosts_priced
from billing.ledger import checkpoints
from billing.ledger.check_result import Check, CheckResult
from billing.ledger.months import LATE_WINDOW_HOURS, bounds, final_at, month_name
from billing.payments.stripe_close_check import stripe_equal
from billing.pricing import prices
from billing.statements.sla_credits import service_levels
from core.money import pico_to_usd
from tenants.scoping import platform_wide

MAX_EXAMPLES = 3
"""Examples that the detail of a failed check names."""


async def month_over(connection: AsyncConnection, month: date) -> CheckResult:
    """The month and its late window (LATE_WINDOW_HOURS) are over, so that no usage can be dated into the month."""
    now = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
    final = final_at(month)
    if now >= final:
        return CheckResult("month_over", True, f"over since {final.isoformat()}, late window included")
    return CheckResult(
        "month_over",
        False,
        f"usage may still arrive until {final.isoformat()} (month end + {LATE_WINDOW_HOURS} h): close it then",
    )


@platform_wide("the books of all organisations are closed together")
async def earlier_months(connection: AsyncConnection, month: date) -> CheckResult:
    """Every earlier month with ledger transfers is closed: months are closed in order."""
    open_month = (
        await connection.execute(
            text(
                "SELECT min(m.month) FROM (SELECT DISTINCT month FROM penstock_ledger_sums() WHERE month < :month) m "
                "LEFT JOIN billing_periods p ON p.month = m.month AND p.status = 'closed' WHERE p.month IS NULL"
            ),
            {"month": month},
        )
    ).scalar_one()
    if open_month is None:
        return CheckResult("earlier_months", True, "every earlier month with bookings is closed")
    return CheckResult("earlier_months", False, f"{month_name(open_month)} is still open: close it first")


@platform_wide("an open request of any organisation keeps the month open")
async def open_holds(connection: AsyncConnection, month: date) -> CheckResult:
    """No request admitted in the month still has an open hold."""
    start, end = bounds(month)
    found = (
        await connection.execute(
            text(
                "SELECT count(*) AS holds, min(CAST(request_id AS text)) AS example FROM holds "
                "WHERE state = 'open' AND admitted_at >= :start AND admitted_at < :end"
            ),
            {"start": start, "end": end},
        )
    ).one()
    if found.holds == 0:
        return CheckResult("open_holds", True, "no request of the month is open")
    return CheckResult(
        "open_holds",
        False,
        f"{found.holds} requests of the month still hold money, such as {found.example}: they settle or lapse by "
        "themselves; look at the API processes when they do not",
    )


@platform_wide("a spool that is not adopted keeps the month of all organisations open")
async def spools_drained(connection: AsyncConnection, month: date) -> CheckResult:
    """No hold of the month expired within the late window without a usage row.

    Such a hold means that its process died before it settled. Another process of the same host adopts the spool and
    settles it; a spool adopted after the late window is billed as late usage.
    """
    start, end = bounds(month)
    rows = (
        await connection.execute(
            text(
                "SELECT h.incarnation, count(*) AS holds FROM holds h WHERE h.state = 'expired' "
                "AND h.admitted_at >= :start AND h.admitted_at < :end "
                "AND h.closed_at > clock_timestamp() - make_interval(hours => :window) "
                "AND NOT EXISTS (SELECT 1 FROM usage u WHERE u.request_id = h.request_id) "
                "GROUP BY 1 ORDER BY 2 DESC, 1"
            ),
            {"start": start, "end": end, "window": LATE_WINDOW_HOURS},
        )
    ).all()
    if not rows:
        return CheckResult("spools_drained", True, "no process that died owes usage of the month")
    names = ", ".join(f"{row.incarnation} ({row.holds})" for row in rows[:MAX_EXAMPLES])
    return CheckResult(
        "spools_drained",
        False,
        f"{sum(row.holds for row in rows)} requests of {len(rows)} processes that died have no usage row: {names}. "
        f"Start an API process on their host, it adopts the spool; after {LATE_WINDOW_HOURS} h they count as late",
    )


@platform_wide("a record that could not be billed keeps the month of all organisations open")
async def parked_records(connection: AsyncConnection, month: date) -> CheckResult:
    """Every record in settle_errors has been settled since, or written off by a person (parked_decisions)."""
    rows = (
        await connection.execute(
            text(
                "SELECT e.request_id, e.reason FROM settle_errors e WHERE e.created_at < :final "
                "AND NOT EXISTS (SELECT 1 FROM usage u WHERE u.request_id = e.request_id) "
                "AND NOT EXISTS (SELECT 1 FROM parked_decisions d WHERE d.request_id = e.request_id) "
                "ORDER BY e.request_id"
            ),
            {"final": final_at(month)},
        )
    ).all()
    if not rows:
        return CheckResult("parked_records", True, "no record waits in settle_errors")
    shown = "; ".join(f"{row.request_id}: {row.reason}" for row in rows[:MAX_EXAMPLES])
    return CheckResult(
        "parked_records",
        False,
        f"{len(rows)} records could not be billed ({shown}): mend the cause, or decide with "
        "`penstock periods write-off REQUEST_ID --reason ...`",
    )


async def rollups_current(connection: AsyncConnection, month: date) -> CheckResult:
    """No hour of the month waits for its rollup: usage_hours equals the usage rows."""
    start, end = bounds(month)
    hours = (
        await connection.execute(
            text("SELECT count(DISTINCT hour) FROM dirty_hours WHERE hour >= :start AND hour < :end"),
            {"start": start, "end": end},
        )
    ).scalar_one()
    if hours == 0:
        return CheckResult("rollups_current", True, "every hour is rolled up")
    return CheckResult(
        "rollups_current", False, f"{hours} hours wait for the rollup, which runs every minute: try again"
    )


async def ledger_sound(connection: AsyncConnection, month: date) -> CheckResult:
    """The ledger verifies from its newest checkpoint on (billing/ledger/checkpoints.py): it balances, equals accounts
    and usage, its seals hold, and nothing was found in what is recomputed in turns.
    """
    del month  # the whole ledger is verified
    books = await checkpoints.verify_recent(connection)
    if books.problems:
        return CheckResult(
            "ledger_sound",
            False,
            f"{len(books.problems)} problems: {'; '.join(books.problems[:MAX_EXAMPLES])}. Find the cause first",
        )
    since = "" if books.oldest is None else f"; all were recomputed since {books.oldest}"
    return CheckResult(
        "ledger_sound",
        True,
        f"{books.covered + books.fresh} sealed transfers verify, {books.fresh} of them now{since}",
    )


@platform_wide("drift is looked for in every organisation's books")
async def drift(connection: AsyncConnection, month: date) -> CheckResult:
    """For every tenant, the month's usage rows, their rollup and the ledger's revenue of usage are the same amount."""
    rows = (await connection.execute(text(_DRIFT), {**_range(month), "month": month})).all()
    total = sum(int(row.ledger) for row in rows)
    wrong = [row for row in rows if not int(row.rows) == int(row.rolled) == int(row.ledger)]
    if not wrong:
        return CheckResult("drift", True, f"usage = rollup = ledger = ${pico_to_usd(total)} for every tenant")
    return CheckResult(
        "drift", False, f"{len(wrong)} tenants drift: {'; '.join(map(_drift_detail, wrong[:MAX_EXAMPLES]))}"
    )


# Days whose rows were found equal to their hours (penstock_verify_day) are not read from the rows again.
_DRIFT = """
    WITH unverified AS MATERIALIZED (
        SELECT g AS day FROM generate_series(CAST(:start AS timestamptz),
            CAST(:end AS timestamptz) - interval '1 microsecond', interval '1 day') g
        WHERE NOT EXISTS (SELECT 1 FROM usage_day_state s WHERE s.day = g AND s.verified AND s.whole)
            OR EXISTS (SELECT 1 FROM dirty_hours t WHERE t.hour >= g AND t.hour < g + interval '1 day'))
    SELECT tenant_id, coalesce(sum(rows), 0) AS rows, coalesce(sum(rolled), 0) AS rolled,
        coalesce(sum(ledger), 0) AS ledger FROM (
            SELECT d.tenant_id, r.cost AS rows, CAST(NULL AS numeric) AS rolled, CAST(NULL AS numeric) AS ledger
                FROM unverified v, LATERAL (SELECT dim_id, sum(cost) AS cost FROM usage_rows
                    WHERE ended_at >= v.day AND ended_at < v.day + interval '1 day' GROUP BY dim_id) r
                JOIN usage_dims d ON d.id = r.dim_id
            UNION ALL
            SELECT h.tenant_id, CASE WHEN v.day IS NULL THEN h.cost END, h.cost, NULL FROM (
                SELECT tenant_id, date_trunc('day', hour, 'UTC') AS day, sum(cost) AS cost FROM usage_hours
                WHERE hour >= :start AND hour < :end GROUP BY 1, 2) h LEFT JOIN unverified v ON v.day = h.day
            UNION ALL
            SELECT a.tenant_id, NULL, NULL, m.credit FROM penstock_ledger_sums() m
                JOIN ledger_accounts a ON a.id = m.account
                WHERE m.month = :month AND m.kind IN ('usage', 'uncollectible') AND a.code = 'revenue'
            UNION ALL
            SELECT t.tenant_id, NULL, NULL, -t.amount FROM ledger_transfers t JOIN adjustments a ON a.id = t.source_id
                WHERE t.effective_at >= :start AND t.effective_at < :end AND t.kind = 'uncollectible'
        ) parts GROUP BY tenant_id
"""


def _drift_detail(row: Row[Any]) -> str:
    amounts = {name: pico_to_usd(int(row._mapping[name])) for name in ("rows", "rolled", "ledger")}
    return (
        f"{row.tenant_id} rows ${amounts['rows']}, rollup ${amounts['rolled']}, ledger ${amounts['ledger']}"
    )


async def unpriced(connection: AsyncConnection, month: date) -> CheckResult:
    """Every model that is offered, or was requested in the month, has a price."""
    found = await prices.list_unpriced(connection, *bounds(month))
    if not found:
        return CheckResult("unpriced", True, "every model that is offered or asked for has a price")
    names = ", ".join(f"{one.model} ({one.tier})" for one in found[:MAX_EXAMPLES])
    return CheckResult(
        "unpriced",
        False,
        f"{len(found)} without a price: {names}. Set one with `penstock prices set`, or retire it",
    )


@platform_wide("the invoices of all organisations are compared with their usage")
async def invoices_made(connection: AsyncConnection, month: date) -> CheckResult:
    """The invoice run is complete, and every tenant's usage lines add up exactly to its usage of the month."""
    done = (
        await connection.execute(text("SELECT 1 FROM invoice_runs WHERE month = :month"), {"month": month})
    ).one_or_none()
    if done is None:
        return CheckResult(
            "invoices_made",
            False,
            f"run `penstock invoices make --month {month_name(month)}`; closing does it, too",
        )
    rows = (await connection.execute(text(_INVOICED), {**_range(month), "month": month})).all()
    if rows:
        shown = "; ".join(
            f"{row.tenant_id} used ${pico_to_usd(int(row.used))}, on invoices ${pico_to_usd(int(row.billed))}"
            for row in rows[:MAX_EXAMPLES]
        )
        return CheckResult(
            "invoices_made", False, f"{len(rows)} tenants' invoices differ from their usage: {shown}"
        )
    count = (
        await connection.execute(text("SELECT count(*) FROM invoices WHERE month = :month"), {"month": month})
    ).scalar_one()
    return CheckResult("invoices_made", True, f"{count} invoices, whose lines equal the usage")


_INVOICED = """
    SELECT tenant_id, coalesce(sum(used), 0) AS used, coalesce(sum(billed), 0) AS billed FROM (
        SELECT tenant_id, cost AS used, 0 AS billed FROM usage_hours WHERE hour >= :start AND hour < :end
        UNION ALL
        SELECT l.tenant_id, 0, l.exact FROM invoice_lines l JOIN invoices i ON i.id = l.invoice_id
            WHERE i.month = :month AND l.kind IN ('usage', 'late_usage')
    ) parts GROUP BY tenant_id HAVING coalesce(sum(used), 0) <> coalesce(sum(billed), 0)
"""


def _range(month: date) -> dict[str, Any]:
    start, end = bounds(month)
    return {"start": start, "end": end}


CHECKS: tuple[Check, ...] = (
    month_over,
    earlier_months,
    open_holds,
    spools_drained,
    parked_records,
    rollups_current,
    unpriced,
    engines_explained,
    hosts_priced,
    gpu_invoice_entered,
    service_levels,
    ledger_sound,
    drift,
)
"""All must pass before a close makes invoices, and again before it freezes the month. In the order of display, cheap
ones first."""

INVOICE_CHECKS: tuple[Check, ...] = (
    month_over,
    open_holds,
    spools_drained,
    parked_records,
    rollups_current,
    service_levels,
    ledger_sound,
    drift,
)
"""The subset of CHECKS that must pass before invoices are made outside of a close."""

FINAL_CHECKS: tuple[Check, ...] = (invoices_made, stripe_equal)
"""Checks that can pass only after the invoices are made and sent to Stripe."""

EXPENSIVE_CHECKS: frozenset[Check] = frozenset({drift, invoices_made})
"""Checks that read a month of usage. They run only when every cheap check before them has passed."""
CHEAP_CHECKS: frozenset[Check] = frozenset(CHECKS) - EXPENSIVE_CHECKS - {ledger_sound}
"""Checks whose failure says that usage or terms of the month are not complete yet."""
