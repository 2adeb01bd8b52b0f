"""Reconciliation of engines, usage, ledger and Stripe: run, read, trace, accept unexplained tokens."""

from datetime import date, datetime

from admin.actor import Actor, require
from admin.audit import record
from admin.transactions import page_size, read, write_system
from billing.close import cross_check
from billing.close.cross_check import CrossCheckRow
from billing.economics import engine_reconciliation, engine_reconciliation_views
from billing.economics.engine_reconciliation_views import EngineRow, IntervalRow, TraceRow
from core.db import Database
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ROLES


async def run_now(
    database: Database, actor: Actor, *, since: datetime | None = None
) -> engine_reconciliation.RunResult:
    """Run the job's comparison now; with `since` also repeat explained comparisons from that instant on."""
    require(actor, *PLATFORM_ROLES)
    return await engine_reconciliation.run(database, since=since)


async def list_engines(database: Database, actor: Actor, *, limit: int = 100) -> list[EngineRow]:
    """Engines with their counted and unexplained tokens, those with unexplained tokens first."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await engine_reconciliation_views.list_engines(connection, page_size(limit))


async def list_intervals(
    database: Database, actor: Actor, *, boot_id: str, limit: int = 100
) -> list[IntervalRow]:
    """The token balance of one engine by interval. Raises NotFound."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await engine_reconciliation_views.list_intervals(connection, boot_id, page_size(limit))


async def trace(
    database: Database, actor: Actor, *, boot_id: str, from_at: datetime | None = None, limit: int = 200
) -> list[TraceRow]:
    """The requests behind an engine's unexplained intervals, or behind the one from `from_at`. Raises NotFound."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await engine_reconciliation_views.trace(
            connection, boot_id, from_at=from_at, limit=page_size(limit)
        )


async def cross_check_month(database: Database, actor: Actor, *, month: date) -> list[CrossCheckRow]:
    """One month's tokens and amounts by source (billing/close/cross_check.py)."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await cross_check.cross_check_month(connection, month)


async def accept(database: Database, actor: Actor, *, boot_id: str, reason: str) -> list[IntervalRow]:
    """Accept an engine's unexplained tokens, with an audit row. Raises NotFound, Conflict, InvalidRequest."""
    require(actor, *PLATFORM_ROLES)
    reason = clean_reason(reason)
    async with write_system(database) as connection:
        accepted = await engine_reconciliation_views.accept(
            connection, boot_id, by=actor.label, reason=reason
        )
        rows = await engine_reconciliation_views.list_intervals(connection, boot_id, 100)
        tokens = {
            counter: sum(row.unexplained for row in rows if row.counter == counter)
            for counter in ("prompt", "generation")
        }
        await record(
            connection,
            actor,
            "reconciliation.accept",
            tenant_id=None,
            object_kind="engine",
            object_id=boot_id,
            reason=reason,
            after={"stretches": accepted, "unexplained": tokens},
        )
    return rows
