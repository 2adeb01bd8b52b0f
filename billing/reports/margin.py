"""Cost and margin by organisation, model and hour; idle, loading and asleep as lines of their own (DESIGN §5).

What a model's replicas cost while they served goes to the hour's usage of that model by estimated GPU time, and on to
input and output the same way (gpu_shares.py). What nobody used is a line without an organisation, by state;
`fully_loaded` spreads it over organisations and models by their direct cost of the period (a model's own over that
model's, what belongs to no model or to one that nobody used over all), then over their days, then over their hours.
Every split keeps its sum, so each grouping tells the same and the lines always add up to what the hosts cost.
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
from billing.reports.margin_cells import UsageCell, usage_cells
from billing.usage.gpu_shares import HostCosts, host_costs
from billing.usage.query import bucket_start, check_period
from core.apportion import split
from core.errors import InvalidRequest
from core.money import pico_to_usd, ratio_per_mtok

K = TypeVar("K", str, tuple[str, str], tuple[str, str, str, datetime])
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
"""Line, organisation, model; the hour, the day, or the start of the period."""


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
    check_period(start, end)
    unit = next((name for name in ("hour", "day") if name in by), None)
    costs = await host_costs(connection, start, end)
    cells = await usage_cells(connection, costs, start, end, unit)
    lines = attribute(cells, costs, start, unit)
    if fully_loaded:
        lines = load_fully(lines)
    rows = _group(lines, by)
    await _put_names(connection, rows)
    return sorted(rows, key=_order)


def attribute(
    cells: Iterable[UsageCell], costs: HostCosts, start: datetime, unit: str | None
) -> dict[Key, Line]:
    """Direct lines of all cells, and the lines of what nobody used, by `unit` (None = the period from `start`)."""
    lines: dict[Key, Line] = {}
    rest: dict[Key, GpuUse] = defaultdict(GpuUse)
    for hour, hour_use in costs.hours.items():
        at = bucket_start(hour, unit) if unit else start
        for model, use in hour_use.serving.items():
            rest[SERVING, "", model, at].add(use.cost, use.gpu_us, use.machine_us)
        for (model, state), use in hour_use.unused.items():
            rest[state, "", model, at].add(use.cost, use.gpu_us, use.machine_us)
    for cell in cells:
        lines[DIRECT, cell.tenant_id, cell.model, cell.at] = Line(
            requests=cell.requests,
            uncached=cell.uncached,
            cached=cell.cached,
            output=cell.output,
            unbilled=cell.unbilled_input + cell.unbilled_output,
            estimated_ps=cell.work(costs.weights),
            machine_us=cell.machine_us,
            revenue=cell.revenue,
            input_cost=cell.input_cost,
            output_cost=cell.output_cost,
        )
        if cell.input_cost or cell.output_cost or cell.machine_us:
            taken = cell.input_cost + cell.output_cost
            rest[SERVING, "", cell.model, cell.at].add(-taken, 0, -cell.machine_us)
    for key, use in rest.items():
        if use.cost or use.machine_us:
            lines[key] = Line(machine_us=use.machine_us, overhead=use.cost)
    return lines


def load_fully(lines: dict[Key, Line]) -> dict[Key, Line]:
    """Spread what nobody used over the direct lines by their direct cost; without any, it stays as it is."""
    direct = {key: msgspec.structs.replace(line) for key, line in lines.items() if key[0] == DIRECT}
    own: dict[str, int] = defaultdict(int)
    for key, line in lines.items():
        if key[0] != DIRECT:
            own[key[2]] += line.overhead
    users: dict[tuple[str, str], int] = defaultdict(int)
    for (_, tenant, model, _), line in direct.items():
        users[model, tenant] += line.cost
    if not any(users.values()):
        return lines
    loads: dict[tuple[str, str], int] = defaultdict(int)
    for model, amount in sorted(own.items()):
        mine = {user: cost for user, cost in users.items() if user[0] == model}
        _spread(amount, mine if any(mine.values()) else users, loads)
    days: dict[tuple[str, str], dict[Key, dict[Key, int]]] = defaultdict(lambda: defaultdict(dict))
    for key, line in direct.items():
        name, tenant, model, at = key
        days[model, tenant][name, tenant, model, bucket_start(at, "day")][key] = line.cost
    for user, load in loads.items():
        by_day: dict[Key, int] = defaultdict(int)
        _spread(load, {day: sum(found.values()) for day, found in days[user].items()}, by_day)
        by_hour: dict[Key, int] = defaultdict(int)
        for day, part in by_day.items():
            _spread(part, days[user][day], by_hour)
        for key, part in by_hour.items():
            direct[key].overhead += part
    return direct


def _spread(amount: int, weights: Mapping[K, int], into: dict[K, int]) -> None:
    """Add shares of `amount` by weight, in the order of the keys; nothing is spread over no weight."""
    keys = sorted(weights)
    for key, part in zip(keys, split(amount, [weights[key] for key in keys]), strict=True):
        into[key] += part


def _group(lines: dict[Key, Line], by: tuple[str, ...]) -> list[EconomicsRow]:
    groups: dict[tuple[Any, ...], Line] = defaultdict(Line)
    for (line, tenant, model, at), sums in lines.items():
        values = {"tenant": tenant, "model": model, "hour": at, "day": at.date()}
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
