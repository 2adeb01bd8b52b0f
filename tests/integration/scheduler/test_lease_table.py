"""The lease in a real PostgreSQL: one owner at a time, by the database's clock, also when it answers late."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from core.addresses import Address
from core.db import connect_system
from scheduler.lease import LEASE_S
from scheduler.lease_table import LeaseTable, LeaseUnavailable, owner_at
from sim.fault_proxy import CLEAR, Conditions, FaultProxy
from tests.support.waiting import until


@pytest.fixture
async def system(pg_url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await connect_system(pg_url)
    yield connection
    await connection.close()


@pytest.fixture
async def one(pg_url: str) -> AsyncIterator[LeaseTable]:
    table = LeaseTable(pg_url, "one")
    yield table
    table.close()


@pytest.fixture
async def two(pg_url: str) -> AsyncIterator[LeaseTable]:
    table = LeaseTable(pg_url, "two")
    yield table
    table.close()


async def age(system: "asyncpg.Connection[asyncpg.Record]", seconds: float) -> None:
    await system.execute(
        "UPDATE scheduler_lease SET renewed_at = clock_timestamp() - make_interval(secs => $1)", seconds
    )


async def test_a_lease_is_taken_renewed_and_released(one: LeaseTable, two: LeaseTable) -> None:
    free = await one.read()
    assert (free.term, free.owner) == (0, "")
    term = await one.take(free, 0)
    assert term == 1
    taken = await two.read()
    assert (taken.term, taken.owner, taken.expired) == (1, "one", False)
    assert await two.take(taken, 0) is None, "it has not expired"
    assert await one.renew(1)
    assert not await two.renew(1), "the term of another owner"
    assert (await two.read()).renewed_at > taken.renewed_at
    await two.release(1)
    assert (await two.read()).owner == "one", "only the owner releases it"
    await one.release(1)
    assert await two.take(await two.read(), 0) == 2
    assert not await one.renew(1)


async def test_the_databases_clock_says_when_it_has_expired(
    one: LeaseTable, two: LeaseTable, system: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await one.take(await one.read(), 0)
    await age(system, LEASE_S - 1.0)
    assert not (await two.read()).expired
    await age(system, LEASE_S + 0.1)
    seen = await two.read()
    assert seen.expired
    assert await one.renew(1), "no other process has taken it yet"
    assert await two.take(seen, 0) is None, "it was renewed since it was read"
    await age(system, LEASE_S + 0.1)
    assert await two.take(await two.read(), 0) == 2


async def test_of_many_that_take_it_at_once_one_gets_it(pg_url: str) -> None:
    tables = [LeaseTable(pg_url, f"s{number}") for number in range(8)]
    rows = await asyncio.gather(*(table.read() for table in tables))
    terms = await asyncio.gather(*(table.take(row, 0) for table, row in zip(tables, rows, strict=True)))
    assert sorted(term for term in terms if term) == [1]
    for table in tables:
        table.close()


async def test_a_term_is_above_all_that_peers_have_heard_of(one: LeaseTable) -> None:
    """The database may have been restored from an older copy."""
    assert await one.take(await one.read(), 41) == 42


async def test_an_owner_that_begins_again_at_its_address_takes_its_own_lease(one: LeaseTable) -> None:
    assert await one.take(await one.read(), 0) == 1
    assert await one.take(await one.read(), 0) == 2
    assert not await one.renew(1)


async def test_a_statement_without_an_answer_fails_and_the_next_one_gets_a_new_connection(
    pg_url: str, one: LeaseTable, system: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await one.take(await one.read(), 0)
    async with system.transaction():
        await system.execute("SELECT FROM scheduler_lease FOR UPDATE")
        with pytest.raises(LeaseUnavailable, match="has not answered"):
            await one.renew(1)
    assert await one.renew(1)


async def test_postgresql_that_is_away_or_silent_is_unavailable(pg_url: str) -> None:
    parts = urlsplit(pg_url)
    proxy = FaultProxy(str(parts.hostname), parts.port or 5432)
    port = await proxy.start()
    user = parts.netloc.rpartition("@")[0]
    table = LeaseTable(urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{port}")), "one")
    await table.read()
    proxy.change(Conditions(silent=True))
    with pytest.raises(LeaseUnavailable):
        await table.read()
    with pytest.raises(LeaseUnavailable):
        await table.read()
    proxy.change(CLEAR)
    await until(lambda: _readable(table))
    await proxy.close()
    with pytest.raises(LeaseUnavailable):
        await table.read()
    table.close()


async def _readable(table: LeaseTable) -> bool:
    try:
        return (await table.read()).term == 0
    except LeaseUnavailable:
        return False


def test_the_owners_name_is_that_of_the_address_on_this_machine() -> None:
    first = owner_at(Address("127.0.0.1", 8010))
    assert first == owner_at(Address("127.0.0.1", 8010))
    assert first != owner_at(Address("127.0.0.1", 8011))
