"""Holds on a real PostgreSQL: races, refusals, sizing, extension, voids, and PostgreSQL going away."""

import asyncio
from collections.abc import AsyncIterator, Callable

import asyncpg
import pytest
from sqlalchemy import text

from billing.ledger.accounts import set_budget
from billing.metering.holds import HoldManager
from billing.metering.records import HoldGranted
from core.clock import SystemClock
from core.db import Database
from core.errors import BudgetExceeded, InsufficientCredit, PaymentRequired, Unavailable
from core.money import usd_to_pico
from tests.integration.billing.support import (
    Customer,
    account,
    make_customer,
    price,
    terminate_hot_connections,
)
from tests.support.waiting import until

CONNECTIONS = 4
"""Connections of a manager that are made before the first request: two for holds, two for busy accounts."""

MakeManager = Callable[..., "asyncio.Future[HoldManager]"]


@pytest.fixture
async def make_manager(pg_url: str) -> AsyncIterator[Callable[[], "asyncio.Task[HoldManager]"]]:
    managers: list[HoldManager] = []

    async def make() -> HoldManager:
        manager = HoldManager(
            pg_url,
            f"api-{len(managers)}",
            ttl_s=60,
            clock=SystemClock(),
            timeout_s=30.0,
            top_up_url="https://pay",
        )
        await manager.start()
        managers.append(manager)
        return manager

    yield make  # type: ignore[misc]
    for manager in managers:
        await manager.close()


async def placed(manager: HoldManager, customer: Customer, **sizes: int) -> HoldGranted | PaymentRequired:
    try:
        return await manager.place(customer.hold(**sizes))
    except PaymentRequired as refusal:
        return refusal


@pytest.mark.promise(3)
async def test_two_hundred_on_credit_for_ten_over_two_processes(
    database: Database, make_manager: MakeManager
) -> None:
    # An output token costs a dollar: a hold is 8 dollars and 10 prompt tokens of a millionth of a dollar.
    await price(database, input="1", cached_input="1", output="1000000", reasoning="1000000")
    customer = await make_customer(database, "80.50")
    managers = [await make_manager(), await make_manager()]
    results = await asyncio.gather(
        *(placed(managers[i % 2], customer, input_tokens=10, output_tokens=8) for i in range(200))
    )
    granted = [one for one in results if isinstance(one, HoldGranted)]
    assert len(granted) == 10
    refused = [one for one in results if not isinstance(one, HoldGranted)]
    assert all(isinstance(one, InsufficientCredit) for one in refused)
    row = await account(database, customer)
    assert row.open_holds == 10
    assert row.held == sum(one.amount for one in granted) <= row.balance
    assert refused[0].details == {
        "balance_usd": "80.50",
        "held_usd": "80.0001",
        "needed_usd": "8.00001",
        "open_requests": 10,
        "top_up_url": "https://pay",
    }


async def test_a_refusal_caused_by_open_holds_waits_for_them(
    database: Database, make_manager: MakeManager
) -> None:
    await price(database, reasoning="10")
    customer = await make_customer(database, "0.0015")
    manager = await make_manager()
    first = await manager.place(customer.hold(input_tokens=0, output_tokens=100))
    second = asyncio.create_task(manager.place(customer.hold(input_tokens=0, output_tokens=100)))
    await asyncio.sleep(0.15)
    assert not second.done()
    manager.void(first.request_id)
    assert (await second).amount == usd_to_pico("0.001")


async def test_no_credit_at_all_is_refused_at_once(database: Database, make_manager: MakeManager) -> None:
    await price(database, reasoning="10")
    customer = await make_customer(database)
    with pytest.raises(InsufficientCredit) as refused:
        await (await make_manager()).place(customer.hold())
    assert refused.value.details["balance_usd"] == "0.00"
    assert refused.value.details["needed_usd"] == "0.00101"


async def test_an_unpriced_model_is_refused_never_free(database: Database, make_manager: MakeManager) -> None:
    await price(database)
    customer = await make_customer(database, "1")
    with pytest.raises(Unavailable) as refused:
        await (await make_manager()).place(customer.hold(model="unheard-of"))
    assert refused.value.code == "model_unpriced"


async def test_a_monthly_budget_counts_holds_and_spending(
    database: Database, make_manager: MakeManager
) -> None:
    await price(database, reasoning="10")
    customer = await make_customer(database, "100")
    async with database.system() as connection:
        await set_budget(connection, customer.tenant_id, "0.0015")
        await connection.execute(
            text("UPDATE billing_accounts SET spent_month = 100000000 WHERE tenant_id = :id"),
            {"id": customer.tenant_id},
        )
    manager = await make_manager()
    await manager.place(customer.hold(input_tokens=0, output_tokens=100))
    with pytest.raises(BudgetExceeded) as refused:
        await manager.place(customer.hold(input_tokens=0, output_tokens=200))
    assert refused.value.details["balance_usd"] == "0.0014"
    async with database.system() as connection:
        # What was spent last month does not count.
        await connection.execute(
            text(
                "UPDATE billing_accounts SET month = month - 40, spent_month = 1500000000 WHERE tenant_id = :id"
            ),
            {"id": customer.tenant_id},
        )
    await manager.place(customer.hold(input_tokens=0, output_tokens=50))


async def test_the_contract_price_wins_and_the_list_price_is_kept(
    database: Database, make_manager: MakeManager
) -> None:
    list_version = await price(database)
    customer = await make_customer(database, "1")
    contract = await price(database, tenant_id=customer.tenant_id, output="5")
    other = await make_customer(database, "1")
    manager = await make_manager()
    granted = await manager.place(customer.hold())
    assert (granted.price.id, granted.list_price.id) == (contract, list_version)
    assert (granted.price.output, granted.list_price.output) == (5_000_000, 10_000_000)
    assert (await manager.place(other.hold())).price.id == list_version


@pytest.mark.parametrize(
    ("credit", "tokens"),
    [
        ("100", 4096),  # enough of everything: the platform's cap
        ("0.04", 500),  # reasoning at $20/M is the dearer output: a quarter of what is available buys 500
        ("0.00005", 1),  # always at least one
    ],
)
async def test_without_max_tokens_the_hold_is_sized_by_what_is_there(
    database: Database, make_manager: MakeManager, credit: str, tokens: int
) -> None:
    await price(database)
    customer = await make_customer(database, credit)
    granted = await (await make_manager()).place(customer.hold(input_tokens=0, output_tokens=0))
    assert granted.output_tokens == tokens


@pytest.mark.parametrize(
    ("credit", "asked", "tokens", "whole"),
    [
        ("100", 0, 4096, True),
        ("1.3109", 0, 4096, True),  # 4,096 tokens at 20 dollars a million, and 10 of the prompt: a sixteenth
        ("1.3108", 0, 4096, False),
        ("0.04", 0, 500, False),  # a quarter of what is available, as without the wish
        ("0.33", 1000, 1000, True),
        ("0.31", 1000, 1000, False),
    ],
)
async def test_a_whole_answer_is_held_in_full_or_like_any_other(
    database: Database, make_manager: MakeManager, credit: str, asked: int, tokens: int, whole: bool
) -> None:
    await price(database)
    customer = await make_customer(database, credit)
    manager = await make_manager()
    granted = await manager.place(customer.hold(input_tokens=10, output_tokens=asked, whole=True))
    assert (granted.output_tokens, granted.whole) == (tokens, whole)
    row = await account(database, customer)
    assert row.held == granted.amount


async def test_a_budget_bounds_a_whole_answer(database: Database, make_manager: MakeManager) -> None:
    await price(database)
    customer = await make_customer(database, "100")
    manager = await make_manager()
    async with database.system() as connection:
        await set_budget(connection, customer.tenant_id, "1")
    assert not (await manager.place(customer.hold(output_tokens=0, whole=True))).whole
    assert not (await manager.place(customer.hold(output_tokens=10))).whole, "not asked for"


async def test_extension_takes_money_or_says_no(database: Database, make_manager: MakeManager) -> None:
    await price(database, reasoning="10")
    customer = await make_customer(database, "0.02")
    manager = await make_manager()
    granted = await manager.place(customer.hold(input_tokens=0, output_tokens=100))
    assert await manager.extend(granted.request_id, 1024)
    assert (await account(database, customer)).held == 1124 * 10_000_000
    assert not await manager.extend(granted.request_id, 1024)
    assert (await account(database, customer)).held == 1124 * 10_000_000
    manager.void(granted.request_id)
    await until(lambda: _held_is(database, customer, 0))
    assert not await manager.extend(granted.request_id, 1)


async def _held_is(database: Database, customer: Customer, amount: int) -> bool:
    row = await account(database, customer)
    return bool(row.held == amount and (row.open_holds == 0) == (amount == 0))


@pytest.mark.promise(4, 24)
async def test_a_cancelled_caller_leaves_no_hold(database: Database, make_manager: MakeManager) -> None:
    await price(database)
    customer = await make_customer(database, "1")
    manager = await make_manager()
    tasks = [asyncio.create_task(manager.place(customer.hold())) for _ in range(20)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await until(lambda: _held_is(database, customer, 0))
    assert (await manager.place(customer.hold())).amount > 0


async def test_connections_that_are_cut_are_made_again_without_a_request(
    make_manager: MakeManager, pg_url: str
) -> None:
    """A process that is not ready gets no request."""
    manager = await make_manager()

    async def hot() -> set[int]:
        connection = await asyncpg.connect(pg_url)
        try:
            rows = await connection.fetch(
                "SELECT pid FROM pg_stat_activity "
                "WHERE application_name = 'penstock-hot' AND datname = current_database()"
            )
            return {row["pid"] for row in rows}
        finally:
            await connection.close()

    async def all_are_there() -> bool:
        return len(await hot()) >= CONNECTIONS

    await until(all_are_there)
    before = await hot()
    await terminate_hot_connections(pg_url)

    async def others_are_there() -> bool:
        return len(await hot() - before) >= CONNECTIONS

    await until(others_are_there)
    assert manager.connected


@pytest.mark.promise(4)
async def test_a_slow_database_refuses_and_the_late_hold_is_voided(database: Database, pg_url: str) -> None:
    await price(database)
    customer = await make_customer(database, "1")
    manager = HoldManager(pg_url, "api-slow", ttl_s=60, clock=SystemClock(), timeout_s=0.2)
    await manager.start()
    try:
        await until(lambda: manager.connected)
        blocker = await asyncpg.connect(pg_url)
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE price_versions IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(Unavailable):
                await manager.place(customer.hold())
        await blocker.close()
        await until(lambda: _state_count(database, "voided", 1))
        assert await _held_is(database, customer, 0)
    finally:
        await manager.close()


async def test_an_extension_that_a_slow_database_does_not_answer_lets_the_answer_go_on(
    database: Database, pg_url: str
) -> None:
    await price(database)
    customer = await make_customer(database, "1")
    manager = HoldManager(pg_url, "api-slow", ttl_s=60, clock=SystemClock(), timeout_s=0.5)
    await manager.start()
    try:
        await until(lambda: manager.connected)
        granted = await manager.place(customer.hold())
        async with database.system() as connection:
            lock = text("SELECT FROM billing_accounts WHERE tenant_id = :id FOR UPDATE")
            await connection.execute(lock, {"id": customer.tenant_id})
            assert await manager.extend(granted.request_id, 1024)
    finally:
        await manager.close()


async def _state_count(database: Database, state: str, count: int) -> bool:
    async with database.system() as connection:
        found = await connection.execute(
            text("SELECT count(*) FROM holds WHERE state = CAST(:s AS hold_state)"), {"s": state}
        )
        return bool(found.scalar_one() == count)


async def test_lost_connections_come_back(database: Database, pg_url: str, make_manager: MakeManager) -> None:
    await price(database)
    customer = await make_customer(database, "1")
    manager = await make_manager()
    first = await manager.place(customer.hold())
    await until(lambda: _cut(pg_url))

    async def works() -> bool:
        try:
            await manager.place(customer.hold())
        except Unavailable:
            return False
        return True

    await until(works)
    manager.void(first.request_id)
    await until(lambda: _state_count(database, "voided", 1))


async def _cut(pg_url: str) -> bool:
    return await terminate_hot_connections(pg_url) > 0


@pytest.mark.promise(5)
async def test_renewal_keeps_holds_and_forgets_the_closed(database: Database, pg_url: str) -> None:
    await price(database)
    customer = await make_customer(database, "1")
    manager = HoldManager(pg_url, "api-renews", ttl_s=0.3, clock=SystemClock(), timeout_s=5.0)
    await manager.start()
    try:
        kept, closed = [await manager.place(customer.hold()) for _ in range(2)]
        async with database.system() as connection:
            await connection.execute(
                text("SELECT penstock_void(ARRAY[:id]::uuid[])"), {"id": closed.request_id}
            )

        async def renewed() -> bool:
            async with database.system() as connection:
                found = await connection.execute(
                    text("SELECT renewed_at > admitted_at FROM holds WHERE request_id = :id"),
                    {"id": kept.request_id},
                )
                return bool(found.scalar_one())

        await until(renewed)
        await until(lambda: manager.open_requests == 1)
    finally:
        await manager.close()
