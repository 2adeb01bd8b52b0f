"""One process at a time holds a directory, and its end frees it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from core.directory_lock import DirectoryLock

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
        assert lock.holder() == (str(holder.pid), "")
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert lock.acquire()
    assert lock.holder() == (str(os.getpid()), "")


def test_a_note_is_read_by_those_who_wait(tmp_path: Path) -> None:
    lock, other = DirectoryLock(tmp_path / "lock"), DirectoryLock(tmp_path / "lock")
    assert other.holder() == ("", "")
    assert lock.acquire()
    other.note("not its holder")
    assert lock.holder() == (str(os.getpid()), "")
    lock.note("ending")
    assert not other.acquire()
    assert other.holder() == (str(os.getpid()), "ending")
    lock.release()
    assert other.acquire()
    assert other.holder() == (str(os.getpid()), "")
    other.release()
