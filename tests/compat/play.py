"""Runs the script of one tool against a platform and reads what it prints."""

import json
import os
import signal
import subprocess
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.compat.target import Target
from tests.compat.tools import SCRIPTS, NotInstalledError, Tool, install

INSTALLATION = "install"
"""The name of the feature that stands for a tool that could not be installed."""
WHOLE = "whole script"
"""The name of the feature that stands for a script that broke off."""


@dataclass(frozen=True)
class Feature:
    """What became of one feature."""

    feature: str
    ok: bool
    detail: str = ""


@dataclass
class Outcome:
    """What became of one tool."""

    tool: Tool
    features: list[Feature] = field(default_factory=list)

    def broken(self) -> list[Feature]:
        """Features that fail and are not known to fail."""
        return [each for each in self.features if not each.ok and each.feature not in self.tool.known]

    def mended(self) -> list[str]:
        """Features that tools.toml still says to fail, although they work."""
        return [each.feature for each in self.features if each.ok and each.feature in self.tool.known]

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            "tool": self.tool.name,
            "key": self.tool.key,
            "version": self.tool.version,
            "features": [asdict(each) for each in self.features],
        }


def play(tool: Tool, target: Target) -> Outcome:
    """Install the tool and run its script in a home of its own, with nothing of this process's environment."""
    try:
        install(tool)
    except NotInstalledError as error:
        return Outcome(tool, [Feature(INSTALLATION, False, str(error))])
    with tempfile.TemporaryDirectory(prefix=f"compat-{tool.key}-") as home:
        return Outcome(
            tool, run_script(tool.command(), environment(tool.path(), Path(home), target), tool.limit_s)
        )


def environment(path: str, home: Path, target: Target) -> dict[str, str]:
    """The whole environment of a script: no setting or secret of the machine's user reaches a tool."""
    return {
        "PATH": path,
        "HOME": str(home),
        "TMPDIR": str(home),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(SCRIPTS),  # for features.py
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "NO_COLOR": "1",
        "COMPAT_BASE_URL": target.base_url,
        "COMPAT_KEY": target.key,
        "COMPAT_MODEL": target.model,
        "COMPAT_EMBEDDING_MODEL": target.embedding_model,
        "COMPAT_TOKENIZER": str(target.tokenizer),
    }


def run_script(command: list[str], env: dict[str, str], limit_s: float) -> list[Feature]:
    """Run a script; its features, and one that failed where it broke off or took longer than `limit_s`."""
    log = Path(env["HOME"]) / "output"
    with log.open("w") as output, (log.with_name("errors")).open("w") as errors:
        process = subprocess.Popen(
            command, env=env, cwd=env["HOME"], stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
            start_new_session=True,
        )  # fmt: skip
        try:
            status: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        _end(process)
    found = [
        Feature(**json.loads(line)) for line in log.read_text().splitlines() if line.startswith('{"feature"')
    ]
    if status is None:
        found.append(Feature(WHOLE, False, f"took longer than {limit_s} s"))
    elif status != 0 or not found:
        tail = log.with_name("errors").read_text().strip()[-800:]
        found.append(Feature(WHOLE, False, f"ended with {status}: {tail}"))
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what the script left in its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()
