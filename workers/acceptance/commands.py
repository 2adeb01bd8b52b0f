"""Runs a tool of the machine, with a limit of its time and of what is read of its output."""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from core.settings import without_credentials

MAX_OUTPUT = 4 << 20
"""Bytes of output that are kept of each stream."""
END_S = 5.0
"""Seconds between SIGTERM and SIGKILL of a tool that took too long, and again until it is left to the kernel."""
NOT_STARTED = (126, 127)
"""Statuses of a shell for a program that it cannot start, and of the loader for one without its libraries."""


class Run(msgspec.Struct, frozen=True):
    """A run of a tool."""

    status: int
    output: str
    """Its standard output, and its errors after it."""
    printed: str = ""
    """Its standard output alone."""

    @property
    def last_line(self) -> str:
        """The last thing that it said, or its status."""
        lines = self.output.strip().splitlines()
        return lines[-1][:300] if lines else f"exit status {self.status}"


async def run_tool(command: Sequence[str], timeout_s: float) -> Run | None:
    """Run `command` to its end; None where it is not there or cannot start. One that is too slow has the status -1."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=without_credentials(os.environ, "PENSTOCK_"),
            start_new_session=True,
        )
    except (FileNotFoundError, PermissionError):
        return None
    try:
        async with asyncio.timeout(timeout_s):
            printed, errors = await asyncio.gather(_read(process.stdout), _read(process.stderr))
            status = await process.wait()
    except TimeoutError:
        return Run(-1, f"it did not end within {timeout_s:.0f} s")
    finally:
        if process.returncode is None:
            await _end(process)
    if status in NOT_STARTED:
        return None
    return Run(status, f"{printed}\n{errors}", printed)


async def _read(stream: asyncio.StreamReader | None) -> str:
    output = b""
    while stream is not None and (read := await stream.read(1 << 16)):
        output = (output + read)[:MAX_OUTPUT]
    return output.decode("utf-8", "replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the tool and what it started; one that the kernel holds is left behind."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await process.wait()
                return
