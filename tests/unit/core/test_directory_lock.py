"""One process at a time holds a directory, and its end frees it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from core.directory_lock import DirectoryLock, Holder, hold_alone
from core.process_identity import identify
from tests.support.waiting import until_sync

ROOT = Path(__file__).resolve().parents[3]

_HOLDER = """
import sys, time
from pathlib import Path
from core.directory_lock import DirectoryLock
print(DirectoryLock(Path(sys.argv[1])).acquire() and "held", flush=True)
time.sleep(600)
"""


def test_the_kernel_frees_the_lock_of_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    lock = DirectoryLock(path)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert not lock.acquire()
        assert lock.holder() == Holder(identify(holder.pid))
        assert lock.open_in() == [holder.pid]
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert lock.acquire()
    assert lock.holder() == Holder(identify(os.getpid()))
    lock.release()


def test_children_hold_what_they_inherit_until_the_last_has_ended(tmp_path: Path) -> None:
    lock, other = DirectoryLock(tmp_path / "lock"), DirectoryLock(tmp_path / "lock")
    assert lock.acquire()
    child = subprocess.Popen(["sleep", "600"], pass_fds=(lock.descriptor,))
    try:
        os.close(lock.descriptor)  # as the kernel does when the process ends
        assert not other.acquire()
        assert other.open_in() == [child.pid]
    finally:
        child.kill()
        child.wait()
    assert other.acquire()
    other.release()


def test_a_release_frees_it_for_children_too(tmp_path: Path) -> None:
    lock, other = DirectoryLock(tmp_path / "lock"), DirectoryLock(tmp_path / "lock")
    assert lock.acquire()
    child = subprocess.Popen(["sleep", "600"], pass_fds=(lock.descriptor,))
    try:
        lock.release()
        assert other.acquire()
        other.release()
    finally:
        child.kill()
        child.wait()


def test_a_note_is_read_by_those_who_wait(tmp_path: Path) -> None:
    lock, other = DirectoryLock(tmp_path / "lock"), DirectoryLock(tmp_path / "lock")
    assert other.holder() is None
    assert lock.acquire()
    other.note("not its holder")
    assert lock.holder() == Holder(identify(os.getpid()))
    lock.note("ending")
    assert not other.acquire()
    assert other.holder() == Holder(identify(os.getpid()), "ending")
    lock.release()
    assert other.acquire()
    assert other.holder() == Holder(identify(os.getpid()))
    other.release()


def test_what_a_holder_starts_does_not_hold_it(tmp_path: Path) -> None:
    """Hosts on this machine and engines outlive the role that starts them."""
    lock, other = DirectoryLock(tmp_path / "lock"), DirectoryLock(tmp_path / "lock")
    assert lock.acquire()
    os.set_inheritable(lock.descriptor, True)  # as it is in a process that has inherited it
    hold_alone(lock.descriptor)
    pid = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
    try:
        os.close(lock.descriptor)
        until_sync(
            other.acquire
        )  # the kernel closes its descriptors a moment after it lets this process go on
        other.release()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    hold_alone(1 << 20)
