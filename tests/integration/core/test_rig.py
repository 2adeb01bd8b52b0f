"""The test fixtures: every test gets an empty, migrated database and an empty Redis."""

import pytest
from redis.asyncio import Redis
from sqlalchemy import func, select, text

from core.db import Database
from core.outbox import enqueue, outbox


@pytest.mark.parametrize("turn", [1, 2])
async def test_each_test_starts_with_an_empty_database(database: Database, turn: int) -> None:
    async with database.system() as connection:
        assert await connection.scalar(select(func.count()).select_from(outbox)) == 0
        await enqueue(connection, "test", {"turn": turn})
    async with database.read() as connection:
        assert await connection.scalar(select(outbox.c.id)) == 1


@pytest.mark.parametrize("turn", [1, 2])
async def test_each_test_starts_with_an_empty_redis(redis_client: Redis, turn: int) -> None:
    assert await redis_client.dbsize() == 0
    await redis_client.set("turn", turn)


async def test_the_template_is_migrated(database: Database) -> None:
    async with database.engine.connect() as connection:
        assert await connection.scalar(text("SELECT version_num FROM alembic_version")) >= "0001_base"
