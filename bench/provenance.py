"""The provenance that every measurement states beside its figures."""

import platform
from datetime import UTC, datetime
from pathlib import Path

import psutil

from cli.commands.sim.played import commit

ROOT = Path(__file__).resolve().parents[1]


def provenance() -> dict[str, str]:
    """Return `date` (UTC, ISO 8601 to the second), `commit` as `commit_of` gives it, and `machine`."""
    memory = psutil.virtual_memory().total / 2**30
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit_of(ROOT),
        "machine": f"{_processor()}, {psutil.cpu_count()} cores, {memory:.0f} GiB, "
        f"Python {platform.python_version()}",
    }


def commit_of(root: Path) -> str:
    """Return a checkout's short commit, + if files outside of docs/ differ from it; "unknown" where there is none."""
    return commit(root) or "unknown"


def _processor() -> str:
    """Architecture, and on Linux on x86 the name and the widest vectors, which decide how fast an engine on CPU is."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    name, flags = facts.get("model name"), facts.get("flags", "").split()
    vectors = next(
        (label for flag, label in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), None
    )
    details = ", ".join(each for each in (name, vectors) if each)
    return f"{platform.machine()} ({details})" if details else platform.machine()
