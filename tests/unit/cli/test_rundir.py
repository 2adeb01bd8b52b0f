"""The data directory: one supervisor at a time, secrets kept and closed to others."""

import json
import os
import stat
from pathlib import Path

import pytest

from cli.rundir import RunDir
from core.errors import Conflict, InvalidRequest


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
