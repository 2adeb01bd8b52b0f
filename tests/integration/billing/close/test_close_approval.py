"""The close of a month and its approval: a rejected close is not carried out, and one under way is not rejected."""

import asyncio
from datetime import date
from uuid import UUID

import pytest
from sqlalchemy import text

from admin import decisions
from admin import periods as admin_periods
from admin.actor import Actor
from billing.close.periods import get_period
from core.db import Database
from core.errors import Conflict, WaitsForApproval
from core.ids import uuid7
from tests.integration.billing.invoicing.support import Platform
from tests.integration.billing.support import make_customer, price
from tests.support.tenancy import audit_actions

ADA = Actor(kind="user", id=str(uuid7()), label="ada@example.com", role="finance")
BOB = Actor(kind="user", id=str(uuid7()), label="bob@example.com", role="finance")


async def requested(platform: Platform) -> tuple[date, UUID]:
    """An ended month whose close Ada has requested, and the approval's id."""
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    await platform.use(acme, input=1_000_000)
    month = await platform.end_month()
    with pytest.raises(WaitsForApproval) as waits:
        await admin_periods.close_period(platform.database, ADA, month=month)
    return month, UUID(waits.value.details["approval_id"])


async def waiting_for_locks(database: Database, count: int, *others: asyncio.Task[object]) -> None:
    """Return when `count` sessions wait for a lock, or one of `others` has ended."""
    query = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    async with database.engine.connect() as looking:
        while (await looking.scalar(query)) < count and not any(one.done() for one in others):
            await looking.rollback()


def deciding(database: Database, actor: Actor, approval_id: UUID, *, approve: bool) -> asyncio.Task[object]:
    return asyncio.create_task(
        decisions.decide(database, actor, approval_id=approval_id, approve=approve)  # type: ignore[arg-type]
    )


async def state(database: Database, month: date) -> tuple[str, str | None]:
    """The status of the month and the decision of the only request."""
    async with database.read() as connection:
        decision = await connection.scalar(text("SELECT decision FROM approvals"))
        return (await get_period(connection, month)).status, decision


async def test_a_rejection_while_the_invoices_are_made_stops_the_close(platform: Platform) -> None:
    month, approval_id = await requested(platform)
    async with platform.database.system() as holding:
        await holding.execute(text("SELECT pg_advisory_xact_lock(hashtext('penstock_invoices'))"))
        approving = deciding(platform.database, BOB, approval_id, approve=True)
        await waiting_for_locks(platform.database, 1, approving)
        await decisions.decide(platform.database, ADA, approval_id=approval_id, approve=False)
    with pytest.raises(Conflict, match="rejected by ada"):
        await approving
    assert await state(platform.database, month) == ("open", "rejected")
    assert "period.close" not in await audit_actions(platform.database)
    with pytest.raises(WaitsForApproval) as waits:
        await admin_periods.close_period(platform.database, ADA, month=month)
    again = UUID(waits.value.details["approval_id"])
    await decisions.decide(platform.database, BOB, approval_id=again, approve=True)
    async with platform.database.read() as connection:
        assert (await get_period(connection, month)).status == "closed"


async def test_a_rejection_while_the_month_is_frozen_comes_too_late(platform: Platform) -> None:
    month, approval_id = await requested(platform)
    async with platform.database.system() as holding:
        await holding.execute(text("SELECT pg_advisory_xact_lock(hashtext('penstock_close'))"))
        approving = deciding(platform.database, BOB, approval_id, approve=True)
        await waiting_for_locks(platform.database, 1, approving)
        rejecting = deciding(platform.database, ADA, approval_id, approve=False)
        await waiting_for_locks(platform.database, 2, approving, rejecting)
    approved, rejected = await asyncio.gather(approving, rejecting, return_exceptions=True)
    assert isinstance(rejected, Conflict), rejected
    assert not isinstance(approved, BaseException)
    assert await state(platform.database, month) == ("closed", "approved")
    assert {"period.close", "period.close.approve"} <= set(await audit_actions(platform.database))
    assert "period.close.reject" not in await audit_actions(platform.database)
