"""`penstock stripe-sim` as a process: it keeps its account over a restart, and says what is wrong in one line."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from core.child import free_port
from tests.support.waiting import until_sync

KEY = {"Authorization": "Bearer sk_test_any"}


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "cli.main", "stripe-sim", *flags]


@contextmanager
def serving(state: Path) -> Iterator[str]:
    port = free_port("127.0.0.1")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STRIPE_")}
    process = subprocess.Popen(
        command("--port", str(port), "--state", str(state)),
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return httpx.get(f"{url}/healthz", timeout=60.0).status_code == 200
        except httpx.TransportError:
            return False

    try:
        until_sync(answers, 60, "the stand-in answers")
        yield url
    finally:
        process.terminate()
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "SIMULATED" in shown


def test_the_account_is_there_after_a_restart(tmp_path: Path) -> None:
    state = tmp_path / "stripe.jsonl"
    with serving(state) as url:
        made = httpx.post(f"{url}/v1/customers", data={"name": "Acme"}, headers=KEY, timeout=60.0).json()
    with serving(state) as url:
        assert (
            httpx.get(f"{url}/v1/customers/{made['id']}", headers=KEY, timeout=60.0).json()["name"] == "Acme"
        )
    assert state.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "flags",
    [
        ["--webhook-url", "http://127.0.0.1:1/x"],
        ["--webhook-url", "ftp://x", "--webhook-secret", "whsec_x"],
        ["--after-dunning", "forget"],
        ["--state", "/proc/none/state"],
    ],
)
def test_wrong_flags_are_one_line_and_code_2(flags: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STRIPE_")}
    done = subprocess.run(command(*flags), env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("penstock: ")
