"""A simulated disk, and the modules `os`, `fcntl`, `threading` and `time` as the product's files see them.

A file has what the page cache holds and what is durable. A write is durable after fsync or fdatasync, a new name after
an fsync of its directory. A killed process loses nothing of the page cache; a loss of power loses any part of what is
not durable: whole writes, or all but the first bytes of one.
"""

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from greenlet import GreenletExit

from tests.simulation.world import Process, Thread, World

_descriptors = itertools.count(1000)
"""Unique over all worlds, so that code of an ended world that is finalised later touches nothing."""


class _File:
    """An inode."""

    __slots__ = ("cache", "durable", "lock", "modified_s", "number", "writes")

    def __init__(self, number: int, now_s: float) -> None:
        self.number = number
        self.cache = bytearray()
        self.durable = bytearray()
        self.writes: list[tuple[int, bytes]] = []
        """Not durable yet: offset and data, in order."""
        self.lock: int | None = None
        """The descriptor that holds the lock."""
        self.modified_s = now_s


class Path:
    """A path on a simulated disk, with the methods of pathlib.Path that the spool uses."""

    __slots__ = ("disk", "text")

    def __init__(self, disk: "Disk", text: str) -> None:
        self.disk = disk
        self.text = text

    def __truediv__(self, name: str) -> "Path":
        return Path(self.disk, f"{self.text}/{name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Path) and other.text == self.text

    def __lt__(self, other: "Path") -> bool:
        return self.text < other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text

    @property
    def name(self) -> str:
        return self.text.rpartition("/")[2]

    @property
    def parent(self) -> "Path":
        return Path(self.disk, self.text.rpartition("/")[0])

    def with_suffix(self, suffix: str) -> "Path":
        head, _, name = self.text.rpartition("/")
        return Path(self.disk, f"{head}/{name.rpartition('.')[0] or name}{suffix}")

    def mkdir(self, **_: object) -> None:
        """The directory is there."""

    def unlink(self, missing_ok: bool = False) -> None:
        self.disk.unlink(self.text, missing_ok)

    def rename(self, target: "Path") -> "Path":
        self.disk.rename(self.text, target.text)
        return target

    def glob(self, pattern: str) -> Iterator["Path"]:
        self.disk.pause()
        suffix = pattern.lstrip("*")
        names = [name for name in self.disk.names if name.endswith(suffix)]
        return iter([Path(self.disk, name) for name in names])

    def read_bytes(self) -> bytes:
        self.disk.pause()
        return bytes(self.disk.file(self.text).cache)


class Disk:
    """The disk of the host, with one directory."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.names: dict[str, _File] = {}
        self.sync_s = 0.004
        """The longest time that a sync takes."""
        self.full = False
        """Whether a new file finds no room."""
        self.fail_next: list[str] = []
        """Failures of the next operations: eio, enospc or short."""
        self.promised: dict[str, float] = {}
        """By name, when the last complete fdatasync of the file began: what was written before is durable."""
        self._durable_names: dict[str, _File] = {}
        self._name_changes: list[dict[str, _File | None]] = []
        """Not durable yet, in order: names with their new files, None = removed. A rename is one change."""
        self._open: dict[int, tuple[_File | None, Process]] = {}
        self._numbers = itertools.count(1)

    # -- points and failures ---------------------------------------------------------------------------------------

    def pause(self, longest_s: float = 50e-6) -> None:
        """A point of the running thread, delayed by at most `longest_s`. Raises OSError when a failure is due."""
        world = self.world
        if world.over:
            raise GreenletExit
        thread = world.current
        if thread is not None:
            thread.pause("file", longest_s)
            if self.fail_next:
                kind = self.fail_next[0]
                if kind != "short":
                    self.fail_next.pop(0)
                    code = errno.ENOSPC if kind == "enospc" else errno.EIO
                    world.note("disk fails", kind)
                    raise OSError(code, os.strerror(code))

    def lose_power(self) -> None:
        """Forget what is not durable, but for a random part of it."""
        random = self.world.random
        kept = random.randint(0, len(self._name_changes))
        names = dict(self._durable_names)
        for change in self._name_changes[:kept]:
            _apply(change, names)
        self.names, self._durable_names = names, dict(names)
        self._name_changes.clear()
        for file in set(names.values()):
            for offset, data in file.writes:
                # A page that was written back early, one that was not, one of which a part was.
                fate = random.randrange(3)
                if fate:
                    part = data if fate == 1 else data[: random.randint(0, len(data))]
                    file.durable[offset : offset + len(part)] = part
            file.writes.clear()
            file.cache = bytearray(file.durable)
            file.lock = None
        self._open.clear()

    def close_all(self, process: Process) -> None:
        """Close the descriptors of a dead process and release its locks."""
        for descriptor in [number for number, (_, owner) in self._open.items() if owner is process]:
            self.close(descriptor)

    # -- operations ------------------------------------------------------------------------------------------------

    def file(self, name: str) -> _File:
        """The file of a name. Raises FileNotFoundError."""
        file = self.names.get(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return file

    def unlink(self, name: str, missing_ok: bool) -> None:
        self.pause()
        if name not in self.names and missing_ok:
            return
        self.file(name)
        del self.names[name]
        self._name_changes.append({name: None})

    def rename(self, name: str, target: str) -> None:
        self.pause()
        file = self.file(name)
        del self.names[name]
        self.names[target] = file
        self._name_changes.append({target: file, name: None})
        if self.world.current is not None:
            self.world.point("renamed", self.world.current.process)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        self.pause()
        file: _File | None = None
        if path.text in self.names or flags & os.O_CREAT:
            file = self.names.get(path.text)
            if file is not None and flags & os.O_EXCL:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path.text)
            if file is None:
                file = self.names[path.text] = _File(next(self._numbers), self.world.unix_s())
                self._name_changes.append({path.text: file})
        elif "." in path.name:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path.text)
        thread = self.world.current
        descriptor = next(_descriptors)
        assert thread is not None
        self._open[descriptor] = (file, thread.process)
        return descriptor

    def close(self, descriptor: int) -> None:
        file, _ = self._open.pop(descriptor, (None, None))
        if file is not None and file.lock == descriptor:
            file.lock = None

    def flock(self, descriptor: int, operation: int) -> None:
        self.pause()
        file = self._file_of(descriptor)
        if file.lock not in (None, descriptor):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        file.lock = descriptor

    def posix_fallocate(self, descriptor: int, offset: int, size: int) -> None:
        self.pause()
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file = self._file_of(descriptor)
        file.cache.extend(bytes(size - len(file.cache)))
        file.durable.extend(bytes(size - len(file.durable)))

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        self.pause()
        file = self._file_of(descriptor)
        if self.fail_next and self.fail_next[0] == "short":
            self.fail_next.pop(0)
            data = data[: self.world.random.randint(0, len(data))]
            self.world.note("short write")
        file.cache[offset : offset + len(data)] = data
        file.writes.append((offset, data))
        file.modified_s = self.world.unix_s()
        return len(data)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        self.pause()
        return bytes(self._file_of(descriptor).cache[offset : offset + size])

    def sync(self, descriptor: int) -> None:
        """Make a file, or the directory's names, durable: what was written before the call."""
        file = self._open[descriptor][0]
        if file is None:
            changes = len(self._name_changes)
            self.pause(self.sync_s)
            for change in self._name_changes[:changes]:
                _apply(change, self._durable_names)
            del self._name_changes[:changes]
            return
        count = len(file.writes)
        self.pause(self.sync_s)
        for offset, data in file.writes[:count]:
            file.durable[offset : offset + len(data)] = data
        del file.writes[:count]

    def fdatasync(self, descriptor: int) -> None:
        """Like `sync`, for the data of a file."""
        began = self.world.now
        self.sync(descriptor)
        file = self._open[descriptor][0]
        for name, durable in self._durable_names.items():
            if durable is file:
                self.promised[name] = began

    def stat(self, path: Path) -> SimpleNamespace:
        self.pause()
        return _stat(self.file(path.text))

    def fstat(self, descriptor: int) -> SimpleNamespace:
        return _stat(self._file_of(descriptor))

    def _file_of(self, descriptor: int) -> _File:
        file = self._open.get(descriptor, (None, None))[0]
        if file is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return file

    # -- modules ---------------------------------------------------------------------------------------------------

    def os_module(self) -> Any:
        """What the product's files import as `os`."""
        return SimpleNamespace(
            O_RDWR=os.O_RDWR, O_CREAT=os.O_CREAT, O_EXCL=os.O_EXCL, O_RDONLY=os.O_RDONLY, open=self.open,
            close=self.close, pwrite=self.pwrite, pread=self.pread, fsync=self.sync, fdatasync=self.fdatasync,
            posix_fallocate=self.posix_fallocate, stat=self.stat, fstat=self.fstat,
        )  # fmt: skip

    def fcntl_module(self) -> Any:
        """What the product's files import as `fcntl`."""
        return SimpleNamespace(LOCK_EX=2, LOCK_NB=4, flock=self.flock)


def _apply(change: dict[str, _File | None], names: dict[str, _File]) -> None:
    for name, file in change.items():
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


def _stat(file: _File) -> SimpleNamespace:
    return SimpleNamespace(st_ino=file.number, st_mtime=file.modified_s, st_size=len(file.cache))


class _Event:
    """threading.Event."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._set = False
        self._waiting: list[tuple[Thread, int]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for thread, turn in self._waiting:
            thread.wake(turn)
        self._waiting.clear()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        thread = self._world.current
        if self._world.over:
            raise GreenletExit
        if not self._set and thread is not None:
            self._waiting.append((thread, thread.turn))
            if timeout is not None:
                turn = thread.turn
                self._world.after(timeout, lambda: thread.wake(turn))
            thread.sleep_until_woken()
        return self._set


def threading_module(world: World) -> Any:
    """What the product's files import as `threading`: events, and threads of the process that starts them."""

    class StartedThread:
        def __init__(self, *, target: Callable[[], object], name: str = "", daemon: bool = False) -> None:
            assert world.current is not None
            self._thread = Thread(world.current.process, target)

        def start(self) -> None:
            self._thread.wake(0)

        def join(self) -> None:
            caller = world.current
            if not self._thread.done and caller is not None:
                self._thread.waiting_join.append(caller)
                caller.sleep_until_woken()

    return SimpleNamespace(Event=lambda: _Event(world), Thread=StartedThread)


def time_module(world: World) -> Any:
    """What the product's files import as `time`."""
    return SimpleNamespace(
        time=world.unix_s, time_ns=lambda: int(world.unix_s() * 1e9), monotonic=lambda: world.now
    )
