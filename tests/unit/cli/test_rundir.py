"""The data directory: one supervisor at a time, secrets kept and closed to others."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cli.rundir import RunDir
from core.errors import Conflict, InvalidRequest

ROOT = Path(__file__).resolve().parents[3]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_second_supervisor_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    first, second = RunDir(tmp_path / "data"), RunDir(tmp_path / "data")
    first.acquire()
    with pytest.raises(Conflict, match=rf"process {os.getpid()}\) runs on .*--data-dir"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


_SUPERVISOR = """
import subprocess, sys, time
from pathlib import Path
from cli.rundir import RunDir
run_dir = RunDir(Path(sys.argv[1]))
run_dir.acquire()
print(subprocess.Popen(["sleep", "600"], pass_fds=(run_dir.lock_descriptor,), stdout=2).pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def left(tmp_path: Path) -> Iterator[int]:
    """A role that a killed supervisor has left behind on the directory `data`."""
    supervisor = subprocess.Popen(
        [sys.executable, "-c", _SUPERVISOR, str(tmp_path / "data")], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert supervisor.stdout is not None
    with supervisor.stdout:
        role = int(supervisor.stdout.readline())
    supervisor.kill()
    supervisor.wait()
    yield role
    with suppress(ProcessLookupError):
        os.kill(role, signal.SIGKILL)


def test_a_start_waits_for_the_roles_of_a_killed_supervisor(tmp_path: Path, left: int) -> None:
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        os.kill(left, signal.SIGKILL)

    run_dir = RunDir(tmp_path / "data")
    run_dir.acquire(tell)
    run_dir.release()
    assert told == [f"waiting for the end of what a killed `penstock up` has left here (processes {left})"]


def test_roles_of_a_killed_supervisor_that_do_not_end_are_named(
    tmp_path: Path, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.rundir.LEFT_S", 0.2)
    with pytest.raises(Conflict, match=f"do not end: {left}; end them by hand"):
        RunDir(tmp_path / "data").acquire()


def test_secrets_are_made_once_and_private(tmp_path: Path) -> None:
    first = RunDir(tmp_path).load_secrets()
    assert RunDir(tmp_path).load_secrets() == first
    assert mode(tmp_path / "secrets.json") == 0o600
    values = [
        first.internal_token,
        first.key_pepper,
        first.engine_key,
        first.console_secret,
        first.admin_password,
    ]
    assert len(set(values)) == 5
    assert min(map(len, values)) >= 16
    first.demo_api_key = "pen_live_x"
    RunDir(tmp_path).save_secrets(first)
    assert RunDir(tmp_path).load_secrets().demo_api_key == "pen_live_x"


def test_damaged_secrets_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "secrets.json").write_text('{"key_pepper": ')
    with pytest.raises(InvalidRequest, match="damaged"):
        RunDir(tmp_path).load_secrets()
    assert (tmp_path / "secrets.json").read_text() == '{"key_pepper": '


def test_a_data_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="cannot be used"):
        RunDir(tmp_path / "file").acquire()


def test_facts_are_private_and_the_ready_file_holds_no_inner_secrets(tmp_path: Path) -> None:
    run_dir, ready = RunDir(tmp_path), tmp_path / "ready.json"
    run_dir.publish({"base_url": "http://x/v1", "key_pepper": "p", "internal_token": "t"}, ready)
    assert json.loads(ready.read_text()) == {"base_url": "http://x/v1"}
    assert json.loads((tmp_path / "runtime.json").read_text())["key_pepper"] == "p"
    assert mode(ready) == mode(tmp_path / "runtime.json") == 0o600
    run_dir.unpublish()
    run_dir.unpublish()
    assert not (tmp_path / "runtime.json").exists()
