"""What must be done to a database before roles may use it."""

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
"""Alembic keeps the running migration in a module, so a process can run one at a time."""


def alembic_config(database_url: str) -> Config:
    """Alembic's configuration for `database_url`; there is no ini file."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["url"] = sqlalchemy_url(database_url)
    return config


async def migrate(database_url: str) -> None:
    """Bring the schema of `database_url` to the newest revision and its functions to the present text of their files.

    Does nothing when they are there already. Any number of processes may call it at once: an advisory lock lets one
    work and the others wait (migrations/env.py). Raises Unavailable when this version does not know the database's
    revision.
    """
    try:
        await asyncio.to_thread(_upgrade, alembic_config(database_url))
    except CommandError as error:
        raise Unavailable(str(error)) from None


def _upgrade(config: Config) -> None:
    with _ALEMBIC:
        command.upgrade(config, "head")
