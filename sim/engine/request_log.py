"""A log of what the engine generated for each request, for tests that compare it with what was billed.

Two JSON lines for each request: `{"request_id": ...}` when it begins, and the same with `generated` (output tokens over
all choices) when it ends in any way. A request without a second line was in a process that was killed.
"""

import os
from pathlib import Path

import msgspec

VARIABLE = "SIM_ENGINE_REQUEST_LOG"
"""The environment variable that names the file; several engines may append to one."""


class RequestLog:
    """Appends to `path`; with None it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._descriptor = -1
        if path is not None:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    @classmethod
    def from_environment(cls) -> "RequestLog":
        """Return the log that the environment names."""
        name = os.environ.get(VARIABLE, "")
        return cls(Path(name) if name else None)

    def begin(self, request_id: str) -> None:
        """Note that a request begins."""
        self._write({"request_id": request_id})

    def end(self, request_id: str, generated: int) -> None:
        """Note that a request has ended."""
        self._write({"request_id": request_id, "generated": generated})

    def _write(self, line: dict[str, str | int]) -> None:
        if self._descriptor >= 0:
            os.write(self._descriptor, msgspec.json.encode(line) + b"\n")
