"""Ways to migrate: several processes at once, the alembic command, and databases that cannot be migrated."""

import asyncio
import os
import sys
from pathlib import Path

import asyncpg
import pytest

from core.db import Database
from core.errors import Unavailable
from core.services import migrate
from tests.support.schema import own_database, schema_of
from tests.support.services import Services

ROOT = Path(__file__).resolve().parents[3]


async def _schema(url: str) -> dict[str, str]:
    connection = await asyncpg.connect(url)
    try:
        return await schema_of(connection)
    finally:
        await connection.close()


async def _alembic(url: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "alembic", "upgrade", "head", cwd=ROOT, env={**os.environ, "DATABASE_URL": url},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


async def test_several_at_once_migrate_one_empty_database(services: Services, pg_url: str) -> None:
    """Tasks of this process, and processes that run the plain alembic command."""
    async with own_database(services, "at_once") as url:
        await asyncio.gather(migrate(url), migrate(url), _alembic(url), _alembic(url))
        assert await _schema(url) == await _schema(pg_url)


@pytest.mark.parametrize(
    ("revision", "says"),
    [("0016_request_shapes", "too old .* run `penstock migrate` of commit"), ("9999_later", "newer version")],
)
async def test_a_revision_that_is_not_ours_is_refused_in_one_line(
    database: Database, revision: str, says: str
) -> None:
    connection = await asyncpg.connect(database.url)
    await connection.execute("UPDATE alembic_version SET version_num = $1", revision)
    with pytest.raises(Unavailable, match=f"revision {revision}, .*{says}") as refusal:
        await migrate(database.url)
    assert "\n" not in refusal.value.message
    assert await connection.fetchval("SELECT version_num FROM alembic_version") == revision
    await connection.close()
