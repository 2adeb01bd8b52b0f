"""A small disk for the usage spool that can really be full.

Root mounts a tmpfs. Everybody else first becomes root of a mount namespace of their own (`own_mounts`), where Linux
permits it. Without either there is no such disk, and the faults that need it are left out.
"""

import ctypes
import errno
import os
from contextlib import suppress
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_MS_PRIVATE_REC = (1 << 18) | (1 << 14)
_MNT_DETACH = 2
_CHUNK = b"\0" * (1 << 20)
_LIBC = ctypes.CDLL(None, use_errno=True)


def own_mounts() -> bool:
    """Give this process mounts of its own; call it before it has threads. False where Linux does not permit it."""
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        if _LIBC.unshare(_CLONE_NEWNS):
            return False
    else:
        if _LIBC.unshare(_CLONE_NEWUSER | _CLONE_NEWNS):
            return False
        with suppress(OSError):
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    return not _LIBC.mount(b"none", b"/", None, _MS_PRIVATE_REC, None)


class SmallDisk:
    """A tmpfs of `size` bytes at `path`."""

    def __init__(self, path: Path, size: int) -> None:
        """Mount it. Raises OSError where that is not permitted."""
        self.path = path
        self._filler = path / "filler"
        path.mkdir(parents=True, exist_ok=True)
        options = f"size={size},mode=0755".encode()
        if _LIBC.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, options):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))

    def fill(self) -> int:
        """Write until there is no space left; return the bytes that it took."""
        written = 0
        descriptor = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            for piece in (_CHUNK, b"\0" * 4096):
                try:
                    while True:
                        written += os.write(descriptor, piece)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
        finally:
            os.close(descriptor)
        return written

    def free(self) -> None:
        """Remove what `fill` wrote."""
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it, even while files are open."""
        _LIBC.umount2(os.fsencode(self.path), _MNT_DETACH)
