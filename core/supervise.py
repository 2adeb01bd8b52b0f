"""Background tasks that serve for the life of a process: restarted after an unexpected error, never silently ended.

The exception of a task that is never awaited is reported only when the task is garbage-collected; until then, what the
task served has stopped without a trace. Every such task is therefore started by `supervise`. A task that fails again
and again makes its process unready (`FailingTasks`).
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from prometheus_client import Counter

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
"""Seconds before the first restart; each further one waits twice as long."""
LONGEST_PAUSE_S = 5.0
THREAD_PAUSE_S = 1.0
"""Seconds before each restart of a thread."""
CALM_S = 60.0
"""A run of this many seconds makes the next pause FIRST_PAUSE_S again."""

FAILURES = 5
"""Failures of a task within FAILURE_WINDOW_S at which its process is unready."""
FAILURE_WINDOW_S = 60.0
"""Seconds after which a task that runs is forgiven; one that keeps failing does so every LONGEST_PAUSE_S."""

RESTARTS = Counter(
    "penstock_task_restarts", "Background tasks restarted after an unexpected error, by task.", ["task"]
)


class FailingTasks:
    """The last failures of the supervised tasks of one process; tasks of the same name count together."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """`now` returns monotonic seconds."""
        self._now = now
        self._failed_at: dict[str, deque[float]] = {}

    def add(self, name: str) -> None:
        """Note a failure of the task `name`."""
        self._failed_at.setdefault(name, deque(maxlen=FAILURES)).append(self._now())

    def names(self) -> list[str]:
        """The tasks that have failed FAILURES times within the last FAILURE_WINDOW_S, ordered by name."""
        since = self._now() - FAILURE_WINDOW_S
        found = list(self._failed_at.items())  # threads may add to it meanwhile
        return sorted(name for name, times in found if len(times) == FAILURES and times[0] >= since)


FAILING = FailingTasks()
"""Those of this process, which its health endpoints report."""


def supervise(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> "asyncio.Task[None]":
    """Run `work` in a task, again and again until it returns or the task is cancelled.

    An exception, and a cancellation that was not requested of this task, is logged and counted in RESTARTS and FAILING
    under `name`. `work` must leave its state so that another call can continue. Returns the task, which the caller
    cancels.
    """
    return asyncio.create_task(_run(name, work), name=name)


def supervise_thread(name: str, work: Callable[[], None], stopping: threading.Event) -> threading.Thread:
    """`supervise` for a thread: a daemon, not started yet, that ends when `work` returns or `stopping` is set."""

    def run() -> None:
        while not stopping.is_set():
            try:
                work()
                return
            except Exception:
                log.exception("thread %s failed; it is restarted", name)
            note_failure(name)
            stopping.wait(THREAD_PAUSE_S)

    return threading.Thread(target=run, name=name, daemon=True)


def note_failure(name: str) -> None:
    """Count a failure of the task `name`; also for a loop that handles its errors itself because it must not pause."""
    RESTARTS.labels(name).inc()
    FAILING.add(name)


async def _run(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    pause_s = FIRST_PAUSE_S
    while True:
        began = loop.time()
        try:
            await work()
            return
        except asyncio.CancelledError:
            if task is None or task.cancelling():
                raise
            log.exception("task %s was cancelled by what it waited for; it is restarted", name)
        except Exception:
            log.exception("task %s failed; it is restarted", name)
        note_failure(name)
        if loop.time() - began >= CALM_S:
            pause_s = FIRST_PAUSE_S
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
