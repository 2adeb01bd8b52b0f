"""Log files that other processes write to and that must not fill the disk."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

MAX_BYTES = 20_000_000
"""Size above which a log is moved aside: a log and its predecessor take twice as much at most, and what is written
between two looks."""


def rotate(path: Path, max_bytes: int = MAX_BYTES) -> bool:
    """Copy a log above `max_bytes` to `<name>.log.1`, in place of an earlier one, and empty it. True when it was done.

    Its writer keeps it open, so that it is emptied in place; it must have opened it to append. Lines that are written
    between the copy and the emptying are lost.
    """
    with suppress(FileNotFoundError):
        if path.stat().st_size > max_bytes:
            shutil.copyfile(path, path.with_suffix(".log.1"))
            os.truncate(path, 0)
            return True
    return False
