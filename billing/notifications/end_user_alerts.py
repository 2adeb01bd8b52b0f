"""Notices of end users that reach thresholds of the budget of every end user.

Each end user has this budget, and an organisation may have a hundred thousand of them. Therefore its notices are
digests: at most one per organisation, threshold and UTC day, which counts the end users and names those that have spent
most. Whoever reaches a threshold after the digest of a day is in that of the next day.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import date
from typing import Any
from uuid import UUID

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.notifications.alerts import THRESHOLDS
from billing.notifications.notices import notify
from core.db import Database
from core.money import pico_to_usd
from tenants.scoping import platform_wide

NAMED = 20
"""End users that one digest names."""

_REACHED = text("""
    WITH now AS (SELECT date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC')::date AS month,
        (clock_timestamp() AT TIME ZONE 'UTC')::date AS today)
    SELECT s.tenant_id, s.scope_id, s.label, s.spent_month AS spent, b.end_user_budget AS budget, m.threshold,
        now.month, now.today
    FROM now, billing_accounts b JOIN scope_budgets s ON s.tenant_id = b.tenant_id,
        LATERAL (SELECT max(mark) AS threshold FROM unnest(CAST(:thresholds AS smallint[])) mark
            WHERE s.spent_month * 100 >= b.end_user_budget * mark) m
    WHERE b.end_user_budget > 0 AND s.amount IS NULL AND s.scope = 'end_user' AND s.month = now.month
        AND m.threshold IS NOT NULL AND NOT EXISTS (SELECT 1 FROM alert_events e WHERE e.scope_id = s.scope_id
            AND e.month = s.month AND e.threshold = m.threshold)
        AND NOT EXISTS (SELECT 1 FROM notices n
            WHERE n.dedupe_key = concat('end_users|', s.tenant_id, '|', m.threshold, '|', now.today))
    ORDER BY s.tenant_id, m.threshold, s.spent_month DESC, s.scope_id
""")


@platform_wide("the job evaluates the budgets of all organisations")
async def send_digests(database: Database) -> int:
    """Send the digests that are due; returns their number. Repeated and concurrent runs send nothing twice."""
    async with database.system() as connection:
        rows = (await connection.execute(_REACHED, {"thresholds": list(THRESHOLDS)})).all()
    due: dict[tuple[UUID, int], list[Row[Any]]] = defaultdict(list)
    for row in rows:
        due[row.tenant_id, row.threshold].append(row)
    sent = 0
    for (tenant_id, threshold), reached in due.items():
        async with database.system() as connection:
            sent += await _send(connection, tenant_id, threshold, reached)
    return sent


async def _send(
    connection: AsyncConnection, tenant_id: UUID, threshold: int, reached: Sequence[Row[Any]]
) -> int:
    """Send one digest of those of `reached`, the highest spending first, that no other run has noted."""
    month, budget = reached[0].month, reached[0].budget
    key = f"end_users|{tenant_id}|{threshold}|{reached[0].today}"
    # Only one run at a time decides: one that comes second must not note whom no digest names.
    lock = text("SELECT pg_advisory_xact_lock(hashtext('penstock_end_user_alerts'))")
    await connection.execute(lock)
    known = text("SELECT 1 FROM notices WHERE dedupe_key = :key")
    if await connection.scalar(known, {"key": key}) is not None:
        return 0
    fresh = await _note(connection, tenant_id, threshold, reached)
    reached = [row for row in reached if row.scope_id in fresh]
    if not reached:
        return 0
    spending = [(str(row.label).removeprefix("user="), pico_to_usd(int(row.spent))) for row in reached]
    await notify(
        connection,
        tenant_id=tenant_id,
        kind="budget.threshold",
        subject=f"{len(reached):,} end users have spent {threshold} % of the budget of every end user",
        body=_body(month, threshold, pico_to_usd(int(budget)), spending),
        facts={
            "scope": "every_end_user",
            "month": f"{month:%Y-%m}",
            "threshold_pct": threshold,
            "budget_usd": pico_to_usd(int(budget)),
            "end_users": len(reached),
            "named": [{"end_user": name, "spent_usd": spent} for name, spent in spending[:NAMED]],
        },
        key=key,
    )
    return 1


async def _note(
    connection: AsyncConnection, tenant_id: UUID, threshold: int, reached: Sequence[Row[Any]]
) -> set[UUID]:
    """Note this threshold and those below it of each end user, so that each is in one digest a month.

    Returns those for whom this threshold was not noted yet.
    """
    noted = await connection.execute(
        text(
            "INSERT INTO alert_events (tenant_id, scope, scope_id, month, threshold, budget, spent) "
            "SELECT :tenant, 'end_user', r.scope_id, :month, mark, :budget, r.spent "
            "FROM unnest(CAST(:ids AS uuid[]), CAST(:spent AS numeric[])) AS r (scope_id, spent), "
            "unnest(CAST(:marks AS smallint[])) mark ORDER BY r.scope_id, mark ON CONFLICT DO NOTHING "
            "RETURNING scope_id, threshold"
        ),
        {
            "tenant": tenant_id,
            "month": reached[0].month,
            "budget": reached[0].budget,
            "ids": [row.scope_id for row in reached],
            "spent": [row.spent for row in reached],
            "marks": [mark for mark in THRESHOLDS if mark <= threshold],
        },
    )
    return {row.scope_id for row in noted if row.threshold == threshold}


def _body(month: date, threshold: int, budget_usd: str, spending: Sequence[tuple[str, str]]) -> str:
    """The text of a digest; `spending` has names and dollars."""
    lines = [f"{name}: ${spent}" for name, spent in spending[:NAMED]]
    if len(spending) > NAMED:
        lines.append(f"and {len(spending) - NAMED:,} more")
    consequence = (
        "Their new requests are refused with 402 until the budget is raised or the month ends (UTC)."
        if threshold >= 100
        else "Their requests go on."
    )
    return (
        f"In {month:%B %Y} (UTC) these end users have spent at least {threshold} % of the budget of ${budget_usd} that "
        f"every end user has:\n" + "\n".join(lines) + f"\n{consequence}\n"
    )
