"""The events of responses in the background, in Redis: a stream for each, which any process reads while it grows.

An entry has the events of up to WRITE_EVERY_S. Its id is the number of its last event plus 2, since Redis knows no
entry 0 and a reader asks for what follows an id. One task per process writes for all responses and reads for all
readers, so that neither a token nor a reader costs a command of its own. Nothing but the replay depends on Redis.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from core.supervise import supervise

WRITE_EVERY_S = 0.05
"""Seconds between two rounds of writing and reading."""
KEPT_S = 300
"""Seconds that the events of a response are kept after its end."""
RUNNING_KEPT_S = 3600
"""Seconds after its last event at which those of a response whose process has died are deleted."""
MAX_EVENTS_BYTES = 8 * 1024 * 1024
"""Bytes of events that are kept of one response. Of a longer one, the end is read from its stored object."""
MAX_PENDING_BYTES = 1024 * 1024
"""Bytes that one response keeps in memory while Redis does not take them; then its events are given up."""
READ_ENTRIES = 64
"""Entries that one reader gets at a time."""
_SEPARATOR = b"\n\n"

log = logging.getLogger(__name__)


class Entry(msgspec.Struct, frozen=True):
    """Events of a response that follow each other."""

    last: int
    """The number of the last one."""
    events: bytes
    """Server-sent events; may be empty in the last entry."""
    ends: bool
    """Whether the response has ended with it."""

    def after(self, number: int) -> bytes:
        """Return the events with a higher number."""
        parts = self.events.split(_SEPARATOR)[:-1]
        first = self.last - len(parts) + 1
        return b"".join(part + _SEPARATOR for part in parts[max(0, number + 1 - first) :])


class EventLog:
    """The events of one response that this process runs, on their way to Redis."""

    def __init__(self, key: str, changed: asyncio.Event) -> None:
        self.key = key
        self._changed = changed
        self.pending: list[bytes] = []
        self.last = -1
        """The number of the last event."""
        self._size = self._pending_size = 0
        self.given_up = False
        """Whether events are missing from here on: there are too many, or Redis does not take them."""
        self.ended = False

    def add(self, events: bytes, next_number: int) -> None:
        """Add whole events; `next_number` is that of the event after them."""
        if not events:
            return
        self.last = next_number - 1
        self._size += len(events)
        self._pending_size += len(events)
        if self._size > MAX_EVENTS_BYTES or self._pending_size > MAX_PENDING_BYTES + len(events):
            self.given_up = True
        if self.given_up:
            self.pending.clear()
        else:
            self.pending.append(events)
            self._changed.set()

    def end(self) -> None:
        """Note that there will be no further events."""
        self.ended = True
        self._changed.set()

    def entry(self) -> Entry | None:
        """Return what is to be written; None = nothing."""
        if not self.pending and not self.ended:
            return None
        return Entry(self.last, b"".join(self.pending), self.ended)

    def written(self, entry: Entry) -> None:
        """Forget what was written. Events that were added meanwhile stay."""
        size = 0
        while self.pending and size < len(entry.events):
            size += len(self.pending.pop(0))
        self._pending_size -= size


class _Reader(msgspec.Struct, eq=False):
    after: int
    found: "asyncio.Future[list[Entry]]"


class ResponseEvents:
    """Writes and reads the events of responses in the background. One per process."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._changed = asyncio.Event()
        self._logs: dict[UUID, EventLog] = {}
        self._readers: defaultdict[str, set[_Reader]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the task that writes and reads."""
        self._task = supervise("response-events", self._serve)

    async def close(self) -> None:
        """Write what is pending once more, and stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(RedisError, OSError):
            await self._write()

    def open(self, request_id: UUID) -> EventLog:
        """Begin the events of a response; its log must be ended."""
        log_of = self._logs[request_id] = EventLog(_key(request_id), self._changed)
        return log_of

    async def delete(self, request_id: UUID) -> None:
        """Delete the events of a response; those of its process end with it. Without Redis they expire."""
        self._logs.pop(request_id, None)
        try:
            await self._redis.delete(_key(request_id))
        except (RedisError, OSError) as error:
            log.warning("the events of response %s could not be deleted: %r", request_id, error)

    async def read(self, request_id: UUID, after: int, wait_s: float) -> list[Entry]:
        """Return entries with events after the number `after`; none when there are none for `wait_s` seconds."""
        key = _key(request_id)
        reader = _Reader(after, asyncio.get_running_loop().create_future())
        self._readers[key].add(reader)
        self._changed.set()
        try:
            async with asyncio.timeout(wait_s):
                return await reader.found
        except TimeoutError:
            return []
        finally:
            self._readers[key].discard(reader)
            if not self._readers[key]:
                del self._readers[key]

    async def _serve(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(WRITE_EVERY_S)
            if not self._readers:
                self._changed.clear()
            try:
                await self._write()
                await self._read()
            except (RedisError, OSError) as error:
                self._changed.set()
                log.warning("events of responses cannot be written or read: %r", error)
                await asyncio.sleep(1.0)

    async def _write(self) -> None:
        """Write the pending entries of all responses in one round trip. Raises RedisError and OSError."""
        entries = [(one, log_of, entry) for one, log_of in self._logs.items() if (entry := log_of.entry())]
        if not entries:
            return
        pipeline = self._redis.pipeline(transaction=False)
        for _, log_of, entry in entries:
            fields: dict[bytes, bytes] = {b"e": entry.events, **({b"end": b"1"} if entry.ends else {})}
            pipeline.xadd(log_of.key, fields, id=f"{entry.last + 2}-{int(entry.ends)}")  # type: ignore[arg-type]
            pipeline.expire(log_of.key, KEPT_S if entry.ends else RUNNING_KEPT_S)
        results = await pipeline.execute(raise_on_error=False)
        for (request_id, log_of, entry), added in zip(entries, results[::2], strict=True):
            # An id that is not higher than the last one was written by a command whose answer did not arrive.
            if isinstance(added, Exception) and "equal or smaller" not in str(added):
                raise added if isinstance(added, RedisError) else ResponseError(str(added))
            log_of.written(entry)
            if entry.ends:
                self._logs.pop(request_id, None)

    async def _read(self) -> None:
        """Give all readers what has arrived, in one round trip. Raises RedisError and OSError."""
        if not self._readers:
            return
        waiting = {key: list(readers) for key, readers in self._readers.items()}
        since = {key: f"{min(one.after for one in each) + 2}-0" for key, each in waiting.items()}
        found: Any = await self._redis.xread(since, count=READ_ENTRIES)  # type: ignore[arg-type]
        for key, raw in found.items() if isinstance(found, dict) else found:
            for reader in waiting[key.decode()]:
                entries = [one for one in _entries(raw) if one.last > reader.after or one.ends]
                if entries and not reader.found.done():
                    reader.found.set_result(entries)


def _key(request_id: UUID) -> str:
    return f"penstock:responses:{request_id.hex}"


def _entries(raw: Iterable[tuple[bytes, dict[bytes, bytes]]]) -> list[Entry]:
    return [
        Entry(int(name.split(b"-")[0]) - 2, fields.get(b"e", b""), b"end" in fields) for name, fields in raw
    ]
