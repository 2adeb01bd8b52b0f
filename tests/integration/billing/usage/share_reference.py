"""The GPU shares computed in plain Python with core.apportion.split, and test data for them."""

import random
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.economics.gpu_cost import GpuUse, HourCost
from billing.economics.weights import GpuWeights
from billing.usage.query import bucket_start
from core.apportion import split

DIMS = (
    "tenant_id", "project_id", "key_id", "model", "tier", "region", "price_version", "list_price_version", "simulated",
    "gpu",
)  # fmt: skip
MODELS = ("river-7b", "lake-70b", "nobodys-model", "idle-model")
"""Two models of the catalog, one that is not in it, one without usage."""
Parts = tuple[int, int, int, int]
"""Cost of input and of output, GPU-microseconds, machine-microseconds."""


def shares(
    rows: Iterable[Any], hours: dict[datetime, HourCost], weights: GpuWeights
) -> dict[tuple[Any, ...], Parts]:
    """(hour, dimensions) -> parts, for rows as in usage_hours."""
    blocks: dict[tuple[datetime, str], list[Any]] = defaultdict(list)
    for row in rows:
        blocks[row.hour, row.model].append(row)
    found: dict[tuple[Any, ...], Parts] = {}
    for (hour, model), block in blocks.items():
        use = hours[hour].serving.get(model) if hour in hours else None
        block.sort(key=lambda row: tuple(getattr(row, name) for name in DIMS))
        work = []
        for row in block:
            uncached = int(row.input_tokens - row.cached_input_tokens + row.unbilled_input_tokens)
            output = int(row.output_tokens + row.unbilled_output_tokens)
            weight = weights.of(model)
            cached = int(row.cached_input_tokens)
            work.append((weight.picoseconds(uncached, cached, 0), weight.picoseconds(0, 0, output)))
        totals = (use.cost, use.gpu_us, use.machine_us) if use else (0, 0, 0)
        columns = [split(total, [sum(pair) for pair in work]) for total in totals]
        for row, pair, cost, gpu_us, machine_us in zip(block, work, *columns, strict=True):
            key = (hour, *(getattr(row, name) for name in DIMS))
            prompt, answer = split(cost, pair)
            found[key] = (prompt, answer, gpu_us, machine_us)
    return found


async def host_costs_in_python(connection: AsyncConnection) -> dict[datetime, HourCost]:
    """Each hour's host cost, split over models and states by seconds."""
    models: dict[tuple[datetime, str], list[tuple[str, str, int]]] = defaultdict(list)
    used = (
        "SELECT hour, host_id, model, state, seconds FROM model_seconds ORDER BY hour, host_id, model, state"
    )
    for row in await connection.execute(text(used)):
        models[row.hour, row.host_id].append((row.model, row.state, row.seconds))
    spent = (
        "SELECT s.hour, s.host_id, h.gpus, h.host_kind, sum(s.seconds) AS seconds FROM host_seconds s "
        "JOIN hosts h USING (host_id) GROUP BY 1, 2, 3, 4"
    )
    prices = (await connection.execute(text("SELECT * FROM host_prices ORDER BY effective_from"))).all()
    hours: dict[datetime, HourCost] = {}
    for row in await connection.execute(text(spent)):
        use = hours.setdefault(row.hour, HourCost({}, {}))
        seconds = int(row.seconds)
        parts = models[row.hour, row.host_id]
        parts = [*parts, ("", "warm_idle", max(seconds - sum(part[2] for part in parts), 0))]
        past = [one for one in prices if one.host_kind == row.host_kind and one.effective_from <= row.hour]
        price = int(past[-1].usd_pico_per_hour) if past else 0
        totals = (
            (2 * price * seconds + 3600) // 7200,
            seconds * row.gpus * 10**6,
            seconds * max(row.gpus, 1) * 10**6,
        )
        columns = [split(total, [part[2] for part in parts]) for total in totals]
        for (model, state, _), *amounts in zip(parts, *columns, strict=True):
            if state in ("serving", "draining"):
                use.serving.setdefault(model, GpuUse()).add(*amounts)
            else:
                use.unused.setdefault((model, state), GpuUse()).add(*amounts)
    return hours


def added(parts: dict[tuple[Any, ...], Parts], by: tuple[str, ...]) -> dict[tuple[Any, ...], Parts]:
    """The parts by dimensions, `hour`, `day` or `month` among them."""
    sums: dict[tuple[Any, ...], Parts] = {}
    for (hour, *values), part in parts.items():
        known = dict(zip(DIMS, values, strict=True))
        known |= {"tenant": known["tenant_id"], "project": known["project_id"], "key": known["key_id"]}
        known |= {unit: bucket_start(hour, unit) for unit in ("hour", "day", "month")}
        key = tuple(known[name] for name in by)
        old = sums.get(key, (0, 0, 0, 0))
        sums[key] = (old[0] + part[0], old[1] + part[1], old[2] + part[2], old[3] + part[3])
    return sums


async def make_hours(
    connection: AsyncConnection,
    rng: random.Random,
    first: datetime,
    hours: int,
    tenants: list[UUID],
    version: int,
) -> None:
    """Rolled hours of usage: few distinct figures, so that weights tie; some hours and lines are empty."""
    rows = []
    for number in range(hours):
        if rng.random() < 0.1:
            continue
        lines = {
            (
                rng.choice(tenants),
                rng.choice(MODELS[:3]),
                rng.choice(["a", "B", "b"]),
                rng.random() < 0.5,
                rng.choice(["", "B300"]),
            )
            for _ in range(rng.randrange(9))
        }
        scale = rng.choice([1, 7, 10**9])
        nothing = rng.random() < 0.1
        for tenant, model, region, simulated, gpu in lines:
            figures = [
                0 if nothing else rng.choice([0, 1, 1, 3, rng.randrange(10**4)]) * scale for _ in range(5)
            ]
            rows.append(
                {
                    "hour": first + timedelta(hours=number), "tenant": tenant, "model": model, "region": region,
                    "simulated": simulated, "gpu": gpu, "version": version, "input": figures[0] + figures[1],
                    "cached": figures[1], "output": figures[2], "bad_input": figures[3], "bad_output": figures[4],
                    "cost": rng.randrange(10**15),
                }
            )  # fmt: skip
    await connection.execute(
        text(
            "INSERT INTO usage_hours (hour, tenant_id, project_id, key_id, model, tier, region, price_version, "
            "list_price_version, simulated, gpu, requests, outcomes, input_tokens, cached_input_tokens, output_tokens, "
            "reasoning_tokens, unbilled_input_tokens, unbilled_output_tokens, cost, list_cost, busy_us) VALUES "
            "(:hour, :tenant, :tenant, :tenant, :model, 'standard', :region, :version, :version, :simulated, :gpu, 3, "
            "'{3,0,0,0,0,0,0}', :input, :cached, :output, 0, :bad_input, :bad_output, :cost, :cost, 0)"
        ),
        rows,
    )
    await connection.execute(
        text(
            "INSERT INTO usage_day_state (day, whole) SELECT DISTINCT date_trunc('day', hour, 'UTC'), false "
            "FROM usage_hours ON CONFLICT DO NOTHING"
        )
    )


async def make_hosts(connection: AsyncConnection, rng: random.Random, first: datetime, hours: int) -> None:
    """Hosts with and without GPUs and prices, in some of the hours, several models and states on each."""
    kinds = (("box", 8, 12_345_678_901_234), ("plain", 0, 777_777_777), ("unpriced", 2, None))
    spent, served = [], []
    for kind, gpus, price in kinds:
        await connection.execute(
            text("INSERT INTO hosts (host_id, host_kind, region, gpus) VALUES (:kind, :kind, 'test', :gpus)"),
            {"kind": kind, "gpus": gpus},
        )
        if price is not None:
            await connection.execute(
                text("INSERT INTO host_prices VALUES (:kind, :price, '2026-01-01Z', 'test')"),
                {"kind": kind, "price": price},
            )
        for number in range(hours):
            if rng.random() < 0.2:
                continue
            for state in ("serving", "loading", "warm_idle"):
                seconds = rng.choice([0, 1, 7, 1200])
                at = first + timedelta(hours=number)
                spent.append({"host": kind, "at": at, "state": state, "s": seconds})
                served += [
                    {"host": kind, "at": at, "model": model, "state": state, "s": seconds // 3}
                    for model in rng.sample(MODELS, rng.randrange(4))
                ]
    await connection.execute(text("INSERT INTO host_seconds VALUES (:host, 'b', :at, :state, :s)"), spent)
    await connection.execute(
        text("INSERT INTO model_seconds VALUES (:host, 'b', :at, :model, :state, :s)"), served
    )
