"""Recorded requests in PostgreSQL: written in compressed batches, read by period, deleted by age and size."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from core.clock import Clock
from core.db import Database
from core.ids import uuid7
from scheduler import metrics
from scheduler.request_trace import RequestTrace, TracedRequest, pack, unpack
from scheduler.store_loop import StoreLoop
from scheduler.tables import request_traces

log = logging.getLogger(__name__)

STORE_EVERY_S = 5.0
"""Seconds between two writes."""
BATCH = 5_000
"""Most requests in one row."""
MAX_UNSTORED_BYTES = 64 << 20
"""Packed bytes that are kept while PostgreSQL is away; the oldest batches are dropped first."""


class RequestTraceStore(StoreLoop):
    """Stores the requests of its trace, a few seconds of traffic at a time."""

    def __init__(
        self, database: Database, clock: Clock, *, recording: bool = True, every_s: float = STORE_EVERY_S
    ) -> None:
        """With `recording` False nothing is recorded or stored."""
        super().__init__(database, "recorded requests", every_s=every_s, failures=metrics.TRACE_FAILURES)
        self._clock = clock
        self.trace = RequestTrace(recording, self._wall_offset_s())
        self._pending: deque[tuple[str, list[TracedRequest]]] = deque()
        """Batches taken from the trace with their model. No more are taken until they are packed; the trace is
        bounded itself."""
        self._rows: list[dict[str, Any]] = []
        """Packed batches, oldest first."""
        self._reported_dropped = 0
        self._lost = 0
        """Requests dropped since rows were stored last."""

    async def write(self) -> None:
        """Pack the ended requests off the event loop and store them. Batches that are not stored are kept."""
        self.trace.wall_offset_s = self._wall_offset_s()
        await self._pack()
        self._bound()
        if not self._rows:
            return
        rows = list(self._rows)
        async with self.database.system() as connection:
            # A round whose commit was not confirmed is repeated with the same ids.
            await connection.execute(insert(request_traces).on_conflict_do_nothing(), rows)
        del self._rows[: len(rows)]
        if self._lost:
            log.warning("%s recorded requests were dropped while they could not be stored", self._lost)
            self._lost = 0

    async def close(self) -> None:
        """Store the rest if PostgreSQL answers, and log how many requests are lost if it does not."""
        await super().close()
        left = sum(row["requests"] for row in self._rows) + sum(
            len(requests) for _, requests in self._pending
        )
        if left:
            log.warning("%s recorded requests are lost: they could not be stored before the end", left)

    async def _pack(self) -> None:
        """Pack ended requests into rows. A batch is removed when its row exists, so an interruption loses nothing."""
        if not self._pending:
            for model, requests in self.trace.take_ended(self._clock.monotonic()).items():
                for start in range(0, len(requests), BATCH):
                    self._pending.append((model, requests[start : start + BATCH]))
        while self._pending:
            model, requests = self._pending[0]
            try:
                row = await asyncio.to_thread(_row, model, requests)
            except (ValueError, OverflowError) as error:
                # It will never fit into a row, and must not block the batches behind it.
                log.warning("%s recorded requests of %r cannot be packed: %s", len(requests), model, error)
                self.trace.dropped += len(requests)
            else:
                self._rows.append(row)
            self._pending.popleft()

    def _bound(self) -> None:
        size, lost = sum(len(row["data"]) for row in self._rows), 0
        while size > MAX_UNSTORED_BYTES:
            row = self._rows.pop(0)
            size -= len(row["data"])
            lost += row["requests"]
        if lost and not self._lost:
            log.warning(
                "%s recorded requests are dropped, the oldest first: %s bytes wait for PostgreSQL already",
                lost,
                f"{MAX_UNSTORED_BYTES:,}",
            )
        self._lost += lost
        self.trace.dropped += lost
        metrics.TRACE_DROPPED.inc(self.trace.dropped - self._reported_dropped)
        self._reported_dropped = self.trace.dropped

    def _wall_offset_s(self) -> float:
        return self._clock.now().timestamp() - self._clock.monotonic()


def _row(model: str, requests: list[TracedRequest]) -> dict[str, Any]:
    times = [traced.at_ms for traced in requests]
    return {
        "id": uuid7(),
        # A name that PostgreSQL rejects must not block other batches.
        "model": model.replace("\x00", "")[:200],
        "first_at": _instant(min(times)),
        "last_at": _instant(max(times)),
        "requests": len(requests),
        "data": pack(requests),
    }


async def read_trace(
    connection: AsyncConnection, since: datetime, until: datetime, model: str | None = None
) -> AsyncIterator[tuple[str, TracedRequest]]:
    """Models and records of requests that arrived in [since, until), by batch, approximately in order of time.

    Raises Unavailable for a damaged batch.
    """
    table = request_traces
    query = select(table.c.id).where(table.c.first_at < until, table.c.last_at >= since)
    if model is not None:
        query = query.where(table.c.model == model)
    first_ms, end_ms = since.timestamp() * 1000, until.timestamp() * 1000
    for (batch,) in (await connection.execute(query.order_by(table.c.first_at, table.c.id))).all():
        row = (
            await connection.execute(select(table.c.model, table.c.data).where(table.c.id == batch))
        ).one_or_none()
        if row is None:
            continue
        for traced in unpack(row.data):
            if first_ms <= traced.at_ms < end_ms:
                yield row.model, traced


async def traced_models(connection: AsyncConnection, since: datetime, until: datetime) -> dict[str, int]:
    """Models with batches that overlap the period, and the requests in these batches."""
    table = request_traces
    query = (
        select(table.c.model, func.sum(table.c.requests))
        .where(table.c.first_at < until, table.c.last_at >= since)
        .group_by(table.c.model)
    )
    return {str(model): int(count) for model, count in await connection.execute(query)}


async def prune_traces(connection: AsyncConnection, keep_days: int, max_bytes: int) -> int:
    """Delete batches older than `keep_days`, then the oldest until the rest takes at most `max_bytes`.

    Returns the number of deleted rows.
    """
    table = request_traces
    now = (await connection.execute(select(func.clock_timestamp()))).scalar_one()
    old = await connection.execute(delete(table).where(table.c.last_at < now - timedelta(days=keep_days)))
    beyond = await connection.execute(
        text(
            "DELETE FROM request_traces WHERE id IN (SELECT id FROM (SELECT id, "
            "sum(octet_length(data)) OVER (ORDER BY last_at DESC, id) AS upto FROM request_traces) AS sizes "
            "WHERE upto > :most)"
        ),
        {"most": max_bytes},
    )
    return old.rowcount + beyond.rowcount


def _instant(unix_ms: int) -> datetime:
    return datetime.fromtimestamp(unix_ms / 1000, UTC)
