"""The provenance that every measurement states beside its figures."""

import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]


def provenance() -> dict[str, str]:
    """Return `date` (UTC, ISO 8601 to the second), `commit` (short; "unknown" outside of a checkout) and `machine`."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    memory = psutil.virtual_memory().total / 2**30
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip() or "unknown",
        "machine": f"{platform.machine()}, {psutil.cpu_count()} cores, {memory:.0f} GiB, "
        f"Python {platform.python_version()}",
    }
