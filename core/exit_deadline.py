"""The end of a role: within its grace period whatever its servers do, and soon after its supervisor has died.

A stop may wait for what no longer answers: a broker that is asked again for ever, a thread that Python joins at exit, a
transaction of a frozen PostgreSQL. A supervisor kills such a process. This module does where there is none any more.
"""

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

log = logging.getLogger(__name__)

HURRY_S = 4.0
"""Seconds after the supervisor's death at which the role is told again to end, which cuts what it waits for."""
ORPHANED_S = 12.0
"""Seconds after the supervisor's death at which the role ends, finished or not."""


class ExitDeadline:
    """Ends this process a given time after `arm` was called, or ORPHANED_S after its supervisor has ended.

    The supervisor is a parent that has named itself (PENSTOCK_SUPERVISOR_PID); the kernel sends SIGTERM when it ends
    (core/child.py). What is left undone is what a SIGKILL leaves undone, which every role stands.
    """

    def __init__(
        self,
        grace_s: float,
        *,
        supervisor_pid: int = 0,
        leave: Callable[[int], None] = os._exit,
        again: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM),
    ) -> None:
        """`grace_s`: seconds that the stop may take. `leave` ends the process with a status, `again` tells it again to
        end."""
        self._grace_s = grace_s
        self._leave, self._again = leave, again
        self._armed, self._arm = os.pipe()
        os.set_blocking(self._arm, False)
        self._supervisor = _pidfd(supervisor_pid)
        self._thread = threading.Thread(target=self._run, name="exit-deadline", daemon=True)

    def start(self) -> None:
        """Begin to watch the supervisor."""
        self._thread.start()

    def arm(self) -> None:
        """The stop has begun. May be called in a signal handler, and again."""
        with suppress(BlockingIOError):  # it is full of earlier calls
            os.write(self._arm, b"!")

    def _run(self) -> None:
        sources = [self._armed] if self._supervisor is None else [self._armed, self._supervisor]
        deadline = hurry = float("inf")
        while True:
            wait_s = max(0.0, min(deadline, hurry) - time.monotonic())
            ready, _, _ = select.select(sources, [], [], wait_s if wait_s != float("inf") else None)
            now = time.monotonic()
            if self._armed in ready:
                sources.remove(self._armed)
                deadline = min(deadline, now + self._grace_s)
            if self._supervisor in ready and self._supervisor is not None:
                sources.remove(self._supervisor)
                deadline, hurry = min(deadline, now + ORPHANED_S), now + HURRY_S
            if now >= hurry:
                hurry = float("inf")
                self._again()
            if now >= deadline:
                log.error("the stop took longer than it may; the process ends with it unfinished")
                self._leave(1)
                return


def _pidfd(supervisor_pid: int) -> int | None:
    """A descriptor that is readable when the supervisor has ended; None without one, or where the parent is another."""
    if supervisor_pid == 0 or supervisor_pid != os.getppid() or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(supervisor_pid)
    except OSError:  # it has ended, and the kernel's SIGTERM is on its way
        return None
