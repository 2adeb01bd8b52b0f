"""Writes collected data to PostgreSQL every few seconds; placement never waits for it."""

import asyncio
import logging
from abc import ABC, abstractmethod

from prometheus_client import Counter

from core.db import Database
from core.supervise import supervise

STORE_TIMEOUT_S = 10.0
"""Timeout of one round, in seconds."""
CLOSE_S = 5.0
"""Seconds for which `close` waits for the last round."""


class StoreLoop(ABC):
    """A background task that writes every few seconds. While PostgreSQL is away it logs once and continues to try."""

    def __init__(self, database: Database, what: str, *, every_s: float, failures: Counter) -> None:
        """`what` names the stored data in log messages, in the plural; `failures` counts failed rounds."""
        self.database = database
        self._what, self._every_s, self._failures = what, every_s, failures
        self._log = logging.getLogger(type(self).__module__)
        self._task: asyncio.Task[None] | None = None
        self._failing = False

    @abstractmethod
    async def write(self) -> None:
        """Store the due data. Data that is not stored when this raises must stay due."""

    async def start(self) -> None:
        """Start the background task."""
        self._task = supervise(f"store-{type(self).__name__}", self._run)

    async def close(self) -> None:
        """Store the rest if PostgreSQL answers within CLOSE_S."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_S)
            if not self._task.done():
                return
        await asyncio.wait({asyncio.create_task(self.store())}, timeout=CLOSE_S)

    async def store(self) -> None:
        """Run one round. Never raises."""
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await self.write()
        except Exception as error:  # noqa: BLE001 - whatever PostgreSQL does, placement goes on; the next round retries
            self._failures.inc()
            if not self._failing:
                self._log.warning(
                    "%s cannot be stored, trying again every %s s: %s", self._what, self._every_s, error
                )
            self._failing = True
            return
        if self._failing:
            self._log.info("%s are stored again", self._what)
        self._failing = False

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.store()
