"""What the hosts cost per hour and model, from their accounted seconds and dated prices (DESIGN §5, GPU economics).

A host's cost of an hour is its seconds times its hourly price, rounded once, half up, to a picodollar. It is split over
the host's models and states by their seconds. Seconds in which a model served go to the requests on that model that
ended in that hour, by the time they occupied a replica (`busy_us`: duration less queue). What nobody used (loading,
warm and idle, asleep, no model at all) stays a line without a tenant. All splits keep their sum (billing/shares.py).
"""

from collections import defaultdict
from datetime import datetime

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.shares import split

SERVING_STATES = ("serving", "draining")
"""States in which a replica's time belongs to requests."""

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
    """GPU-microseconds."""

    def add(self, cost: int, gpu_us: int) -> None:
        """Add to both."""
        self.cost += cost
        self.gpu_us += gpu_us


class HourUse(msgspec.Struct):
    """What one hour's hosts cost: per model what served, and per model (empty = none) what nobody used."""

    serving: dict[str, GpuUse]
    idle: dict[str, GpuUse]


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
        parts = [*parts, ("", "idle", unused)]
        price = int(row.price or 0)
        cost = (2 * price * int(row.seconds) + 3600) // 7200
        weights = [seconds for _, _, seconds in parts]
        gpu_us = int(row.seconds) * row.gpus * 1_000_000
        shares = zip(parts, split(cost, weights), split(gpu_us, weights), strict=True)
        for (model, state, _), part_cost, part_us in shares:
            side = use.serving if state in SERVING_STATES else use.idle
            side.setdefault(model, GpuUse()).add(part_cost, part_us)
    return hours
