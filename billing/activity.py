"""What has just been going on: requests, tokens, spend and time to first token, for the console's overview.

Read from the usage rows by the time they ended, so it agrees with the report once an hour is over. Gaps are filled:
every step of the window has a point.
"""

from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from core.money import pico_to_usd


class ActivityPoint(msgspec.Struct, frozen=True):
    """One step of the window."""

    at: datetime
    """Its start."""
    requests: int
    input_tokens: int
    output_tokens: int
    cost_usd: str
    ttft_p50_ms: float | None
    """None where no request had a first token."""
    ttft_p95_ms: float | None


class Activity(msgspec.Struct, frozen=True):
    """The whole window and its steps, oldest first."""

    requests: int
    input_tokens: int
    output_tokens: int
    cost_usd: str
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    points: list[ActivityPoint]


_FIGURES = """
    count(u.request_id) AS requests, coalesce(sum(u.input_tokens), 0) AS input_tokens,
    coalesce(sum(u.output_tokens), 0) AS output_tokens, coalesce(sum(u.cost), 0) AS cost,
    percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY u.ttft_us) FILTER (WHERE u.ttft_us > 0) AS ttft_us
"""
_ROWS = "u.ended_at >= :since AND (CAST(:tenant AS uuid) IS NULL OR u.tenant_id = :tenant)"
_TOTAL = text(f"SELECT {_FIGURES} FROM usage u WHERE {_ROWS}")  # noqa: S608 - constants from above
_POINTS = text(
    f"""
    SELECT s.at, {_FIGURES} FROM generate_series(
        date_bin(make_interval(secs => :step_s), :since, 'epoch'), now(), make_interval(secs => :step_s)) AS s(at)
    LEFT JOIN usage u ON date_bin(make_interval(secs => :step_s), u.ended_at, 'epoch') = s.at AND {_ROWS}
    GROUP BY s.at ORDER BY s.at
    """  # noqa: S608 - constants from above
)


async def activity(
    connection: AsyncConnection, since: datetime, tenant_id: UUID | None = None, *, step_s: int = 60
) -> Activity:
    """What ended from `since` until now, of one organisation or of all, in steps of `step_s` seconds."""
    values = {"since": since, "tenant": tenant_id, "step_s": step_s}
    total = (await connection.execute(_TOTAL, values)).one()
    points = (await connection.execute(_POINTS, values)).all()
    return Activity(
        requests=total.requests,
        input_tokens=int(total.input_tokens),
        output_tokens=int(total.output_tokens),
        cost_usd=pico_to_usd(int(total.cost)),
        ttft_p50_ms=_ms(total, 0),
        ttft_p95_ms=_ms(total, 1),
        points=[
            ActivityPoint(
                at=row.at,
                requests=row.requests,
                input_tokens=int(row.input_tokens),
                output_tokens=int(row.output_tokens),
                cost_usd=pico_to_usd(int(row.cost)),
                ttft_p50_ms=_ms(row, 0),
                ttft_p95_ms=_ms(row, 1),
            )
            for row in points
        ],
    )


def _ms(row: Row[tuple[object, ...]], index: int) -> float | None:
    return None if row.ttft_us is None else row.ttft_us[index] / 1000
