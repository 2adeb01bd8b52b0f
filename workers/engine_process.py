"""An engine's operating-system process: started in a session of its own, found again after our restart, ended for good.

Engines outlive a crash of the agent on purpose (loading weights takes minutes): no death signal ties them to it.
"""

import asyncio
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from workers.engine_command import CHECKOUT, EngineCommand

_POLL_S = 0.05


class ProcessMark(msgspec.Struct, frozen=True):
    """Names a process for good: a pid alone may be another process by now."""

    pid: int
    created: float
    """Its start, as psutil tells it."""


class EngineProcess:
    """A running engine, ours or adopted."""

    def __init__(self, mark: ProcessMark, child: "subprocess.Popen[bytes] | None" = None) -> None:
        self.mark = mark
        self._child = child

    @classmethod
    def start(cls, command: EngineCommand, log: Path) -> "EngineProcess":
        """Start it; output goes to the end of `log`. Raises OSError."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink:
            child = subprocess.Popen(  # noqa: S603 - the command is ours
                list(command.argv),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=command.env,
                cwd=CHECKOUT,
                start_new_session=True,
            )
        try:
            created = psutil.Process(child.pid).create_time()
        except psutil.NoSuchProcess:
            created = 0.0
        return cls(ProcessMark(child.pid, created), child)

    @classmethod
    def adopt(cls, mark: ProcessMark) -> "EngineProcess | None":
        """The process of an earlier run, if it is still there."""
        found = cls(mark)
        return found if found.alive() else None

    @property
    def pid(self) -> int:
        """Of the engine's first process, which leads its group."""
        return self.mark.pid

    def alive(self) -> bool:
        """Whether it still runs; reaps it when it was our child."""
        if self._child is not None:
            return self._child.poll() is None
        try:
            process = psutil.Process(self.mark.pid)
            return (
                abs(process.create_time() - self.mark.created) < 0.5
                and process.status() != psutil.STATUS_ZOMBIE
            )
        except psutil.NoSuchProcess:
            return False

    @property
    def exit_text(self) -> str:
        """How it ended, for people."""
        code = self._child.poll() if self._child is not None else None
        if code is None:
            return "the engine process is gone"
        if code < 0:
            return f"the engine was ended by {signal.Signals(-code).name}"
        return f"the engine ended with status {code}"

    async def ended(self, timeout_s: float) -> bool:
        """Whether it ends within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self.alive():
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    def terminate(self) -> None:
        """Ask it to finish what runs and end."""
        if self.alive():
            with suppress(ProcessLookupError):
                os.kill(self.mark.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it and all it has started, now. Its group may outlive its leader, so this is right after a death too."""
        if self._child is None and not self.alive() and not self._left_behind():
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.mark.pid, signal.SIGKILL)

    def _left_behind(self) -> bool:
        """Whether an adopted engine's leader is gone while members of its group, as old or younger, are not."""
        for process in psutil.process_iter(["create_time"]):
            try:
                if os.getpgid(process.pid) == self.mark.pid:
                    return bool(process.info["create_time"] >= self.mark.created - 0.5)
            except (ProcessLookupError, PermissionError):
                continue
        return False
