"""A lock that one process at a time takes on a directory; the kernel frees it however its holders end (flock(2)).

Child processes that inherit its descriptor hold it, too: it is free when the last of them has ended.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from core.process_identity import ProcessIdentity, identify


def hold_alone(descriptor: int) -> None:
    """Keep an inherited lock to this process: what it starts may outlive it. Does nothing where it is not open."""
    with suppress(OSError):
        os.set_inheritable(descriptor, False)


class Holder(msgspec.Struct, frozen=True):
    """Who took a lock last."""

    process: ProcessIdentity
    note: str = ""
    """What it tells those who wait for the lock, such as that it is ending."""


class DirectoryLock:
    """The lock file `path`, which names who took it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.descriptor = -1
        """Of the lock while it is held, for children that shall hold it, too; -1 else."""

    def acquire(self) -> bool:
        """Take the lock, and create its directory when that is missing. False when another process holds it.

        Raises OSError when the file cannot be made.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self.descriptor = descriptor
        self.note("")
        return True

    def note(self, text: str) -> None:
        """Tell those who wait for the lock something; nothing where it is not held."""
        if self.descriptor < 0:
            return
        content = msgspec.json.encode(Holder(identify(os.getpid()), text))
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, content + b"\n", 0)

    def holder(self) -> Holder | None:
        """The process that took the lock last; None before the first, and after an earlier version."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Holder)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def open_in(self) -> list[int]:
        """Ids of the processes of this user that have the lock file open, in ascending order."""
        path, found = str(self._path.resolve()), []
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            try:
                if any(os.readlink(each) == path for each in (process / "fd").iterdir()):
                    found.append(int(process.name))
            except OSError:  # it has ended, or belongs to another user
                continue
        return sorted(found)

    def release(self) -> None:
        """Free the lock, also for children that inherited it; does nothing when it is not held."""
        if self.descriptor >= 0:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            os.close(self.descriptor)
            self.descriptor = -1
