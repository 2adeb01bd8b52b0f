"""Takes the lease when no other scheduler has it, and renews it."""

import asyncio
import logging
import time
from collections.abc import Callable

from scheduler import metrics
from scheduler.lease import POLL_S, RENEW_S, Tenure, Watch
from scheduler.lease_table import LeaseTable, LeaseUnavailable

log = logging.getLogger(__name__)


def boot_seconds() -> float:
    """Seconds since the machine began, those included in which it was suspended: a lease ends meanwhile."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseKeeper:
    """The lease of one process."""

    def __init__(
        self, table: LeaseTable, heard: Callable[[], int], now: Callable[[], float] = boot_seconds
    ) -> None:
        """`heard` returns the highest term that clients and agents have named; `now` is a monotonic clock."""
        self._table, self._heard, self._now = table, heard, now
        self._failing = False

    async def take(self) -> Tenure:
        """Wait until this process has the lease."""
        watch = Watch()
        while True:
            try:
                if (tenure := await self._try(watch)) is not None:
                    return tenure
            except LeaseUnavailable as error:
                watch.silence()
                self._note(error)
            else:
                self._note(None)
            await asyncio.sleep(POLL_S)

    async def _try(self, watch: Watch) -> Tenure | None:
        row = await self._table.read()
        now = self._now()
        watch.saw(row, now)
        if not watch.may_take(row, self._table.owner, now):
            return None
        asked_at = self._now()
        term = await self._table.take(row, self._heard())
        return None if term is None else Tenure(term, asked_at)

    async def renew(self, tenure: Tenure) -> None:
        """Renew the lease until it is lost, which ends `tenure`. While PostgreSQL is away, try again and again."""
        while not tenure.ended:
            asked_at = self._now()
            try:
                if await self._table.renew(tenure.term):
                    tenure.renewed(asked_at, self._now())
                else:
                    tenure.end("another scheduler has taken the lease")
            except LeaseUnavailable as error:
                self._note(error)
                metrics.LEASE_FAILURES.inc()
            else:
                self._note(None)
            await asyncio.sleep(max(0.0, RENEW_S - (self._now() - asked_at)))

    async def release(self, tenure: Tenure) -> None:
        """Give the lease back, so that a standby takes over at once; it takes over later if PostgreSQL is away."""
        try:
            await self._table.release(tenure.term)
        except LeaseUnavailable as error:
            log.warning("the lease cannot be released: %s", error)

    def _note(self, error: LeaseUnavailable | None) -> None:
        """Log the first failure of a series, and its end."""
        if error is not None and not self._failing:
            log.warning("the lease cannot be read or renewed, trying again: %s", error)
        elif error is None and self._failing:
            log.info("the lease is read and renewed again")
        self._failing = error is not None
