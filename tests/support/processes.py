"""Questions about processes that may end while they are asked."""

import contextlib
import os
from collections.abc import Callable, Iterable

import psutil


def gone(pid: int) -> bool:
    """Whether a process has ended; it may be a zombie."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def descendants(which: Callable[[psutil.Process], bool]) -> list[int]:
    """Ids of the processes below this one for which `which` holds; those that end meanwhile are left out."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if which(each):
                found.append(each.pid)
    return found


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
