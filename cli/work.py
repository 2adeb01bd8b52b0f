"""What commands that compute for minutes share: Ctrl-C ends them at once, an unwritable file is told first."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cli.context import end
from core.errors import InvalidRequest, PenstockError

T = TypeVar("T")


def work(fn: Callable[[], T]) -> T:
    """Run `fn` to its end; a domain error ends the command with code 2.

    Not on an event loop: asyncio answers the first Ctrl-C by cancelling at the next await, which never comes here.
    """
    try:
        return fn()
    except PenstockError as error:
        end(error.message)


def check_output(path: Path | None) -> None:
    """Say before the long work that its result could not be written. `-` is the standard output.

    Raises InvalidRequest.
    """
    if path is None or str(path) == "-":
        return
    directory = path.resolve().parent
    if not directory.is_dir():
        raise InvalidRequest(f"there is no directory {path.parent}", param="json")
    if path.is_dir() or not os.access(path if path.exists() else directory, os.W_OK):
        raise InvalidRequest(f"{path} cannot be written", param="json")
