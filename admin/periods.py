"""Accounting months: their status, the close checklist, and the close."""

from collections.abc import Callable
from datetime import date
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.approval_limit import Acting, CarryOut, Facts, admit, under_limit, waits
from admin.audit import record
from admin.transactions import read, write_system
from billing.close import periods
from billing.close.periods import Checklist, Period
from billing.ledger.months import month_name, parse_month
from core.db import Database
from core.ids import derived_uuid
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


PERIOD_CLOSE = "period.close"
PARKED_WRITE_OFF = "parked_record.write_off"
"""Kinds of acts under the approval limit, without a bound: a month's books, and a record without a cost."""

Progress = Callable[[int, int], None]


async def close_period(
    database: Database,
    actor: Actor,
    *,
    month: date,
    reason: str | None = None,
    progress: Progress | None = None,
) -> Checklist:
    """Make the month's invoices and close it. Waits for a second person; a closed month stays as it is.

    Raises Conflict that names every failed check, WaitsForApproval.
    """
    require(actor, *PLATFORM_ROLES)
    facts = {"month": month_name(month), "reason": None if reason is None else clean_reason(reason)}
    async with read(database, actor, PLATFORM_ROLES) as connection:
        before = await periods.get_period(connection, month)
    if before.status != "closed":
        await periods.require_closable(database, month)
        async with write_system(database) as connection:
            waiting = await admit(
                connection,
                actor,
                kind=PERIOD_CLOSE,
                tenant_id=None,
                amount=None,
                facts=facts,
                source_id=derived_uuid(PERIOD_CLOSE, month),
            )
        if waiting is not None:
            raise waits(waiting)
    carry_out = await prepare_close(database, facts, progress=progress)
    async with write_system(database) as connection:
        return await carry_out(connection, Acting(actor, actor.label), None, facts)


async def prepare_close(
    database: Database, facts: Facts, *, progress: Progress | None = None
) -> CarryOut[Checklist]:
    """Check the month and make its invoices, which takes long and is idempotent; returns what carries its close out."""
    month = parse_month(facts["month"], "month")
    final = await periods.prepare_close(database, month, progress=progress)

    async def apply_close(
        connection: AsyncConnection, acting: Acting, tenant_id: UUID | None, facts: Facts
    ) -> Checklist:
        before = await periods.get_period(connection, month)
        by = ", ".join(filter(None, (acting.requested_by, acting.approved_by)))
        frozen = await periods.close_month(connection, month, final, by=by)
        if frozen is not None:
            return frozen
        await record(
            connection,
            acting.actor,
            PERIOD_CLOSE,
            tenant_id=tenant_id,
            object_kind="period",
            object_id=month_name(month),
            reason=facts["reason"],
            before=before,
            after=final,
        )
        return final

    return apply_close


async def write_off_parked(
    database: Database,
    actor: Actor,
    *,
    request_id: UUID,
    reason: str,
) -> None:
    """Write off a record that could not be billed. Waits for a second person.

    Raises NotFound, Conflict, WaitsForApproval.
    """
    require(actor, *PLATFORM_ROLES)
    await under_limit(
        database,
        actor,
        apply_parked_write_off,
        kind=PARKED_WRITE_OFF,
        tenant_id=None,
        amount=None,
        facts={"request_id": str(request_id), "reason": clean_reason(reason)},
        source_id=request_id,
    )


async def apply_parked_write_off(
    connection: AsyncConnection, acting: Acting, tenant_id: UUID | None, facts: Facts
) -> None:
    """Carry out `write_off_parked`."""
    del tenant_id
    request_id = UUID(facts["request_id"])
    await periods.write_off_parked(connection, request_id, reason=facts["reason"], by=acting.requested_by)
    await record(
        connection,
        acting.actor,
        PARKED_WRITE_OFF,
        tenant_id=None,
        object_kind="request",
        object_id=request_id,
        reason=facts["reason"],
    )
