"""An engine's process as the next agent finds it."""

from pathlib import Path

import msgspec
import psutil
import pytest

from tests.support.waiting import until_sync
from workers import stray_engines
from workers.engine_command import EngineCommand
from workers.engine_process import EngineProcess

SLEEP = EngineCommand(("sleep", "600"), {}, stop_s=1.0)


def test_an_engine_is_adopted_whatever_the_clock_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start time in seconds since the epoch moves with the wall clock, which the kernel's boot time follows."""
    engine = EngineProcess.start(SLEEP, tmp_path / "log")
    try:
        booted, before = psutil.boot_time(), psutil.Process(engine.pid).create_time()
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: booted + 2.0)
        assert psutil.Process(engine.pid).create_time() == before + 2.0
        adopted = EngineProcess.adopt(engine.identity)
        assert adopted is not None
        adopted.kill()
        until_sync(lambda: not engine.alive())
        assert EngineProcess.adopt(engine.identity) is None
    finally:
        engine.kill()


def test_a_process_that_got_an_engines_pid_is_neither_adopted_nor_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = EngineProcess.start(SLEEP, tmp_path / "log")
    sent: list[int] = []
    try:
        with monkeypatch.context() as patch:
            for name in ("kill", "killpg"):
                patch.setattr(f"workers.engine_process.os.{name}", lambda pid, number: sent.append(pid))
            engine = msgspec.structs.replace(stranger.identity, ticks=stranger.identity.ticks - 1)
            assert EngineProcess.adopt(engine) is None
            EngineProcess(engine).kill()
            EngineProcess(engine).terminate()
            assert not sent
            EngineProcess(stranger.identity).kill()
            assert sent == [stranger.pid]
    finally:
        stranger.kill()
        until_sync(lambda: not stranger.alive())


def test_engines_that_no_state_file_lists_are_ended(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"

    def start(data_dir: Path) -> EngineProcess:
        return EngineProcess.start(
            EngineCommand(SLEEP.argv, stray_engines.mark(data_dir), 1.0), tmp_path / "log"
        )

    engines = [start(here), start(here), start(elsewhere), EngineProcess.start(SLEEP, tmp_path / "log")]
    kept, stray, of_another, unmarked = engines
    try:
        assert stray_engines.end_strays(here, {kept.pid}) == [stray.pid]
        until_sync(lambda: not stray.alive())
        assert all(each.alive() for each in (kept, of_another, unmarked))
    finally:
        for each in engines:
            each.kill()
            until_sync(lambda each=each: not each.alive())
