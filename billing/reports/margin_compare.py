"""The margin bridge of two periods from stored usage and host costs."""

from datetime import datetime

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.economics.gpu_cost import GpuUse
from billing.economics.weights import catalog_weights, weights_in_force
from billing.reports.figures import percent
from billing.reports.margin_bridge import Period, Quantities, Segment, bridge
from billing.reports.margin_segments import segment_usage
from billing.usage.gpu_shares import host_costs
from billing.usage.query import check_period
from core.money import pico_to_usd

SegmentKey = tuple[str, str]
"""(tenant id, model)."""


class PeriodView(msgspec.Struct, frozen=True):
    """A period's totals; amounts are exact decimal dollars."""

    start: datetime
    end: datetime
    tokens: int
    revenue_usd: str
    gpu_cost_usd: str
    margin_usd: str
    margin_pct: str | None


class BridgeView(msgspec.Struct, frozen=True):
    """Both periods and the effects in the order of EFFECTS, in exact decimal dollars."""

    before: PeriodView
    after: PeriodView
    effects: dict[str, str]
    difference_usd: str


async def margin_bridge(
    connection: AsyncConnection, before: tuple[datetime, datetime], after: tuple[datetime, datetime]
) -> BridgeView:
    """The bridge from the period `before` to `after`, each [start, end) of whole UTC hours.

    Raises InvalidRequest for an invalid period.
    """
    old, new = await _period(connection, *before), await _period(connection, *after)
    weights = await weights_in_force(connection, catalog_weights())
    made = bridge(old, new, {key: weights.of(key[1]) for key in [*old.segments, *new.segments]})
    return BridgeView(
        before=_view(before, old),
        after=_view(after, new),
        effects={name: pico_to_usd(amount) for name, amount in made.effects.items()},
        difference_usd=pico_to_usd(made.after - made.before),
    )


async def _period(connection: AsyncConnection, start: datetime, end: datetime) -> Period[SegmentKey]:
    check_period(start, end)
    costs = await host_costs(connection, start, end)
    segments = {
        (segment.tenant_id, segment.model): Segment(
            Quantities(segment.uncached, segment.cached, segment.output),
            Quantities(segment.revenue_uncached, segment.revenue_cached, segment.revenue_output),
        )
        for segment in await segment_usage(connection, costs, start, end)
    }
    total = GpuUse()
    for use in costs.hours.values():
        for part in [*use.serving.values(), *use.unused.values()]:
            total.add(part.cost, part.gpu_us, part.machine_us)
    return Period(segments, total.cost, total.machine_us)


def _view(span: tuple[datetime, datetime], period: Period[SegmentKey]) -> PeriodView:
    margin = period.revenue - period.gpu_cost
    return PeriodView(
        start=span[0],
        end=span[1],
        tokens=int(sum(segment.tokens.total for segment in period.segments.values())),
        revenue_usd=pico_to_usd(period.revenue),
        gpu_cost_usd=pico_to_usd(period.gpu_cost),
        margin_usd=pico_to_usd(margin),
        margin_pct=percent(margin, period.revenue),
    )
