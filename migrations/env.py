"""Alembic's entry: runs the revisions, then applies the SQL files, in one transaction on one connection.

Everything that migrates comes through here: `penstock migrate`, `penstock up`, core.services.migrate, and
`alembic upgrade head` with DATABASE_URL set.
"""

import asyncio
import os

from alembic import context
from alembic.util import CommandError
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from core.db import sqlalchemy_url
from migrations.repeatable import apply, read_files
from migrations.support import load_tables

_LOCK = 0x70656E73746F636B  # "penstock" in ASCII: an advisory lock that lets one process migrate at a time
_BASELINE = "0017_fair_shares"
_WITH_EARLIER = "fe95fee"  # a commit with the revisions that the baseline replaced

config = context.config


def _url() -> str:
    """From core.services.migrate, or DATABASE_URL for a call of the alembic command itself."""
    return str(config.attributes.get("url") or sqlalchemy_url(os.environ["DATABASE_URL"]))


def _refuse_unknown(connection: Connection) -> None:
    """Raise CommandError for a database whose revision is not one of ours."""
    known = {revision.revision for revision in context.script.walk_revisions()}
    for current in context.get_context().get_current_heads():
        if current in known:
            continue
        if current < _BASELINE:
            raise CommandError(
                f"the database is at schema revision {current}, which is too old for this version: run `penstock "
                f"migrate` of commit {_WITH_EARLIER} on it first, then this one"
            )
        raise CommandError(
            f"the database is at schema revision {current}, which this version does not know: run the newer "
            "version of Penstock that migrated it"
        )


def _goes_to_head() -> bool:
    """Whether the command moves the database to the newest revision; commands that only read have no destination."""
    try:
        return context.get_revision_argument() in (context.get_head_revision(), context.get_head_revisions())
    except KeyError:
        return False


def _run(connection: Connection) -> None:
    connection.exec_driver_sql(f"SELECT pg_advisory_lock({_LOCK})")  # released when the connection closes
    connection.commit()
    context.configure(connection=connection, target_metadata=load_tables())
    _refuse_unknown(connection)
    with context.begin_transaction():
        context.run_migrations()
        if _goes_to_head():
            apply(connection, read_files())


async def _migrate() -> None:
    engine = create_async_engine(_url(), poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(_run)
    finally:
        await engine.dispose()


if context.is_offline_mode():
    raise CommandError("--sql is not possible: what is applied depends on the database")
asyncio.run(_migrate())
