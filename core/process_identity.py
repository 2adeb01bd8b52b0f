"""Who a process is, so that it can be recognised later, by another process too, although pids are used again.

A pid names a process only while that lives. The tick of the system's clock at which it started tells it from a later
one of the same pid, and the boot id from one of another boot. Both are facts of the kernel that never change. A start
time in seconds since the epoch is none: it is computed from the wall clock, which is set and slewed.
"""

from pathlib import Path

import msgspec

_PROC = Path("/proc")
_STATE, _GROUP, _SESSION, _START = 0, 2, 3, 19
"""Fields 3, 5, 6 and 22 of /proc/PID/stat (proc(5)), counted from the one behind the command's name."""


class ProcessIdentity(msgspec.Struct, frozen=True):
    """A process of this machine."""

    pid: int
    boot: str
    """The kernel's id of the boot in which it started."""
    ticks: int
    """Field 22 of /proc/PID/stat: when it started, in clock ticks since the boot; 0 for one that was never seen."""


class ProcessStat(msgspec.Struct, frozen=True):
    """What /proc/PID/stat says."""

    pid: int
    zombie: bool
    group: int
    session: int
    ticks: int


def boot_id() -> str:
    """The id that the kernel made for this boot. Raises OSError where there is no /proc."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def read_stat(pid: int) -> ProcessStat | None:
    """What the kernel says of the process `pid`; None when there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # a command's name may contain anything, parentheses too
    return ProcessStat(
        pid, fields[_STATE] in ("Z", "X"), int(fields[_GROUP]), int(fields[_SESSION]), int(fields[_START])
    )


def identify(pid: int) -> ProcessIdentity:
    """The identity of the process that has `pid` now; one that no process matches when there is none."""
    found = read_stat(pid)
    return ProcessIdentity(pid, boot_id(), found.ticks if found is not None else 0)


def runs(identity: ProcessIdentity) -> bool:
    """Whether that very process still runs; a zombie does not."""
    found = read_stat(identity.pid)
    return (
        found is not None
        and not found.zombie
        and found.ticks == identity.ticks
        and boot_id() == identity.boot
    )


def remains(identity: ProcessIdentity) -> list[int]:
    """Ids of the processes that an ended session leader left behind in its group.

    The kernel gives no new process the pid of a leader whose group has members. A group whose number another process
    has as its pid is therefore not the ended leader's, nor is one of another session.
    """
    leader = read_stat(identity.pid)
    if boot_id() != identity.boot or (leader is not None and leader.ticks != identity.ticks):
        return []
    found = (read_stat(int(each.name)) for each in _PROC.iterdir() if each.name.isdigit())
    return [
        stat.pid
        for stat in found
        if stat is not None
        and not stat.zombie
        and stat.group == stat.session == identity.pid
        and stat.ticks >= identity.ticks
    ]
