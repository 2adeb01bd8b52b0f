"""What the hosts cost per hour and model, from their accounted seconds and dated prices (DESIGN §5, GPU economics).

A host's cost of an hour is its seconds times its hourly price, rounded once, half up, to a picodollar. It is split over
the host's models and states by their seconds. Seconds in which a model served go to the requests on that model that
ended in that hour, by estimated GPU time (weights.py), unbilled tokens included: they used the GPU too. What nobody
used (loading, warm and idle, asleep, no model at all) are lines of their own. All splits keep their sum
(billing/shares.py). An hour costs what the price in force at its beginning says.
"""

from collections import defaultdict
from datetime import datetime

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.shares import split

SERVING_STATES = ("serving", "draining")
"""States in which a replica's time belongs to requests."""

LOADING, IDLE, ASLEEP = "loading", "warm_idle", "asleep"
"""States in which nobody used it. A host's seconds that none of its models account for are idle."""

_SECONDS = text(
    """
    WITH spent AS (
        SELECT hour, host_id, sum(seconds) AS seconds FROM host_seconds
        WHERE hour >= :start AND hour < :end GROUP BY hour, host_id)
    SELECT s.hour, s.host_id, s.seconds, h.gpus,
        (SELECT p.usd_pico_per_hour FROM host_prices p
            WHERE p.host_kind = h.host_kind AND p.effective_from <= s.hour
            ORDER BY p.effective_from DESC LIMIT 1) AS price
    FROM spent s JOIN hosts h ON h.host_id = s.host_id ORDER BY s.hour, s.host_id
    """
)
_MODEL_SECONDS = text(
    """
    SELECT hour, host_id, model, state, sum(seconds) AS seconds FROM model_seconds
    WHERE hour >= :start AND hour < :end GROUP BY hour, host_id, model, state ORDER BY hour, host_id, model, state
    """
)


class GpuUse(msgspec.Struct):
    """GPU time and its cost."""

    cost: int = 0
    """Picodollars."""
    gpu_us: int = 0
    """GPU-microseconds; 0 on a host without GPUs."""
    machine_us: int = 0
    """The same where a host without GPUs counts as one: time that exists on every host."""

    def add(self, cost: int, gpu_us: int, machine_us: int = 0) -> None:
        """Add to all."""
        self.cost += cost
        self.gpu_us += gpu_us
        self.machine_us += machine_us


class HourUse(msgspec.Struct):
    """What one hour's hosts cost: per model what served; per model (empty = none) and state what nobody used."""

    serving: dict[str, GpuUse]
    unused: dict[tuple[str, str], GpuUse]


async def host_hours(connection: AsyncConnection, start: datetime, end: datetime) -> dict[datetime, HourUse]:
    """Cost of every hour of [start, end) that has host seconds. A host kind without a price costs nothing."""
    span = {"start": start, "end": end}
    models: dict[tuple[datetime, str], list[tuple[str, str, int]]] = defaultdict(list)
    for row in await connection.execute(_MODEL_SECONDS, span):
        models[row.hour, row.host_id].append((row.model, row.state, int(row.seconds)))
    hours: dict[datetime, HourUse] = {}
    for row in await connection.execute(_SECONDS, span):
        use = hours.setdefault(row.hour, HourUse({}, {}))
        parts = models[row.hour, row.host_id]
        unused = max(int(row.seconds) - sum(seconds for _, _, seconds in parts), 0)
        parts = [*parts, ("", IDLE, unused)]
        price = int(row.price or 0)
        cost = (2 * price * int(row.seconds) + 3600) // 7200
        weights = [seconds for _, _, seconds in parts]
        gpu_us = split(int(row.seconds) * row.gpus * 1_000_000, weights)
        machine_us = gpu_us if row.gpus else split(int(row.seconds) * 1_000_000, weights)
        shares = zip(parts, split(cost, weights), gpu_us, machine_us, strict=True)
        for (model, state, _), *amounts in shares:
            if state in SERVING_STATES:
                use.serving.setdefault(model, GpuUse()).add(*amounts)
            else:
                use.unused.setdefault((model, state), GpuUse()).add(*amounts)
    return hours
