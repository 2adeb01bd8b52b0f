"""Recorded requests in PostgreSQL: written in compressed batches, read by period, forgotten by age and size."""

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
from scheduler.shapes import Shape, ShapeBook, pack, unpack
from scheduler.store_loop import StoreLoop
from scheduler.tables import request_shapes

log = logging.getLogger(__name__)

STORE_EVERY_S = 5.0
BATCH = 5_000
"""Requests of one row."""
MAX_UNSTORED_BYTES = 64 << 20
"""Packed batches kept while PostgreSQL is away; the oldest go first."""


class ShapeStore(StoreLoop):
    """Stores what its book has: a few seconds of traffic at a time."""

    def __init__(
        self, database: Database, clock: Clock, *, recording: bool = True, every_s: float = STORE_EVERY_S
    ) -> None:
        """`recording` False = the book notes nothing, and nothing is ever stored."""
        super().__init__(database, "shapes of requests", every_s=every_s, failures=metrics.SHAPES_FAILURES)
        self._clock = clock
        self.book = ShapeBook(recording, self._wall_offset_s())
        self._unpacked: deque[tuple[str, list[Shape]]] = deque()
        """Batches taken from the book, with their model; the book is bounded itself and waits until they are packed."""
        self._rows: list[dict[str, Any]] = []
        """Packed batches, oldest first."""
        self._counted = 0
        self._lost = 0
        """Requests dropped for want of room since rows were stored last."""

    async def write(self) -> None:
        """Pack what has ended, off the event loop, and store it; batches that are not stored are kept."""
        self.book.wall_offset_s = self._wall_offset_s()
        await self._pack()
        self._bound()
        if not self._rows:
            return
        rows = list(self._rows)
        async with self.database.system() as connection:
            # A round whose commit was not confirmed is written again under the same ids.
            await connection.execute(insert(request_shapes).on_conflict_do_nothing(), rows)
        del self._rows[: len(rows)]
        if self._lost:
            log.warning("%s recorded requests were dropped while they could not be stored", self._lost)
            self._lost = 0

    async def close(self) -> None:
        """Store what is left, if PostgreSQL answers; says how much is lost if it does not."""
        await super().close()
        left = sum(row["requests"] for row in self._rows) + sum(len(shapes) for _, shapes in self._unpacked)
        if left:
            log.warning("%s recorded requests are lost: they could not be stored before the end", left)

    async def _pack(self) -> None:
        """All that has ended into rows. Interrupted anywhere, nothing is lost: a batch leaves when its row is there."""
        if not self._unpacked:
            for model, shapes in self.book.take(self._clock.monotonic()).items():
                for start in range(0, len(shapes), BATCH):
                    self._unpacked.append((model, shapes[start : start + BATCH]))
        while self._unpacked:
            model, shapes = self._unpacked[0]
            try:
                row = await asyncio.to_thread(_row, model, shapes)
            except (ValueError, OverflowError) as error:
                # It will never fit into a row; those behind it must not wait for it.
                log.warning("%s recorded requests of %r cannot be packed: %s", len(shapes), model, error)
                self.book.dropped += len(shapes)
            else:
                self._rows.append(row)
            self._unpacked.popleft()

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
        self.book.dropped += lost
        metrics.SHAPES_DROPPED.inc(self.book.dropped - self._counted)
        self._counted = self.book.dropped

    def _wall_offset_s(self) -> float:
        return self._clock.now().timestamp() - self._clock.monotonic()


def _row(model: str, shapes: list[Shape]) -> dict[str, Any]:
    times = [shape.at_ms for shape in shapes]
    return {
        "id": uuid7(),
        # A name that no column holds must not keep the others from being stored.
        "model": model.replace("\x00", "")[:200],
        "first_at": _instant(min(times)),
        "last_at": _instant(max(times)),
        "requests": len(shapes),
        "data": pack(shapes),
    }


async def read_shapes(
    connection: AsyncConnection, since: datetime, until: datetime, model: str | None = None
) -> AsyncIterator[tuple[str, Shape]]:
    """Model and shape of the requests that came in [since, until), batch by batch, roughly in order of time.

    Raises Unavailable for a damaged batch.
    """
    table = request_shapes
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
        for shape in unpack(row.data):
            if first_ms <= shape.at_ms < end_ms:
                yield row.model, shape


async def recorded_models(connection: AsyncConnection, since: datetime, until: datetime) -> dict[str, int]:
    """Models recorded around a period, with the requests of the batches that touch it."""
    table = request_shapes
    query = (
        select(table.c.model, func.sum(table.c.requests))
        .where(table.c.first_at < until, table.c.last_at >= since)
        .group_by(table.c.model)
    )
    return {str(model): int(count) for model, count in await connection.execute(query)}


async def forget_shapes(connection: AsyncConnection, keep_days: int, max_bytes: int) -> int:
    """Delete batches older than `keep_days`, then the oldest until the rest takes at most `max_bytes`.

    Returns how many rows.
    """
    table = request_shapes
    now = (await connection.execute(select(func.clock_timestamp()))).scalar_one()
    old = await connection.execute(delete(table).where(table.c.last_at < now - timedelta(days=keep_days)))
    beyond = await connection.execute(
        text(
            "DELETE FROM request_shapes WHERE id IN (SELECT id FROM (SELECT id, "
            "sum(octet_length(data)) OVER (ORDER BY last_at DESC, id) AS upto FROM request_shapes) AS sizes "
            "WHERE upto > :most)"
        ),
        {"most": max_bytes},
    )
    return old.rowcount + beyond.rowcount


def _instant(unix_ms: int) -> datetime:
    return datetime.fromtimestamp(unix_ms / 1000, UTC)
