"""What must be done to a database before roles may use it."""

import asyncio
from pathlib import Path

import asyncpg
from alembic import command
from alembic.config import Config

from core.db import sqlalchemy_url

MIGRATIONS = Path(__file__).resolve().parent.parent / "migrations"
_LOCK = 0x70656E73746F636B  # "penstock": one migrator at a time


def alembic_config(database_url: str) -> Config:
    """Alembic's configuration for `database_url`; there is no ini file."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["url"] = sqlalchemy_url(database_url)
    return config


async def migrate(database_url: str) -> None:
    """Bring the schema of `database_url` to the newest revision. Does nothing when it is there already.

    Any number of processes may call it at once: an advisory lock lets one work and the others wait.
    """
    lock = await asyncpg.connect(database_url)
    try:
        await lock.execute("SELECT pg_advisory_lock($1)", _LOCK)
        await asyncio.to_thread(command.upgrade, alembic_config(database_url), "head")
    finally:
        await lock.close()
