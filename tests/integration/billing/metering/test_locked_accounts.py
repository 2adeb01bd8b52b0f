"""A billing account that another transaction keeps locked: its organisation waits, and no other one does."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import text

from billing.metering.holds import HoldManager
from billing.metering.reaper import reap
from billing.metering.records import HoldGranted
from billing.metering.settlement import PendingSettlement, Settlement
from core.clock import SystemClock
from core.db import Database
from core.errors import Unavailable
from core.ids import uuid7
from core.tokens import TokenUsage
from tests.integration.billing.support import Customer, account, make_customer, price
from tests.support.waiting import until

MakeManager = Callable[..., Awaitable[HoldManager]]


@pytest.fixture
async def make_manager(pg_url: str) -> AsyncIterator[MakeManager]:
    managers: list[HoldManager] = []

    async def make(timeout_s: float = 0.5, longest_wait_s: float = 60.0) -> HoldManager:
        manager = HoldManager(
            pg_url,
            f"api-{len(managers)}",
            ttl_s=60,
            clock=SystemClock(),
            timeout_s=timeout_s,
            longest_wait_s=longest_wait_s,
        )
        managers.append(manager)
        await manager.start()
        await until(lambda: manager.connected)
        return manager

    yield make
    for manager in managers:
        await manager.close()


@asynccontextmanager
async def locked(database: Database, *customers: Customer) -> AsyncIterator[None]:
    """Keep the customers' accounts locked."""
    async with database.system() as connection:
        await connection.execute(
            text("SELECT FROM billing_accounts WHERE tenant_id = ANY (:ids) FOR UPDATE"),
            {"ids": [one.tenant_id for one in customers]},
        )
        yield


async def refusal(manager: HoldManager, customer: Customer) -> str | None:
    """The code with which a hold is refused; None when it is granted."""
    try:
        await manager.place(customer.hold())
    except Unavailable as refused:
        return refused.code
    return None


@pytest.mark.promise(29)
async def test_a_locked_account_refuses_no_other_organisation(
    database: Database, make_manager: MakeManager
) -> None:
    await price(database)
    stuck, *others = [await make_customer(database, "10") for _ in range(6)]
    manager = await make_manager(timeout_s=10.0, longest_wait_s=2.0)
    async with locked(database, stuck):
        waiting = [asyncio.create_task(refusal(manager, stuck)) for _ in range(20)]
        codes = [
            code
            for _ in range(15)
            for code in await asyncio.gather(*(refusal(manager, other) for other in others))
        ]
        assert codes == [None] * 75
        assert set(await asyncio.gather(*waiting)) == {"billing_account_busy"}
    assert await refusal(manager, stuck) is None


async def test_a_lock_that_ends_before_the_deadline_is_waited_for(
    database: Database, make_manager: MakeManager
) -> None:
    await price(database)
    customer = await make_customer(database, "10")
    manager = await make_manager()
    async with locked(database, customer):
        waiting = [asyncio.create_task(manager.place(customer.hold())) for _ in range(5)]
        await asyncio.sleep(2.5)  # as long as the commit of a settlement may take on a busy disk
        assert not any(one.done() for one in waiting)
    granted = await asyncio.gather(*waiting)
    row = await account(database, customer)
    assert (row.open_holds, row.held) == (5, sum(one.amount for one in granted))


async def test_no_account_is_said_only_of_an_absent_account(
    database: Database, make_manager: MakeManager
) -> None:
    await price(database)
    manager = await make_manager(timeout_s=10.0, longest_wait_s=2.0)
    unknown = Customer(tenant_id=uuid7())
    assert await refusal(manager, unknown) == "no_billing_account"
    customer = await make_customer(database, "10")
    async with locked(database, customer):
        codes = await asyncio.gather(*(refusal(manager, one) for one in (customer, unknown)))
    assert codes == ["billing_account_busy", "no_billing_account"]


async def test_an_organisation_that_is_settled_without_a_pause_gets_its_holds(
    database: Database, make_manager: MakeManager
) -> None:
    """Three transactions after another keep the account locked, so that `SKIP LOCKED` finds it free hardly ever."""
    await price(database)
    customer = await make_customer(database, "100")
    manager = await make_manager()
    done = False

    async def settle_on() -> None:
        while not done:
            async with locked(database, customer):
                await asyncio.sleep(0.02)

    settling = [asyncio.create_task(settle_on()) for _ in range(3)]
    try:
        for _ in range(20):
            placed = await asyncio.gather(*(manager.place(customer.hold()) for _ in range(5)))
            assert all(isinstance(one, HoldGranted) for one in placed)
    finally:
        done = True
        await asyncio.gather(*settling)


@pytest.mark.promise(4)
async def test_a_locked_account_delays_neither_the_voids_nor_the_extensions_of_others(
    database: Database, make_manager: MakeManager
) -> None:
    await price(database, reasoning="10")
    stuck, other = await make_customer(database, "10"), await make_customer(database, "0.02")
    manager = await make_manager(timeout_s=5.0)
    mine, theirs = await manager.place(stuck.hold()), await manager.place(other.hold(input_tokens=0))
    void = await manager.place(other.hold(input_tokens=0))
    async with locked(database, stuck):
        manager.void(mine.request_id)
        extended = asyncio.create_task(manager.extend(mine.request_id, 1))
        assert not await manager.extend(theirs.request_id, 2048)
        assert await manager.extend(theirs.request_id, 1024)
        manager.void(void.request_id)
        await until(lambda: _open_holds(database, other, 1))
        assert not extended.done()
        assert await _open_holds(database, stuck, 1)
    await until(lambda: _open_holds(database, stuck, 0))
    await extended  # either came first


async def _open_holds(database: Database, customer: Customer, count: int) -> bool:
    return bool((await account(database, customer)).open_holds == count)


@pytest.mark.promise(1, 29)
async def test_a_settlement_that_meets_a_locked_account_holds_up_no_other(
    database: Database, make_manager: MakeManager, pg_url: str
) -> None:
    await price(database)
    others = [await make_customer(database, "10") for _ in range(3)]
    stuck = await make_customer(database, "10")
    assert all(other.tenant_id < stuck.tenant_id for other in others), "their accounts are locked first"
    manager = await make_manager()
    settlement = Settlement(pg_url, window_s=0.01)
    await settlement.start()
    done: list[object] = []

    async def end(customer: Customer) -> None:
        granted = await manager.place(customer.hold())
        record = customer.ended(granted, TokenUsage(input=10, output=5))
        settlement.submit(
            PendingSettlement(granted.request_id, record, lambda _: record, done.append, done.append)
        )

    try:
        first = await manager.place(stuck.hold())
        async with locked(database, stuck):
            record = stuck.ended(first, TokenUsage(input=10, output=5))
            settlement.submit(
                PendingSettlement(first.request_id, record, lambda _: record, done.append, done.append)
            )
            for number in range(1, 11):
                await asyncio.gather(*(end(other) for other in others))
                await until(lambda count=number: len(done) == 3 * count)
            assert first.request_id not in done
            assert settlement.backlog == 1
        await until(lambda: len(done) == 31)
        assert [(await account(database, one)).open_holds for one in (stuck, *others)] == [0] * 4
    finally:
        await settlement.close()


async def test_the_reaper_waits_for_no_hold_that_is_being_settled(
    database: Database, make_manager: MakeManager
) -> None:
    await price(database)
    customer = await make_customer(database, "10")
    manager = await make_manager()
    settled, _ = [await manager.place(customer.hold()) for _ in range(2)]
    async with database.system() as connection:
        await connection.execute(text("UPDATE holds SET renewed_at = renewed_at - interval '1 hour'"))
    async with database.system() as settling:
        await settling.execute(
            text("SELECT FROM holds WHERE request_id = :id FOR UPDATE"), {"id": settled.request_id}
        )
        async with database.system() as connection:
            await connection.execute(
                text("SET LOCAL lock_timeout = '5s'")
            )  # the test fails, instead of waiting
            assert await reap(connection, 60.0, gap_s=3600.0) == 1
        assert await _open_holds(database, customer, 1)
    async with database.system() as connection:
        assert await reap(connection, 60.0, gap_s=3600.0) == 1
    assert await _open_holds(database, customer, 0)


async def test_the_reaper_leaves_locked_accounts_for_later(
    database: Database, make_manager: MakeManager
) -> None:
    await price(database)
    stuck, other = await make_customer(database, "10"), await make_customer(database, "10")
    manager = await make_manager()
    for customer in (stuck, other):
        await manager.place(customer.hold())
    async with database.system() as connection:
        await connection.execute(text("UPDATE holds SET renewed_at = renewed_at - interval '1 hour'"))
    async with locked(database, stuck):
        async with database.system() as connection:
            assert await reap(connection, 60.0, gap_s=3600.0) == 1
        assert await _open_holds(database, other, 0)
    async with database.system() as connection:
        assert await reap(connection, 60.0, gap_s=3600.0) == 1
    assert await _open_holds(database, stuck, 0)
