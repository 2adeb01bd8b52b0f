"""The cost of hosts per hour and model, from their accounted seconds and dated prices.

A host's cost of an hour is its seconds times the hourly price in force at the hour's beginning, rounded once, half up,
to a picodollar. It is split over the host's models and states by their seconds. The cost of serving seconds belongs to
the requests on that model that ended in that hour and is shared by estimated GPU time (weights.py), unbilled tokens
included. The cost of unused seconds (loading, warm and idle, asleep, no model) is reported by state. Every split keeps
its sum (core/apportion.py).
"""

from datetime import datetime

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.economics.split_sql import floors, share

SERVING_STATES = ("serving", "draining")
"""States in which a replica's time is charged to requests."""

LOADING, IDLE, ASLEEP = "loading", "warm_idle", "asleep"
"""States in which a replica's time is unused; host seconds that no model accounts for count as IDLE."""

_AMOUNTS = ("cost", "us", "machine_us")
_TIES = 'idle, model COLLATE "C", state COLLATE "C"'
_COSTS = text(
    f"""
    WITH spent AS (
        SELECT hour, host_id, sum(seconds) AS seconds FROM host_seconds
        WHERE hour >= :start AND hour < :end GROUP BY hour, host_id),
    priced AS MATERIALIZED (
        SELECT s.hour, s.host_id, s.seconds, s.seconds * h.gpus * 1000000 AS served_us,
            s.seconds * greatest(h.gpus, 1) * 1000000 AS served_machine_us,
            div(2 * s.seconds * coalesce((SELECT p.usd_pico_per_hour FROM host_prices p
                WHERE p.host_kind = h.host_kind AND p.effective_from <= s.hour
                ORDER BY p.effective_from DESC LIMIT 1), 0) + 3600, 7200) AS served_cost
        FROM spent s JOIN hosts h ON h.host_id = s.host_id),
    used AS MATERIALIZED (
        SELECT hour, host_id, model, state, sum(seconds) AS seconds FROM model_seconds
        WHERE hour >= :start AND hour < :end GROUP BY hour, host_id, model, state),
    together AS (
        SELECT hour, host_id, sum(seconds) AS seconds FROM used GROUP BY hour, host_id),
    parts AS (
        SELECT hour, host_id, model, state, seconds AS work, false AS idle FROM used
        UNION ALL
        SELECT hour, host_id, '', '{IDLE}', greatest(p.seconds - coalesce(t.seconds, 0), 0), true
        FROM priced p LEFT JOIN together t USING (hour, host_id)),
    weighed AS (
        SELECT *, sum(work) OVER (PARTITION BY hour, host_id) AS whole FROM parts JOIN priced USING (hour, host_id)),
    floors AS (
        SELECT *, {", ".join(map(floors, _AMOUNTS))} FROM weighed WHERE whole > 0),
    shares AS (
        SELECT *, {", ".join(share(name, "hour, host_id", _TIES) for name in _AMOUNTS)} FROM floors)
    SELECT hour, model, state, sum(cost_share) AS cost, sum(us_share) AS gpu_us, sum(machine_us_share) AS machine_us
    FROM shares GROUP BY hour, model, state ORDER BY hour, model, state
    """  # noqa: S608 - the names above
)


class GpuUse(msgspec.Struct):
    """GPU time and its cost."""

    cost: int = 0
    """Picodollars."""
    gpu_us: int = 0
    """GPU-microseconds; 0 on a host without GPUs."""
    machine_us: int = 0
    """GPU-microseconds, with a host without GPUs counted as one GPU."""

    def add(self, cost: int, gpu_us: int, machine_us: int = 0) -> None:
        """Add picodollars, GPU-microseconds and machine-microseconds."""
        self.cost += cost
        self.gpu_us += gpu_us
        self.machine_us += machine_us


class HourCost(msgspec.Struct):
    """The cost of all hosts in one hour."""

    serving: dict[str, GpuUse]
    """By model, in SERVING_STATES."""
    unused: dict[tuple[str, str], GpuUse]
    """By model (empty = no model) and state, in all other states."""


async def host_hours(connection: AsyncConnection, start: datetime, end: datetime) -> dict[datetime, HourCost]:
    """Cost of every UTC hour of [start, end) that has host seconds; a host kind without a price costs 0."""
    hours: dict[datetime, HourCost] = {}
    for row in await connection.execute(_COSTS, {"start": start, "end": end}):
        use = hours.setdefault(row.hour, HourCost({}, {}))
        amounts = (int(row.cost), int(row.gpu_us), int(row.machine_us))
        if row.state in SERVING_STATES:
            use.serving.setdefault(row.model, GpuUse()).add(*amounts)
        else:
            use.unused.setdefault((row.model, row.state), GpuUse()).add(*amounts)
    return hours
