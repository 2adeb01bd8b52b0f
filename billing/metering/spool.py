"""The spool: usage records of an API process on disk until they are settled.

One file per process incarnation, locked while the process lives. `append` writes to the page cache, which survives the
death of the process; a thread also syncs the ends of requests to the disk, those of SYNC_EVERY_S at a time. The file is
preallocated: when it is nearly full the process is not ready, and no record is lost or cut.

Compaction frees space by copying the live frames to a fresh file. While the thread copies and syncs them, new frames
are written to both files. One rename then replaces the old file, so one complete file exists at every instant. After a
failed write or sync the spool takes no record until the live frames have moved to a fresh file in the same way.
"""

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from uuid import UUID

from billing.metering.frames import FILE_HEADER, Record, decode_at, encode
from billing.metering.records import Checkpoint, UsageRecord
from core.supervise import note_failure

log = logging.getLogger(__name__)

SUFFIX = ".spool"
FRESH_SUFFIX = ".spool.new"
_RESERVE_DIVISOR = 10
"""1/10 of the file is reserved for the ends of running requests; with less room the process is not ready."""
_BYTES_PER_END = 1024
"""Room reserved for the end of each running request."""
RETRY_S = 5.0
"""Seconds until a failed compaction is tried again."""
SYNC_EVERY_S = 0.01
"""Seconds for which ends of requests gather before one sync writes them to the disk."""

Span = tuple[int, int]
"""Offset and size of a frame."""


class _Entry:
    """Where the newest frames of one request are in the file."""

    __slots__ = ("checkpoint", "live_bytes", "open", "usage")

    def __init__(self) -> None:
        self.open: Span | None = None
        self.checkpoint: Span | None = None
        self.usage: Span | None = None
        self.live_bytes = 0
        """Bytes of the frames that compaction must keep."""

    def spans(self) -> list[tuple[str, Span]]:
        """The frames that compaction must keep."""
        if self.usage is not None:
            return [("usage", self.usage)]
        found = [("open", self.open), ("checkpoint", self.checkpoint)]
        return [(name, span) for name, span in found if span is not None]


class _Compaction:
    """A running copy of the live frames to a fresh file."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor = descriptor
        self.path = path
        self.tail = len(FILE_HEADER)
        self.frames: list[tuple[_Entry, str, Span, int]] = []
        """Entry, name of the frame, its span in the old file, its offset in the fresh file."""
        self.to_copy: list[tuple[Span, int]] = []
        """Spans that the thread copies, with their new offsets: the frames that were live at the start."""
        self.copy_started = False
        self.copied = False


def create_file(path: Path, capacity: int) -> int:
    """Create a locked, empty spool file of `capacity` preallocated bytes; returns its descriptor. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.posix_fallocate(descriptor, 0, capacity)
        os.pwrite(descriptor, FILE_HEADER, 0)
        os.fsync(descriptor)
    except OSError:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise
    return descriptor


def sync_directory(directory: Path) -> None:
    """Make a creation or rename in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Spool:
    """The spool of the running process, of `capacity` bytes. Raises OSError when the file cannot be created.

    Its methods must be called from one thread, to which `call_soon` schedules a callback. The spool's own thread only
    syncs, copies and creates files.
    """

    def __init__(
        self,
        directory: Path,
        incarnation: str,
        *,
        capacity: int,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self.path = directory / f"{incarnation}{SUFFIX}"
        self._capacity = capacity
        self._call_soon = call_soon
        self._entries: dict[UUID, _Entry] = {}
        self._live_bytes = 0
        self._compaction: _Compaction | None = None
        self._failed = False
        self._closed = False
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._sync_wanted = False
        self._compaction_wanted = False
        """True from the decision to compact, or a failed write, until a compaction has succeeded."""
        self._retry_at = 0.0
        self._creating_file = False
        self._directory_changed = False
        self._to_close: list[int] = []
        directory.mkdir(parents=True, exist_ok=True)
        # Created under another name, so that no process adopts it before it is locked.
        fresh = self._fresh_path()
        fresh.unlink(missing_ok=True)
        self._descriptor = create_file(fresh, capacity)
        fresh.rename(self.path)
        sync_directory(directory)
        self._tail = len(FILE_HEADER)
        self._thread = threading.Thread(target=self._run, name="spool", daemon=True)
        self._thread.start()

    def _fresh_path(self) -> Path:
        return self.path.with_suffix(FRESH_SUFFIX)

    @property
    def ready(self) -> bool:
        """Whether a new request may be admitted: the file can be written and has room for the end of each request."""
        reserve = self._capacity // _RESERVE_DIVISOR + _BYTES_PER_END * len(self._entries)
        return not self._failed and not self._closed and self._capacity - self._tail > reserve

    def append(self, record: Record) -> bool:
        """Write a record; False when it was not written: no room, a failing disk, or a record that is too large.

        Checkpoints are dropped first, when less than half of the reserve is left.
        """
        if isinstance(record, Checkpoint):
            if record.request_id not in self._entries or not self._has_room(
                self._capacity // (2 * _RESERVE_DIVISOR)
            ):
                return False
            field, request_id = "checkpoint", record.request_id
        elif isinstance(record, UsageRecord):
            field, request_id = "usage", record.open.request_id
        else:
            field, request_id = "open", record.request_id
        try:
            frame = encode(record, time.time_ns() // 1_000_000)
        except (ValueError, OverflowError, TypeError) as error:
            log.error("a record of request %s cannot be encoded: %s", request_id, error)
            return False
        if not self._has_room(len(frame)) or not self._write(frame):
            return False
        entry = self._entries.get(request_id)
        if entry is None:
            entry = self._entries[request_id] = _Entry()
        self._index_frame(entry, field, len(frame))
        if field == "usage" and not self._sync_wanted:
            # While a sync is wanted, the thread is awake and has yet to begin it.
            self._sync_wanted = True
            self._wake.set()
        return True

    def load(self, request_id: UUID) -> UsageRecord | None:
        """The usage record of a request, read from the file; None when there is none or it cannot be read."""
        entry = self._entries.get(request_id)
        if entry is None or entry.usage is None:
            return None
        offset, size = entry.usage
        try:
            frame = decode_at(os.pread(self._descriptor, size, offset), 0)
        except OSError as error:
            log.error("the spool %s cannot be read: %s", self.path, error)
            return None
        return frame.record if frame is not None and isinstance(frame.record, UsageRecord) else None

    def mark_settled(self, request_ids: Iterable[UUID]) -> None:
        """Forget settled requests, and request compaction when most of the file is free."""
        for request_id in request_ids:
            entry = self._entries.pop(request_id, None)
            if entry is not None:
                self._live_bytes -= entry.live_bytes
        if (
            not self._compaction_wanted
            and self._tail > self._capacity // 2
            and self._live_bytes < self._capacity // 8
        ):
            self._compaction_wanted = True
            self._wake.set()

    def close(self) -> None:
        """Sync and unlock the file; remove it when every request is settled, else leave it to be adopted.

        A failing disk is logged and does not end the caller's shutdown: the file is adopted as it is.
        """
        if self._closed:
            return
        self._closed = True
        self._closing.set()
        self._wake.set()
        self._thread.join()
        try:
            self._leave_files()
        except OSError as error:
            log.error("the spool %s cannot be closed in order: %s", self.path, error)
        finally:
            os.close(self._descriptor)

    def _leave_files(self) -> None:
        if self._compaction is not None:
            os.close(self._compaction.descriptor)
            self._compaction.path.unlink(missing_ok=True)
            self._compaction = None
        if not self._entries:
            self.path.unlink(missing_ok=True)
        elif not self._failed:
            os.fdatasync(self._descriptor)

    def _has_room(self, size: int) -> bool:
        return not self._failed and not self._closed and self._tail + size <= self._capacity

    def _write(self, frame: bytes) -> bool:
        try:
            _write_all(self._descriptor, frame, self._tail)
            if self._compaction is not None:
                _write_all(self._compaction.descriptor, frame, self._compaction.tail)
        except OSError as error:
            log.error("the spool %s cannot be written: %s", self.path, error)
            self._fail()
            self._wake.set()
            return False
        return True

    def _fail(self) -> None:
        """Take no more records until the live ones have moved to a fresh file, which is tried every RETRY_S."""
        self._failed = self._compaction_wanted = True

    def _index_frame(self, entry: _Entry, field: str, size: int) -> None:
        """Record the position of the frame just written, and advance the tails."""
        span, replaced, before = (self._tail, size), getattr(entry, field), entry.live_bytes
        setattr(entry, field, span)
        if field == "open" and entry.checkpoint is not None:
            # Another attempt begins: the counts of the earlier one are in the open record.
            entry.live_bytes -= entry.checkpoint[1]
            entry.checkpoint = None
        if field == "usage":
            entry.live_bytes = size
        elif entry.usage is None:
            entry.live_bytes += size - (replaced[1] if replaced is not None else 0)
        self._live_bytes += entry.live_bytes - before
        self._tail += size
        if self._compaction is not None:
            self._compaction.frames.append((entry, field, span, self._compaction.tail))
            self._compaction.tail += size

    # -- compaction ------------------------------------------------------------------------------------------------

    def _start_compaction(self, descriptor: int) -> None:
        """In the owner's thread, once the fresh file exists: from here on every frame is written to both files."""
        if self._closed:
            os.close(descriptor)
            self._fresh_path().unlink(missing_ok=True)
            return
        compaction = _Compaction(descriptor, self._fresh_path())
        for entry in self._entries.values():
            for field, span in entry.spans():
                compaction.frames.append((entry, field, span, compaction.tail))
                compaction.tail += span[1]
        compaction.to_copy = [(span, offset) for _, _, span, offset in compaction.frames]
        self._compaction = compaction
        self._wake.set()

    def _finish_compaction(self) -> None:
        """In the owner's thread, once the copies are on the disk: rename the fresh file over the old one."""
        compaction = self._compaction
        if compaction is None or self._closed:
            return
        try:
            if not compaction.copied:
                raise OSError("the live records could not be copied")
            compaction.path.rename(self.path)
        except OSError as error:
            log.warning("the fresh spool file could not take over: %s", error)
            compaction.path.unlink(missing_ok=True)
            self._to_close.append(compaction.descriptor)
            self._retry_at = time.monotonic() + RETRY_S
        else:
            self._compaction_wanted = self._failed = False
            for entry, field, span, offset in compaction.frames:
                if getattr(entry, field) == span:
                    setattr(entry, field, (offset, span[1]))
            self._to_close.append(self._descriptor)
            self._descriptor, self._tail = compaction.descriptor, compaction.tail
            self._directory_changed = True
            self._sync_wanted = True
        self._compaction = None  # from here on the thread may create another fresh file of the same name
        self._wake.set()

    # -- the thread: everything that blocks on the disk ------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.wait(RETRY_S if self._compaction_wanted else None)
            self._wake.clear()
            self._closing.wait(SYNC_EVERY_S)
            closing = self._closed
            try:
                self._run_once()
            except OSError as error:
                log.error("the spool %s cannot be synced: %s", self.path, error)
                self._fail()
            except Exception:
                log.exception("the thread of the spool %s failed; it goes on", self.path)
                note_failure("spool")
                self._fail()
            if closing:
                return

    def _run_once(self) -> None:
        if self._directory_changed:
            self._directory_changed = False
            sync_directory(self.path.parent)
        if self._sync_wanted:
            self._sync_wanted = False
            compaction = self._compaction
            os.fdatasync(self._descriptor)
            if compaction is not None:
                os.fdatasync(compaction.descriptor)
        while self._to_close:
            os.close(self._to_close.pop())
        if self._closed:
            return
        wanted = self._compaction_wanted and time.monotonic() >= self._retry_at
        if wanted and self._compaction is None and not self._creating_file:
            try:
                self._fresh_path().unlink(missing_ok=True)
                descriptor = create_file(self._fresh_path(), self._capacity)
            except OSError as error:
                # No room for a second file: continue with the first. A timer retries, because a full spool admits no
                # request whose settlement would ask for compaction again.
                log.warning("no fresh spool file: %s", error)
                self._retry_at = time.monotonic() + RETRY_S
                return
            self._creating_file = True
            self._call_soon(lambda: self._start_compaction(descriptor))
        elif self._compaction is not None and not self._compaction.copy_started:
            try:
                self._copy(self._compaction)
            finally:
                self._creating_file = False
                self._call_soon(self._finish_compaction)

    def _copy(self, compaction: _Compaction) -> None:
        compaction.copy_started = True
        try:
            for (source, size), offset in compaction.to_copy:
                _write_all(compaction.descriptor, os.pread(self._descriptor, size, source), offset)
            os.fdatasync(compaction.descriptor)
        except OSError as error:
            log.warning("copying the spool failed: %s", error)
        else:
            compaction.copied = True


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    written = os.pwrite(descriptor, data, offset)
    if written != len(data):
        raise OSError(f"wrote {written} of {len(data)} bytes")
