"""CPU time and memory of named processes, read from outside of them."""

import time
from collections.abc import Mapping
from pathlib import Path

import psutil

_CPUCLOCK_SCHED = 2
"""Linux: the kind of clock that counts a process's time on the processor (MAKE_PROCESS_CPUCLOCK)."""

Groups = Mapping[str, tuple[int, bool]]
"""Process id by name, and whether the process's children belong to the name."""


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of all threads of a process so far, by its CPU clock: /proc/PID/stat counts 10 ms only."""
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)


def waited_s(pid: int) -> float:
    """Return the seconds so far that a process's main thread was ready to run and waited for a processor."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9


def cpu_by_group(groups: Groups) -> dict[str, float]:
    """Return the CPU seconds of each group so far.

    Children that have ended stay counted: the kernel adds their time to the parent that collected them.
    """
    return {name: _tree_cpu_s(pid) if whole else cpu_s(pid) for name, (pid, whole) in groups.items()}


def _tree_cpu_s(pid: int) -> float:
    top = psutil.Process(pid)
    total = 0.0
    for process in (top, *top.children(recursive=True)):
        try:
            times = process.cpu_times()
            total += cpu_s(process.pid) + times.children_user + times.children_system
        except (psutil.NoSuchProcess, OSError):
            continue
    return total


def rss_by_group(groups: Groups) -> dict[str, int]:
    """Return the resident bytes of each group's first process."""
    return {name: psutil.Process(pid).memory_info().rss for name, (pid, _) in groups.items()}
