"""Monthly budgets of projects and keys stop requests, exactly, however many arrive at once."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from sqlalchemy import text

from billing.ledger.verification import verify
from billing.metering import scope_budgets
from billing.metering.holds import HoldManager
from billing.metering.records import HoldGranted
from billing.metering.scope_budgets import BudgetScope, ScopeBudget
from core.clock import SystemClock
from core.db import Database
from core.errors import BudgetExceeded, PaymentRequired
from core.ids import uuid7
from core.money import usd_to_pico
from tests.integration.billing.support import Customer, make_customer, price


@pytest.fixture
async def managers(pg_url: str) -> AsyncIterator[list[HoldManager]]:
    made = [HoldManager(pg_url, f"api-{n}", ttl_s=60, clock=SystemClock(), timeout_s=30.0) for n in range(2)]
    for manager in made:
        await manager.start()
    yield made
    for manager in made:
        await manager.close()


@pytest.fixture
async def customer(database: Database) -> Customer:
    """With credit for all; an output token costs a dollar."""
    await price(database, input="0", cached_input="0", output="1000000", reasoning="1000000")
    return await make_customer(database, "100000")


async def budget(database: Database, customer: Customer, scope: BudgetScope, usd: str | None) -> None:
    async with database.system() as connection:
        amount = None if usd is None else usd_to_pico(usd)
        scope_id = customer.key_id if scope == "key" else customer.project_id
        await scope_budgets.set_budget(connection, customer.tenant_id, scope, scope_id, amount)


async def budgets(database: Database, customer: Customer) -> dict[str, ScopeBudget]:
    async with database.system() as connection:
        return {one.scope: one for one in await scope_budgets.list_budgets(connection, customer.tenant_id)}


async def placed(manager: HoldManager, customer: Customer, tokens: int) -> HoldGranted | PaymentRequired:
    try:
        return await manager.place(customer.hold(input_tokens=0, output_tokens=tokens))
    except PaymentRequired as refusal:
        return refusal


async def place_many(
    managers: list[HoldManager], customers: list[Customer], count: int
) -> tuple[list[HoldGranted], list[BudgetExceeded]]:
    found = await asyncio.gather(
        *(placed(managers[n % 2], customers[n % len(customers)], 8) for n in range(count))
    )
    granted = [one for one in found if isinstance(one, HoldGranted)]
    refused = [one for one in found if isinstance(one, BudgetExceeded)]
    assert len(granted) + len(refused) == count
    return granted, refused


@pytest.mark.parametrize("scope", ["key", "project"])
async def test_two_hundred_at_once_never_exceed_the_budget_of_a_key_or_project(
    database: Database, managers: list[HoldManager], customer: Customer, scope: BudgetScope
) -> None:
    await budget(database, customer, scope, "80.50")
    granted, refused = await place_many(managers, [customer], 200)
    assert len(granted) == 10
    assert {one.details["budget_scope"] for one in refused} == {scope}
    assert {one.details["balance_usd"] for one in refused} == {"80.50"}
    assert f"the monthly budget of the {scope}" in refused[0].message
    assert (await budgets(database, customer))[scope].held_usd == "80.00"


async def test_keys_share_the_budget_of_their_project_and_each_keeps_its_own(
    database: Database, managers: list[HoldManager], customer: Customer
) -> None:
    await budget(database, customer, "project", "160")
    await budget(database, customer, "key", "40")
    other = replace(customer, key_id=uuid7())
    granted, _ = await place_many(managers, [customer, other], 200)
    assert len(granted) == 20
    assert (await budgets(database, customer))["project"].held_usd == "160.00"
    held = (await budgets(database, customer))["key"].held_usd
    assert float(held) <= 40


async def test_a_key_without_a_budget_is_not_stopped_by_anothers(
    database: Database, managers: list[HoldManager], customer: Customer
) -> None:
    await budget(database, customer, "key", "0")
    other = replace(customer, key_id=uuid7())
    assert isinstance(await placed(managers[0], other, 8), HoldGranted)
    assert isinstance(await placed(managers[0], customer, 8), BudgetExceeded)
    await budget(database, customer, "key", None)
    assert isinstance(await placed(managers[0], customer, 8), HoldGranted)


async def test_a_new_budget_counts_what_is_held_and_an_answer_may_not_outgrow_it(
    database: Database, managers: list[HoldManager], customer: Customer
) -> None:
    first = await placed(managers[0], customer, 8)
    assert isinstance(first, HoldGranted)
    await budget(database, customer, "key", "20")
    assert (await budgets(database, customer))["key"].held_usd == "8.00"
    assert await managers[0].extend(first.request_id, 12)
    assert not await managers[0].extend(first.request_id, 1)
    assert (await budgets(database, customer))["key"].held_usd == "20.00"
    waiting = asyncio.create_task(placed(managers[0], customer, 20))
    managers[0].void(first.request_id)
    assert isinstance(await waiting, HoldGranted)


async def test_verification_compares_what_a_budget_holds_with_the_open_holds(
    database: Database, managers: list[HoldManager], customer: Customer
) -> None:
    await budget(database, customer, "project", "100")
    await budget(database, customer, "key", "100")
    assert isinstance(await placed(managers[0], customer, 8), HoldGranted)

    async def found() -> list[str]:
        async with database.system() as connection:
            return (await verify(connection)).problems

    assert await found() == []
    async with database.system() as connection:
        await connection.execute(text("UPDATE scope_budgets SET held = held + 1 WHERE scope = 'key'"))
    [problem] = await found()
    assert problem.startswith("money held of a budget differs from the open holds")
    assert f"scope=key, scope_id={customer.key_id}" in problem
