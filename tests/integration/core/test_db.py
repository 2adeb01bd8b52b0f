"""Sessions: `read` is read-only, and a tenant's session sees only its own rows."""

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from api.pools import Pools
from core.db import BATCH, ONLINE, Database, Timeouts, connect_system, timed_out
from core.ids import uuid7
from core.outbox import enqueue

POOLS = ("admin", "customers", "exports", "key-feed", "keys", "models", "responses", "revocations")
"""Those of an API process."""


async def test_sessions_run_as_their_roles(database: Database) -> None:
    async with database.system() as connection:
        assert await connection.scalar(text("SELECT current_user")) == "penstock_system"
    tenant_id = uuid7()
    async with database.tenant(tenant_id) as connection:
        assert await connection.scalar(text("SELECT current_user")) == "penstock_app"
        assert await connection.scalar(text("SELECT current_setting('penstock.tenant_id')")) == str(tenant_id)
    async with database.engine.connect() as connection:
        # The pool returns the same connection: neither role nor tenant survives the transaction.
        assert await connection.scalar(text("SELECT current_user")) == "penstock"
        assert await connection.scalar(text("SELECT current_setting('penstock.tenant_id', true)")) in (
            "",
            None,
        )


async def test_postgresql_names_the_pool_of_each_connection(database: Database, pg_url: str) -> None:
    pools = Pools(pg_url)
    try:
        for pool in vars(pools).values():
            async with pool.read():
                pass
        async with database.read() as connection:
            named = await connection.scalars(
                text("SELECT application_name FROM pg_stat_activity WHERE datname = current_database()")
            )
            assert sorted(named) == sorted(["penstock", *(f"penstock-api-{pool}" for pool in POOLS)])
    finally:
        await pools.close()


async def test_a_read_session_cannot_write(database: Database) -> None:
    with pytest.raises(DBAPIError, match="read-only transaction"):
        async with database.read() as connection:
            await enqueue(connection, "test", {})


async def test_an_error_rolls_back(database: Database) -> None:
    async def fail() -> None:
        async with database.system() as connection:
            await enqueue(connection, "test", {})
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    async with database.read() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM outbox")) == 0


async def test_a_tenant_session_may_add_jobs_but_not_read_them(database: Database) -> None:
    async with database.tenant(uuid7()) as connection:
        await connection.execute(text("INSERT INTO outbox (topic, payload) VALUES ('test', '{}')"))
    with pytest.raises(DBAPIError, match="permission denied"):
        async with database.tenant(uuid7()) as connection:
            await connection.execute(text("SELECT * FROM outbox"))


async def test_hot_connections_run_as_system(pg_url: str) -> None:
    connection = await connect_system(pg_url)
    try:
        assert await connection.fetchval("SELECT current_user") == "penstock_system"
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("CREATE TABLE x ()")
    finally:
        await connection.close()


SHORT = Timeouts(statement_s=0.2, lock_s=0.1, idle_s=0.2)


async def test_a_statement_and_its_wait_for_a_lock_have_a_limit(database: Database, pg_url: str) -> None:
    short = Database(pg_url, timeouts=SHORT)
    try:
        with pytest.raises(DBAPIError) as slow:
            async with short.system() as connection:
                await connection.execute(text("SELECT pg_sleep(60)"))
        assert "statement timeout" in str(slow.value)
        async with database.system() as holder:
            await holder.execute(text("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE"))
            with pytest.raises(DBAPIError) as locked:
                async with short.system() as connection:
                    await connection.execute(text("SELECT count(*) FROM outbox"))
        assert "lock timeout" in str(locked.value)
        assert timed_out(slow.value)
        assert timed_out(locked.value)
        with pytest.raises(DBAPIError) as wrong:
            async with short.system() as connection:
                await connection.execute(text("SELECT 1 / 0"))
        assert not timed_out(wrong.value)
    finally:
        await short.close()


async def test_a_transaction_that_nobody_continues_gives_its_locks_back(
    database: Database, pg_url: str
) -> None:
    hanging = Database(pg_url, timeouts=SHORT)
    try:
        with pytest.raises(DBAPIError):
            await _hang(hanging, database)
    finally:
        await hanging.close()


async def _hang(database: Database, other: Database) -> None:
    async with database.system() as connection:
        await connection.execute(text("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE"))
        async with other.system() as waiting:
            await enqueue(waiting, "test", {})
        await connection.execute(text("SELECT 1"))


async def test_sessions_have_the_limits_of_their_purpose(database: Database, pg_url: str) -> None:
    pools = Pools(pg_url)
    try:
        for pool, expected in ((database, ONLINE), (pools.admin, ONLINE), (pools.exports, BATCH)):
            async with pool.read() as connection:
                found = await connection.execute(
                    text(
                        "SELECT name, setting::float / 1000 FROM pg_settings WHERE name IN ('statement_timeout', "
                        "'lock_timeout', 'idle_in_transaction_session_timeout')"
                    )
                )
                assert dict(map(tuple, found)) == {
                    "statement_timeout": expected.statement_s,
                    "lock_timeout": expected.lock_s,
                    "idle_in_transaction_session_timeout": expected.idle_s,
                }
    finally:
        await pools.close()
