"""Cost and margin by organisation, model and hour; idle, loading and asleep as lines of their own (DESIGN §5).

What a model's replicas cost while they served goes to the hour's usage of that model by estimated GPU time, and within
a cell to input and output the same way. What nobody used is a line without an organisation, by state; `fully_loaded`
spreads it over the cells by their direct cost: a model's own over that model's cells, what belongs to no model (or to
one that nobody used) over all. Every split keeps its sum, so the lines always add up to what the hosts cost.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.economics.gpu_cost import HourUse, host_hours
from billing.economics.usage_cells import UsageCell, usage_cells
from billing.economics.weights import PICO_PER_US, GpuWeights, catalog_weights
from billing.shares import split
from core.errors import InvalidRequest
from core.money import pico_to_usd, ratio_per_mtok

DIMENSIONS = ("tenant", "model", "hour", "day")
DIRECT, SERVING = "direct", "serving"
"""Lines of usage; and of serving hosts whose hour has no usage (an answer that ended in the next one)."""


class Line(msgspec.Struct):
    """Sums of one line while it is added up; all integers, money in picodollars."""

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

    def add(self, other: "Line") -> None:
        """Add every sum."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def cost(self) -> int:
        """Direct cost and overhead."""
        return self.input_cost + self.output_cost + self.overhead


class EconomicsRow(msgspec.Struct):
    """One line of the report. Amounts are exact decimal dollars; None = does not apply."""

    line: str
    """direct, or what nobody used: warm_idle, loading, asleep, serving."""
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
    """GPU time that existed for it; hosts without GPUs count as one."""
    revenue_usd: str = "0.00"
    gpu_cost_usd: str = "0.00"
    overhead_usd: str = "0.00"
    """Its part of what nobody used; only when fully loaded."""
    gpu_cost_per_mtok_usd: str | None = None
    gpu_cost_per_mtok_input_usd: str | None = None
    gpu_cost_per_mtok_output_usd: str | None = None
    revenue_per_mtok_usd: str | None = None
    margin_usd: str = "0.00"
    margin_pct: str | None = None


Key = tuple[str, str, str, datetime]
"""Line, organisation, model, hour."""


async def economics_report(
    connection: AsyncConnection,
    start: datetime,
    end: datetime,
    by: tuple[str, ...] = ("tenant", "model"),
    *,
    fully_loaded: bool = False,
) -> list[EconomicsRow]:
    """Cost and margin of [start, end) by any of DIMENSIONS. Raises InvalidRequest."""
    if not by or len(set(by)) != len(by) or not set(by) <= set(DIMENSIONS):
        raise InvalidRequest(
            f"group by any of {', '.join(DIMENSIONS)}, each once, not {','.join(by)[:80]!r}", param="by"
        )
    cells = await usage_cells(connection, start, end)
    hours = await host_hours(connection, start, end)
    lines = attribute(cells, hours, catalog_weights())
    if fully_loaded:
        lines = load_fully(lines)
    rows = _group(lines, by)
    await _put_names(connection, rows)
    return sorted(rows, key=_order)


def attribute(
    cells: Iterable[UsageCell], hours: dict[datetime, HourUse], weights: GpuWeights
) -> dict[Key, Line]:
    """Direct lines of all cells, and the lines of what nobody used."""
    blocks: dict[tuple[datetime, str], list[UsageCell]] = defaultdict(list)
    for cell in cells:
        blocks[cell.hour, cell.model].append(cell)
    lines: dict[Key, Line] = {}
    for (hour, model), block in blocks.items():
        use = hours[hour].serving.get(model) if hour in hours else None
        work = [cell.work(weights) for cell in block]
        costs = split(use.cost if use else 0, [sum(pair) for pair in work])
        times = split(use.machine_us if use else 0, [sum(pair) for pair in work])
        for cell, pair, cost, machine_us in zip(block, work, costs, times, strict=True):
            input_cost, output_cost = split(cost, pair)
            lines[DIRECT, cell.tenant_id, model, hour] = Line(
                requests=cell.requests,
                uncached=cell.uncached,
                cached=cell.cached,
                output=cell.output,
                unbilled=cell.unbilled_input + cell.unbilled_output,
                estimated_ps=sum(pair),
                machine_us=machine_us,
                revenue=cell.revenue,
                input_cost=input_cost,
                output_cost=output_cost,
            )
    for hour, hour_use in hours.items():
        for model, use in hour_use.serving.items():
            if not any(sum(cell.work(weights)) for cell in blocks.get((hour, model), ())):
                lines[SERVING, "", model, hour] = Line(machine_us=use.machine_us, overhead=use.cost)
        for (model, state), use in hour_use.unused.items():
            if use.cost or use.machine_us:
                lines[state, "", model, hour] = Line(machine_us=use.machine_us, overhead=use.cost)
    return lines


def load_fully(lines: dict[Key, Line]) -> dict[Key, Line]:
    """Spread what nobody used over the direct lines by their direct cost; without any, it stays as it is."""
    direct = {key: msgspec.structs.replace(line) for key, line in lines.items() if key[0] == DIRECT}
    own: dict[str, int] = defaultdict(int)
    for key, line in lines.items():
        if key[0] != DIRECT:
            own[key[2]] += line.overhead
    everybody = list(direct)
    if not any(direct[key].cost for key in everybody):
        return lines
    weights = {key: line.cost for key, line in direct.items()}
    for model, amount in own.items():
        keys = [key for key in everybody if key[2] == model]
        if not any(weights[key] for key in keys):
            keys = everybody
        for key, part in zip(keys, split(amount, [weights[key] for key in keys]), strict=True):
            direct[key].overhead += part
    return direct


def _group(lines: dict[Key, Line], by: tuple[str, ...]) -> list[EconomicsRow]:
    groups: dict[tuple[Any, ...], Line] = defaultdict(Line)
    for (line, tenant, model, hour), sums in lines.items():
        values = {"tenant": tenant, "model": model, "hour": hour, "day": hour.date()}
        groups[line, *(values[name] for name in by)].add(sums)
    return [_row(line, dict(zip(by, values, strict=True)), sums) for (line, *values), sums in groups.items()]


def _row(line: str, values: dict[str, Any], sums: Line) -> EconomicsRow:
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


def seconds(microseconds: int) -> str:
    """Decimal seconds."""
    return f"{microseconds // 1_000_000}.{microseconds % 1_000_000:06d}"


def percent(part: int, whole: int) -> str | None:
    """`part` of `whole` in percent with two decimals, half away from zero; None of nothing."""
    if whole <= 0:
        return None
    hundredths = (abs(part) * 20_000 + whole) // (2 * whole)
    return f"{'-' if part < 0 else ''}{hundredths // 100}.{hundredths % 100:02d}"


async def _put_names(connection: AsyncConnection, rows: list[EconomicsRow]) -> None:
    """Names of organisations, by their tenant_id."""
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
