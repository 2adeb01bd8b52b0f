"""A lock that one process at a time holds on a directory; the kernel frees it however the process ends (flock(2))."""

import fcntl
import os
from pathlib import Path


class DirectoryLock:
    """The lock file `path`, which names its holder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

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
        self._descriptor = descriptor
        self.note("")
        return True

    def note(self, text: str) -> None:
        """Tell those who wait for the lock something, such as that its holder ends; nothing where it is not held."""
        if self._descriptor < 0:
            return
        line = f"{os.getpid()} {text}".rstrip()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{line}\n".encode(), 0)

    def holder(self) -> tuple[str, str]:
        """The process id of who took the lock last, and its note; empty when nobody has."""
        try:
            pid, _, note = self._path.read_text().strip().partition(" ")
        except FileNotFoundError:
            return "", ""
        return pid, note

    def release(self) -> None:
        """Give the lock back; does nothing when it is not held."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
