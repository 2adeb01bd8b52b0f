"""Corrections of past months: dry run, request, decision, reversal. The requester cannot approve."""

from collections.abc import Mapping
from datetime import date
from typing import Any
from uuid import UUID

from admin.actor import Actor, require
from admin.approval_limit import person_of
from admin.audit import record
from admin.transactions import page_size, read, write_system
from billing.invoicing import correction_booking, correction_lines, correction_views, corrections, rerate
from billing.invoicing.correction_views import Correction
from billing.invoicing.corrections import DryRun
from billing.invoicing.rerate import DifferenceView
from billing.usage import rollups
from core.db import Database
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ROLES


async def dry_run(database: Database, actor: Actor, *, month: date, spec: Mapping[str, Any]) -> DryRun:
    """What a month would cost under other prices, by tenant and line; nothing is stored.

    `spec` is `{"rates": [...]}` or `{"as_of": instant}` (billing/invoicing/rerate.py). Raises InvalidRequest, Conflict.
    """
    require(actor, *PLATFORM_ROLES)
    parsed = rerate.parse_spec(spec)
    await rollups.roll_up(database)
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await corrections.dry_run(connection, month, parsed)


async def request_correction(
    database: Database, actor: Actor, *, month: date, spec: Mapping[str, Any], reason: str
) -> Correction:
    """Request a correction: store its difference and create an approval. Raises InvalidRequest, Conflict."""
    require(actor, *PLATFORM_ROLES)
    reason = clean_reason(reason)
    parsed = rerate.parse_spec(spec)
    await rollups.roll_up(database)
    async with write_system(database) as connection:
        by = person_of(actor)
        asked = await corrections.request_correction(connection, month, parsed, reason=reason, by=by)
        await record(
            connection,
            actor,
            "correction.request",
            tenant_id=None,
            object_kind="correction",
            object_id=asked.id,
            reason=reason,
            after=asked,
        )
    return asked


async def request_reversal(
    database: Database, actor: Actor, *, correction_id: UUID, reason: str
) -> Correction:
    """Request the reversal of an approved correction, which needs an approval too. Raises NotFound, Conflict."""
    require(actor, *PLATFORM_ROLES)
    reason = clean_reason(reason)
    async with write_system(database) as connection:
        by = person_of(actor)
        asked = await corrections.request_reversal(connection, correction_id, reason=reason, by=by)
        await record(
            connection,
            actor,
            "correction.reverse",
            tenant_id=None,
            object_kind="correction",
            object_id=correction_id,
            reason=reason,
            after=asked,
        )
    return asked


async def decide_correction(
    database: Database, actor: Actor, *, correction_id: UUID, approve: bool, reason: str | None = None
) -> Correction:
    """Approve or reject a correction of another person. Raises NotFound, Conflict.

    An approval returns after every customer is booked. If the process dies before that, a job resumes the booking.
    """
    require(actor, *PLATFORM_ROLES)
    cleaned = None if reason is None else clean_reason(reason)
    async with write_system(database) as connection:
        by = person_of(actor)
        decided = await corrections.decide_correction(connection, correction_id, by=by, approve=approve)
        await record(
            connection,
            actor,
            "correction.approve" if approve else "correction.reject",
            tenant_id=None,
            object_kind="correction",
            object_id=correction_id,
            reason=cleaned,
            before={"status": "requested"},
            after=decided,
        )
    if not approve:
        return decided
    await correction_booking.apply_correction(database, correction_id)
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await correction_views.get_correction(connection, correction_id)


async def list_corrections(
    database: Database, actor: Actor, *, month: date | None = None, limit: int = 100
) -> list[Correction]:
    """Corrections of `month` or of all months, the newest first."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await correction_views.list_corrections(connection, month=month, limit=page_size(limit))


async def show_correction(
    database: Database, actor: Actor, *, correction_id: UUID
) -> tuple[Correction, list[DifferenceView]]:
    """A correction and its lines. Raises NotFound."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        found = await correction_views.get_correction(connection, correction_id)
        lines = await correction_lines.read_lines(connection, correction_id)
    return found, [rerate.difference_view(line) for line in lines]
