"""Keeps the result of the last checks in the agent's data directory, so that a restarted agent does not repeat them."""

import logging
from pathlib import Path

import msgspec

from core.whole_file import replace_file
from workers.acceptance.check import Acceptance

log = logging.getLogger(__name__)

FILE = "acceptance.json"


def load(data_dir: Path, machine_boot: str) -> Acceptance | None:
    """The result of this boot of the machine; None when there is none or it cannot be read."""
    path = data_dir / FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Acceptance)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("%s cannot be read (%s): the host is checked again", path, error)
        return None
    return found if found.machine_boot == machine_boot else None


def save(data_dir: Path, acceptance: Acceptance) -> None:
    """Replace the file atomically."""
    path = data_dir / FILE
    data_dir.mkdir(parents=True, exist_ok=True)
    replace_file(path, msgspec.json.format(msgspec.json.encode(acceptance), indent=2))
