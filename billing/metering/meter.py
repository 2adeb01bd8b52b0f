"""The meter of one API process: records each admitted request in the spool, then in PostgreSQL, exactly once.

    open        before dispatch; from here on the request gets one usage row even if this process dies
    checkpoint  once a second while the request runs
    settle      when the request has ended

The meter also adopts the spools of dead processes of this host. It settles their ended requests (settlement is
idempotent) and settles their open ones as `interrupted` with the counts of the last checkpoint.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from uuid import UUID

from billing.metering.adoption import AdoptedSpool, adopt
from billing.metering.records import Checkpoint, OpenRecord, UsageRecord
from billing.metering.refusals import billing_unavailable
from billing.metering.settlement import PendingSettlement, Settlement
from billing.metering.spool import Spool
from core.supervise import supervise

log = logging.getLogger(__name__)

SPOOL_BYTES = 128 << 20
"""Size of the spool file: room for about 100,000 unsettled requests."""
ADOPT_EVERY_S = 5.0
"""Seconds between two searches for spools of dead processes."""
DRAIN_S = 10.0
"""Seconds that `close` waits for settlement."""
_MAX_ADOPTED_QUEUED = 500
"""Adopted requests in the settlement queue at a time, so that they do not delay this process's own."""


class Meter:
    """Spool and settlement of one process; `on_settled` is called with the ids of settled requests."""

    def __init__(
        self,
        database_url: str,
        spool_dir: Path,
        incarnation: str,
        *,
        spool_bytes: int = SPOOL_BYTES,
        adopt_every_s: float = ADOPT_EVERY_S,
        drain_s: float = DRAIN_S,
        on_settled: Callable[[Iterable[UUID]], None] | None = None,
    ) -> None:
        self._spool_dir = spool_dir
        self._incarnation = incarnation
        self._spool_bytes = spool_bytes
        self._adopt_every_s = adopt_every_s
        self._drain_s = drain_s
        self._on_settled = on_settled
        self._settlement = Settlement(database_url)
        self._spool: Spool | None = None
        self._adoption_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Create the spool, start settlement and adoption. Raises OSError when the spool cannot be created."""
        loop = asyncio.get_running_loop()

        def call_soon(callback: Callable[[], None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended; another process adopts the file
                loop.call_soon_threadsafe(callback)

        self._spool = await asyncio.to_thread(
            Spool, self._spool_dir, self._incarnation, capacity=self._spool_bytes, call_soon=call_soon
        )
        await self._settlement.start()
        self._adoption_task = supervise("adoption", self._run_adoption)

    async def close(self) -> None:
        """Settle for at most `drain_s` and stop; the rest stays in the spool for another process."""
        if self._adoption_task is not None:
            self._adoption_task.cancel()
            await asyncio.gather(self._adoption_task, return_exceptions=True)
        if not await self._settlement.drain(self._drain_s):
            log.warning("%d requests are left in the spool for the next process", self._settlement.backlog)
        await self._settlement.close()
        if self._spool is not None:
            await asyncio.to_thread(self._spool.close)

    @property
    def ready(self) -> bool:
        """False when the spool is full or cannot be written: no request may be admitted."""
        return self._spool is not None and self._spool.ready

    @property
    def backlog(self) -> int:
        """Ended requests that are not settled yet."""
        return self._settlement.backlog

    def open(self, record: OpenRecord) -> None:
        """Record an admitted request before its dispatch. Raises Unavailable when the spool cannot be written."""
        if not self._open_spool.append(record):
            log.error("the usage spool %s is full or cannot be written", self._open_spool.path)
            raise billing_unavailable()

    def checkpoint(self, record: Checkpoint) -> None:
        """Record a running request's counts; dropped when the spool has little room."""
        self._open_spool.append(record)

    def settle(self, record: UsageRecord) -> None:
        """Settle an ended request. Never raises for an outage: without room on the disk the record stays in memory."""
        spool = self._open_spool
        if not spool.append(record):
            log.error(
                "the usage spool took no end of request %s; it is kept in memory", record.open.request_id
            )
        self._settlement.submit(
            PendingSettlement(record.open.request_id, record, spool.load, self._settled, self._leave_in_spool)
        )

    @property
    def _open_spool(self) -> Spool:
        if self._spool is None:
            raise RuntimeError("the meter was not started")
        return self._spool

    def _settled(self, request_id: UUID) -> None:
        self._open_spool.mark_settled((request_id,))
        if self._on_settled is not None:
            self._on_settled((request_id,))

    def _leave_in_spool(self, request_id: UUID) -> None:
        """Do nothing: the unreadable record keeps the file, and the process that adopts the file quarantines it."""

    # -- adoption --------------------------------------------------------------------------------------------------

    async def _run_adoption(self) -> None:
        while True:
            try:
                while await self._adopt_one():
                    pass
            except Exception:
                # A failing disk or a bug must not end adoption for the life of this process.
                log.exception("adopting spools failed")
            await asyncio.sleep(self._adopt_every_s)

    async def _adopt_one(self) -> bool:
        """Adopt one spool and settle all of its requests; False when there is none to adopt."""
        adopted = await asyncio.to_thread(adopt, self._spool_dir, self._open_spool.path)
        if adopted is None:
            return False
        complete = False
        try:
            complete = await self._settle_adopted(adopted)
        finally:
            adopted.release(remove=complete)
        log.info("adopted %s: %d requests settled", adopted.path.name, len(adopted))
        return True

    async def _settle_adopted(self, adopted: AdoptedSpool) -> bool:
        """Settle the requests of a spool; True when all are settled. Quarantines a spool with unreadable records."""
        waiting: set[UUID] = set()
        progress = asyncio.Event()
        unreadable = False

        def on_done(request_id: UUID) -> None:
            waiting.discard(request_id)
            progress.set()

        def on_unreadable(request_id: UUID) -> None:
            nonlocal unreadable
            unreadable = True
            on_done(request_id)

        for request_id in adopted:
            record = adopted.load(request_id)
            if record is None:
                log.error("%s: request %s cannot be read", adopted.path.name, request_id)
                unreadable = True
                continue
            while len(waiting) >= _MAX_ADOPTED_QUEUED:
                progress.clear()
                await progress.wait()
            waiting.add(request_id)
            self._settlement.submit(
                PendingSettlement(request_id, record, adopted.load, on_done, on_unreadable)
            )
        while waiting:
            progress.clear()
            await progress.wait()
        if unreadable:
            adopted.quarantine()
        return not unreadable
