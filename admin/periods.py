"""Accounting months: their status, the close checklist, and the close."""

from collections.abc import Callable
from datetime import date
from uuid import UUID

from admin.actor import Actor, require
from admin.audit import record
from admin.transactions import read, write_system
from billing.close import periods
from billing.close.periods import Checklist, Period
from billing.ledger.months import month_name
from core.db import Database
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ROLES


async def list_periods(database: Database, actor: Actor) -> list[Period]:
    """Every month since the first booking, the newest first."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await periods.list_periods(connection)


async def check_period(database: Database, actor: Actor, *, month: date) -> Checklist:
    """The present close checklist; of a closed month, the one stored at its close."""
    require(actor, *PLATFORM_ROLES)
    return await periods.checklist(database, month)


async def close_period(
    database: Database,
    actor: Actor,
    *,
    month: date,
    reason: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Checklist:
    """Make the month's invoices and close it. Raises Conflict that names every failed check."""
    require(actor, *PLATFORM_ROLES)
    cleaned = None if reason is None else clean_reason(reason)
    async with read(database, actor, PLATFORM_ROLES) as connection:
        before = await periods.get_period(connection, month)
    closed = await periods.close_month(database, month, by=actor.label, progress=progress)
    if before.status != "closed":
        async with write_system(database) as connection:
            await record(
                connection,
                actor,
                "period.close",
                tenant_id=None,
                object_kind="period",
                object_id=month_name(month),
                reason=cleaned,
                before=before,
                after=closed,
            )
    return closed


async def write_off_parked(database: Database, actor: Actor, *, request_id: UUID, reason: str) -> None:
    """Write off a record that could not be billed. Raises NotFound, Conflict."""
    require(actor, *PLATFORM_ROLES)
    reason = clean_reason(reason)
    async with write_system(database) as connection:
        await periods.write_off_parked(connection, request_id, reason=reason, by=actor.label)
        await record(
            connection,
            actor,
            "parked_record.write_off",
            tenant_id=None,
            object_kind="request",
            object_id=request_id,
            reason=reason,
        )
