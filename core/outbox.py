"""The transactional outbox: a transaction writes a row for each job that it needs; jobs/ runs it."""

from typing import Any

from sqlalchemy import BigInteger, Column, DateTime, Index, Integer, Table, Text, func, insert, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import metadata

outbox = Table(
    "outbox",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("topic", Text, nullable=False),
    Column("payload", JSONB, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("done_at", DateTime(timezone=True)),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("next_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Index("ix_outbox_open", "id", postgresql_where=text("done_at IS NULL")),
)
"""One row per job, which runs at least once."""


async def enqueue(connection: AsyncConnection, topic: str, payload: dict[str, Any]) -> None:
    """Add a job in the caller's transaction; it runs if and only if that transaction commits."""
    await connection.execute(insert(outbox).values(topic=topic, payload=payload))
