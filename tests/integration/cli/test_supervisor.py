"""The supervisor on trivial roles: restart with backoff, ordered drain, nothing left behind."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from cli.supervisor import RoleSpec, Supervisor, last_line
from core.child import free_port
from core.errors import Unavailable
from core.log_files import rotate
from tests.support.processes import descendants, gone
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[3]

# A role: health on a port, a child process, a file written when it has drained.
_ROLE = """
import http.server, pathlib, signal, subprocess, sys
port, note, stubborn, detach = int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3] == "y", sys.argv[4] == "y"
child = subprocess.Popen(["sleep", "600"], start_new_session=detach)
note.with_suffix(".child").write_text(str(child.pid))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *args): pass
server = http.server.HTTPServer(("127.0.0.1", port), Handler)
def end(*_):
    if not stubborn:
        note.write_text("drained"); sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("listening", flush=True)
server.serve_forever()
"""


def spec(
    tmp_path: Path, name: str, *, stubborn: bool = False, detach: bool = False, **more: object
) -> RoleSpec:
    port = free_port()
    flags = ["y" if flag else "n" for flag in (stubborn, detach)]
    return RoleSpec(
        name=name,
        role=name.split("-")[0],
        command=[sys.executable, "-c", _ROLE, str(port), str(tmp_path / name), *flags],
        env=os.environ,
        cwd=ROOT,
        health_url=f"http://127.0.0.1:{port}/",
        grace_s=0.5 if stubborn else 20.0,
        **more,  # type: ignore[arg-type]
    )


def child_of(tmp_path: Path, name: str) -> int:
    return int((tmp_path / name).with_suffix(".child").read_text())


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    made = Supervisor(tmp_path)
    ticking = asyncio.create_task(tick(made))
    yield made
    ticking.cancel()
    await asyncio.gather(ticking, made.stop_watching(), return_exceptions=True)
    for role in list(made.pids()):
        made.hurry.set()
        await made.drain(role)
    await made.end_descendants(others())


async def tick(supervisor: Supervisor) -> None:
    while True:
        supervisor.tick()
        await asyncio.sleep(0.02)


def others() -> frozenset[int]:
    """Children of the test process that are none of this test's: the run's own services."""
    return frozenset(descendants(lambda each: "sleep" not in each.name()))


async def test_a_killed_role_starts_again_and_its_children_are_gone(
    tmp_path: Path, supervisor: Supervisor, session: aiohttp.ClientSession
) -> None:
    role = supervisor.add(spec(tmp_path, "api-1"))
    await role.wait_healthy(session)
    first, its_child = role.pid, child_of(tmp_path, "api-1")
    os.kill(first, signal.SIGKILL)
    await until(lambda: role.pid not in (0, first))
    await role.wait_healthy(session)
    assert role.restarts == 1
    assert gone(its_child)
    assert supervisor.pids() == {"api": [role.pid]}


async def test_a_role_that_hangs_is_killed_and_starts_again(
    tmp_path: Path,
    supervisor: Supervisor,
    session: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("cli.supervisor.PROBE_S", 0.05)
    monkeypatch.setattr("cli.probes.PROBE_S", 2.0)
    monkeypatch.setattr("cli.probes.SILENT_PROBES", 2)
    role, other = supervisor.add(spec(tmp_path, "api-1")), supervisor.add(spec(tmp_path, "jobs"))
    await role.wait_healthy(session)
    await other.wait_healthy(session)
    await until(lambda: role._probes.answered)
    first = role.pid
    os.kill(first, signal.SIGSTOP)
    await until(lambda: role.pid not in (0, first))
    await role.wait_healthy(session)
    assert (role.restarts, other.restarts) == (1, 0)
    assert "api-1 hangs and is killed: 2 probes in a row failed: no answer within 2 s" in caplog.text
    assert gone(first)


async def test_a_restart_asks_for_a_new_spec(tmp_path: Path, supervisor: Supervisor) -> None:
    good = spec(tmp_path, "api-1")
    lost = replace(good, command=[sys.executable, "-c", "exit('the port is taken')"], renew=lambda _: good)
    role = supervisor.add(lost)
    async with aiohttp.ClientSession() as session:
        await until(lambda: role.restarts == 1)
        await role.wait_healthy(session)
    assert role.spec is good


async def test_backoff_grows_while_a_role_keeps_dying(tmp_path: Path, supervisor: Supervisor) -> None:
    dying = spec(tmp_path, "jobs")
    dying = RoleSpec(**{**vars(dying), "command": [sys.executable, "-c", "print('no luck'); exit(3)"]})
    role = supervisor.add(dying)
    await until(lambda: role.restarts == 2)
    assert role._backoff_s >= 2.0
    assert role.log_tail() == "no luck"


async def test_a_role_that_dies_at_once_is_reported_with_its_last_words(
    tmp_path: Path, supervisor: Supervisor, session: aiohttp.ClientSession
) -> None:
    dying = RoleSpec(
        **{**vars(spec(tmp_path, "console")), "command": [sys.executable, "-c", "exit('the port is taken')"]}
    )
    with pytest.raises(Unavailable, match="console did not start: the port is taken"):
        await supervisor.add(dying).wait_healthy(session)


async def test_drain_is_polite_first_and_final_then(
    tmp_path: Path, supervisor: Supervisor, session: aiohttp.ClientSession
) -> None:
    polite, stubborn = (
        supervisor.add(spec(tmp_path, "api-1")),
        supervisor.add(spec(tmp_path, "jobs", stubborn=True)),
    )
    await polite.wait_healthy(session)
    await stubborn.wait_healthy(session)
    pids = [polite.pid, stubborn.pid, child_of(tmp_path, "api-1"), child_of(tmp_path, "jobs")]
    assert await supervisor.drain("api") is True
    assert (tmp_path / "api-1").read_text() == "drained"
    assert not gone(pids[1])
    assert await supervisor.drain("jobs") is False
    await until(lambda: all(gone(pid) for pid in pids))


async def test_hurry_cuts_a_long_grace(
    tmp_path: Path, supervisor: Supervisor, session: aiohttp.ClientSession
) -> None:
    patient = RoleSpec(**{**vars(spec(tmp_path, "agent", stubborn=True)), "grace_s": 3600.0})
    role = supervisor.add(patient)
    await role.wait_healthy(session)
    draining = asyncio.create_task(supervisor.drain("agent"))
    supervisor.hurry.set()
    async with asyncio.timeout(60):
        assert await draining is False


async def test_engines_outlive_a_killed_agent_but_not_the_sweep(
    tmp_path: Path, supervisor: Supervisor, session: aiohttp.ClientSession
) -> None:
    role = supervisor.add(spec(tmp_path, "agent", detach=True, keeps_children=True))
    await role.wait_healthy(session)
    engine = child_of(tmp_path, "agent")
    first = role.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: role.pid not in (0, first))
    await role.wait_healthy(session)
    assert not gone(engine)
    await supervisor.drain("agent")
    assert engine in await supervisor.end_descendants(others())
    assert gone(engine)


async def test_a_helper_is_run_to_its_end_or_killed(tmp_path: Path, supervisor: Supervisor) -> None:
    command: Callable[[str], list[str]] = lambda code: [sys.executable, "-c", code]  # noqa: E731
    assert await supervisor.run_once("install", command("print('half'); exit(7)"), os.environ, ROOT) == 7
    assert last_line(tmp_path / "install.log") == "half"
    endless = "import time; print(1, flush=True); time.sleep(600)"
    long = asyncio.create_task(supervisor.run_once("install", command(endless), os.environ, ROOT))
    await until(lambda: last_line(tmp_path / "install.log") == "1")
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
    assert not descendants(lambda each: each.cmdline()[-1:] == [endless])


async def test_a_large_log_is_moved_aside_and_written_on(
    tmp_path: Path, supervisor: Supervisor, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.supervisor.rotate", lambda path: rotate(path, 100))
    code = (
        "while True: print('x' * 50, flush=True); input" + "() if False else __import__('time').sleep(0.01)"
    )
    role = supervisor.add(
        RoleSpec(**{**vars(spec(tmp_path, "jobs")), "command": [sys.executable, "-c", code]})
    )
    moved = role.log_path.with_suffix(".log.1")
    await until(lambda: moved.exists() and role.log_path.stat().st_size > 0)
    assert moved.stat().st_size > 100
