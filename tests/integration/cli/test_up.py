"""The life of `penstock up` with every role and the simulated engine: real processes, real signals."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.log_search import PROMPT
from tests.support.stack import Stack, alive
from tests.support.waiting import until_sync

pytestmark = pytest.mark.timeout(900)

ROLES = {
    "supervisor",
    "api",
    "scheduler",
    "agent",
    "jobs",
    "console",
    "postgres",
    "redis",
    "engine",
    "stripe-sim",
}
KEYS = {
    "base_url", "api_key", "model", "console_url", "admin_email", "admin_password", "admin_token", "database_url",
    "redis_url", "data_dir", "pids", "engines", "stripe_base_url", "stripe_api_key", "stripe_simulated",
}  # fmt: skip


@pytest.fixture
def make_stack(tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    started: list[Stack] = []

    def make(*flags: str, name: str = "data") -> Stack:
        started.append(Stack(tmp_path / name, "--engine", "sim", *flags))
        return started[-1].start()

    yield make
    for stack in started:
        stack.stop()


def ask(stack: Stack) -> httpx.Response:
    return httpx.post(
        f"{stack.base_url}/chat/completions",
        headers={"Authorization": f"Bearer {stack.ready['api_key']}"},
        json={
            "model": stack.ready["model"],
            "max_tokens": 4,
            "messages": [{"role": "user", "content": PROMPT}],
        },
        timeout=60,
    )


def test_two_platforms_side_by_side_and_one_started_again(make_stack: Callable[..., Stack]) -> None:
    stack, other = make_stack("--api-workers", "2"), make_stack("--no-demo", name="other")
    first = stack.ready
    look_at_facts(stack)
    assert other.ready["api_key"] is None
    assert other.ready["base_url"] != first["base_url"]
    assert ask(stack).status_code == 200
    assert httpx.get(first["console_url"], follow_redirects=True, timeout=60.0).status_code == 200

    refused = subprocess.run(stack._command, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "another `penstock up`" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert ask(stack).status_code == 200

    everything = stack.processes()
    assert len(everything) > 10
    assert stack.stop() == 0
    assert alive(everything) == []
    assert not (stack.data_dir / "runtime.json").exists()
    assert other.admin("GET", "/tenants")["data"] == []

    stack.start()
    assert stack.ready["api_key"] == first["api_key"]
    assert stack.ready["admin_token"] == first["admin_token"]
    assert ask(stack).status_code == 200
    assert [tenant["name"] for tenant in stack.admin("GET", "/tenants")["data"]] == ["Demo"]


def look_at_facts(stack: Stack) -> None:
    """The ready file is complete and true, the panel can be used, and no secret is open or logged."""
    facts = stack.ready
    assert set(facts) >= KEYS
    assert set(facts["pids"]) == ROLES
    assert len(facts["pids"]["api"]) == 2
    assert all(psutil.pid_exists(pid) for pids in facts["pids"].values() for pid in pids)
    assert [set(engine) >= {"url", "metrics_url"} for engine in facts["engines"]] == [True]
    shown = stack.log.read_text()
    assert facts["api_key"] not in shown  # no terminal
    assert facts["base_url"] in shown
    assert f"SIMULATED Stripe at {facts['stripe_base_url']}" in shown
    look_at_payments(stack)
    for name in ("secrets.json", "runtime.json"):
        assert (stack.data_dir / name).stat().st_mode & 0o077 == 0
    secrets = json.loads((stack.data_dir / "secrets.json").read_text())
    logs = "".join(path.read_text(errors="replace") for path in (stack.data_dir / "logs").iterdir())
    assert not [name for name, value in secrets.items() if name != "admin_email" and value in logs]


def look_at_payments(stack: Stack) -> None:
    """The stand-in lets only this platform's key in, and only the roles that need them know its secrets."""
    facts = stack.ready
    url = f"{facts['stripe_base_url']}/v1/customers"
    assert httpx.get(url, auth=(facts["stripe_api_key"], ""), timeout=60.0).json()["data"] == []
    assert httpx.get(url, auth=("sk_test_somebody", ""), timeout=60.0).status_code == 401
    secret = json.loads((stack.data_dir / "secrets.json").read_text())["stripe_sim_webhook_secret"]
    for role in ("api", "jobs", "console", "scheduler", "agent"):
        environment = psutil.Process(facts["pids"][role][0]).environ()
        known = environment.get("STRIPE_WEBHOOK_SECRET") == secret
        assert known is (role in ("api", "jobs", "console")), role
        assert ("STRIPE_API_KEY" in environment) is known
    [simulated] = facts["pids"]["stripe-sim"]
    assert secret not in " ".join(psutil.Process(simulated).cmdline())


def test_killed_roles_come_back_and_a_killed_supervisor_takes_all_with_it(
    make_stack: Callable[..., Stack],
) -> None:
    stack = make_stack()
    roles = ("scheduler", "console", "redis", "stripe-sim")
    before = {role: stack.pids(role) for role in roles}
    for [pid] in before.values():
        os.kill(pid, signal.SIGKILL)
    for role in roles:
        until_sync(lambda role=role: stack.pids(role) not in ([], before[role]), 60, f"{role} is back")
    until_sync(lambda: ask(stack).status_code == 200, timeout_s=60)

    everything, key = stack.processes(), stack.ready["api_key"]
    [redis] = stack.pids("redis")
    assert stack.process is not None
    os.kill(redis, signal.SIGSTOP)  # it answers nobody any more, and ends when it goes on
    stack.process.kill()
    stack.process.wait()
    began = time.monotonic()
    until_sync(lambda: [each.pid for each in alive(everything)] == [redis], timeout_s=60)
    os.kill(redis, signal.SIGCONT)
    until_sync(lambda: alive(everything) == [], timeout_s=60)
    print(f"all had ended {time.monotonic() - began:.1f} s after the supervisor")  # promised: 20
    stack.start()
    assert stack.ready["api_key"] == key
    assert ask(stack).status_code == 200


def test_ctrl_c_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "data", "--engine", "sim")
    with stack.log.open("wb") as log:
        stack.process = subprocess.Popen(stack._command, stdout=log, stderr=log, start_new_session=True)
    until_sync(lambda: "Scheduler: done" in stack.log.read_text(), timeout_s=60)
    everything = stack.processes()
    stack.process.send_signal(signal.SIGINT)
    assert stack.process.wait(60) == 0
    assert alive(everything) == []


def test_a_taken_port_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        taken = str(server.getsockname()[1])
        stack = Stack(tmp_path / "data", "--engine", "sim")
        command = [*stack._command, "--port", taken]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert f"port {taken} is taken" in result.stderr
    assert not [each for each in psutil.process_iter() if _mentions(each, tmp_path)]


def _mentions(process: psutil.Process, path: Path) -> bool:
    try:
        return any(str(path) in part for part in process.cmdline())
    except psutil.Error:
        return False
