"""Steps the wall clock of a Python process while it runs, without its knowledge.

Python imports this file at the start of every process whose PYTHONPATH holds this folder. The seconds to add are read
from the file named after the process in $CHAOS_CLOCK_DIR, or after its parent; the monotonic clock is left alone, as a
step of a machine's clock leaves it. `datetime.now` cannot be replaced: `core.clock.SystemClock` is, and what calls
`datetime.now` directly keeps the true time.
"""

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

_CHECK_EVERY_S = 0.05


class _Offset:
    """The seconds to add, read again every _CHECK_EVERY_S."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offset_s = 0.0
        self._read_at = -_CHECK_EVERY_S

    def __call__(self) -> float:
        now = time.monotonic()
        if now - self._read_at >= _CHECK_EVERY_S:
            self._read_at = now
            self._offset_s = self._read()
        return self._offset_s

    def _read(self) -> float:
        for pid in (os.getpid(), os.getppid()):
            try:
                return float((self._folder / str(pid)).read_text())
            except (OSError, ValueError):
                continue
        return 0.0


def _install(folder: Path) -> None:
    offset, true_time, true_ns = _Offset(folder), time.time, time.time_ns
    time.time = lambda: true_time() + offset()
    time.time_ns = lambda: true_ns() + int(offset() * 1e9)
    try:
        from core.clock import SystemClock
    except ImportError:  # a process of another program
        return

    def now(_: SystemClock) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=offset())

    SystemClock.now = now  # type: ignore[method-assign, assignment]


if "CHAOS_CLOCK_DIR" in os.environ:
    _install(Path(os.environ["CHAOS_CLOCK_DIR"]))
