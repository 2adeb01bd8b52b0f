"""The jobs role as a process of its own, as `penstock jobs` runs it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.metrics import Metrics
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
_MAIN = (
    "import logging, sys; from core.settings import Settings; from jobs import serve; "
    "serve.STOP_S = float(sys.argv[1]); logging.basicConfig(level=logging.INFO); sys.exit(serve.main(Settings()))"
)


@dataclass(frozen=True)
class JobsRole:
    """A running jobs role, its log and its internal port."""

    process: subprocess.Popen[bytes]
    log_path: Path
    port: int

    def log(self) -> str:
        """Everything that it has logged so far."""
        return self.log_path.read_text(errors="replace")

    def healthy(self) -> bool:
        """Whether /healthz answers 200."""
        return httpx.get(f"http://127.0.0.1:{self.port}/healthz", timeout=60.0).status_code == 200

    def runs(self, job: str) -> float:
        """Successful runs of `job` since the start; 0 while the internal port does not answer yet."""
        try:
            text = httpx.get(f"http://127.0.0.1:{self.port}/metrics", timeout=60.0).text
        except httpx.ConnectError:
            return 0.0
        return Metrics(text).total("penstock_job_runs_total", job=job, result="ok")


@contextmanager
def jobs_role(pg_url: str, redis_url: str, tmp_path: Path, *, stop_s: float = 60.0) -> Iterator[JobsRole]:
    """Start the role, whose stop may take `stop_s` seconds.

    It is killed at the end if it still runs, and its log is printed when the test fails.
    """
    path = tmp_path / "jobs.log"
    port = free_port()
    with path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, str(stop_s)],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            env={
                **os.environ,
                "DATABASE_URL": pg_url,
                "REDIS_URL": redis_url,
                "PENSTOCK_METRICS_PORT": str(port),
            },
        )
    try:
        yield JobsRole(process, path, port)
    except BaseException:
        print(path.read_text(errors="replace")[-5000:])
        raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
