"""The targets that an admin has stored in PostgreSQL, as the scheduler knows them.

They are read in the background, so that no placement waits for the database.
"""

import asyncio
import logging
from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import Database
from core.supervise import supervise
from workers.service_level import Tier, with_stored
from workers.tables import model_targets
from workers.wire import Targets, TierTargets

POLL_S = 2.0
"""Seconds between two reads."""
READ_TIMEOUT_S = 10.0
"""Timeout of one read, in seconds."""

Stored = Mapping[str, Mapping[Tier, TierTargets]]
"""Stored targets by model and tier."""

log = logging.getLogger(__name__)


async def read_targets(connection: AsyncConnection) -> Stored:
    """The stored targets of every model that has any."""
    found: dict[str, dict[Tier, TierTargets]] = {}
    for row in await connection.execute(select(model_targets)):
        found.setdefault(row.model, {})[row.tier] = TierTargets(row.ttft_s, row.tpot_s)
    return found


class TargetDirectory:
    """The stored targets, read every POLL_S. The last ones stay in force while PostgreSQL does not answer."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stored: Stored = {}
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Read the targets in the background, at once and then every POLL_S."""
        self._task = supervise("targets", self._poll)

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def applied(self, model: str, targets: Targets) -> Targets:
        """The targets of a model: `targets`, the catalog's, with the stored ones in their place."""
        return with_stored(targets, self._stored.get(model, {}))

    async def refresh(self) -> None:
        """Read the targets now. Never raises: a failure is logged once, and the next round tries again."""
        try:
            async with asyncio.timeout(READ_TIMEOUT_S), self._database.read() as connection:
                self._stored = await read_targets(connection)
        except Exception as error:  # noqa: BLE001 - whatever PostgreSQL does, placement goes on with the last targets
            if not self._failing:
                log.warning("targets cannot be read; the last known ones stay in force: %s", error)
            self._failing = True
            return
        self._failing = False

    async def _poll(self) -> None:
        while True:
            await self.refresh()
            await asyncio.sleep(POLL_S)
