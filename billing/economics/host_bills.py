"""What each host cost in each hour, and the part in which no agent accounted for it.

A host that a provider bills costs what the provider's events say, from its creation to its end, per second and in whole
cents (workers/providers/costs.py): an hour's cost is what was billed until its end less what was billed until its
beginning, so that hours add up to the bill. Heartbeats divide it. The seconds of which no heartbeat tells are `silent`:
the start before the agent runs, the time of an agent that is away, the last seconds before the end. Any other host
costs its seconds of heartbeats at the dated price of its kind, rounded half up to a picodollar, and is never silent.

A contract (docs/adr/0072) costs its price in every hour of its term, the present one by seconds. The hosts of its kind
draw its seconds, the oldest first, from contracts of their region and then from those of any; contracts for the same
hosts are one. Its cost is divided by seconds among these hosts, which for this time cost nothing else, and what nobody
has drawn, which is CONTRACT_UNUSED. Costs add up to the bills without the covered parts and the contracts.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.economics.split_sql import floors, share
from core.money import PICO_PER_CENT
from workers.catalog import load_catalog
from workers.providers.costs import LEAST_S

NO_AGENT = "no_agent"
"""State of a host's time for which no heartbeat accounts."""
HOUR_S = 3_600
CONTRACT_UNUSED = "contract_unused"
"""State of the hours of contracts that no host has drawn."""


def _billed(until: str) -> str:
    """workers.providers.costs.billed_pico of a bill until an instant, in SQL."""
    seconds = f"greatest(trunc(extract(epoch FROM {until} - created_at)), {LEAST_S})"
    cents = f"div(2 * price * {seconds} + 3600 * {PICO_PER_CENT}, 2 * 3600 * {PICO_PER_CENT})"
    return f"greatest({cents}, CASE WHEN price > 0 THEN 1 ELSE 0 END) * {PICO_PER_CENT}"


_NEXT = "g + interval '1 hour'"
_ELAPSED = f"least(trunc(extract(epoch FROM now() - g)), {HOUR_S})"
_OLDER = "ORDER BY since, host"
_POOLS = "hour, kind, pool"


def _drawn(name: str, wants: str, group: str) -> str:
    """Column `name`: the seconds of `wants` that a pool of `seconds` has left when all older hosts have drawn."""
    older = f"(sum({wants}) OVER (PARTITION BY {group} {_OLDER}) - ({wants}))"
    return f"least(greatest(coalesce(t.seconds, 0) - {older}, 0), {wants}) AS {name}"


HOST_HOURS = f"""
    bills AS MATERIALIZED (
        SELECT name, kind, region, model, created_at, requested_at, usd_pico_per_hour AS price,
            least(coalesce(ended_at, now()), now()) AS until
        FROM host_intents WHERE billed AND usd_pico_per_hour IS NOT NULL AND created_at < least(:end, now())
            AND (ended_at IS NULL OR ended_at > :start)),
    lived AS MATERIALIZED (
        SELECT g AS hour, name AS host, kind, region, model, requested_at AS since,
            greatest(trunc(extract(epoch FROM least(until, {_NEXT}) - greatest(created_at, g))), 0) AS seconds,
            {_billed(f"least(until, {_NEXT})")} - CASE WHEN g > created_at THEN {_billed("g")} ELSE 0 END AS cost
        FROM bills, generate_series(date_trunc('hour', greatest(created_at, :start), 'UTC'),
            greatest(least(until, :end) - interval '1 microsecond', created_at, :start), interval '1 hour') g),
    owners AS MATERIALIZED (
        SELECT h.host_id, coalesce(i.name, h.host_id) AS host, i.name IS NOT NULL AS provided,
            coalesce(i.kind, h.host_kind) AS kind, coalesce(i.model, '') AS model, h.gpus,
            coalesce(i.region, h.region) AS region, coalesce(i.requested_at, h.first_seen) AS since
        FROM hosts h LEFT JOIN LATERAL (
            SELECT name, kind, region, model, requested_at FROM host_intents
            WHERE billed AND usd_pico_per_hour IS NOT NULL
                AND name IN (h.host_id, regexp_replace(h.host_id, '^sim-', '')) LIMIT 1) i ON true),
    beats AS MATERIALIZED (
        SELECT s.hour, o.host, bool_or(o.provided) AS provided, min(o.kind) AS kind, min(o.region) AS region,
            min(o.model) AS model, min(o.since) AS since, sum(s.seconds) AS seconds
        FROM host_seconds s JOIN owners o USING (host_id) WHERE s.hour >= :start AND s.hour < :end
        GROUP BY s.hour, o.host),
    sized AS MATERIALIZED (
        SELECT host, max(gpus) AS gpus FROM owners GROUP BY host),
    whole AS (
        SELECT hour, host, coalesce(b.kind, l.kind) AS kind, lower(coalesce(b.region, l.region)) AS region,
            coalesce(b.model, l.model) AS model, coalesce(b.since, l.since) AS since,
            coalesce(b.provided, true) AS provided,
            coalesce(s.gpus, c.gpus, 0) AS gpus, coalesce(b.seconds, 0) AS seconds,
            greatest(coalesce(l.seconds, 0) - coalesce(b.seconds, 0), 0) AS silent,
            CASE WHEN coalesce(b.provided, true) THEN coalesce(l.cost, 0)
                ELSE div(2 * b.seconds * coalesce((SELECT p.usd_pico_per_hour FROM host_prices p
                    WHERE p.host_kind = b.kind AND p.effective_from <= hour
                    ORDER BY p.effective_from DESC LIMIT 1), 0) + 3600, 7200) END AS cost
        FROM beats b FULL JOIN lived l USING (hour, host) LEFT JOIN sized s USING (host)
        LEFT JOIN unnest(CAST(:kinds AS text[]), CAST(:kind_gpus AS int[])) AS c (kind, gpus) ON c.kind = l.kind),
    terms AS MATERIALIZED (
        SELECT g AS hour, kind, region AS pool, sum(count * {_ELAPSED}) AS seconds,
            sum(div(2 * count * usd_pico_per_hour * {_ELAPSED} + {HOUR_S}, {2 * HOUR_S})) AS cost
        FROM host_contracts, generate_series(greatest(starts_at, :start),
            least(ends_at, :end, now()) - interval '1 microsecond', interval '1 hour') g
        GROUP BY g, kind, region),
    near AS (
        SELECT w.*, {_drawn("near", "wants", "w.hour, w.kind, w.region")}
        FROM (SELECT *, least(seconds + silent, {HOUR_S}) AS wants FROM whole) w
        LEFT JOIN terms t ON (t.hour, t.kind, t.pool) = (w.hour, w.kind, w.region) AND t.pool <> ''),
    covered AS MATERIALIZED (
        SELECT n.*, {_drawn("anywhere", "wants - near", "n.hour, n.kind")}
        FROM near n LEFT JOIN terms t ON (t.hour, t.kind, t.pool) = (n.hour, n.kind, '')),
    draws AS (
        SELECT hour, kind, region AS pool, host, near AS work FROM covered WHERE near > 0
        UNION ALL
        SELECT hour, kind, '', host, anywhere FROM covered WHERE anywhere > 0),
    spread AS (
        SELECT {_POOLS}, host, work FROM draws
        UNION ALL
        SELECT {_POOLS}, '', t.seconds - coalesce(d.work, 0) FROM terms t
        LEFT JOIN (SELECT {_POOLS}, sum(work) AS work FROM draws GROUP BY {_POOLS}) d USING ({_POOLS})),
    pooled AS (
        SELECT {_POOLS}, host, work, t.seconds AS whole, t.cost AS served_cost
        FROM spread JOIN terms t USING ({_POOLS}) WHERE t.seconds > 0),
    pool_floors AS (SELECT *, {floors("cost")} FROM pooled),
    pool_shares AS MATERIALIZED (
        SELECT *, {share("cost", _POOLS, 'host COLLATE "C"')} FROM pool_floors),
    paid AS (
        SELECT c.*, CASE WHEN near + anywhere = 0 THEN 0
                ELSE c.cost - div(c.cost * (wants - near - anywhere), wants) END AS covered_cost,
            coalesce(f.cost, 0) AS contract_cost
        FROM covered c LEFT JOIN (
            SELECT hour, host, sum(cost_share) AS cost FROM pool_shares GROUP BY hour, host) f USING (hour, host)),
    host_hours AS MATERIALIZED (
        SELECT hour, host, kind, model, gpus, seconds, silent, cost, '{NO_AGENT}' AS unused, covered_cost,
            CASE WHEN seconds = 0 THEN cost ELSE div(2 * cost * silent + seconds + silent, 2 * (seconds + silent)) END
                AS silent_cost
        FROM (SELECT hour, host, kind, model, gpus, seconds, silent, covered_cost,
            cost - covered_cost + contract_cost AS cost FROM paid) p
        UNION ALL
        SELECT hour, '', kind, '', coalesce(c.gpus, 0), 0, sum(work), sum(cost_share), '{CONTRACT_UNUSED}', 0,
            sum(cost_share)
        FROM pool_shares
        LEFT JOIN unnest(CAST(:kinds AS text[]), CAST(:kind_gpus AS int[])) AS c (kind, gpus) USING (kind)
        WHERE host = '' AND (work > 0 OR cost_share > 0) GROUP BY hour, kind, c.gpus)
"""  # noqa: S608 - the names above
"""CTEs up to `host_hours` and `owners`, for the hosts of [:start, :end), whole UTC hours; binds `host_bounds`.

`host_hours` has a row for each host and hour, and for each kind with hours of contracts that no host has drawn, whose
host is empty. `unused` is the state of its `silent` seconds, `covered_cost` what contracts have taken from its bill."""

_SILENT = text(
    f"WITH {HOST_HOURS} SELECT host, sum(silent_cost) AS cost FROM host_hours WHERE host = ANY (:hosts) GROUP BY host"  # noqa: S608
)
_COVERED = text(
    f"WITH {HOST_HOURS} SELECT host, sum(covered_cost) AS cost FROM host_hours WHERE covered_cost > 0 GROUP BY host"  # noqa: S608
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


async def covered_parts(connection: AsyncConnection, start: datetime, end: datetime) -> dict[str, int]:
    """Picodollars of the bills of hosts in [start, end), whole UTC hours, that contracts cover; by name."""
    rows = await connection.execute(_COVERED, host_bounds(start, end))
    return {row.host: int(row.cost) for row in rows}
