"""Reconciliation results for display: engines, their intervals, and the requests behind an interval."""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from core.errors import Conflict, NotFound
from tenants.scoping import platform_wide


class EngineRow(msgspec.Struct, frozen=True):
    """One engine incarnation: the tokens it counted, and how many of them are compared and unexplained."""

    boot_id: str
    replica_id: str
    model: str
    simulated: bool
    first_seen: datetime
    last_seen: datetime
    ended_at: datetime | None
    prompt_tokens: int
    generation_tokens: int
    uncompared_tokens: int
    """Tokens of both counters in intervals that are not compared yet."""
    unobserved_tokens: int
    unexplained_prompt: int
    unexplained_generation: int
    accepted: bool
    """A person has accepted the unexplained tokens."""


class IntervalRow(msgspec.Struct, frozen=True):
    """The token balance of one interval between two cuts, for one counter; `to_at` None = the end of the engine."""

    counter: str
    from_at: datetime
    to_at: datetime | None
    requests: int
    engine: int
    billed: int
    engine_failed: int
    zero_output: int
    cancelled_tail: int
    retried: int
    choices: int
    warmup: int
    probe: int
    unobserved: int
    unexplained: int
    checked_at: datetime
    accepted_by: str | None
    accepted_reason: str | None


class TraceRow(msgspec.Struct, frozen=True):
    """Tokens of one request on an engine, by cause."""

    request_id: UUID
    tenant_id: UUID | None
    at: datetime
    cause: str
    """One of token_balance.CAUSES, or `missing`: the request had a hold and has no usage row."""
    prompt_tokens: int
    generation_tokens: int
    detail: str = ""


_ENGINES = text(
    """
    WITH compared AS (
        SELECT boot_id, sum(engine) AS engine, sum(unobserved) AS unobserved,
            sum(unexplained) FILTER (WHERE counter = 'prompt') AS prompt,
            sum(unexplained) FILTER (WHERE counter = 'generation') AS generation,
            bool_or(accepted_at IS NOT NULL) AS accepted
        FROM reconciliations GROUP BY boot_id)
    SELECT e.*, coalesce(c.engine, 0) AS engine_compared, coalesce(c.unobserved, 0) AS unobserved,
        coalesce(c.prompt, 0) AS unexplained_prompt, coalesce(c.generation, 0) AS unexplained_generation,
        coalesce(c.accepted, false) AS accepted
    FROM engine_counters e LEFT JOIN compared c USING (boot_id)
    ORDER BY (coalesce(c.prompt, 0) <> 0 OR coalesce(c.generation, 0) <> 0) AND NOT coalesce(c.accepted, false) DESC,
        e.last_seen DESC, e.boot_id LIMIT :limit
    """
)


async def list_engines(connection: AsyncConnection, limit: int) -> list[EngineRow]:
    """At most `limit` engines: those with unexplained, unaccepted tokens first, then the most recently seen."""
    return [
        EngineRow(
            boot_id=row.boot_id,
            replica_id=row.replica_id,
            model=row.model,
            simulated=row.simulated,
            first_seen=row.first_seen,
            last_seen=row.last_seen,
            ended_at=row.ended_at,
            prompt_tokens=row.prompt_tokens,
            generation_tokens=row.generation_tokens,
            uncompared_tokens=int(row.prompt_tokens + row.generation_tokens - row.engine_compared),
            unobserved_tokens=int(row.unobserved),
            unexplained_prompt=int(row.unexplained_prompt),
            unexplained_generation=int(row.unexplained_generation),
            accepted=row.accepted,
        )
        for row in await connection.execute(_ENGINES, {"limit": limit})
    ]


async def list_intervals(connection: AsyncConnection, boot_id: str, limit: int) -> list[IntervalRow]:
    """At most `limit` intervals of the engine `boot_id`, newest first. Raises NotFound for an unknown engine."""
    rows = await connection.execute(
        text(
            "SELECT * FROM reconciliations WHERE boot_id = :boot ORDER BY from_at DESC, counter DESC LIMIT :limit"
        ),
        {"boot": boot_id, "limit": limit},
    )
    found = [
        IntervalRow(**{name: row._mapping[name] for name in IntervalRow.__struct_fields__}) for row in rows
    ]
    if not found:
        await _get_engine(connection, boot_id)
    return found


async def _get_engine(connection: AsyncConnection, boot_id: str) -> Any:
    found = await connection.execute(
        text("SELECT * FROM engine_counters WHERE boot_id = :boot"), {"boot": boot_id}
    )
    row = found.one_or_none()
    if row is None:
        raise NotFound(f"no engine is known by the boot id {boot_id[:80]!r}")
    return row


_TRACE = text(
    """
    WITH span AS (
        SELECT min(from_at) AS from_at, max(coalesce(to_at, 'infinity')) AS to_at FROM reconciliations
        WHERE boot_id = :boot AND (CAST(:from_at AS timestamptz) IS NULL OR from_at = :from_at)
            AND (NOT :wrong_only OR unexplained <> 0)),
    traced AS (
        SELECT u.request_id, u.tenant_id, u.admitted_at AS at,
            CASE WHEN u.outcome IN ('engine_failed', 'zero_output') THEN u.outcome::text ELSE 'billed' END AS cause,
            u.input_tokens AS prompt, u.output_tokens AS generation, u.outcome::text AS detail
        FROM usage u, span s WHERE u.boot_id = :boot AND u.ended_at >= s.from_at AND u.admitted_at > s.from_at
            AND u.admitted_at <= s.to_at
        UNION ALL
        SELECT n.request_id, u.tenant_id, u.admitted_at, n.cause, n.input_tokens, n.output_tokens,
            CASE WHEN n.tail_input + n.tail_output > 0
                THEN 'the engine may have counted ' || n.tail_input || ' + ' || n.tail_output || ' more' ELSE '' END
        FROM usage_unbilled n JOIN usage u USING (request_id), span s
        WHERE n.boot_id = :boot AND u.ended_at >= s.from_at AND u.admitted_at > s.from_at AND u.admitted_at <= s.to_at
        UNION ALL
        SELECT h.request_id, h.tenant_id, h.admitted_at, 'missing', 0, 0,
            'hold ' || h.state || ', no usage row' || coalesce(': ' || e.reason, '')
        FROM holds h LEFT JOIN settle_errors e USING (request_id), span s
        WHERE h.model = :model AND h.state IN ('settled', 'expired') AND h.admitted_at > s.from_at
            AND h.admitted_at <= least(s.to_at, :last_seen)
            AND NOT EXISTS (SELECT 1 FROM usage u WHERE u.request_id = h.request_id))
    SELECT * FROM traced ORDER BY (cause = 'missing') DESC, at DESC, request_id, cause LIMIT :limit
    """.replace("::text", "\\:\\:text")
)


@platform_wide("an engine serves all organisations")
async def trace(
    connection: AsyncConnection, boot_id: str, *, from_at: datetime | None, limit: int
) -> list[TraceRow]:
    """At most `limit` requests behind the engine's intervals, newest first.

    `from_at` selects the interval that begins there; None selects all intervals with unexplained tokens, or all
    intervals when there are none. Requests for the model that had a hold and have no usage row come first: they are
    the likely cause of missing tokens. Raises NotFound for an unknown engine.
    """
    engine = await _get_engine(connection, boot_id)
    wrong = await connection.execute(
        text("SELECT count(*) FROM reconciliations WHERE boot_id = :boot AND unexplained <> 0"),
        {"boot": boot_id},
    )
    bound = {
        "boot": boot_id,
        "model": engine.model,
        "last_seen": engine.last_seen,
        "from_at": from_at,
        "wrong_only": from_at is None and bool(wrong.scalar_one()),
        "limit": limit,
    }
    return [
        TraceRow(
            request_id=row.request_id,
            tenant_id=row.tenant_id,
            at=row.at,
            cause=row.cause,
            prompt_tokens=row.prompt,
            generation_tokens=row.generation,
            detail=row.detail,
        )
        for row in await connection.execute(_TRACE, bound)
    ]


async def accept(connection: AsyncConnection, boot_id: str, *, by: str, reason: str) -> int:
    """Accept the unexplained tokens of an engine; returns the number of intervals accepted.

    Accepted tokens stay in the rows but no longer count for the alarm and the close, until a later comparison changes
    the difference. Raises NotFound for an unknown engine, Conflict when there is nothing to accept.
    """
    await _get_engine(connection, boot_id)
    changed = await connection.execute(
        text(
            "UPDATE reconciliations SET accepted_at = clock_timestamp(), accepted_by = :by, accepted_reason = :reason "
            "WHERE boot_id = :boot AND unexplained <> 0 AND accepted_at IS NULL"
        ),
        {"boot": boot_id, "by": by, "reason": reason},
    )
    if not changed.rowcount:
        raise Conflict(f"nothing of {boot_id} is unexplained and not accepted")
    return int(changed.rowcount)
