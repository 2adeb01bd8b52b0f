"""Settlement: writes ended requests to PostgreSQL in small batches, idempotently.

A batch is BATCH_ROWS rows or BATCH_WINDOW_S seconds, so that it locks accounts for a short time. While PostgreSQL is
away, the batch is retried without end; the backlog holds request ids, and the records stay in the spool. A record whose
data PostgreSQL refuses is parked in `settle_errors`, and the others are settled.

A batch locks the accounts of all its tenants until it commits. One that waited for a locked account would keep the
others from their holds, so requests of a locked account are settled apart, on a connection of their own.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from uuid import UUID

from prometheus_client import Gauge

from billing.metering.records import UsageRecord
from billing.metering.settle_calls import SettleConnection
from core.supervise import supervise

log = logging.getLogger(__name__)

BATCH_ROWS = 50
"""Rows of a batch without a backlog."""
BACKLOG_ROWS = 500
"""Rows of a batch while more than this many requests wait, to save commits."""
BATCH_WINDOW_S = 0.1
"""Seconds after which a batch is sent that is not full."""
MAX_RECORDS_IN_MEMORY = 1000
"""Further records are dropped from memory and read back from the spool when they are settled."""

BACKLOG = Gauge("penstock_settlement_backlog", "Ended requests that PostgreSQL does not have yet.")


class PendingSettlement:
    """An ended request in the settlement queue, with its record, or None to `load` it from a spool.

    Calls either `on_done` (settled or parked) or `on_unreadable` (the record cannot be read back), exactly once.
    """

    __slots__ = ("load", "on_done", "on_unreadable", "record", "request_id")

    def __init__(
        self,
        request_id: UUID,
        record: UsageRecord | None,
        load: Callable[[UUID], UsageRecord | None],
        on_done: Callable[[UUID], None],
        on_unreadable: Callable[[UUID], None],
    ) -> None:
        self.request_id = request_id
        self.record = record
        self.load = load
        self.on_done = on_done
        self.on_unreadable = on_unreadable


class Settlement:
    """The settlement queue of one process, and the tasks that empty it."""

    def __init__(
        self, database_url: str, *, batch_rows: int = BATCH_ROWS, window_s: float = BATCH_WINDOW_S
    ) -> None:
        self._connection = SettleConnection(database_url)
        self._apart_connection = SettleConnection(database_url)
        self._batch_rows = batch_rows
        self._window_s = window_s
        self._queue: deque[PendingSettlement] = deque()
        self._apart: dict[UUID, deque[PendingSettlement]] = {}
        """Requests of tenants whose account was found locked."""
        self._in_memory = 0
        self._wake = asyncio.Event()
        self._wake_apart = asyncio.Event()
        self._full = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def backlog(self) -> int:
        """Requests that are not settled yet."""
        return len(self._queue) + sum(map(len, self._apart.values()))

    async def start(self) -> None:
        """Start the tasks."""
        BACKLOG.set_function(lambda: self.backlog)
        self._tasks = [supervise("settlement", self._run), supervise("settlement-apart", self._run_apart)]

    def submit(self, item: PendingSettlement) -> None:
        """Queue a request; it leaves the queue only when it is settled, parked or unreadable."""
        if item.record is not None:
            # A record that is in no spool must stay in memory.
            if self._in_memory >= MAX_RECORDS_IN_MEMORY and item.load(item.request_id) is not None:
                item.record = None
            else:
                self._in_memory += 1
        self._queue.append(item)
        self._idle.clear()
        self._wake.set()
        if len(self._queue) >= self._batch_rows:
            self._full.set()

    async def drain(self, timeout_s: float) -> bool:
        """Settle without waiting for full batches; False when the queue is not empty after `timeout_s` seconds."""
        self._draining = True
        self._full.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        return self._idle.is_set()

    async def close(self) -> None:
        """Stop the tasks and disconnect; queued records stay in the spool."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._connection.close()
        await self._apart_connection.close()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            if not self._draining and len(self._queue) < self._batch_rows:
                self._full.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._full.wait(), self._window_s)
            try:
                await self._settle_batch()
            finally:
                self._note_idle()
            if not self._queue:
                self._wake.clear()

    async def _run_apart(self) -> None:
        while True:
            await self._wake_apart.wait()
            try:
                for tenant_id in list(self._apart):
                    self._apart[tenant_id] = self._apart.pop(
                        tenant_id
                    )  # after an error the next one comes first
                    await self._settle_apart(tenant_id)
            finally:
                self._note_idle()
            if not self._apart:
                self._wake_apart.clear()

    def _note_idle(self) -> None:
        if not self._queue and not self._apart:
            self._idle.set()

    async def _settle_batch(self) -> None:
        """Settle or park the oldest requests of the queue, and put those of locked accounts apart."""
        rows = BACKLOG_ROWS if len(self._queue) > BACKLOG_ROWS else self._batch_rows
        batch = [self._queue[i] for i in range(min(len(self._queue), rows))]
        loaded = [(item, _load(item)) for item in batch]
        apart = set(self._apart)
        records = [record for _, record in loaded if record is not None]
        locked = apart | await self._connection.settle(
            [record for record in records if record.open.tenant_id not in apart]
        )
        for item, record in loaded:
            self._queue.popleft()
            if record is not None and record.open.tenant_id in locked:
                self._apart.setdefault(record.open.tenant_id, deque()).append(item)
                self._wake_apart.set()
            else:
                self._finish(item, record)

    async def _settle_apart(self, tenant_id: UUID) -> None:
        """Settle the oldest requests of a tenant that is apart, unless its account is still locked."""
        items = self._apart[tenant_id]
        loaded = [(items[i], _load(items[i])) for i in range(min(len(items), self._batch_rows))]
        if await self._apart_connection.settle([record for _, record in loaded if record is not None]):
            return
        for item, record in loaded:
            items.popleft()
            self._finish(item, record)
        if not items:
            del self._apart[tenant_id]

    def _finish(self, item: PendingSettlement, record: UsageRecord | None) -> None:
        if item.record is not None:
            self._in_memory -= 1
        (item.on_unreadable if record is None else item.on_done)(item.request_id)


def _load(item: PendingSettlement) -> UsageRecord | None:
    record = item.record or item.load(item.request_id)
    if record is None:
        log.error("the record of request %s cannot be read back", item.request_id)
    return record
