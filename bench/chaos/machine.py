"""The machine under test: PostgreSQL, Redis, proxies before them and `penstock up`, all of which may be hurt.

The stores belong to the harness, so that connections to them pass a fault proxy; the roles and the simulated engines
belong to the platform, which restarts them itself.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from bench.chaos.disk import SmallDisk
from bench.stack import ROOT
from core.child import free_port
from core.embedded import EmbeddedPostgres, EmbeddedRedis
from core.errors import Unavailable
from sim.fault_proxy import FaultProxy

START_TIMEOUT_S = 240.0
HOLD_TTL_S = 20
"""Seconds until the hold of a dead process expires: short, so that the books can be asked soon."""
SPOOL_DISK_BYTES = 1200 << 20
"""The spool's disk: room for the preallocated files of the living processes and of some dead ones."""
REPLICAS = 2
API_WORKERS = 2
ROLES = ("api", "scheduler", "jobs", "agent", "engine")
CLOCK_HOOK = Path(__file__).parent / "clock"


class Machine:
    """One machine in `folder`; `mounts`: whether a disk may be mounted for the spool."""

    def __init__(self, folder: Path, *, mounts: bool) -> None:
        folder.chmod(0o755)
        self.folder = folder
        self.data_dir = folder / "data"
        self.data_dir.mkdir()
        self.clocks = folder / "clocks"
        self.clocks.mkdir()
        self.spool = self.data_dir / "spool"
        self.disk: SmallDisk | None = None
        if mounts:
            with suppress(OSError):
                self.disk = SmallDisk(self.spool, SPOOL_DISK_BYTES)
        self.postgres = EmbeddedPostgres(folder / "stores")
        self.redis = EmbeddedRedis(folder / "stores")
        self.proxies: dict[str, FaultProxy] = {}
        self.port = free_port()
        self.ready: dict[str, Any] = {}
        self.starting = asyncio.Lock()
        """Held while the machine, or one of its stores, is started."""
        self._ready_file = folder / "ready.json"
        self._up: subprocess.Popen[bytes] | None = None
        self._urls: dict[str, str] = {}

    # -- start and stop --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything and wait until it serves. Raises RuntimeError with the log's end when it does not."""
        async with self.starting:
            await self.start_store("redis")
            await self.start_store("postgres")
            await self._link()
            await self._start_platform()

    async def start_store(self, name: str) -> None:
        """Start PostgreSQL or Redis, also after a crash; what is left of the crash may refuse a while."""
        server = self.postgres if name == "postgres" else self.redis
        for left in reversed(range(4)):
            try:
                await server.start()
                return
            except Unavailable:
                if not left:
                    raise
                await asyncio.sleep(1)

    async def _link(self) -> None:
        if self.proxies:
            return
        for name, url in (("postgres", self.postgres.url), ("redis", self.redis.url)):
            parts = urlsplit(url)
            proxy = self.proxies[name] = FaultProxy("127.0.0.1", int(parts.port or 0))
            await proxy.start()
            self._urls[name] = url.replace(f":{parts.port}/", f":{proxy.port}/")
        self.proxies["clients"] = FaultProxy("127.0.0.1", self.port)
        await self.proxies["clients"].start()

    async def _start_platform(self) -> None:
        self._ready_file.unlink(missing_ok=True)
        for stale in self.clocks.iterdir():
            stale.unlink()
        command = [
            sys.executable, "-m", "cli.main", "up", "--engine", "sim", "--replicas", str(REPLICAS),
            "--api-workers", str(API_WORKERS), "--data-dir", str(self.data_dir), "--port", str(self.port),
            "--console-port", "0", "--ready-file", str(self._ready_file), "--no-demo",
        ]  # fmt: skip
        with (self.folder / "up.log").open("ab") as log:
            self._up = subprocess.Popen(  # noqa: ASYNC220 - as quick as any other start
                command, cwd=ROOT, env=self._env(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready_file.exists():
            if self._up.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"penstock up did not start:\n{(self.folder / 'up.log').read_text()[-3000:]}"
                )
            await asyncio.sleep(0.1)
        self.ready = json.loads(self._ready_file.read_text())

    def _env(self) -> dict[str, str]:
        env = {
            **os.environ,
            "DATABASE_URL": self._urls["postgres"],
            "REDIS_URL": self._urls["redis"],
            "PENSTOCK_HOLD_TTL_S": str(HOLD_TTL_S),
            "PENSTOCK_SIM_SPEEDUP": "0.3",
            "CHAOS_CLOCK_DIR": str(self.clocks),
            "SIM_ENGINE_REQUEST_LOG": str(self.folder / "engines.jsonl"),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(CLOCK_HOOK), os.environ.get("PYTHONPATH", "")))),
        }
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        return env

    def crash(self) -> None:
        """SIGKILL every process of the machine, as a loss of power ends them, except that written pages stay."""
        trees = [self._up.pid if self._up else 0, self.postgres.pid, self.redis.pid]
        victims: list[psutil.Process] = []
        for pid in filter(None, trees):
            with suppress(psutil.NoSuchProcess):
                top = psutil.Process(pid)
                top.suspend()  # nothing is restarted while the others die
                victims += [top, *top.children(recursive=True)]
        for victim in reversed(victims):
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        psutil.wait_procs(victims, timeout=20)
        if self._up is not None:
            self._up.wait()

    async def close(self) -> None:
        """End everything and unmount the disk."""
        if self._up is not None:
            self.crash()
        for server in (self.redis, self.postgres):
            await server.stop()
        for proxy in self.proxies.values():
            await proxy.close()
        if self.disk is not None:
            self.disk.close()

    # -- what runs -------------------------------------------------------------------------------------------------

    @property
    def base_url(self) -> str:
        """Address of the customer API."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def proxied_url(self) -> str:
        """The same, through the fault proxy."""
        return f"http://127.0.0.1:{self.proxies['clients'].port}"

    def pids(self, role: str) -> list[int]:
        """Processes of a role that run now, or of `postgres` and `redis` with their children."""
        if role in ("postgres", "redis"):
            pid = self.postgres.pid if role == "postgres" else self.redis.pid
            return [pid, *_children(pid)] if pid else []
        try:
            found = json.loads(self._ready_file.read_text())["pids"].get(role, [])
        except (FileNotFoundError, json.JSONDecodeError):
            return []
        return [pid for pid in found if psutil.pid_exists(pid)]

    async def healthy(self) -> bool:
        """Whether every role runs, every API process is ready, and both engines serve."""
        if any(not self.pids(role) for role in ROLES) or len(self.pids("engine")) < REPLICAS:
            return False
        if len(self.pids("api")) < API_WORKERS:
            return False
        alone = {"connection": "close"}
        async with httpx.AsyncClient(timeout=3, headers=alone) as client:
            try:
                for _ in range(3 * API_WORKERS):  # new connections are spread over the processes
                    if (await client.get(f"{self.base_url}/readyz")).status_code != 200:
                        return False
            except httpx.HTTPError:
                return False
        return True

    async def admin(self, method: str, path: str, body: object = None) -> Any:
        """Call the admin REST; returns the decoded answer. Raises httpx.HTTPError."""
        async with httpx.AsyncClient(base_url=self.base_url, timeout=60) as client:
            headers = {"Authorization": f"Bearer {self.ready['admin_token']}"}
            answer = await client.request(method, f"/admin/v1{path}", json=body, headers=headers)
            answer.raise_for_status()
            return answer.json() if answer.content else None

    def engine_metrics(self) -> list[str]:
        """Addresses of the engines' counters."""
        return [engine["metrics_url"] for engine in json.loads(self._ready_file.read_text())["engines"]]

    def step_clock(self, pid: int, seconds: float) -> None:
        """Step the wall clock of a process; 0 = the true time."""
        if seconds:
            (self.clocks / str(pid)).write_text(str(seconds))
        else:
            (self.clocks / str(pid)).unlink(missing_ok=True)


def _children(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def send(pids: Iterable[int], number: signal.Signals) -> list[int]:
    """Send a signal to processes; return those that were there."""
    reached = []
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            reached.append(pid)
    return reached
