"""A stop that takes too long is ended, and so is a process whose supervisor has died."""

import os
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core import exit_deadline
from core.exit_deadline import ExitDeadline
from tests.support.processes import gone
from tests.support.waiting import until_sync

ROOT = Path(__file__).resolve().parents[3]

_CHILD = """
import os, signal, sys, time
from core import exit_deadline
from core.exit_deadline import ExitDeadline
exit_deadline.HURRY_S, exit_deadline.ORPHANED_S = 0.1, 0.5
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
ExitDeadline(3600.0, supervisor_pid=os.getppid() if sys.argv[1] == "supervised" else 0).start()
print(sys.argv[1], os.getpid(), flush=True)
while len(told) < int(sys.argv[2]):
    time.sleep(0.01)
open(sys.argv[3], "w").write("told")
time.sleep(600)
"""
_PARENT = """
import subprocess, sys, time
from core import child
code, *notes = sys.argv[1:]
for words in (["alone", "1", notes[0]], ["supervised", "2", notes[1]]):
    child.spawn([sys.executable, "-c", code, *words], log=1)
time.sleep(600)
"""


def deadline(grace_s: float) -> "tuple[ExitDeadline, queue.Queue[int]]":
    left: queue.Queue[int] = queue.Queue()
    return ExitDeadline(grace_s, leave=left.put), left


def test_a_stop_that_takes_too_long_is_ended() -> None:
    made, left = deadline(0.2)
    made.start()
    began = time.monotonic()
    for _ in range(100_000):  # many signals fill the pipe and do not block the handler
        made.arm()
    assert left.get(timeout=60) == 1
    assert time.monotonic() - began >= 0.2


def test_nothing_ends_before_the_stop_begins() -> None:
    made, left = deadline(0.0)
    made.start()
    with pytest.raises(queue.Empty):
        left.get(timeout=0.3)
    made.arm()
    assert left.get(timeout=60) == 1


def test_a_dead_supervisor_takes_a_role_with_it_that_does_not_end(tmp_path: Path) -> None:
    """The kernel tells it once, the deadline again; then it ends. A parent that is no supervisor is none to follow."""
    notes = [tmp_path / "alone", tmp_path / "supervised"]
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, _CHILD, *map(str, notes)], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    with parent.stdout:
        pids = dict(parent.stdout.readline().split() for _ in notes)
        parent.kill()
        parent.wait()
    alone, supervised = int(pids[b"alone"]), int(pids[b"supervised"])
    try:
        until_sync(lambda: all(note.exists() for note in notes))
        until_sync(lambda: gone(supervised))
        assert not gone(alone)
    finally:
        os.kill(alone, signal.SIGKILL)


def test_the_limits_leave_time_for_the_servers() -> None:
    assert exit_deadline.HURRY_S < exit_deadline.ORPHANED_S < 20.0
