"""Runs the jobs of the transactional outbox (core/outbox.py)."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import Database

log = logging.getLogger(__name__)

Handler = Callable[[dict[str, Any]], Awaitable[object]]

"""Executes the payload of one outbox row."""

BATCH = 100
"""Rows of one run by default."""
LEASE_S = 600
"""Seconds for which a claimed row belongs to its dispatcher: longer than any handler needs. A killed dispatcher's row
is claimed again after that."""
IMMEDIATE_RETRIES = 3
"""Failures of a row that the next run retries at once; later ones wait 8 s, 16 s, ... up to an hour."""

_CLAIM = text(
    "UPDATE outbox SET attempts = attempts + 1, "
    "next_at = clock_timestamp() + make_interval(secs => :lease) WHERE id = ("
    "SELECT id FROM outbox WHERE done_at IS NULL AND next_at <= clock_timestamp() AND id > :after "
    "AND topic = ANY(CAST(:topics AS text[])) ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) "
    "RETURNING id, topic, payload, attempts"
)
_DONE = text("UPDATE outbox SET done_at = clock_timestamp() WHERE id = :id")
_RESCHEDULE = text(
    "UPDATE outbox SET next_at = clock_timestamp() + make_interval(secs => :pause) WHERE id = :id"
)


async def dispatch(database: Database, handlers: Mapping[str, Handler], *, limit: int = BATCH) -> int:
    """Run the oldest due rows whose topic has a handler, at most `limit`; returns the number completed.

    A row is claimed, handled and marked done, without a transaction around the handler, which may wait for a network.
    A failed row stays open and is retried with a growing delay, so that it does not delay others. A handler that is
    killed after its effect runs again. Two dispatchers never claim the same row at the same time.
    """
    done, after = 0, 0
    for _ in range(limit):
        async with database.system() as connection:
            row = await _claim(connection, list(handlers), after)
        if row is None:
            break
        after = row.id
        try:
            await handlers[row.topic](row.payload)
        except Exception:
            pause_s = 0 if row.attempts <= IMMEDIATE_RETRIES else min(3600, 1 << min(row.attempts - 1, 12))
            log.exception("outbox row %d (%s) failed; again in %d s", row.id, row.topic, pause_s)
            async with database.system() as connection:
                await connection.execute(_RESCHEDULE, {"pause": pause_s, "id": row.id})
            continue
        async with database.system() as connection:
            await connection.execute(_DONE, {"id": row.id})
        done += 1
    return done


async def _claim(connection: AsyncConnection, topics: list[str], after: int) -> Row[Any] | None:
    found = await connection.execute(_CLAIM, {"lease": LEASE_S, "after": after, "topics": topics})
    return found.one_or_none()
