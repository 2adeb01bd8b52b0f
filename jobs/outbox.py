"""Runs the outbox: rows that other transactions left behind. The task is a hint, the row is the truth."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import Database

log = logging.getLogger(__name__)

Handler = Callable[[dict[str, Any]], Awaitable[object]]

BATCH = 100
LEASE_S = 600
"""How long a row is left to who took it: longer than any handler needs; of one that was killed it is taken again."""
SOON = 3
"""Failures after which the next run still tries at once; then 8 s, 16 s, ... an hour."""

_TAKE = text(
    "UPDATE outbox SET attempts = attempts + 1, "
    "next_at = clock_timestamp() + make_interval(secs => :lease) WHERE id = ("
    "SELECT id FROM outbox WHERE done_at IS NULL AND next_at <= clock_timestamp() AND id > :after "
    "AND topic = ANY(CAST(:topics AS text[])) ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) "
    "RETURNING id, topic, payload, attempts"
)
_DONE = text("UPDATE outbox SET done_at = clock_timestamp() WHERE id = :id")
_LATER = text("UPDATE outbox SET next_at = clock_timestamp() + make_interval(secs => :pause) WHERE id = :id")


async def dispatch(database: Database, handlers: Mapping[str, Handler], *, limit: int = BATCH) -> int:
    """Run the oldest rows that are due and whose topic has a handler, at most `limit`; returns how many are done now.

    A row is taken, handled and marked, without a transaction around the handler: it may wait for somebody's network.
    A handler that fails leaves its row open, for a later run the oftener it failed: rows that nobody can do must not
    keep the others from their turn. One that is killed after its effect runs again. Two dispatchers never take the
    same row.
    """
    done, after = 0, 0
    for _ in range(limit):
        async with database.system() as connection:
            row = await _take(connection, list(handlers), after)
        if row is None:
            break
        after = row.id
        try:
            await handlers[row.topic](row.payload)
        except Exception:
            pause_s = 0 if row.attempts <= SOON else min(3600, 1 << min(row.attempts - 1, 12))
            log.exception("outbox row %d (%s) failed; again in %d s", row.id, row.topic, pause_s)
            async with database.system() as connection:
                await connection.execute(_LATER, {"pause": pause_s, "id": row.id})
            continue
        async with database.system() as connection:
            await connection.execute(_DONE, {"id": row.id})
        done += 1
    return done


async def _take(connection: AsyncConnection, topics: list[str], after: int) -> Row[Any] | None:
    found = await connection.execute(_TAKE, {"lease": LEASE_S, "after": after, "topics": topics})
    return found.one_or_none()
