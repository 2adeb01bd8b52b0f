"""Faulty variants of the product and of its SQL, each of which the simulation must notice.

A mutant changes one thing for one schedule.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock
from uuid import UUID

from billing.metering import adoption, hold_queue, holds, meter, settle_calls, settlement, spool
from billing.metering.records import Checkpoint, OpenRecord, Outcome, UsageRecord
from core.tokens import NO_TOKENS
from tests.simulation import platform as simulated
from tests.simulation import sql_model
from tests.simulation.platform import Platform
from tests.simulation.play import Change


def _patch(target: Any, name: str, value: Any) -> Change:
    """A mutant that replaces one attribute."""

    @contextlib.contextmanager
    def change(_: Platform) -> Iterator[None]:
        with mock.patch.object(target, name, value):
            yield

    return change


def _wrap(target: Any, name: str, wrapper: Callable[..., Any]) -> Change:
    """A mutant that replaces a method by `wrapper`, which gets the original first."""
    original = getattr(target, name)

    def replaced(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    return _patch(target, name, replaced)


# -- SQL ---------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _no_idempotency(_: Platform) -> Iterator[None]:
    def book(
        self: sql_model.SqlModel, tenant: UUID, kind: str, debit: str, credit: str, amount: int, source: UUID,
        effective_at: int,
    ) -> None:  # fmt: skip
        transfer = sql_model.Transfer(tenant, debit, credit, amount, effective_at)
        number = sum(key[0] == source for key in self.transfers)
        self.put(self.transfers, (source, kind if not number else f"{kind}{number}"), transfer)

    with (
        mock.patch.object(sql_model.SqlModel, "is_settled", return_value=False),
        mock.patch.object(sql_model.SqlModel, "_book", book),
    ):
        yield


def _reap_renewed(original: Any, self: sql_model.SqlModel, ttl_us: int, gap_us: int, limit: int) -> int:
    """Expire what was admitted a short time ago, whether or not its process renews it."""
    lapsed = [one for one, hold in self.holds.items() if hold.state == "open"]
    for request in lapsed:
        if self.now() - (request.int >> 80) * 1000 > ttl_us // 3:
            self.release([request], "expired")
    return 0


def _hold_without_balance(original: Any, self: sql_model.SqlModel, tenant: UUID, *rest: Any) -> None:
    """Charge what a request costs, without looking at what is left."""
    requests, held, now = rest
    original(self, tenant, requests, dict.fromkeys(requests, 10**15) | held, now)


def _settle_keeps_hold(original: Any, self: sql_model.SqlModel, batch: Any) -> Any:
    """Settle as if no hold were open."""
    kept = {one.request_id: self.holds[one.request_id] for one in batch if one.request_id in self.holds}
    for request in kept:
        del self.holds[request]
    try:
        return original(self, batch)
    finally:
        self.holds.update(kept)


# -- the spool ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _no_sync(_: Platform) -> Iterator[None]:
    module = spool.os
    kept = module.fdatasync
    module.fdatasync = lambda descriptor: None
    try:
        yield
    finally:
        module.fdatasync = kept


def _copy_without_sync(original: Any, self: spool.Spool, compaction: Any) -> None:
    """Copy the live records to the fresh file, and do not wait for the disk."""
    module = spool.os
    kept = module.fdatasync
    module.fdatasync = lambda descriptor: None
    try:
        original(self, compaction)
    finally:
        module.fdatasync = kept


def _write_to_old_file(original: Any, self: spool.Spool, frame: bytes) -> bool:
    """While live records move, write new ones to the old file only."""
    compaction, self._compaction = self._compaction, None
    try:
        return bool(original(self, frame))
    finally:
        self._compaction = compaction


def _drop_end(original: Any, self: meter.Meter, record: UsageRecord) -> None:
    """Settle only what the spool took."""
    if self._open_spool.append(record):
        original(self, record)


def _short_write_counts(descriptor: int, data: bytes, offset: int) -> None:
    """Take a write for whole that was not."""
    spool.os.pwrite(descriptor, data, offset)


def _forget_early(original: Any, self: settlement.Settlement, item: settlement.PendingSettlement) -> None:
    """Free the spool when a request is queued, not when it is settled."""
    original(self, item)
    item.on_done(item.request_id)


# -- adoption ----------------------------------------------------------------------------------------------------------


def _only_ends(original: Any, self: adoption.AdoptedSpool, request_id: UUID) -> UsageRecord | None:
    """Settle only the requests that had ended."""
    record = original(self, request_id)
    if record is not None and self._requests[request_id].usage < 0:
        return UsageRecord(record.open, Outcome.ENGINE_FAILED)
    return record  # type: ignore[no-any-return]


def _no_checkpoint(original: Any, self: adoption.AdoptedSpool, request_id: UUID) -> UsageRecord | None:
    """Settle open lines without their counts."""
    frames = self._requests[request_id]
    frames.checkpoint = -1
    return original(self, request_id)  # type: ignore[no-any-return]


def _keep_earlier_counts(original: Any, self: adoption.AdoptedSpool, frame: Any) -> None:
    """Bill a second attempt the last checkpoint of the first."""
    record = frame.record
    if not isinstance(record, OpenRecord) or record.earlier_attempts == 0:
        original(self, frame)
    else:
        known = self._requests.get(record.request_id)
        kept = known.checkpoint if known is not None else -1
        original(self, frame)
        self._requests[record.request_id].checkpoint = kept


async def _adopt_without_waiting(original: Any, self: meter.Meter, adopted: adoption.AdoptedSpool) -> bool:
    """Take an adopted file for settled once its requests are queued, and remove it."""
    for request_id in adopted:
        record = adopted.load(request_id)
        if record is not None:
            item = settlement.PendingSettlement(
                request_id, record, adopted.load, lambda _: None, lambda _: None
            )
            self._settlement.submit(item)
    return True


@contextlib.contextmanager
def _adopt_living(platform: Platform) -> Iterator[None]:
    module = adoption.fcntl
    kept = module.flock
    module.flock = lambda descriptor, operation: None
    try:
        yield
    finally:
        module.flock = kept


# -- settlement and holds ----------------------------------------------------------------------------------------------


async def _settle_once(original: Any, self: settle_calls.SettleConnection, records: Any) -> set[UUID]:
    """Take a command whose answer was lost for done."""
    with contextlib.suppress(settle_calls.ConnectionUnavailable):
        await self._send(records)
    return set()


async def _never_renew(original: Any, self: holds.HoldManager) -> None:
    """Renew nothing."""


def _keep_abandoned(original: Any, self: hold_queue.HoldQueue, waiter: Any, row: Any) -> None:
    """Keep a hold whose request has given up."""
    if row["verdict"] == "granted":
        self._on_granted(waiter.request.request_id)
    if not waiter.future.done():
        waiter.future.set_result(row)


def _void_settled(original: Any, self: holds.HoldManager, request_ids: Iterable[UUID]) -> None:
    """Stop renewing, by forgetting every hold of the process."""
    self._open.clear()


def _double_ends(original: Any, self: adoption.AdoptedSpool, request_id: UUID) -> UsageRecord | None:
    """Bill a second of tokens more than the last checkpoint says."""
    record = original(self, request_id)
    if record is not None and record.outcome is Outcome.INTERRUPTED:
        usage = record.usage if record.usage != NO_TOKENS else record.extra_unbilled
        return UsageRecord(record.open, record.outcome, type(usage)(usage.input, 0, usage.output + 512))
    return record  # type: ignore[no-any-return]


def _slow_checkpoint(original: Any, self: spool.Spool, record: Any) -> bool:
    """Write one checkpoint in three."""
    if isinstance(record, Checkpoint):
        self.skipped = getattr(self, "skipped", 0) + 1  # type: ignore[attr-defined]
        if self.skipped % 3:  # type: ignore[attr-defined]
            return True
    return bool(original(self, record))


MUTANTS: dict[str, Change] = {
    "settlement without a check for what is settled": _no_idempotency,
    "settlement that leaves the hold open": _wrap(sql_model.SqlModel, "settle", _settle_keeps_hold),
    "settlement that charges more than there is": _wrap(sql_model.SqlModel, "_charge", _hold_without_balance),
    "a reaper that ignores renewals": _wrap(sql_model.SqlModel, "reap", _reap_renewed),
    "a reaper that never runs": _wrap(simulated.reaper, "reap", lambda original, *a, **k: _nothing()),
    "a spool that is not synced": _no_sync,
    "compaction that does not sync its copy": _wrap(spool.Spool, "_copy", _copy_without_sync),
    "compaction that misses what is written meanwhile": _wrap(spool.Spool, "_write", _write_to_old_file),
    "short writes taken for whole": _patch(spool, "_write_all", _short_write_counts),
    "an end that a full spool drops": _wrap(meter.Meter, "settle", _drop_end),
    "frames freed before they are settled": _wrap(settlement.Settlement, "submit", _forget_early),
    "adoption that gives away open lines": _wrap(adoption.AdoptedSpool, "load", _only_ends),
    "adoption without checkpoints": _wrap(adoption.AdoptedSpool, "load", _no_checkpoint),
    "adoption that guesses the last second": _wrap(adoption.AdoptedSpool, "load", _double_ends),
    "adoption of living processes": _adopt_living,
    "settlement that takes a lost answer for done": _wrap(
        settle_calls.SettleConnection, "settle", _settle_once
    ),
    "holds that are not renewed": _wrap(holds.HoldManager, "_renew_all", _never_renew),
    "holds of abandoned requests kept": _wrap(hold_queue.HoldQueue, "_deliver", _keep_abandoned),
    "one settled request ends all renewals": _wrap(holds.HoldManager, "stop_renewing", _void_settled),
    "one checkpoint in three written": _wrap(spool.Spool, "append", _slow_checkpoint),
    "adoption that keeps the counts of an earlier attempt": _wrap(
        adoption.AdoptedSpool, "_index", _keep_earlier_counts
    ),
    "adopted files removed before they are settled": _wrap(
        meter.Meter, "_settle_adopted", _adopt_without_waiting
    ),
}
"""Mutants by what is wrong with them. Most fail within 50 schedules from seed 0 on, the rarest within about 1,000."""


async def _nothing() -> int:
    return 0
