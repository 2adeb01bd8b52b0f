"""Closed months of usage in Parquet: writing them, dropping their rows, and sums over archived and live months."""

from datetime import date
from pathlib import Path
from uuid import UUID

from admin.actor import Actor, require
from admin.audit import record
from admin.transactions import read, write_system
from billing.reports.archive_report import MonthReport, month_report
from billing.usage import archive
from billing.usage.archive import Manifest
from core.db import Database
from tenants.roles import PLATFORM_ROLES


async def archive_month(
    database: Database, actor: Actor, folder: Path, *, month: date, drop_partition: bool = False
) -> Manifest:
    """Write a closed month's usage to Parquet unless it exists; with `drop_partition` then drop its PostgreSQL rows.

    Raises Conflict: the month is open, or (before anything is dropped) file, rollups, ledger and rows do not agree.
    """
    require(actor, *PLATFORM_ROLES)
    manifest = await archive.archive_month(database, folder, month)
    async with write_system(database) as connection:
        if drop_partition:
            await archive.drop_rows(connection, folder, month)
        await record(
            connection,
            actor,
            "usage.drop_partition" if drop_partition else "usage.archive",
            tenant_id=None,
            object_kind="usage_month",
            object_id=manifest.month,
            after={"rows": manifest.rows, "cost_usd": manifest.cost_usd, "sha256": manifest.sha256},
        )
    return manifest


async def months(
    database: Database,
    actor: Actor,
    folder: Path,
    *,
    first: date,
    last: date,
    group_by: tuple[str, ...],
    tenant_id: UUID | None = None,
) -> MonthReport:
    """Usage of whole months, archived ones from Parquet, the others from PostgreSQL. Platform roles only.

    Raises InvalidRequest, Conflict, PermissionDenied.
    """
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await month_report(connection, folder, first, last, group_by, tenant_id)
