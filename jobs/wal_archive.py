"""Watches the archive of PostgreSQL's write-ahead log, whose failures only the server's log shows."""

from prometheus_client import Gauge
from sqlalchemy import text

from core.db import Database
from core.settings import Settings

FAILING = Gauge(
    "penstock_wal_archive_failing",
    "Whether PostgreSQL's last attempt to archive a segment of its write-ahead log failed; 0 without an archive.",
)
_FAILS = text(
    "SELECT coalesce(last_failed_time > coalesce(last_archived_time, '-infinity'), false) FROM pg_stat_archiver"
)


async def watch_wal_archive(database: Database, settings: Settings) -> int:
    """Read whether the last attempt failed; returns 1 when it did."""
    del settings
    async with database.read() as connection:
        fails = bool((await connection.execute(_FAILS)).scalar_one())
    FAILING.set(fails)
    return int(fails)
