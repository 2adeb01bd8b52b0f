"""The agent's state file, which lists its engine processes for adoption after a restart."""

import logging
import os
from pathlib import Path

import msgspec

from workers.saved_engine import Deployed, SavedEngine
from workers.wire import LifeTimes

log = logging.getLogger(__name__)


class AgentState(msgspec.Struct):
    """What the next agent takes over, by replica id."""

    engines: dict[str, SavedEngine] = {}
    """Running engines."""
    times: dict[str, LifeTimes] = {}
    """How long the stages of each replica took."""
    deployed: dict[str, Deployed] = {}
    """Versions by rollouts."""
    keys: str = ""
    """Mark of the keys with which the engines were started; empty = of a version without marks."""


def load_state(path: Path) -> AgentState:
    """The state of the last run; empty when the file is missing, damaged, or of a version that wrote other marks."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=AgentState)
    except FileNotFoundError:
        return AgentState()
    except (OSError, msgspec.DecodeError) as error:
        log.warning("%s cannot be read (%s): no engine of an earlier run is adopted", path, error)
        return AgentState()


def save_state(path: Path, state: AgentState) -> None:
    """Replace the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    scratch.write_bytes(msgspec.json.encode(state))
    scratch.replace(path)
