"""Alembic's entry: runs the revisions over asyncpg with the URL that core.services.migrate hands over."""

import asyncio
import os

from alembic import context
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from core.db import sqlalchemy_url
from migrations.support import load_tables

config = context.config


def _url() -> str:
    """From core.services.migrate, or DATABASE_URL for a call of the alembic command itself."""
    return str(config.attributes.get("url") or sqlalchemy_url(os.environ["DATABASE_URL"]))


def _run(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=load_tables(), transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()


async def _migrate() -> None:
    engine = create_async_engine(_url(), poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(_run)
    finally:
        await engine.dispose()


if context.is_offline_mode():
    context.configure(url=_url(), target_metadata=load_tables(), literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()
else:
    asyncio.run(_migrate())
