"""Processes are recognised by facts of the kernel, whatever the wall clock does and whoever has their pid."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from core import process_identity
from core.process_identity import ProcessIdentity, identify, read_stat, remains, runs
from tests.support.waiting import until_sync


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_another_process_with_the_same_pid_is_another(sleeper: "subprocess.Popen[bytes]") -> None:
    identity = identify(sleeper.pid)
    later = msgspec.structs.replace(identity, ticks=identity.ticks - 1)
    other_boot = msgspec.structs.replace(identity, boot="00000000-0000-0000-0000-000000000000")
    assert [runs(each) for each in (identity, later, other_boot)] == [True, False, False]
    assert remains(later) == remains(other_boot) == []
    assert remains(identity) == [sleeper.pid]


def test_a_zombie_and_an_unknown_pid_do_not_run() -> None:
    process = subprocess.Popen(["sleep", "600"])
    identity = identify(process.pid)
    process.kill()
    until_sync(lambda: (stat := read_stat(process.pid)) is not None and stat.zombie)
    assert not runs(identity)
    process.wait()
    assert read_stat(process.pid) is None
    assert not runs(identity)
    assert not runs(identify(process.pid))


def test_what_an_ended_leader_left_in_its_group() -> None:
    code = (
        "import subprocess, sys; print(subprocess.Popen(['sleep', '600'], stdout=2).pid, flush=True); input()"
    )
    leader = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert leader.stdout is not None
    left = int(leader.stdout.readline())
    identity = identify(leader.pid)
    leader.communicate(b"\n")
    try:
        assert not runs(identity)
        assert remains(identity) == [left]
        assert remains(ProcessIdentity(identity.pid, identity.boot, identity.ticks + 10**6)) == []
    finally:
        os.kill(left, signal.SIGKILL)


def test_names_with_parentheses_and_blanks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = ["S", "1", "71", "70", *["0"] * 15, "4242", "0"]
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(f"7 (a) Z (b c)) {' '.join(fields)}\n")
    monkeypatch.setattr(process_identity, "_PROC", tmp_path)
    stat = read_stat(7)
    assert stat is not None
    assert (stat.zombie, stat.group, stat.session, stat.ticks) == (False, 71, 70, 4242)
