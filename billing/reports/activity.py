"""Recent activity by minute: requests, tokens, cost, time to first token."""

from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from core.money import pico_to_usd


class Minute(msgspec.Struct, frozen=True):
    """One UTC minute; fields as in Activity."""

    at: datetime
    requests: int
    input_tokens: int
    output_tokens: int
    cost_usd: str
    ttft_p50_ms: int | None
    ttft_p95_ms: int | None


class Activity(msgspec.Struct, frozen=True):
    """Sums since an instant, including the tokens of requests that are free by their outcome."""

    since: datetime
    requests: int
    failed: int
    """Requests that ended in `engine_failed`, `zero_output` or `interrupted`."""
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    cost_usd: str
    ttft_p50_ms: int | None
    """Median milliseconds to the first content byte; None without a value."""
    ttft_p95_ms: int | None
    minutes: list[Minute]
    """Minutes with requests, oldest first."""


_SUMS = """
    count(*) AS requests,
    count(*) FILTER (WHERE outcome IN ('engine_failed', 'zero_output', 'interrupted')) AS failed,
    coalesce(sum(input_tokens), 0) AS input_tokens,
    coalesce(sum(cached_input_tokens), 0) AS cached_input_tokens,
    coalesce(sum(output_tokens), 0) AS output_tokens,
    coalesce(sum(cost), 0) AS cost,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY ttft_us) FILTER (WHERE ttft_us > 0) / 1000 AS p50,
    percentile_disc(0.95) WITHIN GROUP (ORDER BY ttft_us) FILTER (WHERE ttft_us > 0) / 1000 AS p95
    FROM usage WHERE ended_at >= :since AND (CAST(:tenant AS uuid) IS NULL OR tenant_id = :tenant)
"""
_TOTAL = text(f"SELECT {_SUMS}")
_MINUTES = text(f"SELECT date_trunc('minute', ended_at, 'UTC') AS at, {_SUMS} GROUP BY 1 ORDER BY 1")


async def activity(connection: AsyncConnection, since: datetime, tenant_id: UUID | None = None) -> Activity:
    """Activity of requests that ended at or after `since`, of one tenant or of all that the connection may see."""
    bound = {"since": since, "tenant": tenant_id}
    total = (await connection.execute(_TOTAL, bound)).one()
    minutes = [
        Minute(
            at=row.at,
            requests=row.requests,
            input_tokens=int(row.input_tokens),
            output_tokens=int(row.output_tokens),
            cost_usd=pico_to_usd(int(row.cost)),
            ttft_p50_ms=row.p50,
            ttft_p95_ms=row.p95,
        )
        for row in await connection.execute(_MINUTES, bound)
    ]
    return Activity(
        since=since,
        requests=total.requests,
        failed=total.failed,
        input_tokens=int(total.input_tokens),
        cached_input_tokens=int(total.cached_input_tokens),
        output_tokens=int(total.output_tokens),
        cost_usd=pico_to_usd(int(total.cost)),
        ttft_p50_ms=total.p50,
        ttft_p95_ms=total.p95,
        minutes=minutes,
    )
