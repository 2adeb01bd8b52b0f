"""A whole Penstock in a child process, as `penstock up` starts it, for end-to-end and fault tests."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import psutil

from tests.support.approving import approve_requests
from tests.support.log_search import leaks
from tests.support.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Tenant:
    """An organisation made through the admin REST, with one key."""

    id: str
    project_id: str
    key_id: str
    key: str


class Stack:
    """Starts `penstock up` on a data directory and talks to what it started."""

    def __init__(self, data_dir: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self.ready_file = data_dir.parent / f"{data_dir.name}-ready.json"
        self.log = data_dir.parent / f"{data_dir.name}-up.log"
        self._command = [
            sys.executable, "-m", "cli.main", "up",
            "--data-dir", str(data_dir), "--port", "0", "--console-port", "0",
            "--ready-file", str(self.ready_file), *flags,
        ]  # fmt: skip
        self._env = {**os.environ, **(env or {})}
        self.process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}

    def start(self, timeout_s: float = 300.0) -> "Stack":
        """Start and wait for the ready file; the log's tail is in the error when it does not come."""
        self.ready_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=ROOT, env=self._env, start_new_session=True
            )
        deadline = time.monotonic() + timeout_s
        while not self.ready_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = self.log.read_text(errors="replace")[-6000:]
                self.stop()
                raise AssertionError(f"penstock up did not become ready:\n{tail}")
            time.sleep(0.1)
        self.ready = json.loads(self.ready_file.read_text())
        return self

    def stop(self, timeout_s: float = 120.0) -> int:
        """SIGTERM and wait; SIGKILL to the whole session as a last resort. Returns the exit status.

        Fails when a log holds a prompt, an engine's own words or a secret.
        """
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
                raise
        assert (found := leaks(self.data_dir, self.log)) == [], found
        return self.process.returncode

    @property
    def base_url(self) -> str:
        """Base URL for SDKs, ending in /v1."""
        url = str(self.ready["base_url"]).rstrip("/")
        return url if url.endswith("/v1") else f"{url}/v1"

    @property
    def root_url(self) -> str:
        """The API's address without /v1."""
        return self.base_url.removesuffix("/v1")

    def pids(self, role: str) -> list[int]:
        """Process ids of a role now; the supervisor keeps the file up to date after restarts."""
        return list(json.loads(self.ready_file.read_text())["pids"][role])

    def processes(self) -> list[psutil.Process]:
        """The supervisor and all that descends from it; none when it does not run."""
        if self.process is None or self.process.poll() is not None:
            return []
        top = psutil.Process(self.process.pid)
        return [top, *top.children(recursive=True)]

    def admin(self, method: str, path: str, **options: Any) -> Any:
        """Call the admin REST as the platform's admin; returns the decoded body, raises on an error status."""
        with httpx.Client(base_url=self.root_url, timeout=60.0) as client:
            headers = {"Authorization": f"Bearer {self.ready['admin_token']}"}
            answer = client.request(method, f"/admin/v1{path}", headers=headers, **options)
            assert answer.status_code < 400, f"{method} {path}: {answer.status_code} {answer.text}"
            return answer.json() if answer.content else None

    def approved(self, method: str, path: str, **options: Any) -> None:
        """Call the admin REST for an act that waits for another person, who then approves it."""
        self.admin(method, path, **options)
        with ThreadPoolExecutor(1) as pool:  # the caller may run on an event loop
            pool.submit(asyncio.run, approve_requests(self.ready["database_url"])).result()

    def internals(self) -> dict[str, Any]:
        """What the platform tells its own commands alone: the scheduler's address and token."""
        return dict(json.loads((self.data_dir / "runtime.json").read_text()))

    def metrics(self, role: str) -> "Metrics":
        """What the first process of a role shows on its internal port now."""
        port = psutil.Process(self.pids(role)[0]).environ()["PENSTOCK_METRICS_PORT"]
        return Metrics(httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60.0).text)

    def command(self, *words: str, timeout_s: float = 120.0) -> str:
        """Run a `penstock` command on this platform, as an operator would; returns what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "cli.main", *words, "--data-dir", str(self.data_dir)],
            cwd=ROOT, env=self._env, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"penstock {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def make_tenant(self, name: str, credit_usd: str = "5.00") -> Tenant:
        """An organisation with credit and one live key."""
        tenant = self.admin("POST", "/tenants", json={"name": name})
        tenant_id = tenant["id"]
        projects = self.admin("GET", f"/tenants/{tenant_id}/projects")["data"]
        if credit_usd != "0":
            self.admin(
                "POST", f"/tenants/{tenant_id}/credits", json={"amount_usd": credit_usd, "reason": "test"}
            )
        body = {"project_id": projects[0]["id"], "name": "test"}
        made = self.admin("POST", f"/tenants/{tenant_id}/keys", json=body)
        return Tenant(id=tenant_id, project_id=projects[0]["id"], key_id=made["id"], key=made["secret"])

    async def connect(self) -> "asyncpg.Connection[asyncpg.Record]":
        """A connection as the schema's owner, to look at the rows behind the numbers."""
        return await asyncpg.connect(self.ready["database_url"])

    def failpoints(self, *, but: Collection[str] = (), **values: Any) -> None:
        """Order failures from every simulated engine but those of the replicas `but`; no values = none any more."""
        headers = {"Authorization": f"Bearer {self.ready['engine_key']}"}
        for engine in json.loads(self.ready_file.read_text())["engines"]:
            if engine["replica_id"] in but:
                continue
            httpx.post(
                f"{engine['url']}/failpoints", json=values, headers=headers, timeout=60.0
            ).raise_for_status()

    def engine_counters(self) -> dict[str, float]:
        """Sums over all engines of their own cumulative token counters."""
        totals: dict[str, float] = {}
        for engine in json.loads(self.ready_file.read_text())["engines"]:
            text = httpx.get(engine["metrics_url"], timeout=60.0).text
            for line in text.splitlines():
                if line.startswith(("vllm:prompt_tokens_total", "vllm:generation_tokens_total")):
                    name = line.split("{")[0].split(" ")[0].removeprefix("vllm:")
                    totals[name] = totals.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
        return totals


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run."""
    return [each for each in processes if _runs(each)]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two questions
        return False
