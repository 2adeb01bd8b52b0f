"""The books for platform roles, read-only: trial balance, journal, deferred revenue, verification."""

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from uuid import UUID

from sqlalchemy import text

from admin.actor import Actor, require
from admin.adjustments import parse_month
from admin.transactions import now_of, read
from billing.ledger import journal, verification
from billing.ledger.journal import DeferredLine, JournalLine, TransferLine, TrialBalance
from billing.ledger.verification import VerificationResult
from billing.usage.period import parse_period
from core.db import Database
from core.errors import InvalidRequest
from tenants.roles import PLATFORM_ROLES

MAX_DETAIL = 100_000
"""Limit of transfers per HTTP response; the command line streams any number."""


def period_of(month: str | None, start: str | None, end: str | None) -> tuple[datetime, datetime]:
    """[start, end) of a month written YYYY-MM, or of two instants; this UTC month by default. Raises InvalidRequest."""
    if month is None:
        return parse_period(start, end)
    if start is not None or end is not None:
        raise InvalidRequest("give a month, or from and to, not both", param="month")
    first = parse_month(month, "month")
    assert first is not None  # noqa: S101 - only None gives None
    try:
        after = date(first.year + first.month // 12, first.month % 12 + 1, 1)
    except ValueError:
        raise InvalidRequest(f"month is out of range: {month}", param="month") from None
    return _midnight(first), _midnight(after)


async def trial_balance(
    database: Database, actor: Actor, *, start: datetime, end: datetime, tenant_id: UUID | None = None
) -> TrialBalance:
    """Every account with opening balance, debits, credits and closing balance. Raises InvalidRequest."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await journal.trial_balance(connection, start, end, tenant_id)


async def journal_lines(
    database: Database, actor: Actor, *, start: datetime, end: datetime, tenant_id: UUID | None = None
) -> list[JournalLine]:
    """The general-ledger journal by UTC day, kind and account. Raises InvalidRequest."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await journal.journal(connection, start, end, tenant_id)


async def transfers(
    database: Database,
    actor: Actor,
    *,
    start: datetime,
    end: datetime,
    tenant_id: UUID | None = None,
    limit: int | None = None,
) -> AsyncIterator[TransferLine]:
    """Every transfer, streamed. Raises InvalidRequest, also when there are more than `limit`."""
    count = 0
    async with read(database, actor, PLATFORM_ROLES) as connection:
        async for line in journal.transfers(connection, start, end, tenant_id):
            count += 1
            if limit is not None and count > limit:
                raise InvalidRequest(
                    f"more than {limit} transfers: take a shorter period, or `penstock ledger journal --detail`"
                )
            yield line


async def deferred_revenue(
    database: Database, actor: Actor, *, at: datetime | None = None, tenant_id: UUID | None = None
) -> list[DeferredLine]:
    """Unused credit by lot at `at` (None = now); adds up to the ledger's `credit` accounts."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        instant = at or await now_of(connection)
        return await journal.deferred_revenue(connection, instant, tenant_id)


async def verify_ledger(database: Database, actor: Actor) -> VerificationResult:
    """Check every invariant of billing/README.md in one snapshot of the database."""
    require(actor, *PLATFORM_ROLES)
    async with database.system() as connection:
        await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
        return await verification.verify(connection)


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
