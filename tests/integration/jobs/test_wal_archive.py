"""The watch on the archive of the write-ahead log: only the last attempt counts."""

from pathlib import Path

import asyncpg

from cli.backup.wal import archive_settings
from core.child import service_account, service_home
from core.db import Database
from core.embedded import EmbeddedPostgres
from core.services import migrate
from core.settings import Settings
from jobs.wal_archive import FAILING, watch_wal_archive
from tests.support.waiting import until


async def test_a_failing_archive_is_seen_and_one_that_works_again(tmp_path: Path) -> None:
    archive = service_home(tmp_path, "wal", service_account())
    server = EmbeddedPostgres(tmp_path / "data", settings=archive_settings(archive / "missing"))
    database = Database(await server.start(), name="test", pool_size=1)
    try:
        await migrate(server.url)
        connection = await asyncpg.connect(server.url)
        await connection.execute("SELECT pg_switch_wal()")

        async def seen(wanted: int) -> bool:
            return await watch_wal_archive(database, Settings()) == wanted and FAILING._value.get() == wanted

        await until(lambda: seen(1))
        (archive / "missing").mkdir(mode=0o777)
        (archive / "missing").chmod(0o777)
        await connection.execute("SELECT pg_switch_wal()")
        await until(lambda: seen(0), timeout_s=180.0)  # it tries again after a minute
        await connection.close()
    finally:
        await database.close()
        await server.stop()


async def test_a_server_without_an_archive_does_not_fail(database: Database) -> None:
    assert await watch_wal_archive(database, Settings()) == 0
