"""Stores what the checks of hosts found, as their heartbeats report it, apart from placement."""

import logging
from collections.abc import Awaitable, Callable

from sqlalchemy.exc import DataError
from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import Database
from scheduler import metrics
from scheduler.listeners import Listener
from scheduler.store_loop import StoreLoop
from workers.wire import AcceptanceReport, Heartbeat

STORE_EVERY_S = 5.0
"""Seconds between two writes."""
MAX_HOSTS = 10_000
"""Hosts of which is remembered what is stored; a report of another one is stored once more."""

Record = Callable[[AsyncConnection, str, AcceptanceReport], Awaitable[None]]

log = logging.getLogger(__name__)


class HostAcceptances(StoreLoop, Listener):
    """Stores each host's report when it has changed."""

    def __init__(self, database: Database, record: Record, *, every_s: float = STORE_EVERY_S) -> None:
        """`record` is workers.host_acceptances.store_acceptance."""
        super().__init__(
            database, "acceptances of hosts", every_s=every_s, failures=metrics.ACCEPTANCE_FAILURES
        )
        self._record = record
        self._due: dict[str, AcceptanceReport] = {}
        self._stored: dict[str, AcceptanceReport] = {}
        """What is stored, or was refused; the host that was heard of last at the end."""

    def on_heartbeat(self, beat: Heartbeat, open_placements: Callable[[str], int], at: float) -> None:
        """Take a host's report, without waiting."""
        report = beat.acceptance
        if report is None or self._stored.get(beat.host_id) == report:
            return
        if beat.host_id in self._due or len(self._due) < MAX_HOSTS:
            self._due[beat.host_id] = report

    async def write(self) -> None:
        """Store what has changed in one transaction; on failure it is due in the next round.

        A report that PostgreSQL refuses is logged and dropped, and holds up no other.
        """
        due = dict(self._due)
        if not due:
            return
        async with self.database.system() as connection:
            for host, report in sorted(due.items()):
                try:
                    async with connection.begin_nested():
                        await self._record(connection, host, report)
                except DataError as error:
                    log.error("the acceptance of host %s cannot be stored: %s", host, error.orig)
        for host, report in due.items():
            self._stored.pop(host, None)
            self._stored[host] = report
            if self._due.get(host) == report:
                del self._due[host]
        for host in list(self._stored)[: max(0, len(self._stored) - MAX_HOSTS)]:
            del self._stored[host]
