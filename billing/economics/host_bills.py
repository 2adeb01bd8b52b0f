"""What each host cost in each hour, and the part in which no agent accounted for it.

A host that a provider bills costs what the provider's events say, from its creation to its end, per second and in whole
cents (workers/providers/costs.py): an hour's cost is what was billed until its end less what was billed until its
beginning, so that hours add up to the bill. Heartbeats divide it. The seconds of which no heartbeat tells are `silent`:
the start before the agent runs, the time of an agent that is away, the last seconds before the end. Any other host
costs its seconds of heartbeats at the dated price of its kind, rounded half up to a picodollar, and is never silent.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from core.money import PICO_PER_CENT
from workers.catalog import load_catalog
from workers.providers.costs import LEAST_S

NO_AGENT = "no_agent"
"""State of a host's time for which no heartbeat accounts."""


def _billed(until: str) -> str:
    """workers.providers.costs.billed_pico of a bill until an instant, in SQL."""
    seconds = f"greatest(trunc(extract(epoch FROM {until} - created_at)), {LEAST_S})"
    cents = f"div(2 * price * {seconds} + 3600 * {PICO_PER_CENT}, 2 * 3600 * {PICO_PER_CENT})"
    return f"greatest({cents}, CASE WHEN price > 0 THEN 1 ELSE 0 END) * {PICO_PER_CENT}"


_NEXT = "g + interval '1 hour'"
HOST_HOURS = f"""
    bills AS MATERIALIZED (
        SELECT name, kind, model, created_at, usd_pico_per_hour AS price,
            least(coalesce(ended_at, now()), now()) AS until
        FROM host_intents WHERE billed AND usd_pico_per_hour IS NOT NULL AND created_at < least(:end, now())
            AND (ended_at IS NULL OR ended_at > :start)),
    lived AS MATERIALIZED (
        SELECT g AS hour, name AS host, kind, model,
            greatest(trunc(extract(epoch FROM least(until, {_NEXT}) - greatest(created_at, g))), 0) AS seconds,
            {_billed(f"least(until, {_NEXT})")} - CASE WHEN g > created_at THEN {_billed("g")} ELSE 0 END AS cost
        FROM bills, generate_series(date_trunc('hour', greatest(created_at, :start), 'UTC'),
            greatest(least(until, :end) - interval '1 microsecond', created_at, :start), interval '1 hour') g),
    owners AS MATERIALIZED (
        SELECT h.host_id, coalesce(i.name, h.host_id) AS host, i.name IS NOT NULL AS provided,
            coalesce(i.kind, h.host_kind) AS kind, coalesce(i.model, '') AS model, h.gpus
        FROM hosts h LEFT JOIN LATERAL (
            SELECT name, kind, model FROM host_intents WHERE billed AND usd_pico_per_hour IS NOT NULL
                AND name IN (h.host_id, regexp_replace(h.host_id, '^sim-', '')) LIMIT 1) i ON true),
    beats AS MATERIALIZED (
        SELECT s.hour, o.host, bool_or(o.provided) AS provided, min(o.kind) AS kind, min(o.model) AS model,
            sum(s.seconds) AS seconds
        FROM host_seconds s JOIN owners o USING (host_id) WHERE s.hour >= :start AND s.hour < :end
        GROUP BY s.hour, o.host),
    sized AS MATERIALIZED (
        SELECT host, max(gpus) AS gpus FROM owners GROUP BY host),
    whole AS (
        SELECT hour, host, coalesce(b.kind, l.kind) AS kind, coalesce(b.model, l.model) AS model,
            coalesce(s.gpus, c.gpus, 0) AS gpus, coalesce(b.seconds, 0) AS seconds,
            greatest(coalesce(l.seconds, 0) - coalesce(b.seconds, 0), 0) AS silent,
            CASE WHEN coalesce(b.provided, true) THEN coalesce(l.cost, 0)
                ELSE div(2 * b.seconds * coalesce((SELECT p.usd_pico_per_hour FROM host_prices p
                    WHERE p.host_kind = b.kind AND p.effective_from <= hour
                    ORDER BY p.effective_from DESC LIMIT 1), 0) + 3600, 7200) END AS cost
        FROM beats b FULL JOIN lived l USING (hour, host) LEFT JOIN sized s USING (host)
        LEFT JOIN unnest(CAST(:kinds AS text[]), CAST(:kind_gpus AS int[])) AS c (kind, gpus) ON c.kind = l.kind),
    host_hours AS MATERIALIZED (
        SELECT hour, host, kind, model, gpus, seconds, silent, cost,
            CASE WHEN seconds = 0 THEN cost ELSE div(2 * cost * silent + seconds + silent, 2 * (seconds + silent)) END
                AS silent_cost
        FROM whole)
"""  # noqa: S608 - the names above
"""CTEs up to `host_hours` and `owners`, for the hosts of [:start, :end), whole UTC hours; binds `host_bounds`."""

_SILENT = text(
    f"WITH {HOST_HOURS} SELECT host, sum(silent_cost) AS cost FROM host_hours WHERE host = ANY (:hosts) GROUP BY host"  # noqa: S608
)


def host_bounds(start: datetime, end: datetime) -> dict[str, Any]:
    """The parameters of HOST_HOURS. The catalog's GPUs are those of hosts whose agent has never reported."""
    kinds = load_catalog().hosts
    return {
        "start": start,
        "end": end,
        "kinds": list(kinds),
        "kind_gpus": [one.gpus for one in kinds.values()],
    }


async def silent_costs(
    connection: AsyncConnection, hosts: Sequence[str], start: datetime, end: datetime
) -> dict[str, int]:
    """Picodollars of hosts of providers in [start, end), whole UTC hours, for which no agent accounted; by name."""
    bound = {**host_bounds(start, end), "hosts": list(hosts)}
    return {row.host: int(row.cost) for row in await connection.execute(_SILENT, bound)}
