"""Child processes: spawned so that they end with this process, stopped with a grace period, found after a crash.

Used for the embedded services and by the supervisor of `penstock up`. On Linux, PR_SET_PDEATHSIG ties a child to the
thread that spawned it, so spawn children from a thread that lives as long as the process (the main thread).
"""

import asyncio
import ctypes
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import IO, NamedTuple

import psutil

from core.errors import Unavailable

_PR_SET_PDEATHSIG = 1
_KERNEL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_PORT_TRIES = 1000
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class Account(NamedTuple):
    """A Unix account that a service runs under."""

    uid: int
    gid: int


def service_account() -> Account | None:
    """The account that services run under: an unprivileged one when this process is root, else None (the same).

    PostgreSQL refuses to run as root and needs an account with a name. Raises Unavailable when there is none.
    """
    if os.geteuid() != 0:
        return None
    for name in ("nobody", "daemon"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise Unavailable("running as root needs an account 'nobody' or 'daemon' for the embedded services")


def may_traverse(directory: Path, account: Account) -> bool:
    """Whether `account` may traverse `directory` and all its parents, by their permission bits."""
    for part in (directory, *directory.parents):
        try:
            info = part.stat()
        except FileNotFoundError:
            continue
        if info.st_uid == account.uid:
            needed = stat.S_IXUSR
        elif info.st_gid == account.gid:
            needed = stat.S_IXGRP
        else:
            needed = stat.S_IXOTH
        if not info.st_mode & needed:
            return False
    return True


def service_home(data_dir: Path, name: str, account: Account | None) -> Path:
    """The directory of the service `name`, owned by `account`, mode 0700, created when missing.

    It is `<data_dir>/<name>`, unless the account cannot reach it (a data directory below /root, for example). Then it
    lies under /var/lib or the temporary directory, and `<data_dir>/<name>.location` holds its path. The mode of an
    existing directory is never changed. Raises Unavailable when no directory can be reached.
    """
    data_dir = data_dir.resolve()
    data_dir.mkdir(parents=True, exist_ok=True)
    home = data_dir / name
    if account is not None:
        pointer = data_dir / f"{name}.location"
        if pointer.exists():
            home = Path(pointer.read_text().strip())
        elif not may_traverse(data_dir, account):
            home = _outside_home(data_dir) / name
            pointer.write_text(f"{home}\n")
    if not home.exists():
        home.mkdir(parents=True, mode=0o755)
        home.chmod(0o700)
        if account is not None:
            os.chown(home, account.uid, account.gid)
    return home


def reachable_copy(tree: Path, data_dir: Path, account: Account | None) -> Path:
    """`tree` itself when `account` can reach it, else a copy where it can. Raises Unavailable without such a place."""
    if account is None or may_traverse(tree, account):
        return tree
    copy = _outside_home(data_dir.resolve()) / f"{tree.name}-{sha256(str(tree).encode()).hexdigest()[:8]}"
    if not copy.exists():
        scratch = copy.with_name(f"{copy.name}.{os.getpid()}")
        shutil.copytree(tree, scratch, symlinks=True)
        try:
            scratch.rename(copy)
        except OSError:  # another process was first
            shutil.rmtree(scratch)
    return copy


def _outside_home(data_dir: Path) -> Path:
    """A directory outside the data directory that every account may traverse, the same at every start."""
    tag = f"penstock-{os.geteuid()}-{sha256(str(data_dir).encode()).hexdigest()[:10]}"
    for parent in (Path("/var/lib"), Path(tempfile.gettempdir())):
        place = parent / tag
        try:
            place.mkdir(mode=0o755, exist_ok=True)
        except OSError:
            continue
        if place.is_symlink() or place.stat().st_uid != os.geteuid():
            raise Unavailable(f"{place} belongs to another account; use another --data-dir")
        place.chmod(0o755)
        return place
    raise Unavailable(f"no directory found that the service account may reach; {data_dir} is closed to it")


def die_with_parent(sig: int) -> Callable[[], None]:
    """A preexec function that has the kernel send `sig` to the child when the thread that spawned it ends."""
    parent = os.getpid()

    def arm() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, sig)
            if os.getppid() != parent:  # the parent ended before prctl
                os.kill(os.getpid(), sig)

    return arm


def spawn(
    command: Sequence[str],
    *,
    log: IO[bytes] | int,
    death_signal: int = signal.SIGTERM,
    account: Account | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    inherit: Collection[int] = (),
) -> subprocess.Popen[bytes]:
    """Start `command` in its own session, so that Ctrl-C does not reach it, tied to the calling thread's life.

    The process keeps the file descriptors `inherit` open. Standard output and error go to `log`. Raises OSError when
    it cannot be started.
    """
    return subprocess.Popen(  # noqa: S603 - no part of the command is input
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        env=dict(env) if env is not None else None,
        cwd=cwd,
        start_new_session=True,
        pass_fds=tuple(inherit),
        preexec_fn=die_with_parent(death_signal),
    )


async def stop(process: subprocess.Popen[bytes], sig: int, *, grace_s: float) -> bool:
    """Send `sig`, wait up to `grace_s` seconds, then SIGKILL. True when SIGKILL was not needed."""
    if process.poll() is None:
        process.send_signal(sig)
    if await exited(process, grace_s):
        return True
    process.kill()
    await exited(process, 10.0)
    return False


async def exited(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Whether `process` ends within `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while process.poll() is None:
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(0.02)
    return True


async def stop_orphan(pid: int, program: str, home: Path, sig: int, *, grace_s: float) -> bool:
    """Stop the process `pid` of an earlier run: `sig`, then SIGKILL after `grace_s` seconds. True when it has ended.

    Returns False and sends nothing unless the process runs the executable `program` in the working directory `home`
    (servers rewrite their arguments, so these are not compared). Raises Unavailable when it does not end.
    """
    try:
        process = psutil.Process(pid)
        name = Path(process.exe().removesuffix(" (deleted)")).name
        ours = name == program and Path(process.cwd()) == home
        if not ours or process.status() == psutil.STATUS_ZOMBIE:
            return False
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    try:
        process.send_signal(sig)
        for wait_s in (grace_s, 10.0):
            if await _gone(process, wait_s):
                return True
            process.kill()
    except psutil.NoSuchProcess:
        return True
    raise Unavailable(f"process {pid} ({program}) of an earlier run does not stop; end it by hand")


async def _gone(process: psutil.Process, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(0.05)
    return True


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port of `host` that is free, and that is given to no other caller within the next minute.

    It lies outside of the range from which the kernel takes ports of outgoing connections, and is marked as used by a
    connection to itself that is left in TIME_WAIT. A server that sets SO_REUSEADDR, as servers do, can listen on it; a
    further call of this function, in any process, cannot have it. Raises Unavailable when no port is free.
    """
    ports = _ports_outside_the_kernels_range()
    for _ in range(_PORT_TRIES):
        port = ports[secrets.randbelow(len(ports))]
        try:
            with socket.socket() as listener, socket.socket() as client:
                # Without SO_REUSEADDR this fails where the port is marked; the mark itself lets a server with it in.
                listener.bind((host, port))
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.listen(1)
                client.connect(listener.getsockname())
                listener.accept()[0].close()  # who closes first is left in TIME_WAIT
        except OSError:
            continue
        return port
    raise Unavailable(f"no free TCP port was found on {host}; end what listens there")


def kernel_ports() -> range:
    """Ports that the kernel gives to outgoing connections. A server on one may find it taken when it starts again."""
    try:
        first, last = map(int, _KERNEL_PORTS.read_text().split())
    except (OSError, ValueError):  # not Linux
        first, last = 49152, 65535
    return range(first, last + 1)


def _ports_outside_the_kernels_range() -> range:
    taken = kernel_ports()
    below, above = range(10_000, min(taken.start, 65536)), range(taken.stop, 65536)
    return max(below, above, key=len) or range(10_000, 65536)
