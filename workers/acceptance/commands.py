"""Runs a tool of the machine, with a limit of its time and of what is read of its output."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from core.settings import without_credentials

MAX_OUTPUT = 4 << 20
"""Bytes of output that are read; a tool that writes more is ended."""


class Run(msgspec.Struct, frozen=True):
    """A run of a tool."""

    status: int
    output: str
    """Both streams of its output."""


async def run_tool(command: Sequence[str], timeout_s: float) -> Run | None:
    """Run `command` to its end; None where there is no such tool. One that takes too long has the status -1."""
    env = without_credentials(os.environ, "PENSTOCK_")
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=env
        )
    except (FileNotFoundError, PermissionError):
        return None
    if process.stdout is None:
        raise RuntimeError("the tool has no output")
    output = b""
    try:
        async with asyncio.timeout(timeout_s):
            while len(output) < MAX_OUTPUT and (read := await process.stdout.read(1 << 16)):
                output += read
            if len(output) < MAX_OUTPUT:
                return Run(await process.wait(), output.decode("utf-8", "replace"))
            why = f"it wrote more than {MAX_OUTPUT >> 20} MiB"
    except TimeoutError:
        why = f"it did not end within {timeout_s:.0f} s"
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return Run(-1, f"{output.decode('utf-8', 'replace')}\n{why}")
