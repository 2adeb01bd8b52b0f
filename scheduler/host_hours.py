"""Stores host seconds in PostgreSQL every few seconds, apart from placement: agents have no database credentials."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import Database
from scheduler import metrics
from workers.wire import Heartbeat

STORE_EVERY_S = 5.0
STORE_TIMEOUT_S = 10.0
CLOSE_S = 5.0
MAX_BOOTS = 10_000
"""Accountings (host, boot) kept while PostgreSQL is away; seconds are cumulative, so the latest of each is enough."""

log = logging.getLogger(__name__)
Record = Callable[[AsyncConnection, Heartbeat], Awaitable[None]]


class HostHours:
    """Keeps the latest heartbeat of each accounting until it is stored."""

    def __init__(self, database: Database, record: Record, *, every_s: float = STORE_EVERY_S) -> None:
        """`record` is workers.host_hours.record_heartbeat."""
        self._database, self._record, self._every_s = database, record, every_s
        self._unstored: dict[tuple[str, str], Heartbeat] = {}
        self._task: asyncio.Task[None] | None = None
        self._failing = False

    def heard(self, beat: Heartbeat) -> None:
        """Note a heartbeat; never waits."""
        key = (beat.host_id, beat.boot_id)
        if key in self._unstored or len(self._unstored) < MAX_BOOTS:
            self._unstored[key] = beat

    async def start(self) -> None:
        """Begin to store."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Store what is left, if PostgreSQL answers; a frozen one does not hold up the shutdown."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_S)
            if not self._task.done():
                return
        await asyncio.wait({asyncio.create_task(self.store())}, timeout=CLOSE_S)

    async def store(self) -> None:
        """Store every unstored accounting in one transaction; on failure all are kept for the next round."""
        batch = dict(self._unstored)
        if not batch:
            return
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S), self._database.system() as connection:
                for _, beat in sorted(batch.items()):
                    await self._record(connection, beat)
        except Exception as error:  # noqa: BLE001 - whatever PostgreSQL does, placement goes on; the next round retries
            metrics.HOST_HOURS_FAILURES.inc()
            if not self._failing:
                log.warning(
                    "host seconds cannot be stored, trying again every %s s: %s", self._every_s, error
                )
            self._failing = True
            return
        if self._failing:
            log.info("host seconds are stored again")
        self._failing = False
        for key, beat in batch.items():
            if self._unstored.get(key) is beat:
                del self._unstored[key]

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.store()
