"""A fleet: simulated engines behind the real vllm-router, which has an environment of its own."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.ports import free_port
from tests.support.stack import ROOT
from tests.support.waiting import until_sync

LOCK = ROOT / "requirements" / "router.txt"
ENVIRONMENT = ROOT / ".tools" / "router"
MODEL = "penstock/tiny"


def installed_router() -> Path:
    """The program vllm-router of the locked version, installed where it is not; skips the test where it cannot be."""
    stamp, program = ENVIRONMENT / "locked.txt", ENVIRONMENT / "bin" / "vllm-router"
    if stamp.exists() and stamp.read_text() == LOCK.read_text():
        return program
    uv = [str(Path(sys.executable).parent / "uv")]
    python = str(ENVIRONMENT / "bin" / "python")
    for words in (
        ["venv", "--quiet", "--clear", "--python", sys.executable, str(ENVIRONMENT)],
        ["pip", "sync", "--quiet", "--python", python, "--require-hashes", str(LOCK)],
    ):
        done = subprocess.run([*uv, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["uv failed"])[-1]
            pytest.skip(f"vllm-router cannot be installed here: {reason}")
    stamp.write_text(LOCK.read_text())
    return program


class Child:
    """A server of this test with an address of its own, which can be killed and started again."""

    def __init__(self, log: Path, *command: str, port: int, ready: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._command = command
        self._ready = ready
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, without waiting for it."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=ROOT, env={**os.environ}
            )

    def wait(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + 60
        while not self.answers():
            alive = self._process is not None and self._process.poll() is None
            if not alive or time.monotonic() > deadline:
                raise AssertionError(self._log.read_text(errors="replace")[-3000:])
            time.sleep(0.05)

    def answers(self) -> bool:
        """Whether it serves now."""
        try:
            return httpx.get(f"{self.url}{self._ready}", timeout=5.0).status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """End it at once, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def wait_for_end(self) -> None:
        """Wait until it has ended by itself."""
        assert self._process is not None
        self._process.wait(60)

    def failpoints(self, **values: Any) -> None:
        """Order failures from a simulated engine; no values = none any more."""
        httpx.post(f"{self.url}/failpoints", json=values, timeout=30.0).raise_for_status()


def router_for(folder: Path, *engines: str) -> Child:
    """The router in front of engines at these addresses, not started. It looks after them every second."""
    port = free_port()
    return Child(
        folder / "router.log",
        *(str(installed_router()), "--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"),
        *("--worker-urls", *engines, "--prometheus-port", str(free_port())),
        *("--worker-startup-check-interval", "1", "--health-check-interval-secs", "1"),
        *("--health-failure-threshold", "1", "--health-success-threshold", "1"),
        *("--cb-timeout-duration-secs", "1"),
        port=port,
        ready="/health",
    )


class Fleet:
    """Two simulated engines, the router in front of them, and one more engine that it does not know."""

    def __init__(self, folder: Path) -> None:
        self.engines = [self._engine(folder, f"engine-{number}") for number in range(2)]
        self.spare = self._engine(folder, "spare")
        self.router = router_for(folder, *(engine.url for engine in self.engines))

    @staticmethod
    def _engine(folder: Path, name: str) -> Child:
        port = free_port()
        command = [sys.executable, "-m", "sim.engine", "--port", str(port), "--model", MODEL]
        return Child(folder / f"{name}.log", *command, port=port, ready="/health")

    @property
    def all(self) -> list[Child]:
        """All processes, the engines first."""
        return [*self.engines, self.spare, self.router]

    def start(self) -> "Fleet":
        """Start everything and wait until the router has found both engines."""
        for child in self.all:
            child.start()
        for child in self.all:
            child.wait()
        return self

    def mend(self) -> None:
        """Start what was killed, without failures, and wait until the router has found it."""
        for child in self.all:
            if not child.answers():
                child.kill()
                child.start()
                child.wait()
        for engine in (*self.engines, self.spare):
            engine.failpoints()
        until_sync(lambda: self.healthy() == len(self.engines))

    def healthy(self) -> int:
        """The engines that the router takes for healthy."""
        workers = httpx.get(f"{self.router.url}/workers", timeout=5.0).json()["workers"]
        return sum(worker["is_healthy"] for worker in workers)

    def stop(self) -> None:
        """End everything."""
        for child in reversed(self.all):
            child.kill()
