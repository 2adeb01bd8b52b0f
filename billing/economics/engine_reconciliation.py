"""Continuous reconciliation: engines' counters against usage rows, per engine incarnation.

The life of an incarnation is divided into intervals by its cuts (table engine_cuts, scheduler/engine_counters.py): a
cut is an instant at which the engine was idle, so all tokens between two cuts belong to requests admitted between them.
The first interval begins with the engine, the last ends with it.

An interval is compared once every request of its model admitted before its end has released its hold. A hold is closed
in the transaction that writes the usage row, so the rows are complete by then. Running requests are therefore never
reported as unexplained.

An interval with unexplained tokens is compared again in every run for an hour, then at growing intervals for a week: a
spool adopted late can still explain it. The alarm looks at the sum over all intervals of an incarnation, in which a
request on a border cancels out.
"""

from datetime import datetime, timedelta
from typing import Any

import msgspec
from prometheus_client import Gauge
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.economics.token_balance import COUNTERS, KnownTokens, TokenBalance, balance_tokens
from billing.notifications.notices import notify
from core.db import Database
from tenants.scoping import platform_wide

CONFIRM_S = 120.0
"""Seconds for which tokens must stay unexplained before a notice is sent."""
UNBILLED_RETENTION_DAYS = 400
"""Days after which rows of usage_unbilled are deleted."""
MAX_INTERVALS = 2000
"""Intervals compared in one run at most."""

UNEXPLAINED = Gauge(
    "penstock_reconciliation_unexplained_tokens",
    "Tokens by which engines' counters and usage differ, and nothing explains it; must be 0.",
    ["counter"],
)
BEHIND = Gauge(
    "penstock_reconciliation_behind_seconds",
    "Age of the oldest interval of an engine's life that waits to be compared.",
)

_INTERVALS = text(
    """
    WITH known AS (
        SELECT e.*, coalesce(e.ended_at, e.last_seen) AS last_at, e.ended_at IS NOT NULL
            OR e.last_seen < (SELECT max(last_seen) FROM engine_counters) - interval '5 minutes'
            OR e.last_seen < clock_timestamp() - interval '1 day'
            OR EXISTS (SELECT 1 FROM engine_counters n WHERE n.replica_id = e.replica_id
                AND n.first_seen > e.first_seen AND n.boot_id <> e.boot_id) AS over
        FROM engine_counters e WHERE e.last_seen > clock_timestamp() - interval '8 days'),
    points AS (
        SELECT boot_id, first_seen - interval '1 hour' AS at, 0 AS prompt, 0 AS generation, true AS first FROM known
        UNION ALL
        SELECT boot_id, c.cut_at, c.prompt_tokens, c.generation_tokens, false
            FROM engine_cuts c JOIN known USING (boot_id)
        UNION ALL
        SELECT boot_id, 'infinity', prompt_tokens, generation_tokens, false FROM known WHERE over),
    spans AS (
        SELECT boot_id, first, at AS from_at, lead(at) OVER o AS to_at, lead(prompt) OVER o - prompt AS prompt,
            lead(generation) OVER o - generation AS generation
        FROM points WINDOW o AS (PARTITION BY boot_id ORDER BY at)),
    compared AS (
        SELECT boot_id, from_at, min(coalesce(r.to_at, 'infinity')) AS to_at, bool_or(unexplained <> 0) AS wrong,
            max(checked_at) AS checked_at, clock_timestamp() - min(first_checked_at) AS age
        FROM reconciliations r JOIN known USING (boot_id) GROUP BY boot_id, from_at)
    SELECT s.boot_id, k.replica_id, k.model, k.simulated, s.from_at, nullif(s.to_at, 'infinity') AS to_at, s.prompt,
        s.generation, CASE WHEN s.first THEN k.warmup_prompt_tokens ELSE 0 END AS warmup_prompt,
        CASE WHEN s.first THEN k.warmup_generation_tokens ELSE 0 END AS warmup_generation,
        k.scraped_at, least(s.to_at, k.last_at + interval '2 seconds') AS complete_at, c.boot_id IS NULL AS fresh
    FROM spans s JOIN known k USING (boot_id) LEFT JOIN compared c USING (boot_id, from_at)
    WHERE s.to_at IS NOT NULL AND (c.boot_id IS NULL OR c.to_at <> s.to_at
        OR (c.wrong AND (c.age < interval '1 hour' OR c.checked_at < clock_timestamp() - c.age / 4))
        OR least(s.to_at, k.last_at) > CAST(:since AS timestamptz))
    ORDER BY c.boot_id IS NULL DESC, s.to_at, s.boot_id LIMIT :most
    """
)
_OPEN = text("SELECT model, min(admitted_at) AS since FROM holds WHERE state = 'open' GROUP BY model")
_FIRST_ID = "penstock_uuid_floor(CAST(:first AS timestamptz) - interval '1 hour')"
"""Request ids are made before admission and by another clock, so the search by id begins an hour earlier."""
_INTERVAL_CTES = f"""
    compared_interval AS (SELECT * FROM unnest(CAST(:boots AS text[]), CAST(:froms AS timestamptz[]),
        CAST(:tos AS timestamptz[]), CAST(:scrapes AS timestamptz[])) AS w (boot_id, from_at, to_at, scraped_at)),
    again AS (SELECT request_id, max(again_us) * interval '1 microsecond' AS later FROM usage_unbilled
        WHERE again_us > 0 AND request_id >= {_FIRST_ID} GROUP BY request_id)
"""  # noqa: S608 - as below
_IN_INTERVAL = "{0}.at > w.from_at AND {0}.at <= coalesce(w.to_at, 'infinity')"
_USAGE = text(
    f"""
    WITH {_INTERVAL_CTES},
    u AS (SELECT u.boot_id, u.admitted_at + coalesce(a.later, interval '0') AS at, u.ended_at, u.outcome,
            u.input_tokens AS prompt, u.output_tokens AS generation
        FROM usage u LEFT JOIN again a USING (request_id)
        WHERE u.ended_at >= :first AND u.boot_id = ANY (CAST(:boots AS text[])))
    SELECT w.boot_id, w.from_at, u.outcome, count(*) AS requests, sum(u.prompt) AS prompt,
        sum(u.generation) AS generation,
        coalesce(sum(u.prompt) FILTER (WHERE u.ended_at > w.scraped_at - interval '2 seconds'), 0) AS late_prompt,
        coalesce(sum(u.generation) FILTER (WHERE u.ended_at > w.scraped_at - interval '2 seconds'), 0)
            AS late_generation
    FROM compared_interval w JOIN u ON u.boot_id = w.boot_id AND {_IN_INTERVAL.format("u")}
    GROUP BY w.boot_id, w.from_at, u.outcome
    """  # noqa: S608 - made of constants, values are bound
)
_UNBILLED = text(
    f"""
    WITH {_INTERVAL_CTES},
    n AS (SELECT n.boot_id, n.cause, n.input_tokens, n.output_tokens, n.tail_input, n.tail_output, u.ended_at,
            u.admitted_at + CASE WHEN n.again_us > 0 THEN interval '0' ELSE coalesce(a.later, interval '0') END AS at
        FROM usage_unbilled n JOIN usage u USING (request_id) LEFT JOIN again a USING (request_id)
        WHERE n.boot_id = ANY (CAST(:boots AS text[])) AND n.request_id >= {_FIRST_ID}
            AND u.ended_at >= :first)
    SELECT w.boot_id, w.from_at, n.cause, sum(n.input_tokens) AS prompt, sum(n.output_tokens) AS generation,
        sum(n.tail_input) AS tail_prompt, sum(n.tail_output) AS tail_generation,
        coalesce(sum(n.input_tokens) FILTER (WHERE n.ended_at > w.scraped_at - interval '2 seconds'), 0) AS late_prompt,
        coalesce(sum(n.output_tokens) FILTER (WHERE n.ended_at > w.scraped_at - interval '2 seconds'), 0)
            AS late_generation
    FROM compared_interval w JOIN n ON n.boot_id = w.boot_id AND {_IN_INTERVAL.format("n")}
    GROUP BY w.boot_id, w.from_at, n.cause
    """  # noqa: S608 - as above
)
_STORE = text(
    """
    INSERT INTO reconciliations AS r (boot_id, counter, from_at, to_at, replica_id, model, simulated, requests, engine,
        billed, engine_failed, zero_output, cancelled_tail, retried, choices, warmup, probe, unobserved, unexplained)
    VALUES (:boot_id, :counter, :from_at, :to_at, :replica_id, :model, :simulated, :requests, :engine, :billed,
        :engine_failed, :zero_output, :cancelled_tail, :retried, :choices, :warmup, :probe, :unobserved, :unexplained)
    ON CONFLICT (boot_id, counter, from_at) DO UPDATE SET to_at = excluded.to_at, checked_at = clock_timestamp(),
        requests = excluded.requests, engine = excluded.engine, billed = excluded.billed,
        engine_failed = excluded.engine_failed, zero_output = excluded.zero_output,
        cancelled_tail = excluded.cancelled_tail, retried = excluded.retried, choices = excluded.choices,
        warmup = excluded.warmup, probe = excluded.probe, unobserved = excluded.unobserved,
        unexplained = excluded.unexplained,
        accepted_at = CASE WHEN r.unexplained = excluded.unexplained THEN r.accepted_at END,
        accepted_by = CASE WHEN r.unexplained = excluded.unexplained THEN r.accepted_by END,
        accepted_reason = CASE WHEN r.unexplained = excluded.unexplained THEN r.accepted_reason END
    """
)
_UNEXPLAINED = text(
    """
    SELECT boot_id, counter, min(replica_id) AS replica_id, min(model) AS model, sum(unexplained) AS unexplained,
        min(from_at) AS from_at,
        min(first_checked_at) <= clock_timestamp() - make_interval(secs => :confirm) AS confirmed
    FROM reconciliations WHERE unexplained <> 0 AND accepted_at IS NULL
    GROUP BY boot_id, counter HAVING sum(unexplained) <> 0 ORDER BY boot_id, counter
    """
)


class RunResult(msgspec.Struct, frozen=True):
    """What one run found."""

    compared: int
    """Intervals compared."""
    waiting: int
    """Intervals that wait because some of their requests are not settled."""
    unexplained: dict[str, int]
    """By counter (`prompt`, `generation`): the sum of the absolute differences of all incarnations, in tokens."""


async def run(
    database: Database, *, since: datetime | None = None, confirm_s: float = CONFIRM_S
) -> RunResult:
    """Compare the intervals that are ready, notify operators of unexplained tokens and set the gauges. Idempotent.

    `since`: also compare again the intervals that ended after this instant, to find usage rows lost since.
    `confirm_s`: seconds for which tokens must stay unexplained before a notice is sent.
    """
    async with database.system() as connection:
        await connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('penstock_reconcile'))"))
        outcome, behind_s = await _compare(connection, since)
        left = (await connection.execute(_UNEXPLAINED, {"confirm": confirm_s})).all()
        for row in left:
            if row.confirmed:
                await _notify_unexplained(connection, row)
        await connection.execute(
            text(
                "DELETE FROM usage_unbilled "
                "WHERE request_id < penstock_uuid_floor(now() - make_interval(days => :days))"
            ),
            {"days": UNBILLED_RETENTION_DAYS},
        )
    totals = dict.fromkeys(COUNTERS, 0)
    for row in left:
        totals[row.counter] += abs(int(row.unexplained))
    for counter, total in totals.items():
        UNEXPLAINED.labels(counter).set(total)
    BEHIND.set(behind_s)
    return msgspec.structs.replace(outcome, unexplained=totals)


@platform_wide("an engine serves all organisations")
async def _compare(connection: AsyncConnection, since: datetime | None) -> tuple[RunResult, int]:
    intervals = (await connection.execute(_INTERVALS, {"most": MAX_INTERVALS, "since": since})).all()
    running: dict[str, datetime] = {row.model: row.since for row in await connection.execute(_OPEN)}
    ready = [row for row in intervals if row.model not in running or running[row.model] > row.complete_at]
    # New intervals apart from repeated ones: rows are read from the oldest of a batch on, and repeated ones may be old.
    for fresh in (True, False):
        await _compare_batch(connection, [row for row in ready if row.fresh is fresh])
    waiting = [row for row in intervals if row not in ready]
    now: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
    oldest = max((now - row.complete_at for row in waiting), default=timedelta(0))
    return RunResult(len(ready), len(waiting), {}), max(oldest // timedelta(seconds=1), 0)


async def _compare_batch(connection: AsyncConnection, ready: list[Row[Any]]) -> None:
    if not ready:
        return
    bound = {
        "boots": [row.boot_id for row in ready],
        "froms": [row.from_at for row in ready],
        "tos": [row.to_at for row in ready],
        "scrapes": [row.scraped_at for row in ready],
        "first": min(row.from_at for row in ready),
    }
    known = await _known_tokens(connection, bound)
    for row in ready:
        await _store(connection, row, known.get((row.boot_id, row.from_at), {}))


IntervalKey = tuple[str, datetime]


@platform_wide("an engine serves all organisations")
async def _known_tokens(
    connection: AsyncConnection, bound: dict[str, Any]
) -> dict[IntervalKey, dict[str, int]]:
    """Sums per interval by name, such as `prompt_billed`, `generation_cancelled_limit`, `requests`."""
    found: dict[IntervalKey, dict[str, int]] = {}

    def add(row: Row[Any], name: str, value: object) -> None:
        sums = found.setdefault((row.boot_id, row.from_at), {})
        sums[name] = sums.get(name, 0) + int(str(value))

    for row in await connection.execute(_USAGE, bound):
        cause = row.outcome if row.outcome in ("engine_failed", "zero_output") else "billed"
        add(row, "requests", row.requests)
        for counter in COUNTERS:
            add(row, f"{counter}_{cause}", row._mapping[counter])
            add(row, f"{counter}_unscraped_limit", row._mapping[f"late_{counter}"])
    for row in await connection.execute(_UNBILLED, bound):
        limit = "cancelled_limit" if row.cause == "cancelled_tail" else "failed_limit"
        for counter in COUNTERS:
            add(row, f"{counter}_{row.cause}", row._mapping[counter])
            add(row, f"{counter}_{limit}", row._mapping[f"tail_{counter}"])
            add(row, f"{counter}_unscraped_limit", row._mapping[f"late_{counter}"])
    return found


async def _store(connection: AsyncConnection, row: Row[Any], sums: dict[str, int]) -> None:
    for counter in COUNTERS:
        prefix = f"{counter}_"
        known = KnownTokens(
            **{name[len(prefix) :]: value for name, value in sums.items() if name.startswith(prefix)}
        )
        known.warmup += int(row._mapping[f"warmup_{counter}"])
        if row.to_at is not None:
            known.unscraped_limit = (
                0  # the engine lived on, and a later scrape saw all tokens of the interval
            )
        balance: TokenBalance = balance_tokens(int(row._mapping[counter]), known)
        await connection.execute(
            _STORE,
            {
                "boot_id": row.boot_id,
                "counter": counter,
                "from_at": row.from_at,
                "to_at": row.to_at,
                "replica_id": row.replica_id,
                "model": row.model,
                "simulated": row.simulated,
                "requests": sums.get("requests", 0),
                **msgspec.structs.asdict(balance),
            },
        )


async def _notify_unexplained(connection: AsyncConnection, row: Row[Any]) -> None:
    """Notify operators, once per incarnation, counter and amount."""
    tokens = int(row.unexplained)
    direction = "more than" if tokens > 0 else "less than"
    await notify(
        connection,
        tenant_id=None,
        kind="reconciliation.unexplained",
        subject=f"{abs(tokens)} {row.counter} tokens of {row.replica_id} are unexplained",
        body=(
            f"The engine {row.boot_id} of {row.replica_id} ({row.model}) counted {abs(tokens)} {row.counter} tokens "
            f"{direction} its usage rows tell, since {row.from_at.isoformat()}. "
            f"See which requests: penstock reconcile trace {row.boot_id}"
        ),
        facts={
            "boot_id": row.boot_id,
            "replica_id": row.replica_id,
            "model": row.model,
            "counter": row.counter,
            "tokens": tokens,
        },
        key=f"reconciliation/{row.boot_id}/{row.counter}/{tokens}",
    )
