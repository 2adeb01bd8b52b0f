"""The PostgreSQL and Redis of one test run.

A small process of its own holds them, because with pytest-xdist no worker lives as long as the run. The first worker
starts it under a file lock; it ends when the process that owns the run ends, however that ends.

Run as `python -m tests.support.services STATE_FILE OWNER_PID REDIS_COUNT`.
"""

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from core.embedded import EmbeddedPostgres, EmbeddedRedis, write_private
from core.services import migrate

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = "penstock_template"
_FAST = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "48MB",
    "max_connections": "300",
}


_MEMORY_BYTES = 6 << 30
"""Databases of a few tests grow to some hundred megabytes; the write-ahead log to one gigabyte."""


@dataclass(frozen=True)
class Services:
    """Where the run's servers answer, for one worker."""

    postgres_url: str
    """Of the maintenance database, as superuser."""
    redis_url: str
    database: str
    """The name of this worker's own database."""

    def url(self, name: str) -> str:
        """The URL of another database of the server."""
        return f"{self.postgres_url.rsplit('/', 1)[0]}/{name}"

    def fresh_database(self) -> str:
        """This worker's database, made anew from the migrated template; cuts off who is still connected."""
        asyncio_run_in_thread(self._recreate)
        return self.url(self.database)

    async def _recreate(self) -> None:
        connection = await asyncpg.connect(self.postgres_url)
        try:
            await connection.execute(f"DROP DATABASE IF EXISTS {self.database} WITH (FORCE)")
            await connection.execute(f"CREATE DATABASE {self.database} TEMPLATE {TEMPLATE}")
        finally:
            await connection.close()


def asyncio_run_in_thread(coroutine_function) -> None:
    """Run a coroutine function to its end outside of the test's own event loop."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(coroutine_function())).result()


def obtain(shared_dir: Path, owner_pid: int, worker: str, workers: int) -> Services:
    """The servers of the run that shares `shared_dir`, started if this worker is the first to ask."""
    state_file = shared_dir / "services.json"
    with (shared_dir / "services.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not state_file.exists():
            _start(state_file, owner_pid, workers)
    state = json.loads(state_file.read_text())
    if "error" in state:
        raise RuntimeError(f"the test services did not start:\n{state['error']}")
    index = int(worker.removeprefix("gw")) if worker.startswith("gw") else 0
    return Services(state["postgres_url"], state["redis_urls"][index], f"test_{worker}")


def _start(state_file: Path, owner_pid: int, redis_count: int) -> None:
    log = state_file.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(state_file), str(owner_pid), str(redis_count)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + 120
    while not state_file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the test services did not start:\n{log.read_text()}")
        time.sleep(0.05)
    process.returncode = 0  # it outlives this worker on purpose; no warning about that


def _roomy_memory() -> Path | None:
    """The file system in memory, if it has room: there a new database takes half the time. Otherwise None."""
    memory = Path("/dev/shm")
    try:
        return memory if shutil.disk_usage(memory).free >= _MEMORY_BYTES else None
    except OSError:
        return None


async def _serve(state_file: Path, owner_pid: int, redis_count: int) -> None:
    gone = asyncio.Event()
    owner = os.pidfd_open(owner_pid)
    asyncio.get_running_loop().add_reader(owner, gone.set)
    data_dir = Path(tempfile.mkdtemp(prefix="penstock-tests-", dir=_roomy_memory()))
    os.chmod(data_dir, 0o755)
    postgres = EmbeddedPostgres(data_dir, settings=_FAST)
    redises = [EmbeddedRedis(data_dir / str(index)) for index in range(redis_count)]
    try:
        try:
            state = await _come_up(postgres, redises)
        except Exception:  # noqa: BLE001 - whatever it was, the waiting test must hear of it
            state = {"error": traceback.format_exc()}
        write_private(state_file, json.dumps(state))
        if "error" not in state:
            await gone.wait()
    finally:
        for server in (*redises, postgres):
            await server.stop()
        shutil.rmtree(data_dir, ignore_errors=True)


async def _come_up(postgres: EmbeddedPostgres, redises: list[EmbeddedRedis]) -> dict[str, object]:
    url = await postgres.start()
    base = url.rsplit("/", 1)[0]
    connection = await asyncpg.connect(f"{base}/postgres")
    await connection.execute(f"CREATE DATABASE {TEMPLATE}")
    await connection.close()
    await migrate(f"{base}/{TEMPLATE}")
    return {"postgres_url": f"{base}/postgres", "redis_urls": [await redis.start() for redis in redises]}


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
