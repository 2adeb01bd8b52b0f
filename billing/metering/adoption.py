"""Spools of dead processes, which another process of the same host adopts and settles."""

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from billing.metering.frames import Frame, decode_at, parse
from billing.metering.records import TAIL_TOKENS_PER_S, Checkpoint, OpenRecord, Outcome, Unbilled, UsageRecord
from billing.metering.spool import FRESH_SUFFIX, SUFFIX
from core.tokens import NO_TOKENS

log = logging.getLogger(__name__)

_UNFINISHED_AGE_S = 60.0
"""A fresh file is removed when it is older and no process holds its lock."""
TAIL_S = 6
"""Upper bound of the seconds for which an engine went on generating after a dead process's last checkpoint."""


class _RequestFrames:
    """Offsets of one request's newest frames (-1 = none), and the times of its first and last frame."""

    __slots__ = ("checkpoint", "first_ms", "last_ms", "open", "usage")

    def __init__(self, first_ms: int) -> None:
        self.open = self.checkpoint = self.usage = -1
        self.first_ms = self.last_ms = first_ms


class AdoptedSpool:
    """A dead process's spool file: locked by this process, read once, iterated by request id."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._data = path.read_bytes()
        self._requests: dict[UUID, _RequestFrames] = {}
        for frame in parse(self._data):
            self._index(frame)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[UUID]:
        return iter(list(self._requests))

    def load(self, request_id: UUID) -> UsageRecord | None:
        """A request's usage record: the written one, or an `interrupted` one with the counts of its last checkpoint.

        An interrupted request is charged its prompt, where the engine had processed it, and what was streamed.

        None when the records needed for it cannot be read: the hold then expires and nothing is charged.
        """
        frames = self._requests[request_id]
        if frames.usage >= 0:
            record = self._read(frames.usage)
            return record if isinstance(record, UsageRecord) else None
        opened = self._read(frames.open)
        if not isinstance(opened, OpenRecord):
            return None
        checkpoint = self._read(frames.checkpoint)
        usage = checkpoint.usage if isinstance(checkpoint, Checkpoint) else NO_TOKENS
        # Of an answer that is not streamed, nothing has arrived.
        in_row = usage if opened.stream else usage.prompt
        tail = Unbilled(
            "cancelled_tail",
            opened.replica_id,
            opened.boot_id,
            output=usage.output - in_row.output,
            tail_input=max(opened.max_input_tokens - usage.input, 0),
            tail_output=opened.max_output_tokens if opened.whole else TAIL_S * TAIL_TOKENS_PER_S,
        )
        return UsageRecord(
            open=opened,
            outcome=Outcome.INTERRUPTED,
            usage=in_row,
            attempts=opened.earlier_attempts + 1,
            extra_unbilled=opened.earlier_usage + (usage - in_row),
            duration_us=max(frames.last_ms - frames.first_ms, 0) * 1000,
            unbilled=(*opened.earlier_unbilled, tail),
        )

    def quarantine(self) -> None:
        """Rename the file to `*.unreadable`, which no process adopts, and keep it for an operator."""
        self.path = self.path.rename(self.path.with_suffix(".unreadable"))

    def release(self, *, remove: bool) -> None:
        """Unlock the file; `remove` also deletes it. Raises OSError when it cannot be deleted: adopt it again."""
        try:
            if remove:
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self._descriptor)

    def _index(self, frame: Frame) -> None:
        record = frame.record
        request_id = record.open.request_id if isinstance(record, UsageRecord) else record.request_id
        frames = self._requests.setdefault(request_id, _RequestFrames(frame.at_ms))
        frames.last_ms = max(frames.last_ms, frame.at_ms)
        if isinstance(record, UsageRecord):
            frames.usage = frame.offset
        elif isinstance(record, Checkpoint):
            frames.checkpoint = frame.offset
        else:
            frames.open = frame.offset
            frames.checkpoint = -1  # counts of an earlier attempt

    def _read(self, offset: int) -> OpenRecord | Checkpoint | UsageRecord | None:
        frame = decode_at(self._data, offset) if offset >= 0 else None
        return None if frame is None else frame.record


def adopt(directory: Path, own: Path | None) -> AdoptedSpool | None:
    """Lock and read one spool of `directory` whose process is dead, or None. `own` is never adopted."""
    for path in directory.glob(f"*{FRESH_SUFFIX}"):
        _remove_unfinished(path)
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        if path == own:
            continue
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError:
            continue  # removed by the process that settled it, or not readable by this user
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Compaction may have renamed another file to this path between opening and locking.
            if os.stat(path).st_ino != os.fstat(descriptor).st_ino:
                raise BlockingIOError
            return AdoptedSpool(path, descriptor)
        except OSError:
            os.close(descriptor)
    return None


def _remove_unfinished(path: Path) -> None:
    """Remove the fresh file of a process that died while it created or compacted its spool: it is not needed."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A younger file may have been created by a process that has not locked it yet.
        if time.time() - os.fstat(descriptor).st_mtime > _UNFINISHED_AGE_S:
            path.unlink(missing_ok=True)
    except BlockingIOError:
        log.debug("%s is being written", path)
    finally:
        os.close(descriptor)
