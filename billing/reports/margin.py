"""Cost and margin by organisation, model and time; idle, loading and asleep as separate lines.

The cost of serving replicas is shared over the hour's usage of their model by estimated GPU time, and over input and
output the same way (gpu_shares.py). Unused cost is a line without an organisation, by state. `fully_loaded` allocates
it as overhead by direct cost: a model's unused cost to the organisations that used the model, all other unused cost to
all, then over their days, then over their hours. Every split keeps its sum, so the lines add up to the hosts' cost in
every grouping.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.economics.gpu_cost import GpuUse
from billing.economics.weights import PICO_PER_US
from billing.reports.figures import percent, seconds
from billing.reports.margin_segments import SegmentUsage, segment_usage
from billing.usage.gpu_shares import HostCosts, host_costs
from billing.usage.query import bucket_start, check_period
from core.apportion import split
from core.errors import InvalidRequest
from core.money import pico_to_usd, ratio_per_mtok

K = TypeVar("K", str, tuple[str, str], tuple[str, str, str, datetime])
DIMENSIONS = ("tenant", "model", "hour", "day")
DIRECT, SERVING = "direct", "serving"
"""Lines of usage, and of serving time in an hour in which no request of the model ended."""


class LineSums(msgspec.Struct):
    """The sums of one line: tokens, picoseconds (`_ps`), microseconds (`_us`) and picodollars."""

    requests: int = 0
    uncached: int = 0
    cached: int = 0
    output: int = 0
    unbilled: int = 0
    estimated_ps: int = 0
    machine_us: int = 0
    revenue: int = 0
    input_cost: int = 0
    output_cost: int = 0
    overhead: int = 0

    def add(self, other: "LineSums") -> None:
        """Add every sum."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def cost(self) -> int:
        """Direct cost and overhead in picodollars."""
        return self.input_cost + self.output_cost + self.overhead


class EconomicsRow(msgspec.Struct):
    """One line of the report. Amounts are exact decimal dollars; None = does not apply."""

    line: str
    """direct (usage) | warm_idle | loading | asleep | no_agent | contract_unused | serving (without usage)"""
    tenant_id: str | None = None
    tenant: str | None = None
    model: str | None = None
    hour: str | None = None
    day: str | None = None
    requests: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    unbilled_tokens: int = 0
    gpu_seconds_estimated: str = "0.000000"
    gpu_seconds: str = "0.000000"
    """GPU time of hosts; a host without GPUs counts as one GPU."""
    revenue_usd: str = "0.00"
    gpu_cost_usd: str = "0.00"
    overhead_usd: str = "0.00"
    """Unused cost: allocated to the line when fully loaded, else the line's own."""
    gpu_cost_per_mtok_usd: str | None = None
    gpu_cost_per_mtok_input_usd: str | None = None
    gpu_cost_per_mtok_output_usd: str | None = None
    revenue_per_mtok_usd: str | None = None
    margin_usd: str = "0.00"
    margin_pct: str | None = None


LineKey = tuple[str, str, str, datetime]
"""(line, tenant id, model, start of the hour, day or period)."""


async def economics_report(
    connection: AsyncConnection,
    start: datetime,
    end: datetime,
    by: tuple[str, ...] = ("tenant", "model"),
    *,
    fully_loaded: bool = False,
) -> list[EconomicsRow]:
    """Cost and margin of [start, end), whole UTC hours, by any of DIMENSIONS; needs a session that sees all tenants.

    Raises InvalidRequest for an invalid grouping or period.
    """
    if not by or len(set(by)) != len(by) or not set(by) <= set(DIMENSIONS):
        raise InvalidRequest(
            f"group by any of {', '.join(DIMENSIONS)}, each once, not {','.join(by)[:80]!r}", param="by"
        )
    check_period(start, end)
    unit = next((name for name in ("hour", "day") if name in by), None)
    costs = await host_costs(connection, start, end)
    segments = await segment_usage(connection, costs, start, end, unit)
    lines = attribute(segments, costs, start, unit)
    if fully_loaded:
        lines = allocate_overhead(lines)
    rows = _group(lines, by)
    await _add_names(connection, rows)
    return sorted(rows, key=_order)


def attribute(
    segments: Iterable[SegmentUsage], costs: HostCosts, start: datetime, unit: str | None
) -> dict[LineKey, LineSums]:
    """Direct lines of all segments and lines of unused cost, by `unit` (hour, day; None = the period from `start`)."""
    lines: dict[LineKey, LineSums] = {}
    rest: dict[LineKey, GpuUse] = defaultdict(GpuUse)
    for hour, hour_use in costs.hours.items():
        at = bucket_start(hour, unit) if unit else start
        for model, use in hour_use.serving.items():
            rest[SERVING, "", model, at].add(use.cost, use.gpu_us, use.machine_us)
        for (model, state), use in hour_use.unused.items():
            rest[state, "", model, at].add(use.cost, use.gpu_us, use.machine_us)
    for segment in segments:
        lines[DIRECT, segment.tenant_id, segment.model, segment.at] = LineSums(
            requests=segment.requests,
            uncached=segment.uncached,
            cached=segment.cached,
            output=segment.output,
            unbilled=segment.unbilled_input + segment.unbilled_output,
            estimated_ps=segment.work(costs.weights),
            machine_us=segment.machine_us,
            revenue=segment.revenue,
            input_cost=segment.input_cost,
            output_cost=segment.output_cost,
        )
        if segment.input_cost or segment.output_cost or segment.machine_us:
            taken = segment.input_cost + segment.output_cost
            rest[SERVING, "", segment.model, segment.at].add(-taken, 0, -segment.machine_us)
    for key, use in rest.items():
        if use.cost or use.machine_us:
            lines[key] = LineSums(machine_us=use.machine_us, overhead=use.cost)
    return lines


def allocate_overhead(lines: dict[LineKey, LineSums]) -> dict[LineKey, LineSums]:
    """Allocate unused cost to the direct lines by their direct cost; without direct cost, returns `lines`."""
    direct = {key: msgspec.structs.replace(line) for key, line in lines.items() if key[0] == DIRECT}
    overheads: dict[str, int] = defaultdict(int)
    for key, line in lines.items():
        if key[0] != DIRECT:
            overheads[key[2]] += line.overhead
    direct_costs: dict[tuple[str, str], int] = defaultdict(int)
    for (_, tenant, model, _), line in direct.items():
        direct_costs[model, tenant] += line.cost
    if not any(direct_costs.values()):
        return lines
    allocated: dict[tuple[str, str], int] = defaultdict(int)
    for model, amount in sorted(overheads.items()):
        of_model = {user: cost for user, cost in direct_costs.items() if user[0] == model}
        _allocate(amount, of_model if any(of_model.values()) else direct_costs, allocated)
    days: dict[tuple[str, str], dict[LineKey, dict[LineKey, int]]] = defaultdict(lambda: defaultdict(dict))
    for key, line in direct.items():
        name, tenant, model, at = key
        days[model, tenant][name, tenant, model, bucket_start(at, "day")][key] = line.cost
    for user, amount in allocated.items():
        by_day: dict[LineKey, int] = defaultdict(int)
        _allocate(amount, {day: sum(found.values()) for day, found in days[user].items()}, by_day)
        by_hour: dict[LineKey, int] = defaultdict(int)
        for day, part in by_day.items():
            _allocate(part, days[user][day], by_hour)
        for key, part in by_hour.items():
            direct[key].overhead += part
    return direct


def _allocate(amount: int, weights: Mapping[K, int], into: dict[K, int]) -> None:
    """Add the shares of `amount` by weight to `into`, in the order of the keys; no weight receives nothing."""
    keys = sorted(weights)
    for key, part in zip(keys, split(amount, [weights[key] for key in keys]), strict=True):
        into[key] += part


def _group(lines: dict[LineKey, LineSums], by: tuple[str, ...]) -> list[EconomicsRow]:
    groups: dict[tuple[Any, ...], LineSums] = defaultdict(LineSums)
    for (line, tenant, model, at), sums in lines.items():
        values = {"tenant": tenant, "model": model, "hour": at, "day": at.date()}
        groups[line, *(values[name] for name in by)].add(sums)
    return [_row(line, dict(zip(by, values, strict=True)), sums) for (line, *values), sums in groups.items()]


def _row(line: str, values: dict[str, Any], sums: LineSums) -> EconomicsRow:
    prompt = sums.uncached + sums.cached
    total = prompt + sums.output
    margin = sums.revenue - sums.cost
    return EconomicsRow(
        line=line,
        tenant_id=values.get("tenant") or None,
        model=values.get("model") or None,
        hour=f"{values['hour']:%Y-%m-%dT%H:00:00Z}" if "hour" in values else None,
        day=str(values["day"]) if "day" in values else None,
        requests=sums.requests,
        input_tokens=prompt,
        cached_input_tokens=sums.cached,
        output_tokens=sums.output,
        unbilled_tokens=sums.unbilled,
        gpu_seconds_estimated=seconds(sums.estimated_ps // PICO_PER_US),
        gpu_seconds=seconds(sums.machine_us),
        revenue_usd=pico_to_usd(sums.revenue),
        gpu_cost_usd=pico_to_usd(sums.cost),
        overhead_usd=pico_to_usd(sums.overhead),
        gpu_cost_per_mtok_usd=ratio_per_mtok(sums.cost, total),
        gpu_cost_per_mtok_input_usd=ratio_per_mtok(sums.input_cost, prompt),
        gpu_cost_per_mtok_output_usd=ratio_per_mtok(sums.output_cost, sums.output),
        revenue_per_mtok_usd=ratio_per_mtok(sums.revenue, total),
        margin_usd=pico_to_usd(margin),
        margin_pct=percent(margin, sums.revenue),
    )


async def _add_names(connection: AsyncConnection, rows: list[EconomicsRow]) -> None:
    """Set the organisations' names."""
    ids = {row.tenant_id for row in rows if row.tenant_id}
    found = await connection.execute(
        text("SELECT id AS tenant_id, name FROM tenants WHERE id = ANY (CAST(:ids AS uuid[]))"),
        {"ids": [UUID(one) for one in ids]},
    )
    names = {str(row.tenant_id): row.name for row in found}
    for row in rows:
        row.tenant = names.get(row.tenant_id or "")


def _order(row: EconomicsRow) -> tuple[Any, ...]:
    return (row.line != DIRECT, row.line, row.hour or row.day or "", row.tenant or "", row.model or "")
