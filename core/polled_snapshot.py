"""What a process reads from PostgreSQL into memory, and reads again every few seconds."""

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable

from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import Database
from core.supervise import supervise


class PolledSnapshot(ABC):
    """Rows in memory, polled. When a poll fails, the last ones stay; they are `fresh` for `max_age_s` seconds."""

    def __init__(
        self,
        database: Database,
        what: str,
        *,
        task: str,
        every_s: float,
        max_age_s: float,
        now: Callable[[], float],
    ) -> None:
        """`what` names the rows in log messages, in the plural; `task` names the task that polls.

        `now` returns monotonic seconds.
        """
        self.max_age_s = max_age_s
        self._database = database
        self._what = what
        self._task_name = task
        self._every_s = every_s
        self._now = now
        self._read_at = -math.inf
        self._log = logging.getLogger(type(self).__module__)
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def _read(self, connection: AsyncConnection) -> None:
        """Read the rows and replace those in memory. What it raises leaves those in memory as they are."""

    async def start(self) -> None:
        """Read the rows, then poll. Raises what `refresh` raises."""
        await self.refresh()
        self._task = supervise(self._task_name, self._poll)

    async def close(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def refresh(self) -> None:
        """Read the rows now. Raises errors of SQLAlchemy or OSError when PostgreSQL is unavailable."""
        began = self._now()
        async with self._database.read() as connection:
            await self._read(connection)
        self._read_at = began

    @property
    def age_s(self) -> float:
        """Seconds since the rows were read; infinite before the first time."""
        return self._now() - self._read_at

    @property
    def fresh(self) -> bool:
        """Whether the rows were read within `max_age_s`."""
        return self.age_s <= self.max_age_s

    async def _poll(self) -> None:
        failing = False
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.refresh()
                failing = False
            except Exception:  # noqa: BLE001 - whatever the read meets, the last rows stay, and grow old
                if not failing:
                    self._log.warning(
                        "%s cannot be read; the last known ones stay in force", self._what, exc_info=True
                    )
                failing = True
