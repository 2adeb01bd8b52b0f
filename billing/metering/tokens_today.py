"""Tokens used today, from which the rate limiter restores its daily counts when Redis has lost them."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import text

from core.db import Database


async def tokens_today(database: Database, tenant_id: UUID, day: datetime) -> dict[UUID, int]:
    """Input and output tokens used on the UTC day of `day`, by the id of the tenant, its projects and its keys."""
    start = day.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    async with database.read() as connection:
        rows = await connection.execute(
            text(
                "SELECT project_id, key_id, sum(input_tokens + output_tokens) AS tokens FROM usage "
                "WHERE tenant_id = :tenant AND ended_at >= :start AND ended_at < :end GROUP BY project_id, key_id"
            ),
            {"tenant": tenant_id, "start": start, "end": start + timedelta(days=1)},
        )
        used: dict[UUID, int] = {}
        for row in rows:
            for scope in (tenant_id, row.project_id, row.key_id):
                used[scope] = used.get(scope, 0) + int(row.tokens)
    return used
