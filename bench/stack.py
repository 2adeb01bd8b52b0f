"""A whole platform for a benchmark: `penstock up` of this or another checkout, and a tenant as a real one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from bench.processes import Groups

ROOT = Path(__file__).resolve().parents[1]
START_TIMEOUT_S = 180.0
CREDIT_USD = "100000"
LIMITS = {
    "requests_per_min": 10**8,
    "input_tokens_per_min": 10**12,
    "output_tokens_per_min": 10**12,
    "concurrency": 10**6,
    "tokens_per_day": 10**13,
}
"""Limits that never apply, so that every request pays for their check."""
ROLES = ("api", "scheduler", "postgres", "redis", "jobs", "agent", "console", "stripe-sim", "supervisor")
"""Processes of the platform, in the order of the tables."""

_PARENTS = ("agent", "supervisor")
"""Roles whose children are counted by themselves."""


class Stack:
    """One platform with a data directory of its own."""

    def __init__(self, repo: Path, data_dir: Path, *flags: str, cores: Sequence[int] = ()) -> None:
        """`repo` is the checkout to run; `cores` are the only processors its processes may use, () = all."""
        self.repo = repo.resolve()
        self._data_dir = data_dir
        self._ready_file = data_dir.parent / f"{data_dir.name}-ready.json"
        self._log = data_dir.parent / f"{data_dir.name}-up.log"
        self._flags = flags
        self._cores = cores
        self._process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}

    def start(self) -> "Stack":
        """Start and wait until it answers. Raises RuntimeError with the end of its log when it does not start."""
        command = [
            python_of(self.repo), "-m", "cli.main", "up", "--data-dir", str(self._data_dir),
            "--port", "0", "--console-port", "0", "--ready-file", str(self._ready_file), *self._flags,
        ]  # fmt: skip
        if self._cores:
            command = ["taskset", "-c", ",".join(map(str, self._cores)), *command]
        # Payments are not measured, and the environment's own servers must not be used.
        env = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        env["PENSTOCK_APPROVAL_LIMIT_USD"] = CREDIT_USD  # one person grants the credit
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.repo, env=env,
                start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready_file.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"penstock up did not start:\n{self._log.read_text()[-3000:]}")
            time.sleep(0.1)
        self.ready = json.loads(self._ready_file.read_text())
        return self

    def stop(self) -> None:
        """End the platform and all its processes."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGTERM)  # a second one shortens the drain
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    @property
    def port(self) -> int:
        """Port of the customer API."""
        return int(self.ready["base_url"].split(":")[2].split("/")[0])

    @property
    def groups(self) -> Groups:
        """The processes by role; one API process is expected."""
        pids = self.ready["pids"]
        return {role: (pids[role][0], role not in _PARENTS) for role in ROLES if pids.get(role)}

    def make_tenant(self, name: str = "Bench") -> str:
        """Create an organisation with prepaid credit and limits on all its scopes; return its key."""
        return self.make_customer(name)[1]

    def make_customer(self, name: str) -> tuple[str, str]:
        """Create an organisation as `make_tenant` does; return its id and its key."""
        tenant = self._admin("POST", "/tenants", {"name": name})["id"]
        self._admin("POST", f"/tenants/{tenant}/credits", {"amount_usd": CREDIT_USD, "reason": "benchmark"})
        project = self._admin("GET", f"/tenants/{tenant}/projects")["data"][0]["id"]
        key = self._admin("POST", f"/tenants/{tenant}/keys", {"project_id": project, "name": "bench"})
        for kind, scope in (("tenant", tenant), ("project", project), ("key", key["id"])):
            self._admin("PUT", f"/tenants/{tenant}/limits/{kind}/{scope}", LIMITS)
        return str(tenant), str(key["secret"])

    def reconcile(self) -> None:
        """Compare the engines' counters with the books now."""
        self._admin("POST", "/reconcile/run")

    def _admin(self, method: str, path: str, body: object = None) -> Any:
        answer = httpx.request(
            method,
            f"http://127.0.0.1:{self.port}/admin/v1{path}",
            json=body,
            headers={"Authorization": f"Bearer {self.ready['admin_token']}"},
            timeout=30.0,
        )
        if answer.status_code >= 400 or answer.status_code == httpx.codes.ACCEPTED:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json() if answer.content else None


def python_of(repo: Path) -> str:
    """Return the interpreter of a checkout's own environment; without one, the one that runs this."""
    own = repo / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def up_knows(repo: Path, option: str) -> bool:
    """Return whether the checkout's `penstock up` has an option."""
    shown = subprocess.run(
        [python_of(repo), "-m", "cli.main", "up", "--help"],
        cwd=repo, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    return option in shown.stdout
