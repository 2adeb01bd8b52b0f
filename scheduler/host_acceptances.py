"""Stores what the checks of hosts found, as their heartbeats report it, apart from placement."""

from collections.abc import Awaitable, Callable

from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import Database
from scheduler import metrics
from scheduler.listeners import Listener
from scheduler.store_loop import StoreLoop
from workers.wire import AcceptanceReport, Heartbeat

STORE_EVERY_S = 5.0
"""Seconds between two writes."""
MAX_HOSTS = 10_000
"""Hosts whose reports are kept; those of others wait until some have gone."""

Record = Callable[[AsyncConnection, str, AcceptanceReport], Awaitable[None]]


class HostAcceptances(StoreLoop, Listener):
    """Keeps the latest report of each host, and stores those that have changed."""

    def __init__(self, database: Database, record: Record, *, every_s: float = STORE_EVERY_S) -> None:
        """`record` is workers.host_acceptances.store_acceptance."""
        super().__init__(
            database, "acceptances of hosts", every_s=every_s, failures=metrics.ACCEPTANCE_FAILURES
        )
        self._record = record
        self._latest: dict[str, AcceptanceReport] = {}
        self._stored: dict[str, AcceptanceReport] = {}

    def on_heartbeat(self, beat: Heartbeat, open_placements: Callable[[str], int], at: float) -> None:
        """Take a host's report, without waiting."""
        report = beat.acceptance
        if report is not None and (beat.host_id in self._latest or len(self._latest) < MAX_HOSTS):
            self._latest[beat.host_id] = report

    async def write(self) -> None:
        """Store what has changed in one transaction; on failure it is due in the next round."""
        due = {host: report for host, report in self._latest.items() if self._stored.get(host) != report}
        if not due:
            return
        async with self.database.system() as connection:
            for host, report in sorted(due.items()):
                await self._record(connection, host, report)
        self._stored |= due
