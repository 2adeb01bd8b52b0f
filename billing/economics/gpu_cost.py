"""The cost of hosts per hour and model, from what they are billed and their agents' accounts.

A host's cost of an hour (host_bills.py) is first divided, by seconds, into what its agent accounts for and the rest,
which is NO_AGENT of the model that the host is wanted for. The first part is split over the host's models and states by
their seconds. The cost of serving seconds belongs to the requests on that model that ended in that hour and is shared
by estimated GPU time (weights.py), unbilled tokens included. The cost of unused seconds (loading, warm and idle,
asleep, no model, no agent) is reported by state. Every split keeps its sum (core/apportion.py).
"""

from datetime import datetime

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.economics.host_bills import HOST_HOURS, host_bounds
from billing.economics.split_sql import floors, share

SERVING_STATES = ("serving", "draining")
"""States in which a replica's time is charged to requests."""

LOADING, IDLE, ASLEEP = "loading", "warm_idle", "asleep"
"""States in which a replica's time is unused; host seconds that no model accounts for count as IDLE."""

_AMOUNTS = ("cost", "us", "machine_us")
_TIES = 'idle, model COLLATE "C", state COLLATE "C"'
_COSTS = text(
    f"""
    WITH {HOST_HOURS},
    priced AS MATERIALIZED (
        SELECT hour, host, seconds, seconds * gpus * 1000000 AS served_us,
            seconds * greatest(gpus, 1) * 1000000 AS served_machine_us, cost - silent_cost AS served_cost
        FROM host_hours),
    used AS MATERIALIZED (
        SELECT m.hour, o.host, m.model, m.state, sum(m.seconds) AS seconds
        FROM model_seconds m JOIN owners o USING (host_id)
        WHERE m.hour >= :start AND m.hour < :end GROUP BY m.hour, o.host, m.model, m.state),
    together AS (
        SELECT hour, host, sum(seconds) AS seconds FROM used GROUP BY hour, host),
    parts AS (
        SELECT hour, host, model, state, seconds AS work, false AS idle FROM used
        UNION ALL
        SELECT hour, host, '', '{IDLE}', greatest(p.seconds - coalesce(t.seconds, 0), 0), true
        FROM priced p LEFT JOIN together t USING (hour, host)),
    weighed AS (
        SELECT *, sum(work) OVER (PARTITION BY hour, host) AS whole FROM parts JOIN priced USING (hour, host)),
    floors AS (
        SELECT *, {", ".join(map(floors, _AMOUNTS))} FROM weighed WHERE whole > 0),
    shares AS (
        SELECT *, {", ".join(share(name, "hour, host", _TIES) for name in _AMOUNTS)} FROM floors)
    SELECT hour, model, state, sum(cost_share) AS cost, sum(us_share) AS gpu_us, sum(machine_us_share) AS machine_us
    FROM (
        SELECT hour, model, state, cost_share, us_share, machine_us_share FROM shares
        UNION ALL
        SELECT hour, model, unused, silent_cost, silent * gpus * 1000000, silent * greatest(gpus, 1) * 1000000
        FROM host_hours WHERE silent > 0 OR silent_cost > 0) known
    GROUP BY hour, model, state ORDER BY hour, model, state
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
    """Cost of every UTC hour of [start, end) with a host; one that no provider bills costs 0 without a price."""
    hours: dict[datetime, HourCost] = {}
    for row in await connection.execute(_COSTS, host_bounds(start, end)):
        use = hours.setdefault(row.hour, HourCost({}, {}))
        amounts = (int(row.cost), int(row.gpu_us), int(row.machine_us))
        if row.state in SERVING_STATES:
            use.serving.setdefault(row.model, GpuUse()).add(*amounts)
        else:
            use.unused.setdefault((row.model, row.state), GpuUse()).add(*amounts)
    return hours
