"""The reaper gives back what dead processes held, and takes nothing from a request that is settled."""

import asyncpg
import pytest
from sqlalchemy import text

from billing.metering.holds import HoldManager
from billing.metering.reaper import reap
from core.db import Database
from core.money import usd_to_pico
from tests.integration.billing.metering.settling import COST, USAGE, all_sound, settle
from tests.integration.billing.support import (
    account,
    make_customer,
    price,
)


@pytest.mark.promise(4, 5)
async def test_a_settlement_after_the_reaper_still_settles(
    database: Database, manager: HoldManager, hot: asyncpg.Connection
) -> None:
    await price(database)
    customer = await make_customer(database, "1")
    granted = await manager.place(customer.hold())
    async with database.system() as connection:
        assert await reap(connection, 60) == 0
        await connection.execute(text("UPDATE holds SET renewed_at = renewed_at - interval '61 seconds'"))
        assert await reap(connection, 60) == 1
        assert await reap(connection, 60) == 0
    assert (await account(database, customer)).held == 0
    assert await settle(hot, customer.ended(granted, USAGE)) == {granted.request_id: "settled"}
    assert (await account(database, customer)).balance == usd_to_pico("1") - COST
    await all_sound(database)


async def test_the_reaper_leaves_a_request_that_has_a_usage_row(
    database: Database, manager: HoldManager, hot: asyncpg.Connection
) -> None:
    """Its hold is the settlement's to close: expiring it would give the money of another hold back."""
    await price(database)
    customer = await make_customer(database, "1")
    settled, other = [await manager.place(customer.hold()) for _ in range(2)]
    held = (await account(database, customer)).held
    assert await settle(hot, customer.ended(settled, USAGE)) == {settled.request_id: "settled"}
    async with database.system() as connection:
        await reap(connection, 60)
        await connection.execute(
            text(
                "UPDATE holds SET state = 'open', renewed_at = renewed_at - interval '61 seconds' "
                "WHERE request_id = :id"
            ),
            {"id": settled.request_id},
        )
        assert await reap(connection, 60) == 0
    assert (await account(database, customer)).held == held // 2
    await hot.execute("UPDATE holds SET renewed_at = renewed_at - interval '61 seconds'")
    async with database.system() as connection:
        assert await reap(connection, 60) == 1
    assert (await account(database, customer)).held == 0, other


@pytest.mark.promise(5)
async def test_the_reaper_waits_one_ttl_after_postgresql_came_back(
    database: Database, manager: HoldManager, hot: asyncpg.Connection
) -> None:
    await price(database)
    customer = await make_customer(database, "1")
    await manager.place(customer.hold())
    async with database.system() as connection:
        await reap(connection, 60)
        await connection.execute(text("UPDATE holds SET renewed_at = renewed_at - interval '61 seconds'"))
        await connection.execute(text("UPDATE reaper_state SET seen_at = seen_at - interval '31 seconds'"))
        assert await reap(connection, 60) == 0, "nobody looked for half a TTL: PostgreSQL may have been away"
        assert await reap(connection, 60) == 0, "and the pause lasts"
        await connection.execute(text("UPDATE reaper_state SET paused_until = clock_timestamp()"))
        await connection.execute(
            text("UPDATE reaper_state SET postmaster_start = postmaster_start - interval '1 hour'")
        )
        assert await reap(connection, 60) == 0, "a new postmaster"
        await connection.execute(text("UPDATE reaper_state SET paused_until = clock_timestamp()"))
        assert await reap(connection, 60) == 1
