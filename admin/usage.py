"""The usage report, its totals, and its comparison with another period."""

from datetime import datetime
from uuid import UUID

from admin.actor import Actor, readable
from admin.transactions import read_scoped
from billing.reports.compare import ComparedRow, compare
from billing.reports.usage_report import Totals
from billing.reports.usage_report import totals as report_totals
from billing.reports.usage_report import usage_report as billing_report
from billing.usage.query import ReportQuery, ReportRow
from core.db import Database


def sees_gpu_cost(actor: Actor) -> bool:
    """Whether the actor's reports contain GPU cost and margin, which customers never see."""
    return actor.is_platform


async def compare_usage(
    database: Database,
    actor: Actor,
    *,
    start: datetime,
    end: datetime,
    before: tuple[datetime, datetime],
    group_by: tuple[str, ...],
    tenant_id: UUID | None = None,
) -> list[ComparedRow]:
    """The usage report of two periods side by side (billing/reports/compare.py), with the rights of `usage_report`.

    Raises InvalidRequest, PermissionDenied.
    """
    scope = readable(actor, tenant_id)
    query = ReportQuery(start, end, group_by, scope, with_gpu=sees_gpu_cost(actor))
    async with database.snapshot(actor.tenant_id) as connection:
        return await compare(connection, query, before)


async def usage_totals(
    database: Database, actor: Actor, *, start: datetime, end: datetime, tenant_id: UUID | None = None
) -> Totals:
    """The report's totals of a period beside the ledger's own sums. Raises InvalidRequest, PermissionDenied."""
    scope = readable(actor, tenant_id)
    query = ReportQuery(start, end, ("tenant",), scope, with_gpu=sees_gpu_cost(actor))
    async with database.snapshot(actor.tenant_id) as connection:
        return await report_totals(connection, query, await billing_report(connection, query))


async def usage_report(
    database: Database,
    actor: Actor,
    *,
    start: datetime,
    end: datetime,
    group_by: tuple[str, ...],
    tenant_id: UUID | None = None,
) -> list[ReportRow]:
    """The usage report (billing/reports/usage_report.py). A tenant role gets its own organisation's, without GPU cost.

    Raises InvalidRequest, PermissionDenied.
    """
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        query = ReportQuery(start, end, group_by, scope, with_gpu=sees_gpu_cost(actor))
        return await billing_report(connection, query)
