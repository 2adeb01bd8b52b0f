"""Roles of the platform as processes of this machine, and `penstock` commands on the same stores."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "internal-token-of-the-platform"


@contextmanager
def role(name: str, directory: Path, *, main: str = "", **settings: str) -> Iterator[Path]:
    """Run a role; gives the path of its log. `main`: Python that runs it in place of the command line."""
    env = {
        **os.environ,
        "PENSTOCK_INTERNAL_TOKEN": TOKEN,
        "PENSTOCK_DATA_DIR": str(directory / name),
        **settings,
    }
    command = ["-c", main] if main else ["-m", "cli.main", name]
    log = directory / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command], env=env, cwd=ROOT, stdout=output, stderr=output
        )
    try:
        yield log
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def command(stores: dict[str, str], *words: str, timeout_s: float = 120.0) -> Any:
    """Run a `penstock` command with --json on these stores, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *words, "--json"],
        cwd=ROOT,
        env={**os.environ, **stores},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"penstock {' '.join(words)}: {done.stdout}{done.stderr}"
    return json.loads(done.stdout)
