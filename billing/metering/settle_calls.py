"""Calls of `penstock_settle` on one connection: with retries, and without waiting for an account that stays locked."""

import logging
from collections import Counter
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import msgspec
from prometheus_client import Counter as MetricCounter

from billing.metering.dedicated_connection import (
    RETRYABLE_ERRORS,
    Backoff,
    ConnectionUnavailable,
    DedicatedConnection,
)
from billing.metering.records import UsageRecord

log = logging.getLogger(__name__)

LOCK_TIMEOUT_MS = 100
"""Milliseconds that a batch waits for the lock of an account, while it holds the locks of others (lock_timeout)."""
_RECORD_ERROR_CLASSES = ("22", "23", "P0")
"""SQLSTATE classes caused by the data: data exception, integrity constraint violation, error raised by a function."""
_ENCODING_ERRORS = (ValueError, TypeError, OverflowError, msgspec.MsgspecError)
"""Errors of a record that cannot be encoded."""
_LOCKED = (
    "WITH free AS MATERIALIZED (SELECT tenant_id FROM billing_accounts WHERE tenant_id = ANY ($1) "
    "ORDER BY tenant_id FOR UPDATE SKIP LOCKED) "
    "SELECT tenant_id FROM billing_accounts WHERE tenant_id = ANY ($1) AND tenant_id NOT IN (TABLE free)"
)
"""The tenants among $1 whose account another transaction has locked."""

SETTLED = MetricCounter("penstock_settled_total", "Requests settled, by result.", ["result"])


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
    gpu: str


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
        opened.gpu,
    )


def unbilled_rows(record: UsageRecord) -> list[dict[str, Any]]:
    """The JSON objects that `penstock_settle_with_unbilled` reads, one per attempt and cause."""
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


class LabelColumns(NamedTuple):
    """The labels of a batch as `penstock_settle_labelled` takes them: an element of each list for each label."""

    requests: list[UUID]
    tenants: list[UUID]
    names: list[str]
    values: list[str]


def label_columns(records: list[UsageRecord]) -> LabelColumns:
    """The labels of the records; the name of the end user is `user`."""
    columns = LabelColumns([], [], [], [])
    for record in records:
        opened = record.open
        if opened.labels is None:
            continue
        named = {"user": opened.labels.end_user, **opened.labels.tags}
        for name, value in named.items():
            if value:
                columns.requests.append(opened.request_id)
                columns.tenants.append(opened.tenant_id)
                columns.names.append(name)
                columns.values.append(value)
    return columns


class SettleConnection:
    """A connection that settles records, one batch at a time."""

    def __init__(self, database_url: str) -> None:
        self._connection = DedicatedConnection(database_url, lock_timeout_ms=LOCK_TIMEOUT_MS)

    async def close(self) -> None:
        """Disconnect."""
        await self._connection.close()

    async def settle(self, records: list[UsageRecord]) -> set[UUID]:
        """Settle or park the records; waits for as long as PostgreSQL is away.

        Returns the tenants whose account is locked by another transaction; their records are not settled.
        """
        locked: set[UUID] = set()
        backoff = Backoff()
        while records:
            try:
                await self._send(records)
                break
            except asyncpg.LockNotAvailableError as error:
                found = await self._find_locked(records)
                if found:
                    locked |= found
                    records = [record for record in records if record.open.tenant_id not in found]
                    continue
                log.warning("settlement waits for a lock: %s", error)
            except (ConnectionUnavailable, *RETRYABLE_ERRORS) as error:
                log.warning("settlement waits for PostgreSQL: %s", error)
            except (asyncpg.PostgresError, *_ENCODING_ERRORS) as error:
                if not _is_record_error(error):
                    log.error("settlement waits, PostgreSQL refuses: %s", error)
                elif len(records) > 1:
                    for record in records:
                        locked |= await self.settle([record])
                    break
                elif await self._park(records[0], str(error)):
                    break
            await backoff.wait()
        return locked

    async def _find_locked(self, records: list[UsageRecord]) -> set[UUID]:
        """The tenants of the records whose account is locked now; empty when PostgreSQL does not answer."""
        try:
            rows = await self._connection.fetch(_LOCKED, list({record.open.tenant_id for record in records}))
        except (ConnectionUnavailable, asyncpg.PostgresError) as error:
            log.warning("which accounts are locked cannot be read: %s", error)
            return set()
        return {row["tenant_id"] for row in rows}

    async def _send(self, records: list[UsageRecord]) -> None:
        batch = [settle_row(record) for record in records]
        unbilled = [note for record in records for note in unbilled_rows(record)]
        labels = label_columns(records)
        if labels.requests:
            rows = await self._connection.fetch(
                "SELECT request_id, result FROM penstock_settle_labelled($1, $2, $3, $4, $5, $6)",
                batch,
                msgspec.json.encode(unbilled).decode(),
                *labels,
            )
        elif unbilled:
            rows = await self._connection.fetch(
                "SELECT request_id, result FROM penstock_settle_with_unbilled($1, $2)",
                batch,
                msgspec.json.encode(unbilled).decode(),
            )
        else:
            rows = await self._connection.fetch("SELECT request_id, result FROM penstock_settle($1)", batch)
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
