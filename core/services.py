"""Migrates a database, which roles need before they use it."""

import asyncio
import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError

from core.db import sqlalchemy_url
from core.errors import Unavailable

MIGRATIONS = Path(__file__).resolve().parent.parent / "migrations"
_ALEMBIC = threading.Lock()
"""One migration at a time per process: Alembic keeps the running one in module state."""


def alembic_config(database_url: str) -> Config:
    """Alembic's configuration for `database_url`; there is no ini file."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["url"] = sqlalchemy_url(database_url)
    return config


async def migrate(database_url: str) -> None:
    """Migrate the schema of `database_url` to the newest revision and its functions to the current .sql files.

    Does nothing when the database is up to date. Concurrent calls from any number of processes are safe: an advisory
    lock serialises them (migrations/env.py). Raises Unavailable when the database's revision is unknown.
    """
    try:
        await asyncio.to_thread(_upgrade, alembic_config(database_url))
    except CommandError as error:
        raise Unavailable(str(error)) from None


def _upgrade(config: Config) -> None:
    with _ALEMBIC:
        command.upgrade(config, "head")
