"""`python -m bench.gpu`: run everything marked `gpu` on this machine, and write what it measured as JSON.

Nothing is fetched: GPU checks need the driver alone, engines also the engine's environment (`penstock engine install`).
Where there is no GPU one line says so, and nothing is written. docs/gpu.md says what is shown.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from bench.provenance import ROOT, provenance
from workers import engine_install
from workers.machine import Gpus, find_gpus

OUT = ROOT / "docs" / "data" / "gpu.json"


class Collector:
    """A plugin of pytest that writes the file after each test, so that a run that is cut has shown something."""

    def __init__(self, out: Path, facts: dict[str, Any]) -> None:
        self._out = out
        self.found: dict[str, Any] = {**facts, "seconds": 0.0, "tests": {}}
        self._began = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add what a test found: the last of its phases that says something."""
        if report.when != "call" and report.passed:
            return
        entry = {
            "outcome": report.outcome,
            "seconds": round(report.duration, 1),
            **dict(report.user_properties),
        }
        if report.skipped and isinstance(report.longrepr, tuple):
            entry["why"] = report.longrepr[2]
        elif report.failed:
            entry["why"] = str(report.longrepr)[-2000:]
        self.found["tests"][report.nodeid.partition("::")[2]] = entry
        self.found["seconds"] = round(time.monotonic() - self._began, 1)
        self._out.parent.mkdir(parents=True, exist_ok=True)
        self._out.write_text(json.dumps(self.found, indent=1) + "\n")


def facts(gpus: Gpus, engine_env: Path) -> dict[str, Any]:
    """Machine, versions and date."""
    engine = engine_install.status(engine_env)
    try:
        platform = version("penstock")
    except PackageNotFoundError:  # a checkout on a bare machine
        platform = "not installed"
    return {
        **provenance(),
        "gpus": [gpus.kind] * len(gpus.ids),
        "versions": {"penstock": platform, "engine": engine.version or engine.state},
    }


def main(arguments: list[str] | None = None) -> int:
    """Return the exit status: 0 when all went well or there is no GPU, 1 when a test failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Example: PENSTOCK_ENGINE_ENV=/engine python -m bench.gpu --out gpu.json"
    )
    parser.add_argument("--out", type=Path, default=OUT, help="where the JSON goes (docs/data/gpu.json)")
    parser.add_argument(
        "--bare", action="store_true", help="without the fixtures and packages of other tests"
    )
    options = parser.parse_args(arguments)
    gpus = asyncio.run(find_gpus())
    if not gpus.ids:
        print("no GPU: the driver lists none on this machine, so nothing was run and nothing written")
        return 0
    engine_env = Path(os.environ.get("PENSTOCK_ENGINE_ENV") or ROOT / ".engine")
    out = options.out.resolve()
    os.environ["PENSTOCK_GPU_SWEEP"] = str(out.with_suffix(".csv"))
    collector = Collector(out, facts(gpus, engine_env))
    bare = ["--noconftest", "-p", "tests.gpu.conftest"] if options.bare else []
    ended = pytest.main(["-q", "-m", "gpu", *bare, str(ROOT / "tests" / "gpu")], plugins=[collector])
    print(f"{len(collector.found['tests'])} tests in {collector.found['seconds']} s -> {out}")
    return 0 if ended == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
