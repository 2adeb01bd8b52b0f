"""Starts a whole platform with two engines that use one kind of prefix knowledge."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[2]
MODEL = "penstock/tiny"
ROLES = ("api", "scheduler", "agent")


class Platform:
    """A running `penstock up`."""

    def __init__(self, data_dir: Path, ready_file: Path) -> None:
        self.data_dir = data_dir
        self._ready_file = ready_file
        self._ready: dict[str, Any] = json.loads(ready_file.read_text())
        self.base_url = str(self._ready["base_url"]).rstrip("/").removesuffix("/v1")

    def admin(self, method: str, path: str, **options: Any) -> Any:
        """Call the admin REST API and return the decoded body."""
        headers = {"Authorization": f"Bearer {self._ready['admin_token']}"}
        answer = httpx.request(method, f"{self.base_url}/admin/v1{path}", headers=headers, **options)
        return answer.raise_for_status().json()

    def key(self, name: str) -> str:
        """Create an organisation with credit and return its API key."""
        tenant = self.admin("POST", "/tenants", json={"name": name})["id"]
        project = self.admin("GET", f"/tenants/{tenant}/projects")["data"][0]["id"]
        self.admin("POST", f"/tenants/{tenant}/credits", json={"amount_usd": "5.00", "reason": "bench"})
        made = self.admin("POST", f"/tenants/{tenant}/keys", json={"project_id": project, "name": "bench"})
        return str(made["secret"])

    def await_knowledge(self, kind: str, timeout_s: float = 300.0) -> None:
        """Wait until both replicas are ready and report their kind of prefix knowledge.

        Raises TimeoutError after `timeout_s` seconds.
        """
        wanted = [("ready", "tokens" if kind == "exact" else "text")] * 2
        deadline = time.monotonic() + timeout_s
        while True:
            replicas = self.admin("GET", "/pools")["replicas"]
            if [(each["state"], each["prefix_kind"]) for each in replicas] == wanted:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"replicas are not {wanted}: {replicas}")
            time.sleep(0.2)

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU seconds of each role so far."""
        used = {}
        for role in ROLES:
            times = [process.cpu_times() for process in self._processes(role)]
            used[role] = sum(each.user + each.system for each in times)
        return used

    def metric(self, role: str, name: str) -> float:
        """Return the sum of a role's samples of that metric."""
        total = 0.0
        for process in self._processes(role):
            port = int(process.environ()["PENSTOCK_METRICS_PORT"])
            text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
            for family in text_string_to_metric_families(text):
                total += sum(sample.value for sample in family.samples if sample.name == name)
        return total

    def _processes(self, role: str) -> list[psutil.Process]:
        return [psutil.Process(pid) for pid in json.loads(self._ready_file.read_text())["pids"][role]]


@contextmanager
def platform(kind: str, engine: str, timeout_s: float = 400.0) -> Iterator[Platform]:
    """Start the platform, yield it and stop it.

    Raises RuntimeError with its last output when it does not start within `timeout_s` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        os.chmod(name, 0o755)
        ready, log = Path(name) / "ready.json", Path(name) / "up.log"
        command = [
            sys.executable, "-m", "cli.main", "up", "--data-dir", f"{name}/data", "--port", "0", "--console-port",
            "0", "--ready-file", str(ready), "--engine", engine, "--model", MODEL, "--replicas", "2",
        ]  # fmt: skip
        env = {**os.environ, "PENSTOCK_PREFIX": kind}
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT, env=env)
        try:
            deadline = time.monotonic() + timeout_s
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"penstock up did not become ready:\n{log.read_text()[-3000:]}")
                time.sleep(0.2)
            running = Platform(Path(name) / "data", ready)
            running.await_knowledge(kind)
            yield running
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)
