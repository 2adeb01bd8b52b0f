"""Old partitions: how long the lock on their table is held, and what becomes of holds whose time is over."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from billing.usage.archive import archive_month, drop_rows
from core.db import Database
from core.errors import Conflict
from core.settings import Settings
from jobs import retention
from jobs.work import prune
from tests.integration.billing.support import Customer
from tests.integration.billing.usage.test_archive import LAST, ROWS, months

__all__ = ["months"]

_WATCH = """
CREATE TABLE watched (tag text, tuples bigint);
CREATE FUNCTION watch() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO watched SELECT tg_tag, pg_stat_get_xact_tuples_returned(to_regclass('{partition}'))
        WHERE to_regclass('{partition}') IS NOT NULL;
END $$;
CREATE EVENT TRIGGER watch_detach ON ddl_command_end WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION watch();
CREATE EVENT TRIGGER watch_drop ON ddl_command_start WHEN TAG IN ('DROP TABLE') EXECUTE FUNCTION watch();
"""


async def test_the_rows_are_read_before_the_lock_is_taken(
    database: Database, months: list[Customer], pg_url: str, tmp_path: Path
) -> None:
    await archive_month(database, tmp_path, LAST)
    owner = await asyncpg.connect(pg_url)
    await owner.execute("ANALYZE usage_rows")
    await owner.execute(_WATCH.format(partition=f"usage_rows_{LAST:%Y_%m}"))
    async with database.system() as connection:
        await drop_rows(connection, tmp_path, LAST)
    detached, dropped = await owner.fetch("SELECT tag, tuples FROM watched ORDER BY tag")
    assert (detached["tag"], dropped["tag"]) == ("ALTER TABLE", "DROP TABLE")
    assert detached["tuples"] >= ROWS
    # The look for rows that were settled since reads by the BRIN index: at most its block range of 32 pages.
    assert await owner.fetchval("SELECT count(*) FROM usage_rows") == 4
    await owner.close()
    assert dropped["tuples"] - detached["tuples"] <= ROWS + 1


async def test_a_long_reader_is_not_waited_for_and_holds_nothing_up(
    database: Database, months: list[Customer], pg_url: str, tmp_path: Path
) -> None:
    await archive_month(database, tmp_path, LAST)
    reader = await asyncpg.connect(pg_url)
    other = await asyncpg.connect(pg_url)
    transaction = reader.transaction()
    await transaction.start()
    await reader.fetch("SELECT count(*) FROM usage_rows")

    async def drop() -> None:
        async with database.system() as connection:
            await drop_rows(connection, tmp_path, LAST)

    dropping = asyncio.create_task(drop())
    # Others go on while it tries: each attempt gives up after a tenth of a second.
    reads = 0
    while not dropping.done():
        await other.fetch("SELECT count(*) FROM usage_rows", timeout=60)
        reads += 1
        await asyncio.sleep(0)
    assert reads > 0
    with pytest.raises(Conflict, match="try again"):
        await dropping
    await transaction.rollback()
    await drop()
    assert await other.fetchval("SELECT count(*) FROM usage_rows") == 4
    await reader.close()
    await other.close()


async def test_end_users_and_tags_go_with_the_rows(
    database: Database, months: list[Customer], pg_url: str, tmp_path: Path
) -> None:
    owner = await asyncpg.connect(pg_url)
    await owner.execute(
        "INSERT INTO label_values (tenant_id, month, name, value) "
        "SELECT DISTINCT tenant_id, date_trunc('month', ended_at, 'UTC')::date, 'user', 'ada' FROM usage"
    )
    await owner.execute(
        "INSERT INTO usage_labels (request_id, tenant_id, ended_at, user_value) "
        "SELECT u.request_id, u.tenant_id, u.ended_at, v.id FROM usage u JOIN label_values v "
        "ON v.tenant_id = u.tenant_id AND v.month = date_trunc('month', u.ended_at, 'UTC')::date"
    )
    assert await owner.fetchval("SELECT count(*) FROM usage_labels") == ROWS + 4
    await archive_month(database, tmp_path, LAST)
    async with database.system() as connection:
        await drop_rows(connection, tmp_path, LAST)
    left = "SELECT request_id FROM usage_labels EXCEPT SELECT request_id FROM usage_rows"
    assert await owner.fetch(left) == []
    assert await owner.fetchval("SELECT count(*) FROM usage_labels") == 4
    assert await owner.fetchval("SELECT count(*) FROM label_values WHERE month = $1", LAST) == 0
    await owner.close()


async def hold(connection: "asyncpg.Connection[asyncpg.Record]", at: datetime, state: str) -> None:
    """A hold of a request that was admitted at `at`."""
    await connection.execute(
        "INSERT INTO holds SELECT overlay(gen_random_uuid()::text PLACING substring("
        "penstock_uuid_floor($1)::text FROM 1 FOR 14) FROM 1 FOR 14)::uuid, gen_random_uuid(), gen_random_uuid(), "
        "gen_random_uuid(), 'm', 'i', 1, 1, 0, $2::text::hold_state, $1, $1, "
        "CASE WHEN $2 <> 'open' THEN $1::timestamptz END",
        at,
        state,
    )


async def test_holds_of_months_long_over_are_pruned(database: Database, pg_url: str) -> None:
    settings = Settings(database_url=pg_url)
    owner = await asyncpg.connect(pg_url)
    now = datetime.now(UTC)
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    starts = [month]
    while len(starts) < 6:
        starts.append((starts[-1] - timedelta(days=1)).replace(day=1))
    for start in starts[1:]:
        await owner.execute("SELECT penstock_make_partition('holds', $1)", start)
        await hold(owner, start + timedelta(days=3), "settled")
    await hold(owner, starts[4] + timedelta(days=4), "open")
    await hold(owner, now, "settled")
    await hold(owner, now - timedelta(days=400), "voided")
    await hold(owner, now - timedelta(days=400), "open")
    kept = [start for start, end in zip(starts[1:], starts, strict=False) if now - end < retention.HOLDS_KEPT]
    for _ in range(8):
        await prune(database, settings)
    left = await owner.fetch("SELECT state::text, admitted_at FROM holds ORDER BY admitted_at DESC")
    expected = [("settled", now.date())]
    expected += [("settled", (start + timedelta(days=3)).date()) for start in kept]
    # An open hold keeps its month: it holds money.
    expected += [
        ("open", (starts[4] + timedelta(days=4)).date()),
        ("settled", (starts[4] + timedelta(days=3)).date()),
    ]
    expected += [("open", (now - timedelta(days=400)).date())]
    assert [(row["state"], row["admitted_at"].date()) for row in left] == expected
    await owner.close()
