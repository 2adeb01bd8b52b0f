"""Searches the logs of a platform for what must never be in one: prompts, an engine's own words, secrets.

`Stack.stop` searches every platform's logs. Tests put PROMPT into prompts, and the simulated engine answers a failure
that a test orders with ENGINE_ERROR, so there is something to find.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

PROMPT = "lantern-quartz-71c3e"
"""A part of prompts that is in no other text."""
ENGINE_ERROR = "failpoint: error_next"
"""What the simulated engine says to a request that it was ordered to fail."""
_NOT_SECRET = "admin_email"


def leaks(data_dir: Path, *more: Path) -> list[str]:
    """What the logs below `data_dir`, and the files `more`, hold that they must not: a line for each finding."""
    needles = {"a prompt": PROMPT, "the error text of an engine": ENGINE_ERROR, **_secrets(data_dir)}
    return [found for log in (*_logs(data_dir), *more) for found in search(log, needles)]


def search(log: Path, needles: Mapping[str, str]) -> Iterator[str]:
    """The needles by name that a log holds, each with the number of its first line."""
    try:
        content = log.read_bytes()
    except FileNotFoundError:  # rotated meanwhile, or never made
        return
    for name, needle in needles.items():
        at = content.find(needle.encode())
        if at >= 0:
            line = content.count(b"\n", 0, at) + 1
            yield f"{log}:{line} holds {name}"


def _logs(data_dir: Path) -> list[Path]:
    """Every log of the roles, the supervisor, the engines and the embedded servers, with their predecessors."""
    named = [path for path in data_dir.rglob("*log*") if path.is_file()]
    return sorted(path for path in named if ".log" in path.name or path.name in ("log", "logfile"))


def _secrets(data_dir: Path) -> dict[str, str]:
    """The secrets of the data directory by name."""
    found = {
        str(path.relative_to(data_dir)): path.read_text().strip() for path in data_dir.rglob("agent-key")
    }
    with contextlib.suppress(FileNotFoundError):  # its secrets may come from outside
        found |= json.loads((data_dir / "secrets.json").read_text())
    return {f"the secret {name}": value for name, value in found.items() if value and name != _NOT_SECRET}
