"""Memory that a process has to itself."""

from contextlib import suppress
from pathlib import Path

import psutil


def private_bytes(pid: int, *, tree: bool) -> int:
    """Return the anonymous resident bytes of a process; `tree`: of its children, too.

    Files and shared memory do not count: PostgreSQL's buffers fill once, and that is no growth.
    """
    processes = [pid]
    if tree:
        with suppress(psutil.NoSuchProcess):
            processes += [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return sum(map(_anonymous, processes))


def _anonymous(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0
