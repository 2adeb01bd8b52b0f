"""Shared parts of commands that compute for minutes without an event loop."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cli.context import exit_with_error
from core.errors import InvalidRequest, PenstockError

T = TypeVar("T")


def run_blocking(fn: Callable[[], T]) -> T:
    """Run `fn` and return its result. A domain error exits with code 2.

    It uses no event loop: asyncio handles Ctrl-C by cancelling at the next await, and `fn` never awaits.
    """
    try:
        return fn()
    except PenstockError as error:
        exit_with_error(error.message)


def check_output(path: Path | None) -> None:
    """Raise InvalidRequest when a file at `path` could not be written; None and `-` (stdout) pass."""
    if path is None or str(path) == "-":
        return
    directory = path.resolve().parent
    if not directory.is_dir():
        raise InvalidRequest(f"there is no directory {path.parent}", param="json")
    if path.is_dir() or not os.access(path if path.exists() else directory, os.W_OK):
        raise InvalidRequest(f"{path} cannot be written", param="json")
