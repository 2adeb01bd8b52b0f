"""Settlement: writes ended requests to PostgreSQL in small batches, idempotently.

A batch is BATCH_ROWS rows or BATCH_WINDOW_S seconds, so that it locks accounts for a short time. While PostgreSQL is
away, the batch is retried without end; the backlog holds request ids, and the records stay in the spool. A record whose
data PostgreSQL refuses is parked in `settle_errors`, and the others are settled.
"""

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import msgspec
from prometheus_client import Counter as MetricCounter
from prometheus_client import Gauge

from billing.metering.dedicated_connection import (
    RETRYABLE_ERRORS,
    Backoff,
    ConnectionUnavailable,
    DedicatedConnection,
)
from billing.metering.records import UsageRecord

log = logging.getLogger(__name__)

BATCH_ROWS = 50
"""Rows of a batch without a backlog."""
BACKLOG_ROWS = 500
"""Rows of a batch while more than this many requests wait, to save commits."""
BATCH_WINDOW_S = 0.1
"""Seconds after which a batch is sent that is not full."""
MAX_RECORDS_IN_MEMORY = 1000
"""Further records are dropped from memory and read back from the spool when they are settled."""
_RECORD_ERROR_CLASSES = ("22", "23", "P0")
"""SQLSTATE classes caused by the data: data exception, integrity constraint violation, error raised by a function."""
_ENCODING_ERRORS = (ValueError, TypeError, OverflowError, msgspec.MsgspecError)
"""Errors of a record that cannot be encoded."""

SETTLED = MetricCounter("penstock_settled_total", "Requests settled, by result.", ["result"])
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


class SettleRow(NamedTuple):
    """A record as `penstock_settle` takes it: the attributes of the PostgreSQL type `settle_record`, in their order."""

    request_id: UUID
    tenant_id: UUID
    project_id: UUID
    key_id: UUID
    model: str
    tier: str
    region: str
    replica_id: str
    boot_id: str
    admitted_at: datetime
    outcome: str
    free: bool
    attempts: int
    stream: bool
    simulated: bool
    price_version: int
    list_price_version: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    unbilled_input_tokens: int
    unbilled_output_tokens: int
    queue_us: int
    ttft_us: int
    duration_us: int


def settle_row(record: UsageRecord) -> SettleRow:
    """The row of a usage record."""
    opened, usage, extra = record.open, record.usage, record.extra_unbilled
    return SettleRow(
        opened.request_id,
        opened.tenant_id,
        opened.project_id,
        opened.key_id,
        opened.model,
        opened.tier,
        opened.region,
        opened.replica_id,
        opened.boot_id,
        opened.admitted_at,
        record.outcome.value,
        record.outcome.free,
        record.attempts,
        opened.stream,
        opened.simulated,
        opened.price.id,
        opened.list_price.id,
        usage.input,
        usage.cached_input,
        usage.output,
        usage.reasoning,
        extra.input,
        extra.output,
        record.queue_us,
        record.ttft_us,
        record.duration_us,
    )


def unbilled_rows(record: UsageRecord) -> list[dict[str, Any]]:
    """The JSON objects that `penstock_note_unbilled` reads, one per attempt and cause."""
    return [
        {
            "request_id": record.open.request_id,
            "part": part,
            "replica_id": one.replica_id,
            "boot_id": one.boot_id,
            "cause": one.cause,
            "input_tokens": one.input,
            "output_tokens": one.output,
            "tail_input": one.tail_input,
            "tail_output": one.tail_output,
            "again_us": one.again_us,
        }
        for part, one in enumerate(record.unbilled)
    ]


class Settlement:
    """The settlement queue of one process, and the task that empties it."""

    def __init__(
        self, database_url: str, *, batch_rows: int = BATCH_ROWS, window_s: float = BATCH_WINDOW_S
    ) -> None:
        self._connection = DedicatedConnection(database_url)
        self._batch_rows = batch_rows
        self._window_s = window_s
        self._queue: deque[PendingSettlement] = deque()
        self._in_memory = 0
        self._wake = asyncio.Event()
        self._full = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._task: asyncio.Task[None] | None = None

    @property
    def backlog(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    async def start(self) -> None:
        """Start the task."""
        self._task = asyncio.create_task(self._run())

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
        """Stop the task and disconnect; queued records stay in the spool."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._connection.close()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            if not self._draining and len(self._queue) < self._batch_rows:
                self._full.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._full.wait(), self._window_s)
            try:
                await self._settle_batch()
            except Exception:
                # A bug must not end settlement for the life of this process; the records are in the spool.
                log.exception("settlement failed")
                await asyncio.sleep(1.0)
            BACKLOG.set(len(self._queue))
            if not self._queue:
                self._wake.clear()
                self._idle.set()

    async def _settle_batch(self) -> None:
        """Settle or park the oldest requests of the queue."""
        rows = BACKLOG_ROWS if len(self._queue) > BACKLOG_ROWS else self._batch_rows
        batch = [self._queue[i] for i in range(min(len(self._queue), rows))]
        loaded = [(item, item.record or item.load(item.request_id)) for item in batch]
        records = [record for _, record in loaded if record is not None]
        for item, record in loaded:
            if record is None:
                log.error("the record of request %s cannot be read back", item.request_id)
        if records:
            await self._settle_with_retries(records)
        for item, record in loaded:
            self._queue.popleft()
            if item.record is not None:
                self._in_memory -= 1
            (item.on_unreadable if record is None else item.on_done)(item.request_id)

    async def _settle_with_retries(self, records: list[UsageRecord]) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._send(records)
            except (ConnectionUnavailable, *RETRYABLE_ERRORS) as error:
                log.warning("settlement waits for PostgreSQL: %s", error)
            except (asyncpg.PostgresError, *_ENCODING_ERRORS) as error:
                if not _is_record_error(error):
                    log.error("settlement waits, PostgreSQL refuses: %s", error)
                elif len(records) > 1:
                    for record in records:
                        await self._settle_with_retries([record])
                    return
                elif await self._park(records[0], str(error)):
                    return
            else:
                return
            await backoff.wait()

    async def _send(self, records: list[UsageRecord]) -> None:
        if unbilled := [note for record in records for note in unbilled_rows(record)]:
            # Before the usage rows, so that no row exists without its unbilled counts; the function is idempotent.
            await self._connection.fetch(
                "SELECT penstock_note_unbilled($1)", msgspec.json.encode(unbilled).decode()
            )
        rows = await self._connection.fetch(
            "SELECT request_id, result FROM penstock_settle($1)",
            [settle_row(record) for record in records],
        )
        for result, count in Counter(row["result"] for row in rows).items():
            SETTLED.labels(result).inc(count)
        for row in rows:
            if row["result"] == "parked":
                log.error("request %s could not be billed; see settle_errors", row["request_id"])

    async def _park(self, record: UsageRecord, reason: str) -> bool:
        """Store one record in `settle_errors`; False when that failed too and must be retried."""
        log.error("request %s could not be billed (%s); see settle_errors", record.open.request_id, reason)
        try:
            await self._connection.fetch(
                "SELECT penstock_park($1, $2, $3)",
                record.open.request_id,
                reason.replace("\x00", "\N{REPLACEMENT CHARACTER}")[:2000],
                repr(record).encode(errors="backslashreplace"),
            )
        except (ConnectionUnavailable, asyncpg.PostgresError, *_ENCODING_ERRORS) as error:
            log.error("and could not be parked: %s", error)
            return False
        SETTLED.labels("parked").inc()
        return True


def _is_record_error(error: Exception) -> bool:
    if not isinstance(error, asyncpg.PostgresError):
        return True
    return (error.sqlstate or "").startswith(_RECORD_ERROR_CLASSES)
