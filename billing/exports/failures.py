"""Periods of scheduled exports that could not be written: they stay due, with a growing delay."""

from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy import delete, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.exports.tables import export_failures
from core.errors import PenstockError

MAX_ERROR = 500
"""Characters of a stored error."""


class ExportFailure(msgspec.Struct, frozen=True):
    """A period that could not be written."""

    definition_id: UUID
    period_start: datetime
    attempts: int
    error: str
    failed_at: datetime
    next_at: datetime
    """The next attempt is not made before this instant."""


async def list_failures(connection: AsyncConnection, definition_id: UUID) -> list[ExportFailure]:
    """The failed periods of a definition that were not written since, oldest first."""
    statement = (
        select(*export_failures.c)
        .where(export_failures.c.definition_id == definition_id)
        .order_by(export_failures.c.period_start)
    )
    return [ExportFailure(**row._mapping) for row in await connection.execute(statement)]


async def record_failure(
    connection: AsyncConnection, definition_id: UUID, start: datetime, error: Exception
) -> None:
    """Store a failure of the period that begins at `start`; the delay doubles from 5 minutes to 6 hours."""
    message = f"{type(error).__name__}; the log of the jobs has more"
    if isinstance(error, PenstockError):
        message = error.message
    await connection.execute(
        text(
            "INSERT INTO export_failures AS f (definition_id, period_start, error, next_at) "
            "VALUES (:id, :start, :error, clock_timestamp() + interval '5 minutes') "
            "ON CONFLICT (definition_id, period_start) DO UPDATE SET attempts = f.attempts + 1, "
            "error = excluded.error, failed_at = clock_timestamp(), next_at = clock_timestamp() "
            "+ least(interval '6 hours', interval '5 minutes' * (1 << least(f.attempts, 7)))"
        ),
        {"id": definition_id, "start": start, "error": message[:MAX_ERROR]},
    )


async def clear_failure(connection: AsyncConnection, definition_id: UUID, start: datetime) -> None:
    """Delete the failure of a period after it was written."""
    await connection.execute(
        delete(export_failures).where(
            export_failures.c.definition_id == definition_id, export_failures.c.period_start == start
        )
    )
