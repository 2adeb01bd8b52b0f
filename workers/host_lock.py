"""One agent per data directory: another one waits until the agent before it has ended its engines, or says who runs."""

import asyncio
import logging
import time
from contextlib import suppress
from pathlib import Path

from core.directory_lock import DirectoryLock
from core.errors import Conflict, InvalidRequest

log = logging.getLogger(__name__)

WAIT_S = 5.0
"""Seconds that a start waits for an agent that does not say that it ends; after a crash the signal is on its way."""
_POLL_S = 0.1
_ENDING = "ending"


class HostLock:
    """The lock of an agent on its data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._lock = DirectoryLock(data_dir / "agent.lock")

    async def acquire(self, stop: asyncio.Event) -> bool:
        """Take the lock, and wait for an agent that is ending: its engines and its state file are its own until then.

        False when `stop` was set meanwhile. Raises Conflict when an agent runs on the directory, InvalidRequest when
        the directory cannot be used.
        """
        deadline = time.monotonic() + WAIT_S
        told = False
        while not self._acquire():
            holder = self._lock.holder()
            pid = holder.process.pid if holder is not None else "of an earlier version"
            if (holder is None or holder.note != _ENDING) and time.monotonic() >= deadline:
                raise Conflict(
                    f"another agent (process {pid}) runs on {self._data_dir}; stop it or set another PENSTOCK_DATA_DIR"
                )
            if not told:
                log.info("waiting for the end of the agent before this one (process %s)", pid)
                told = True
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await stop.wait()
            if stop.is_set():
                return False
        return True

    def _acquire(self) -> bool:
        try:
            return self._lock.acquire()
        except OSError as error:
            raise InvalidRequest(
                f"the data directory {self._data_dir} cannot be used: {error.strerror}"
            ) from None

    def on_ending(self) -> None:
        """Tell an agent that waits for the lock to go on waiting."""
        self._lock.note(_ENDING)

    def release(self) -> None:
        """Give the directory to the next agent."""
        self._lock.release()
