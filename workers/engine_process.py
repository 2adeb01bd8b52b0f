"""An engine's operating-system process: started in its own session, adopted after a restart of the agent, killed.

Engines survive a crash of the agent on purpose, because loading weights takes minutes: no death signal is set.
"""

import asyncio
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from core.process_identity import ProcessIdentity, identify, remains, runs
from workers.engine_command import CHECKOUT, EngineCommand

_POLL_S = 0.05


class EngineProcess:
    """A running engine, either a child process or adopted from an earlier run."""

    def __init__(self, identity: ProcessIdentity, child: "subprocess.Popen[bytes] | None" = None) -> None:
        self.identity = identity
        self._child = child

    @classmethod
    def start(cls, command: EngineCommand, log: Path) -> "EngineProcess":
        """Start the engine; its output is appended to `log`. Raises OSError."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink:
            child = subprocess.Popen(  # noqa: S603 - no part of the command is input
                list(command.argv),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=command.env,
                cwd=CHECKOUT,
                start_new_session=True,
            )
        return cls(identify(child.pid), child)

    @classmethod
    def adopt(cls, identity: ProcessIdentity) -> "EngineProcess | None":
        """The process of an earlier run; None when it has ended."""
        found = cls(identity)
        return found if found.alive() else None

    @property
    def pid(self) -> int:
        """Id of the engine's first process, which leads its process group."""
        return self.identity.pid

    def alive(self) -> bool:
        """Whether the engine still runs; reaps an ended child."""
        if self._child is not None:
            return self._child.poll() is None
        return runs(self.identity)

    @property
    def exit_text(self) -> str:
        """A clause for messages on how the engine ended."""
        code = self._child.poll() if self._child is not None else None
        if code is None:
            return "the engine process is gone"
        if code < 0:
            return f"the engine was ended by {signal.Signals(-code).name}"
        return f"the engine ended with status {code}"

    async def ended(self, timeout_s: float) -> bool:
        """Whether the engine ends within `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while self.alive():
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    def terminate(self) -> None:
        """Send SIGTERM, at which the engine finishes its requests and ends."""
        if self.alive():
            with suppress(ProcessLookupError):
                os.kill(self.identity.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the engine's process group, which may outlive its leader."""
        if not self.alive() and not remains(self.identity):
            return  # another process may have its pid by now
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.identity.pid, signal.SIGKILL)
