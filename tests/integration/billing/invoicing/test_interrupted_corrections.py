"""Corrections of many customers: a crash in the middle, and corrections that cannot go on."""

import asyncio
from datetime import date
from typing import Any

import pytest

from billing.invoicing import correction_booking
from billing.invoicing.correction_booking import apply_all
from billing.invoicing.correction_views import get_correction, list_corrections
from billing.invoicing.corrections import (
    decide_correction,
)
from core.errors import Conflict, InvalidRequest
from tests.integration.billing.invoicing.correcting import DOUBLE, HALF, decide, request, reverse, someone
from tests.integration.billing.invoicing.support import Platform
from tests.integration.billing.support import Customer, make_customer, price
from tests.support.closing import close_month


async def many(platform: Platform, count: int) -> tuple[list[Customer], date]:
    """Customers in the order of their ids, some prepaid, with a closed month."""
    await price(platform.database)
    found = [
        await make_customer(platform.database, "5", name=f"C{i}", mode="postpaid" if i % 2 else "prepaid")
        for i in range(count)
    ]
    for customer in found:
        await platform.use(customer, input=1_234_567)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    return sorted(found, key=lambda one: one.tenant_id), month


async def booked(platform: Platform) -> list[Any]:
    return [
        row.tenant_id
        for row in await platform.rows("SELECT tenant_id FROM adjustments ORDER BY created_at, tenant_id")
    ]


async def test_a_crash_in_the_middle_is_gone_on_from_and_everybody_is_booked_once(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    customers, month = await many(platform, 5)
    asked = await request(platform, month, HALF)
    other = await request(platform, month, DOUBLE)
    monkeypatch.setattr(correction_booking, "CHUNK", 2)
    real, dies_at = correction_booking._book_tenant, customers[3].tenant_id

    async def crash(connection: Any, decision: Any, tenant_id: Any, lines: Any) -> Any:
        done = await real(connection, decision, tenant_id, lines)
        if tenant_id == dies_at:
            raise ConnectionResetError("killed")
        return done

    monkeypatch.setattr(correction_booking, "_book_tenant", crash)
    with pytest.raises(ConnectionResetError):
        await decide(platform, asked)
    # The first two are booked and unlocked; nothing of the second two is stored.
    assert await booked(platform) == [one.tenant_id for one in customers[:2]]
    (row,) = await platform.rows("SELECT status, applied_to FROM corrections WHERE id = :id", id=asked.id)
    assert (row.status, row.applied_to) == ("applying", customers[1].tenant_id)
    await platform.is_sound()
    # The approval is final: it cannot be decided or reversed now, and its whole difference counts already.
    with pytest.raises(Conflict, match="approved by bob already"):
        await decide(platform, asked, approve=False)
    with pytest.raises(Conflict, match="is applying: only an approved one"):
        await reverse(platform, asked)
    with pytest.raises(Conflict, match="have changed"):
        await decide(platform, other)
    with pytest.raises(InvalidRequest, match="changes its price"):
        await request(platform, month, HALF)

    monkeypatch.setattr(correction_booking, "_book_tenant", real)
    await asyncio.gather(*(apply_all(platform.database) for _ in range(3)))
    assert await booked(platform) == [one.tenant_id for one in customers]
    async with platform.database.read() as connection:
        assert (await get_correction(connection, asked.id)).status == "approved"
    notices = await platform.rows("SELECT tenant_id FROM notices WHERE kind = 'correction.applied'")
    assert sorted(row.tenant_id for row in notices) == [one.tenant_id for one in customers]
    assert await platform.one("SELECT count(*) FROM credit_notes") == 2
    assert await apply_all(platform.database) == 0
    revenue = [await platform.balance(one, "revenue") for one in customers]
    assert revenue == [-617_283_500_000] * 5
    await platform.is_sound()


async def test_a_reversal_goes_on_after_a_crash_too(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    customers, month = await many(platform, 3)
    monkeypatch.setattr(correction_booking, "CHUNK", 1)
    before = [await platform.balance(one, "revenue") for one in customers]
    done = await decide(platform, await request(platform, month, DOUBLE))
    undo = await reverse(platform, done)
    async with platform.database.system() as connection:
        await decide_correction(connection, undo.id, by=someone("bob"), approve=True)
    async with platform.database.system() as connection:
        assert await correction_booking._apply_chunk(connection, undo.id)
    async with platform.database.read() as connection:
        assert (await get_correction(connection, undo.id)).status == "applying"
    assert await apply_all(platform.database) == 1
    assert [await platform.balance(one, "revenue") for one in customers] == before
    await platform.is_sound()


async def test_one_correction_that_cannot_go_on_keeps_no_other_waiting(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, month = await many(platform, 2)
    asked = await request(platform, month, HALF)
    async with platform.database.system() as connection:
        await decide_correction(connection, asked.id, by=someone("bob"), approve=True)
    again = await request(platform, month, DOUBLE)
    async with platform.database.system() as connection:
        await decide_correction(connection, again.id, by=someone("bob"), approve=True)
    real = correction_booking._book_tenant

    async def refuse(connection: Any, decision: Any, *rest: Any) -> Any:
        if decision.id == asked.id:
            raise KeyError("no")
        return await real(connection, decision, *rest)

    monkeypatch.setattr(correction_booking, "_book_tenant", refuse)
    assert await apply_all(platform.database) == 2
    async with platform.database.read() as connection:
        statuses = {one.id: one.status for one in await list_corrections(connection)}
    assert statuses == {asked.id: "applying", again.id: "approved"}
    monkeypatch.setattr(correction_booking, "_book_tenant", real)
    assert await apply_all(platform.database) == 1
    await platform.is_sound()
