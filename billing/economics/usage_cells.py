"""Usage by hour, organisation and model with the revenue of each kind of token: what cost and margin are made of."""

from datetime import datetime, timedelta

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.economics.weights import GpuWeights
from core.errors import InvalidRequest
from tenants.scoping import platform_wide

MAX_DAYS = 400

_CELLS = text(
    """
    WITH touched AS MATERIALIZED (
        SELECT DISTINCT hour FROM usage_touched WHERE hour >= :start AND hour < :end),
    counted AS (
        SELECT h.hour, h.tenant_id, h.model, h.price_version, h.requests, h.input_tokens, h.cached_input_tokens,
            h.output_tokens, h.reasoning_tokens, h.unbilled_input_tokens, h.unbilled_output_tokens, h.cost
        FROM usage_hours h WHERE h.hour >= :start AND h.hour < :end
            AND NOT EXISTS (SELECT 1 FROM touched t WHERE t.hour = h.hour)
        UNION ALL
        SELECT t.hour, f.tenant_id, f.model, f.price_version, f.requests, f.input_tokens, f.cached_input_tokens,
            f.output_tokens, f.reasoning_tokens, f.unbilled_input_tokens, f.unbilled_output_tokens, f.cost
        FROM touched t, LATERAL penstock_fold_usage(t.hour, t.hour + interval '1 hour') f)
    SELECT c.hour, c.tenant_id, c.model, sum(c.requests) AS requests,
        sum(c.input_tokens - c.cached_input_tokens) AS uncached, sum(c.cached_input_tokens) AS cached,
        sum(c.output_tokens) AS output, sum(c.unbilled_input_tokens) AS unbilled_input,
        sum(c.unbilled_output_tokens) AS unbilled_output, sum(c.cost) AS cost,
        sum((c.input_tokens - c.cached_input_tokens) * p.input) AS revenue_uncached,
        sum(c.cached_input_tokens * p.cached_input) AS revenue_cached
    FROM counted c JOIN price_versions p ON p.id = c.price_version
    GROUP BY c.hour, c.tenant_id, c.model ORDER BY c.hour, c.model, c.tenant_id
    """
)


class UsageCell(msgspec.Struct):
    """What one organisation used of one model in one hour. Revenue in picodollars, before credits and adjustments."""

    hour: datetime
    tenant_id: str
    model: str
    requests: int
    uncached: int
    cached: int
    output: int
    """Billed tokens."""
    unbilled_input: int
    unbilled_output: int
    """Tokens of failures, empty answers and failed attempts: nobody pays, the GPU worked all the same."""
    revenue_uncached: int
    revenue_cached: int
    revenue_output: int

    @property
    def revenue(self) -> int:
        """Picodollars."""
        return self.revenue_uncached + self.revenue_cached + self.revenue_output

    def work(self, weights: GpuWeights) -> tuple[int, int]:
        """Estimated GPU-picoseconds of input and of output."""
        model = weights.of(self.model)
        return (
            model.picoseconds(self.uncached + self.unbilled_input, self.cached, 0),
            model.picoseconds(0, 0, self.output + self.unbilled_output),
        )


@platform_wide("margins of all organisations; shares of a host's cost need everybody's use")
async def usage_cells(connection: AsyncConnection, start: datetime, end: datetime) -> list[UsageCell]:
    """Cells of [start, end), by hour, model and organisation. Raises InvalidRequest for a period that cannot be."""
    check_period(start, end)
    found = await connection.execute(_CELLS, {"start": start, "end": end})
    return [
        UsageCell(
            hour=row.hour,
            tenant_id=str(row.tenant_id),
            model=row.model,
            requests=int(row.requests),
            uncached=int(row.uncached),
            cached=int(row.cached),
            output=int(row.output),
            unbilled_input=int(row.unbilled_input),
            unbilled_output=int(row.unbilled_output),
            revenue_uncached=int(row.revenue_uncached),
            revenue_cached=int(row.revenue_cached),
            revenue_output=int(row.cost) - int(row.revenue_uncached) - int(row.revenue_cached),
        )
        for row in found
    ]


def check_period(start: datetime, end: datetime) -> None:
    """Whole UTC hours, not empty, not too long. Raises InvalidRequest."""
    for name, instant in (("from", start), ("to", end)):
        if instant.tzinfo is None or (instant.minute, instant.second, instant.microsecond) != (0, 0, 0):
            raise InvalidRequest(
                f"{name} must be a date or a whole UTC hour, not {instant.isoformat()}", param=name
            )
    if not start < end:
        raise InvalidRequest("the period is empty: `from` must be before `to`, which is excluded", param="to")
    if end - start > timedelta(days=MAX_DAYS):
        raise InvalidRequest(f"the period is longer than {MAX_DAYS} days; ask for a part of it", param="to")
