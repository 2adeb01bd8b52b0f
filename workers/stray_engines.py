"""Engines of this data directory that the state file does not list: it was lost, or the agent died before it wrote.

Each engine's environment names its agent's directory. Its processes inherit that, so that they are found without it.
"""

import logging
import os
import signal
from collections.abc import Collection
from pathlib import Path

from core.process_identity import read_stat

log = logging.getLogger(__name__)

VARIABLE = "ENGINE_OF_AGENT"


def mark(data_dir: Path) -> dict[str, str]:
    """What to add to an engine's environment."""
    return {VARIABLE: str(data_dir.resolve())}


def end_strays(data_dir: Path, kept: Collection[int]) -> list[int]:
    """Kill all processes of this directory's engines, but for the sessions of the pids `kept`; returns their ids.

    Only for the holder of the directory's lock: no other agent starts engines here meanwhile.
    """
    entry = f"{VARIABLE}={data_dir.resolve()}".encode()
    ended = []
    for each in Path("/proc").iterdir():
        if not each.name.isdigit() or not _has(each, entry):
            continue
        stat = read_stat(int(each.name))
        if stat is None or stat.zombie or stat.session in kept:
            continue
        try:
            os.kill(stat.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
        log.warning("ended process %d of an engine that an earlier agent has left behind", stat.pid)
        ended.append(stat.pid)
    return ended


def _has(process: Path, entry: bytes) -> bool:
    try:
        return entry in (process / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or belongs to another user
        return False
