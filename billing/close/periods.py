"""Accounting months: which are open, whether one can be closed, and the close itself, after which nothing in it moves.

Closing makes the month's invoices, asks every check of billing/close/checks.py and, when all are green, freezes the
month with the checklist as it stood. Usage that arrives later is dated to its arrival, and a mistake is corrected by
adjustments of the present (billing/invoicing/corrections.py).
"""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.close import checks
from billing.invoicing.run import InvoiceRun, Progress, finished_at, make_invoices
from billing.ledger.check_result import Check, CheckResult
from billing.ledger.months import bounds, final_at, month_name, month_of, next_month
from billing.usage import rollups
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound
from tenants.scoping import platform_wide


class Period(msgspec.Struct, frozen=True):
    """One accounting month."""

    month: str
    status: str
    """open | closed"""
    starts_at: str
    ends_at: str
    invoiced_at: str | None
    """When its invoice run came to the end."""
    closed_at: str | None
    closed_by: str | None


class Checklist(msgspec.Struct, frozen=True):
    """Whether a month can be closed, and why not."""

    month: str
    ok: bool
    checks: tuple[CheckResult, ...]


@platform_wide("months are the platform's, not one organisation's")
async def list_periods(connection: AsyncConnection) -> list[Period]:
    """Every month since the first booking, the present one included, the newest first."""
    row = (
        await connection.execute(
            text(
                "SELECT clock_timestamp() AS now, (SELECT min(effective_at) FROM ledger_transfers) AS first, "
                "(SELECT min(month) FROM billing_periods) AS known"
            )
        )
    ).one()
    last = month_of(row.now)
    month = min(one for one in (last, row.known, None if row.first is None else month_of(row.first)) if one)
    periods = []
    while month <= last:
        periods.append(await get_period(connection, month))
        month = next_month(month)
    return periods[::-1]


async def get_period(connection: AsyncConnection, month: date) -> Period:
    """What is known of one month; a month that nobody touched is open."""
    row = (
        await connection.execute(
            text("SELECT status, closed_at, closed_by FROM billing_periods WHERE month = :month"),
            {"month": month},
        )
    ).one_or_none()
    start, end = bounds(month)
    return Period(
        month=month_name(month),
        status="open" if row is None else row.status,
        starts_at=start.isoformat(),
        ends_at=end.isoformat(),
        invoiced_at=_iso(await finished_at(connection, month)),
        closed_at=None if row is None else _iso(row.closed_at),
        closed_by=None if row is None else row.closed_by,
    )


async def checklist(database: Database, month: date) -> Checklist:
    """Ask every check. Of a closed month: the checklist with which it was closed."""
    async with database.read() as connection:
        frozen = await _stored_checklist(connection, month)
    if frozen is not None:
        return frozen
    await rollups.roll_up(database)
    return await _run_checks(database, month, (*checks.CHECKS, *checks.FINAL_CHECKS))


async def _stored_checklist(connection: AsyncConnection, month: date) -> Checklist | None:
    stored: dict[str, Any] | None = (
        await connection.execute(
            text("SELECT checklist FROM billing_periods WHERE month = :month AND status = 'closed'"),
            {"month": month},
        )
    ).scalar_one_or_none()
    return None if stored is None else msgspec.convert(stored, Checklist)


async def _run_checks(database: Database, month: date, to_run: tuple[Check, ...]) -> Checklist:
    """Each check in a read-only snapshot of its own: one that takes long does not hold back the others."""
    found = []
    for check in to_run:
        async with database.read() as connection:
            found.append(await check(connection, month))
    return Checklist(month_name(month), all(one.ok for one in found), tuple(found))


async def check_and_make_invoices(
    database: Database, month: date, *, progress: Progress | None = None
) -> InvoiceRun:
    """The invoice run behind the checks that an invoice rests on. Raises Conflict naming those that are red."""
    async with database.read() as connection:
        done = await finished_at(connection, month)
    if done is None:
        await rollups.roll_up(database)
        _require_ok(await _run_checks(database, month, checks.INVOICE_CHECKS), "invoiced")
    return await make_invoices(database, month, progress=progress)


async def make_due_invoices(database: Database) -> int:
    """The invoices of the month before this one, from 48 hours after its end on; returns how many are new.

    Raises Conflict while a check is red.
    """
    async with database.read() as connection:
        now: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
        month = month_of(bounds(month_of(now))[0] - timedelta(days=1))
        if now < final_at(month) or await finished_at(connection, month) is not None:
            return 0
    return (await check_and_make_invoices(database, month)).made


async def close_month(
    database: Database, month: date, *, by: str, progress: Progress | None = None
) -> Checklist:
    """Freeze `month`: checks, invoices, checks again, close. Closing a closed month again changes nothing.

    Raises Conflict naming every check that is red; what it has made until then (invoices) is right and stays.
    """
    async with database.read() as connection:
        frozen = await _stored_checklist(connection, month)
        now: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
    if frozen is not None:
        return frozen
    if month > month_of(now):
        raise InvalidRequest(f"{month_name(month)} has not begun", param="month")
    await rollups.roll_up(database)
    _require_ok(await _run_checks(database, month, checks.CHECKS))
    await make_invoices(database, month, progress=progress)
    final = await _run_checks(database, month, (*checks.CHECKS, *checks.FINAL_CHECKS))
    _require_ok(final)
    async with database.system() as connection:
        closed = await connection.execute(
            text("SELECT penstock_close_month(:month, :by, CAST(:checklist AS jsonb))"),
            {"month": month, "by": by, "checklist": msgspec.json.encode(final).decode()},
        )
        if not closed.scalar_one():
            frozen = await _stored_checklist(connection, month)
    return frozen or final


def _require_ok(found: Checklist, action: str = "closed") -> None:
    failed = [one for one in found.checks if not one.ok]
    if failed:
        reasons = "; ".join(f"{one.name}: {one.detail}" for one in failed)
        raise Conflict(
            f"{found.month} cannot be {action} yet: {reasons}",
            code="period_not_ready",
            param="month",
            details={"checks": [msgspec.to_builtins(one) for one in failed]},
        )


@platform_wide("a parked record is found by its request id, whoever's it is")
async def write_off_parked(connection: AsyncConnection, request_id: Any, *, reason: str, by: str) -> None:
    """Decide that a record in settle_errors is not billed. Raises NotFound, Conflict when that is decided already."""
    found = await connection.execute(
        text("SELECT 1 FROM settle_errors WHERE request_id = :id"), {"id": request_id}
    )
    if found.one_or_none() is None:
        raise NotFound(f"there is no record of the request {request_id} in settle_errors")
    written = await connection.execute(
        text(
            "INSERT INTO parked_decisions (request_id, reason, decided_by) VALUES (:id, :reason, :by) "
            "ON CONFLICT DO NOTHING RETURNING request_id"
        ),
        {"id": request_id, "reason": reason, "by": by},
    )
    if written.one_or_none() is None:
        raise Conflict(f"not to bill the request {request_id} is decided already")


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else instant.astimezone(UTC).isoformat()
