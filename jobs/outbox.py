"""Runs the outbox: rows that other transactions left behind. The task is a hint, the row is the truth."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sqlalchemy import func, select, update

from core.db import Database
from core.outbox import outbox

log = logging.getLogger(__name__)

Handler = Callable[[dict[str, Any]], Awaitable[object]]

BATCH = 100


async def dispatch(database: Database, handlers: Mapping[str, Handler], *, limit: int = BATCH) -> int:
    """Run the oldest open rows whose topic has a handler, at most `limit`; returns how many are done now.

    Each row is one transaction: locked, handled, marked. A handler that fails leaves its row open for the next run,
    and one that is killed after its effect runs again. Two dispatchers never take the same row.
    """
    done, failed = 0, 0
    while done + failed < limit:
        async with database.system() as connection:
            row = (
                await connection.execute(
                    select(outbox.c.id, outbox.c.topic, outbox.c.payload)
                    .where(outbox.c.done_at.is_(None), outbox.c.topic.in_(list(handlers)))
                    .order_by(outbox.c.id)
                    .offset(failed)
                    .limit(1)
                    .with_for_update(skip_locked=True)
                )
            ).one_or_none()
            if row is None:
                break
            try:
                await handlers[row.topic](row.payload)
            except Exception:
                log.exception("outbox row %d (%s) failed; it stays open", row.id, row.topic)
                failed += 1
                continue
            await connection.execute(
                update(outbox).where(outbox.c.id == row.id).values(done_at=func.clock_timestamp())
            )
            done += 1
    return done
