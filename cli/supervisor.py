"""Supervises the roles' processes: start, restart when they die or hang, drain in order, end all descendants."""

import asyncio
import contextlib
import ctypes
import logging
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
import psutil

from cli.probes import PROBE_S, ProbeCount, probe
from core import child
from core.errors import Unavailable
from core.log_files import rotate
from core.supervise import supervise

log = logging.getLogger(__name__)

_PR_SET_CHILD_SUBREAPER = 36
_FIRST_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 30.0
_BACKOFF_RESET_S = 60.0
"""Seconds of running after which a process's restart backoff is reset."""


@dataclass(frozen=True)
class RoleSpec:
    """A process to supervise."""

    name: str
    """Unique name such as `api-1`; the log is <log_dir>/<name>.log."""
    role: str
    command: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    health_url: str
    """URL that answers 200 when the process is healthy."""
    grace_s: float
    """Seconds that the process may drain before it is killed."""
    keeps_children: bool = False
    """Whether its children survive its crash, as the agent's engines do."""
    renew: "Callable[[RoleSpec], RoleSpec] | None" = None
    """Called before a restart; returns the spec to start with, on another port where this one's is taken by now."""


class RoleProcess:
    """A supervised process with its restart state."""

    def __init__(
        self, spec: RoleSpec, log_dir: Path, on_start: Callable[[int], None], inherit: Collection[int] = ()
    ) -> None:
        self.spec = spec
        self._inherit = inherit
        self._on_start = on_start
        self.log_path = log_dir / f"{spec.name}.log"
        self.restarts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._backoff_s = _FIRST_BACKOFF_S
        self._start_again_at: float | None = None
        self._probes = ProbeCount()

    @property
    def pid(self) -> int:
        """Process id; 0 while the process does not run."""
        return self._process.pid if self._process and self._process.poll() is None else 0

    def start(self) -> None:
        """Start the process. Call it from the main thread only; core.child gives the reason."""
        with self.log_path.open("ab") as output:
            self._process = child.spawn(
                self.spec.command,
                log=output,
                env=self.spec.env,
                cwd=self.spec.cwd,
                inherit=self._inherit,
            )
        self._on_start(self._process.pid)
        self._started_at = time.monotonic()
        self._start_again_at = None
        self._probes = ProbeCount()

    async def watch(self) -> None:
        """Probe the process until cancelled, and kill it when it hangs; `tick` starts it again."""
        async with aiohttp.ClientSession() as session:
            while True:
                await asyncio.sleep(PROBE_S)
                process, probes = self._process, self._probes
                if process is None or process.poll() is not None:
                    continue
                why = probes.add(await probe(session, self.spec.health_url))
                if why and process is self._process:
                    log.error("%s hangs and is killed: %s", self.spec.name, why)
                    process.kill()

    def tick(self) -> None:
        """Restart the process after its backoff when it has died."""
        if self._process is None or self._process.poll() is None:
            return
        now = time.monotonic()
        if self._start_again_at is None:
            self._kill_group()
            if now - self._started_at > _BACKOFF_RESET_S:
                self._backoff_s = _FIRST_BACKOFF_S
            log.warning(
                "%s ended with code %s, starts again in %.1f s",
                self.spec.name,
                self._process.returncode,
                self._backoff_s,
            )
            self._start_again_at = now + self._backoff_s
            self._backoff_s = min(2 * self._backoff_s, _MAX_BACKOFF_S)
        elif now >= self._start_again_at:
            self.restarts += 1
            if self.spec.renew is not None:
                self.spec = self.spec.renew(self.spec)
            self.start()

    async def wait_healthy(self, session: aiohttp.ClientSession) -> None:
        """Return when the process answers 200 on its health URL. Raises Unavailable when it dies before that."""
        while not await self._healthy(session):
            if self._process is None or self._process.poll() is not None:
                raise Unavailable(f"{self.spec.name} did not start: {self.log_tail()} (log: {self.log_path})")
            await asyncio.sleep(0.1)

    async def _healthy(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(self.spec.health_url, timeout=aiohttp.ClientTimeout(total=2)) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def stop(self, hurry: asyncio.Event) -> bool:
        """Send SIGTERM and after grace_s (1 s once `hurry` is set) SIGKILL. True when it ended before SIGKILL."""
        process, self._process = self._process, None
        if process is None:
            return True
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self.spec.grace_s
        while process.poll() is None and time.monotonic() < deadline:
            if hurry.is_set():
                deadline = min(deadline, time.monotonic() + 1.0)
                hurry = asyncio.Event()  # the deadline moves once
                process.send_signal(signal.SIGTERM)  # at a second one the API ends its open answers
            await asyncio.sleep(0.05)
        clean = process.poll() is not None
        if not clean:
            log.warning("%s did not drain within its grace and is killed", self.spec.name)
            process.kill()
            await child.exited(process, 10.0)
        if not self.spec.keeps_children:
            _kill_group(process.pid)
        return clean

    def log_tail(self) -> str:
        """The last line of the log that is not blank."""
        return last_line(self.log_path) or "it wrote no log"

    def rotate_log(self) -> None:
        """Move a large log aside."""
        rotate(self.log_path)

    def _kill_group(self) -> None:
        if self._process is not None and not self.spec.keeps_children:
            _kill_group(self._process.pid)


class Supervisor:
    """All supervised processes by name."""

    def __init__(self, log_dir: Path, *, inherit: Collection[int] = ()) -> None:
        """`inherit`: file descriptors that every role keeps open, such as that of the data directory's lock."""
        self._log_dir = log_dir
        self._inherit = inherit
        self._roles: dict[str, RoleProcess] = {}
        self._not_reaped: set[int] = set()
        self._watches: list[asyncio.Task[None]] = []
        self.hurry = asyncio.Event()
        """When set, every process has 1 s left to drain."""
        become_subreaper()

    def add(self, spec: RoleSpec) -> RoleProcess:
        """Start a process and supervise it; call it on a running event loop, from the main thread."""
        process = RoleProcess(spec, self._log_dir, self.exclude_from_reaping, self._inherit)
        process.start()
        self._roles[spec.name] = process
        self._watches.append(supervise(f"probes of {spec.name}", process.watch))
        return process

    async def stop_watching(self) -> None:
        """Probe nothing any more."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        self._watches.clear()

    def pids(self) -> dict[str, list[int]]:
        """Ids of running processes by role."""
        found: dict[str, list[int]] = {}
        for process in self._roles.values():
            found.setdefault(process.spec.role, [])
            if process.pid:
                found[process.spec.role].append(process.pid)
        return found

    def tick(self) -> None:
        """Restart dead processes, rotate logs and reap orphans. Call it several times a second."""
        for process in self._roles.values():
            process.tick()
            process.rotate_log()
        self._reap_adopted()

    async def drain(self, role: str) -> bool:
        """Stop all processes of `role` concurrently. True when all ended by themselves."""
        chosen = [process for process in self._roles.values() if process.spec.role == role]
        results = await asyncio.gather(*(process.stop(self.hurry) for process in chosen))
        return all(results)

    async def run_once(self, name: str, command: Sequence[str], env: Mapping[str, str], cwd: Path) -> int:
        """Run a command and return its exit status; the output goes to <log_dir>/<name>.log. Cancelling kills it."""
        with (self._log_dir / f"{name}.log").open("wb") as output:
            process = child.spawn(command, log=output, env=env, cwd=cwd, inherit=self._inherit)
        self.exclude_from_reaping(process.pid)
        try:
            await child.exited(process, math.inf)
        finally:
            if process.poll() is None:
                process.kill()
                await child.exited(process, 5.0)
            _kill_group(process.pid)
        return process.returncode

    def exclude_from_reaping(self, pid: int) -> None:
        """Do not reap `pid`: its owner collects the exit status."""
        self._not_reaped.add(pid)

    def _reap_adopted(self) -> None:
        """Reap ended orphans that this process has adopted. Costs one system call while no child has ended."""
        with contextlib.suppress(ChildProcessError):
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return
        for orphan in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
                if orphan.pid not in self._not_reaped and orphan.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(orphan.pid, os.WNOHANG)

    async def end_descendants(self, spare: frozenset[int]) -> list[int]:
        """End all descendants except `spare` and their descendants; returns the pids of those that were alive."""
        left = [each for each in _descendants(psutil.Process(), spare) if _alive(each)]
        for sig, wait_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            for each in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.send_signal(sig)
            await _wait_until(lambda: not any(_alive(each) for each in left), wait_s)
        return [each.pid for each in left]


async def _wait_until(done: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() >= deadline:
            return
        await asyncio.sleep(0.05)


def become_subreaper() -> None:
    """Make this process adopt orphaned descendants, so that `end_descendants` finds them (prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _kill_group(leader: int) -> None:
    """Kill the remaining processes of a dead process's group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _descendants(process: psutil.Process, spare: frozenset[int]) -> Iterator[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in process.children():
            if each.pid not in spare:
                yield each
                yield from _descendants(each, spare)


def _alive(process: psutil.Process) -> bool:
    try:
        if process.status() != psutil.STATUS_ZOMBIE:
            return True
        if process.ppid() == os.getpid():
            os.waitpid(process.pid, os.WNOHANG)
    except (psutil.NoSuchProcess, ChildProcessError):
        return False
    return False


def last_line(path: Path) -> str:
    """The last line of a log that is not blank; of a JSON line its message; "" when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except FileNotFoundError:
        return ""
    if not lines:
        return ""
    try:
        event = msgspec.json.decode(lines[-1], type=dict[str, object])
    except msgspec.MsgspecError:
        return lines[-1].strip()
    return str(event.get("message", lines[-1]))
