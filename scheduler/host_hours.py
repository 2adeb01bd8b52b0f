"""Stores host seconds in PostgreSQL every few seconds, apart from placement: agents have no database credentials."""

from collections.abc import Awaitable, Callable

from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import Database
from scheduler import metrics
from scheduler.listeners import Listener
from scheduler.store_loop import StoreLoop
from workers.wire import Heartbeat

STORE_EVERY_S = 5.0
"""Seconds between two writes."""
MAX_BOOTS = 10_000
"""Pairs of host and boot that are kept while PostgreSQL is away. Seconds are cumulative, so the latest heartbeat of
each is enough."""

Record = Callable[[AsyncConnection, Heartbeat], Awaitable[None]]


class HostHours(StoreLoop, Listener):
    """Keeps the latest heartbeat of each host and boot until it is stored."""

    def __init__(self, database: Database, record: Record, *, every_s: float = STORE_EVERY_S) -> None:
        """`record` is workers.host_hours.record_heartbeat."""
        super().__init__(database, "host seconds", every_s=every_s, failures=metrics.HOST_HOURS_FAILURES)
        self._record = record
        self._unstored: dict[tuple[str, str], Heartbeat] = {}

    def on_heartbeat(self, beat: Heartbeat, open_placements: Callable[[str], int], at: float) -> None:
        """Take a heartbeat, without waiting."""
        key = (beat.host_id, beat.boot_id)
        if key in self._unstored or len(self._unstored) < MAX_BOOTS:
            self._unstored[key] = beat

    async def write(self) -> None:
        """Store all heartbeats in one transaction; on failure they are kept for the next round."""
        batch = dict(self._unstored)
        if not batch:
            return
        async with self.database.system() as connection:
            for _, beat in sorted(batch.items()):
                await self._record(connection, beat)
        for key, beat in batch.items():
            if self._unstored.get(key) is beat:
                del self._unstored[key]
