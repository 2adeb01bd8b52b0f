"""The console as a real process against real PostgreSQL and Redis, with a scheduler and an agent behind it."""

import asyncio
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg

from core.child import free_port
from core.db import Database
from tests.browser.seed import PEPPER, Customer, seed
from tests.support.scheduling import TOKEN
from tests.support.services import ROOT, TEMPLATE, Services
from tests.support.waiting import until_sync


class Site:
    """Where the console answers, and what is in it."""

    def __init__(
        self,
        database_url: str,
        redis_url: str,
        customers: dict[str, Customer],
        extra: Mapping[str, str] | None = None,
    ) -> None:
        self.database_url = database_url
        self.redis_url = redis_url
        self.customers = customers
        self.extra = dict(extra or {})
        self.port, self.metrics_port, self.scheduler_port = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def northwind(self) -> Customer:
        """The customer with the most usage."""
        return self.customers["Northwind Robotics"]

    def environment(self) -> dict[str, str]:
        """What a role is told. Without the runner's own variable, which NiceGUI would act on."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        return kept | {
            "DATABASE_URL": self.database_url,
            "REDIS_URL": self.redis_url,
            "PENSTOCK_CONSOLE_PORT": str(self.port),
            "PENSTOCK_SCHEDULER_PORT": str(self.scheduler_port),
            "PENSTOCK_INTERNAL_TOKEN": TOKEN,
            "PENSTOCK_KEY_PEPPER": PEPPER,
            "PENSTOCK_CONSOLE_SECRET": "secret of the browser tests",
            **self.extra,
        }

    @contextmanager
    def role(self, name: str, log: Path, metrics_port: int) -> Iterator["subprocess.Popen[bytes]"]:
        """A role of the platform as a process of its own; ends with SIGTERM and must do so cleanly."""
        environment = self.environment() | {"PENSTOCK_METRICS_PORT": str(metrics_port)}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "cli.main", name],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            until_sync(
                lambda: process.poll() is not None or _answers(f"http://127.0.0.1:{metrics_port}/healthz"),
                timeout_s=180,
                what=f"{name} answers",
            )
            assert process.poll() is None, log.read_text()
            yield process
        finally:
            process.terminate()
            status = process.wait(timeout=120)
        assert status == 0, f"{name} ended with {status}:\n{log.read_text()}"

    def metric(self, name: str) -> float:
        """The value of one metric of the console without labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=60) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(f"{name} "):
                    return float(line.split()[1])
        raise LookupError(name)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


Seed = Callable[[Database, Path], Awaitable[dict[str, Customer]]]
"""Fills an empty, migrated database; the folder is for spools."""


@contextmanager
def running_site(
    services: Services,
    base: Path,
    *,
    fill: Seed = seed,
    suffix: str = "console",
    extra: Mapping[str, str] | None = None,
) -> Iterator[Site]:
    """A database of its own filled by `fill`, a scheduler and a console; all gone at the end.

    `suffix` keeps sites of one worker apart, `extra` is added to the environment of the roles.
    """
    name = f"{services.database}_{suffix}"
    with tempfile.TemporaryDirectory(prefix="penstock-spool-") as spool:
        customers = _in_thread(_prepare(services, name, Path(spool), fill))
    site = Site(services.url(name), services.redis_url, customers, extra)
    try:
        with (
            site.role("scheduler", base / "scheduler.log", free_port()),
            site.role("console", base / "console.log", site.metrics_port),
        ):
            until_sync(lambda: _answers(f"{site.url}/readyz"), timeout_s=180)
            yield site
    finally:
        _in_thread(_drop(services, name))


async def _prepare(services: Services, name: str, spool: Path, fill: Seed) -> dict[str, Customer]:
    connection = await asyncpg.connect(services.postgres_url)
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    finally:
        await connection.close()
    database = Database(services.url(name))
    try:
        return await fill(database, spool)
    finally:
        await database.close()


async def _drop(services: Services, name: str) -> None:
    connection = await asyncpg.connect(services.postgres_url)
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    finally:
        await connection.close()


def _in_thread(coroutine: Any) -> Any:
    """Run a coroutine outside of any event loop of the test."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
