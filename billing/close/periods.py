"""Accounting months and their close (the state machine open -> closed).

A close runs the checks of billing/close/checks.py, makes the invoices and runs all checks again (`prepare_close`), then
freezes the month with the checklist (`close_month`). Afterwards usage that arrives late is dated to its arrival, and
mistakes are corrected by adjustments in an open month (billing/invoicing/corrections.py). Every `month` argument is the
first day of the month.
"""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.close import checks
from billing.invoicing.run import InvoiceRun, Progress, finished_at, make_invoices
from billing.ledger import checkpoints
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
    """When its invoice run was completed."""
    closed_at: str | None
    closed_by: str | None


class Checklist(msgspec.Struct, frozen=True):
    """The results of a month's checks; `ok` when all passed."""

    month: str
    ok: bool
    checks: tuple[CheckResult, ...]


@platform_wide("months are the platform's, not one organisation's")
async def list_periods(connection: AsyncConnection) -> list[Period]:
    """Every month from the first ledger transfer to the present month, newest first."""
    row = (
        await connection.execute(
            text(
                "SELECT clock_timestamp() AS now, (SELECT min(month) FROM penstock_ledger_sums()) AS first, "
                "(SELECT min(month) FROM billing_periods) AS known"
            )
        )
    ).one()
    last = month_of(row.now)
    month = min(one for one in (last, row.known, row.first) if one)
    periods = []
    while month <= last:
        periods.append(await get_period(connection, month))
        month = next_month(month)
    return periods[::-1]


async def get_period(connection: AsyncConnection, month: date) -> Period:
    """One month; a month without a row in billing_periods is open."""
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
    """The results of all checks now; for a closed month, the checklist with which it was closed."""
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
    """Run each check in a read-only transaction of its own, so that a long one does not keep a snapshot for all.

    The ledger's checkpoint is moved first. An expensive check does not run after a cheap one that failed; it has not
    passed then.
    """
    await checkpoints.advance(database)
    found: list[CheckResult] = []
    for check in to_run:
        failed = [
            one.name
            for known, one in zip(to_run, found, strict=False)
            if not one.ok and known in checks.CHEAP_CHECKS
        ]
        if failed and check in checks.EXPENSIVE_CHECKS:
            found.append(CheckResult(check.__name__, False, f"not run while {', '.join(failed)} failed"))
            continue
        async with database.read() as connection:
            found.append(await check(connection, month))
    return Checklist(month_name(month), all(one.ok for one in found), tuple(found))


async def check_and_make_invoices(
    database: Database, month: date, *, progress: Progress | None = None
) -> InvoiceRun:
    """Run INVOICE_CHECKS, then make the month's invoices. Raises Conflict that names the failed checks.

    The checks are skipped when the invoice run of the month is complete.
    """
    async with database.read() as connection:
        done = await finished_at(connection, month)
    if done is None:
        await rollups.roll_up(database)
        _require_ok(await _run_checks(database, month, checks.INVOICE_CHECKS), "invoiced")
    return await make_invoices(database, month, progress=progress)


async def make_due_invoices(database: Database) -> int:
    """Make the previous month's invoices once its late window is over; returns how many were made.

    Raises Conflict while a check fails.
    """
    async with database.read() as connection:
        now: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
        month = month_of(bounds(month_of(now))[0] - timedelta(days=1))
        if now < final_at(month) or await finished_at(connection, month) is not None:
            return 0
    return (await check_and_make_invoices(database, month)).made


async def require_closable(database: Database, month: date) -> None:
    """Raise InvalidRequest for a future month, and Conflict that names the failed checks that come before invoices."""
    async with database.read() as connection:
        now: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
    if month > month_of(now):
        raise InvalidRequest(f"{month_name(month)} has not begun", param="month")
    await rollups.roll_up(database)
    _require_ok(await _run_checks(database, month, checks.CHECKS))


async def prepare_close(database: Database, month: date, *, progress: Progress | None = None) -> Checklist:
    """Check, make invoices and check again; returns the checklist for `close_month`. Of a closed month, the stored one.

    Raises InvalidRequest for a future month and Conflict that names the failed checks; invoices made before a failure
    are valid and stay.
    """
    async with database.read() as connection:
        frozen = await _stored_checklist(connection, month)
    if frozen is not None:
        return frozen
    await require_closable(database, month)
    await make_invoices(database, month, progress=progress)
    final = await _run_checks(database, month, (*checks.CHECKS, *checks.FINAL_CHECKS))
    _require_ok(final)
    return final


async def close_month(
    connection: AsyncConnection, month: date, final: Checklist, *, by: str
) -> Checklist | None:
    """Freeze `month` with the checklist of `prepare_close`, in the caller's transaction. `by` names the person.

    Returns None, or the stored checklist of a month that was closed meanwhile.
    """
    closed = await connection.execute(
        text("SELECT penstock_close_month(:month, :by, CAST(:checklist AS jsonb))"),
        {"month": month, "by": by, "checklist": msgspec.json.encode(final).decode()},
    )
    return None if closed.scalar_one() else await _stored_checklist(connection, month)


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


@platform_wide("a parked record is found by its request id")
async def write_off_parked(connection: AsyncConnection, request_id: Any, *, reason: str, by: str) -> None:
    """Record that a record in settle_errors will not be billed.

    Raises NotFound when there is no such record, Conflict when the decision exists already.
    """
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
