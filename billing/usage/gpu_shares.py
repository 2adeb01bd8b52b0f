"""The share of the host cost of each line of usage: one rule for all reports, computed by PostgreSQL.

The cost of a model's serving replicas in an hour is apportioned over the model's lines of `usage_hours` of that hour,
by estimated GPU time (weights.py) with the largest remainder method (core/apportion.py). Ties go to the first line in
the order of tenant, project, key, tier, region, price version, list price version, simulated, class of GPU. Each
line's share is split into input and output by the same weights. Reports only add shares up, so all groupings give the
same totals.

`usage_days` stores the sums of the shares of past days, and `usage_day_state.shared_by` the digest of the host costs
and weights that they were computed from. A query uses a stored day only if it is not dirty and its digest equals that
of the present costs; otherwise it computes the shares of the day's hours. `share_new_days` and `reshare_changed_days`
write them.
"""

import hashlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.economics.gpu_cost import HourCost, host_hours
from billing.economics.split_sql import floors, share
from billing.economics.weights import GpuWeights, catalog_weights, weights_in_force
from billing.usage.query import MAX_DAYS, bucket_start
from billing.usage.sums import (
    COMPLETE_DAYS,
    DIRTY_HOURS,
    KEY_COLUMNS,
    REMAINING_HOURS,
    REMAINING_SPANS,
    SUM_COLUMNS,
)
from core.db import Database
from tenants.scoping import platform_wide

GPU_SUMS = ("gpu_input_cost", "gpu_output_cost", "gpu_us", "machine_us")
"""Picodollars of input and of output; GPU-microseconds; GPU-microseconds with hosts without GPUs counted as one GPU."""

RECENT_DAYS = 62
"""Days that are checked for changed costs every five minutes: at least the open months."""

_TIE_ORDER = """tenant_id, project_id, key_id, tier COLLATE "C", region COLLATE "C", price_version, list_price_version,
                simulated, gpu COLLATE "C" """


_AMOUNTS = ("cost", "us", "machine_us")
COST_SHARES = f"""
    served AS MATERIALIZED (
        SELECT * FROM unnest(CAST(:served_hour AS timestamptz[]), CAST(:served_model AS text[]),
            CAST(:served_cost AS numeric[]), CAST(:served_us AS numeric[]), CAST(:served_machine_us AS numeric[]),
            CAST(:uncached AS numeric[]), CAST(:cached AS numeric[]), CAST(:output AS numeric[]))
            AS s (hour, model, served_cost, served_us, served_machine_us, uncached, cached, output)),
    worked AS MATERIALIZED (
        SELECT f.hour, {KEY_COLUMNS}, served_cost, served_us, served_machine_us,
            (input_tokens - cached_input_tokens + unbilled_input_tokens) * uncached + cached_input_tokens * cached
                AS input_work,
            (output_tokens + unbilled_output_tokens) * output AS output_work
        FROM hour_sums f JOIN served s USING (hour, model)),
    weighed AS (
        SELECT *, input_work + output_work AS work,
            sum(input_work + output_work) OVER (PARTITION BY hour, model) AS whole
        FROM worked),
    floors AS (
        SELECT *, {", ".join(map(floors, _AMOUNTS))} FROM weighed WHERE whole > 0),
    shares AS (
        SELECT *, {", ".join(share(name, "hour, model", _TIE_ORDER) for name in _AMOUNTS)} FROM floors),
    shared AS (
        SELECT hour, {KEY_COLUMNS}, cost_share, us_share, machine_us_share,
            coalesce(div(2 * cost_share * input_work + work, nullif(2 * work, 0)), 0) AS gpu_input_cost
        FROM shares)
"""  # noqa: S608 - the names above
"""CTEs that apportion the bound host costs (`HostCosts.cost_parameters`) over `hour_sums` (columns of usage_hours)."""

_SHARES = """coalesce(gpu_input_cost, 0) AS gpu_input_cost,
            coalesce(cost_share - gpu_input_cost, 0) AS gpu_output_cost,
            coalesce(us_share, 0) AS gpu_us, coalesce(machine_us_share, 0) AS machine_us"""

DAILY_SUMS_WITH_GPU = f"""
    {DIRTY_HOURS},
    shared_days AS MATERIALIZED (
        SELECT * FROM unnest(CAST(:shared_day AS timestamptz[]), CAST(:shared_digest AS bytea[])) AS k (day, digest)),
    days AS MATERIALIZED ({COMPLETE_DAYS}
            AND EXISTS (SELECT 1 FROM shared_days k WHERE k.day = s.day AND k.digest = s.shared_by)),
    {REMAINING_SPANS},
    hour_sums AS MATERIALIZED ({REMAINING_HOURS}),
    {COST_SHARES},
    usage_sums AS (
        SELECT d.day AS hour, {SUM_COLUMNS}, {", ".join(GPU_SUMS)} FROM usage_days d
            WHERE d.day IN (SELECT day FROM days)
        UNION ALL
        SELECT hour, {SUM_COLUMNS}, {_SHARES} FROM hour_sums LEFT JOIN shared USING (hour, {KEY_COLUMNS}))
"""  # noqa: S608 - the names above
"""The body of a WITH clause: `usage_sums` as in DAILY_SUMS with the columns GPU_SUMS; binds `HostCosts.parameters`."""

_UNSHARED_DAYS = "SELECT day FROM usage_day_state WHERE whole AND shared_by IS NULL ORDER BY day"
_SHARED_DAYS = "SELECT day, shared_by FROM usage_day_state WHERE whole AND day >= :since ORDER BY day"
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('penstock_rollup'))"
_STORE_SHARES = text(
    f"""
    WITH hour_sums AS MATERIALIZED (
        SELECT * FROM usage_hours WHERE hour >= :start AND hour < :end),
    {COST_SHARES},
    parts AS (
        SELECT {KEY_COLUMNS}, sum(gpu_input_cost) AS gpu_input_cost,
            sum(cost_share - gpu_input_cost) AS gpu_output_cost, sum(us_share) AS gpu_us,
            sum(machine_us_share) AS machine_us FROM shared GROUP BY {KEY_COLUMNS}),
    whole AS (
        SELECT d.day, {KEY_COLUMNS}, {", ".join(f"coalesce(p.{name}, 0) AS {name}" for name in GPU_SUMS)}
        FROM usage_days d LEFT JOIN parts p USING ({KEY_COLUMNS}) WHERE d.day = :start)
    UPDATE usage_days d SET {", ".join(f"{name} = w.{name}" for name in GPU_SUMS)}
    FROM whole w WHERE d.day = w.day AND {" AND ".join(f"d.{name} = w.{name}" for name in KEY_COLUMNS.split(", "))}
        AND ({", ".join(f"d.{name}" for name in GPU_SUMS)}) <> ({", ".join(f"w.{name}" for name in GPU_SUMS)})
    """  # noqa: S608 - the names above
)
_SET_DIGEST = text("UPDATE usage_day_state SET shared_by = :digest WHERE day = :day AND whole")


class HostCosts(msgspec.Struct, frozen=True):
    """The host costs of a period by hour, and the weights by which they are apportioned."""

    hours: dict[datetime, HourCost]
    weights: GpuWeights

    @classmethod
    def empty(cls) -> "HostCosts":
        """No costs, for a report without GPU cost."""
        return cls({}, GpuWeights({}))

    def parameters(self, start: datetime, end: datetime, *, by_hour: bool = False) -> dict[str, Any]:
        """The parameters of DAILY_SUMS_WITH_GPU besides `tenant`; with `by_hour`, no day replaces its hours."""
        days = [] if by_hour else list(_days(start, end))
        return {
            "start": start,
            "end": end,
            "shared_day": days,
            "shared_digest": [self.digest(day) for day in days],
            **self.cost_parameters(),
        }

    def cost_parameters(self) -> dict[str, list[Any]]:
        """The parameters of COST_SHARES: cost and token weights of each serving hour and model, by column."""
        names = ("hour", "model", "cost", "us", "machine_us")
        columns: dict[str, list[Any]] = {f"served_{name}": [] for name in names}
        columns |= {name: [] for name in ("uncached", "cached", "output")}
        for hour, use in self.hours.items():
            for model, part in use.serving.items():
                weight = self.weights.of(model)
                values = (hour, model, part.cost, part.gpu_us, part.machine_us)
                for column, value in zip(
                    columns.values(), (*values, weight.uncached, weight.cached, weight.output), strict=True
                ):
                    column.append(value)
        return columns

    def digest(self, day: datetime) -> bytes:
        """SHA-256 of the day's cost, time and weights of every hour and model."""
        digest = hashlib.sha256()
        for number in range(24):
            hour = day + timedelta(hours=number)
            for model, part in sorted(self.hours[hour].serving.items()) if hour in self.hours else ():
                weight = self.weights.of(model)
                figures = (part.cost, part.gpu_us, part.machine_us, *msgspec.structs.astuple(weight))
                digest.update(msgspec.json.encode((number, model, [str(figure) for figure in figures])))
        return digest.digest()


@platform_wide("host costs are shared over the usage of all organisations")
async def host_costs(connection: AsyncConnection, start: datetime, end: datetime) -> HostCosts:
    """The host costs of [start, end), and the weights of the catalog and of added models."""
    return HostCosts(
        await host_hours(connection, start, end), await weights_in_force(connection, catalog_weights())
    )


async def share_new_days(database: Database) -> int:
    """Store the shares of days that were rolled up and have none; returns their number. Idempotent."""
    async with database.system() as connection:
        days = (await connection.execute(text(_UNSHARED_DAYS))).scalars().all()
    for day in days:
        await share_day(database, day)
    return len(days)


async def reshare_changed_days(database: Database, now: datetime, days_back: int = RECENT_DAYS) -> int:
    """Store new shares for those of the last `days_back` days (up to MAX_DAYS) whose costs or weights have changed;
    returns their number.
    """
    since = bucket_start(now, "day") - timedelta(days=min(days_back, MAX_DAYS))
    async with database.system() as connection:
        shared_days = (await connection.execute(text(_SHARED_DAYS), {"since": since})).all()
    changed = 0
    for day, shared_by in shared_days:
        async with database.system() as connection:
            costs = await host_costs(connection, day, day + timedelta(days=1))
        if costs.digest(day) != shared_by:
            await share_day(database, day)
            changed += 1
    return changed


@platform_wide("host costs are shared over the usage of all organisations")
async def share_day(database: Database, day: datetime) -> None:
    """Store the day's shares in its sums, in one transaction; a day whose sums are stale keeps its state."""
    end = day + timedelta(days=1)
    async with database.system() as connection:
        await connection.execute(text(_LOCK))
        costs = await host_costs(connection, day, end)
        await connection.execute(_STORE_SHARES, {"start": day, "end": end, **costs.cost_parameters()})
        await connection.execute(_SET_DIGEST, {"day": day, "digest": costs.digest(day)})


def _days(start: datetime, end: datetime) -> Iterator[datetime]:
    """The whole UTC days of [start, end)."""
    day = bucket_start(start, "day")
    while day < end:
        if start <= day and day + timedelta(days=1) <= end:
            yield day
        day += timedelta(days=1)
