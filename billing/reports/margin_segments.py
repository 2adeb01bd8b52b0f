"""Usage by segment (organisation and model) and time, with its revenue by kind of token and its share of host cost."""

from datetime import datetime

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.economics.weights import GpuWeights
from billing.usage.gpu_shares import DAILY_SUMS_WITH_GPU, HostCosts
from tenants.scoping import platform_wide

UNITS = {
    None: "CAST(:start AS timestamptz)",
    "day": "date_trunc('day', c.hour, 'UTC')",
    "hour": "c.hour",
}
_SEGMENTS = f"""
    WITH {DAILY_SUMS_WITH_GPU}
    SELECT {{at}} AS at, c.tenant_id, c.model, sum(c.requests) AS requests,
        sum(c.input_tokens - c.cached_input_tokens) AS uncached, sum(c.cached_input_tokens) AS cached,
        sum(c.output_tokens) AS output, sum(c.unbilled_input_tokens) AS unbilled_input,
        sum(c.unbilled_output_tokens) AS unbilled_output, sum(c.cost) AS cost,
        sum((c.input_tokens - c.cached_input_tokens) * p.input) AS revenue_uncached,
        sum(c.cached_input_tokens * p.cached_input) AS revenue_cached,
        sum(c.gpu_input_cost) AS input_cost, sum(c.gpu_output_cost) AS output_cost, sum(c.machine_us) AS machine_us
    FROM usage_sums c JOIN price_versions p ON p.id = c.price_version
    GROUP BY 1, 2, 3 ORDER BY 1, 3, 2
    """  # noqa: S608 - names from the constants above; values are bound


class SegmentUsage(msgspec.Struct):
    """Usage of one organisation and model. Money in picodollars; revenue is before credits and adjustments."""

    at: datetime
    """The start of the hour, day or period."""
    tenant_id: str
    model: str
    requests: int
    uncached: int
    cached: int
    output: int
    """Billed tokens."""
    unbilled_input: int
    unbilled_output: int
    """Tokens of failed or empty answers and of failed attempts, which used the GPU and are not billed."""
    revenue_uncached: int
    revenue_cached: int
    revenue_output: int
    input_cost: int
    """Its share of the hosts' cost for input (gpu_shares.py)."""
    output_cost: int
    machine_us: int

    @property
    def revenue(self) -> int:
        """Picodollars."""
        return self.revenue_uncached + self.revenue_cached + self.revenue_output

    def work(self, weights: GpuWeights) -> int:
        """Estimated GPU-picoseconds of all tokens, unbilled ones included."""
        return weights.picoseconds(
            self.model, self.uncached + self.unbilled_input, self.cached, self.output + self.unbilled_output
        )


@platform_wide("margins of all organisations; a host's cost is shared over the usage of all")
async def segment_usage(
    connection: AsyncConnection, costs: HostCosts, start: datetime, end: datetime, unit: str | None = None
) -> list[SegmentUsage]:
    """Segments of [start, end) by `unit` (hour, day; None = the period), with their shares of the period's `costs`."""
    bound = costs.parameters(start, end, by_hour=unit == "hour")
    found = await connection.execute(text(_SEGMENTS.format(at=UNITS[unit])), bound)
    return [
        SegmentUsage(
            at=row.at,
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
            input_cost=int(row.input_cost),
            output_cost=int(row.output_cost),
            machine_us=int(row.machine_us),
        )
        for row in found
    ]
