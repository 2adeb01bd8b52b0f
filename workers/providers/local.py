"""Hosts that are processes on this machine: each runs an agent with a data directory of its own. They cost nothing.

A directory by host keeps what is known of it: `host.json` names the process, `host-id` its agent, `agent.log` its
output. The process has a session of its own, so that it outlives the process that started it.
"""

import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import msgspec
import psutil

from core.process_identity import ProcessIdentity, identify, runs
from core.whole_file import replace_file
from workers.providers.interface import (
    Account,
    CallResult,
    Endings,
    HostRequest,
    Listing,
    ObservedHost,
    Outcome,
    Prices,
)

NAME = "local"
_FILE = "host.json"
_ACCOUNT = "account"


class _Unreadable(Exception):
    """A file of a host is damaged."""


class _Process(msgspec.Struct):
    """A host's process."""

    name: str
    kind: str
    region: str
    created_at: datetime
    process: ProcessIdentity
    stopping: bool = False
    ended_at: datetime | None = None


class LocalProcesses:
    """The hosts below `directory`. `command` starts an agent, with `env` and a data directory in PENSTOCK_DATA_DIR."""

    name = NAME

    def __init__(
        self, directory: Path, command: Sequence[str], env: Mapping[str, str], now: Callable[[], datetime]
    ) -> None:
        self._directory, self._command, self._env, self._now = directory, list(command), dict(env), now

    async def account(self) -> Account:
        """The directory, by a number that is made in it once: a directory on another machine has another one."""
        path = self._directory / _ACCOUNT
        try:
            if not path.exists():
                self._directory.mkdir(parents=True, exist_ok=True)
                replace_file(path, uuid4().hex.encode())
            return Account(path.read_text().strip(), CallResult("account", Outcome.OK))
        except OSError as error:
            return Account("", CallResult("account", Outcome.REFUSED, detail=f"{path}: {error.strerror}"))

    async def prices(self, kinds: Collection[str]) -> Prices:
        """Nothing."""
        return Prices(dict.fromkeys(kinds, 0), (CallResult("prices", Outcome.OK),), complete=True)

    async def list_hosts(self, kinds: Collection[str] = ()) -> Listing:
        """The hosts whose processes run. Incomplete while a file of a host cannot be read."""
        try:
            running = tuple(_observed(one) for one in self._all() if one.ended_at is None)
        except _Unreadable as error:
            return Listing((), (CallResult("list", Outcome.REFUSED, detail=str(error)),), complete=False)
        return Listing(running, (CallResult("list", Outcome.OK),), complete=True)

    async def create(self, request: HostRequest) -> CallResult:
        """Start an agent; the same name again is the host that runs already."""
        place = self._directory / request.name
        known = next((one for one in self._all() if one.name == request.name and one.ended_at is None), None)
        if known is None:
            try:
                known = self._start(place, request)
            except OSError as error:
                return CallResult("create", Outcome.REFUSED, detail=f"{place}: {error.strerror}")
        return CallResult("create", Outcome.OK, host=_observed(known))

    async def destroy(self, provider_id: str) -> CallResult:
        """Ask the agent to stop; asked again, kill it with its engines."""
        known = next((one for one in self._all() if one.name == provider_id), None)
        if known is None or known.ended_at is not None:
            return CallResult("destroy", Outcome.ABSENT, detail="no such process")
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(known.process.pid)
            if known.stopping:
                for each in [*process.children(recursive=True), process]:
                    with suppress(psutil.NoSuchProcess):
                        each.kill()
            else:
                process.send_signal(signal.SIGTERM)
        known.stopping = True
        self._write(known)
        return CallResult("destroy", Outcome.OK)

    async def endings(self, since: datetime) -> Endings:
        """When processes were first seen to have ended."""
        ended = {
            one.name: one.ended_at for one in self._all() if one.ended_at is not None and one.ended_at > since
        }
        return Endings(ended, (CallResult("endings", Outcome.OK),), complete=True)

    async def close(self) -> None:
        """Nothing to close: the processes run on."""

    def _start(self, place: Path, request: HostRequest) -> _Process:
        place.mkdir(parents=True, exist_ok=True)
        (place / "host-id").write_text(f"{request.name}\n")
        env = {**self._env, "PENSTOCK_DATA_DIR": str(place), "PENSTOCK_REGION": request.region}
        if request.model:  # a profile that was named is another model's
            env |= {
                "PENSTOCK_MODEL": request.model,
                "PENSTOCK_PROFILE": request.start.profile,
                "PENSTOCK_REPLICAS": str(request.start.replicas),
            }
        output = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawn(
            self._command[0],
            self._command,
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(place / "agent.log"), output, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        host = _Process(request.name, request.kind, request.region, self._now(), identify(pid))
        self._write(host)
        return host

    def _all(self) -> list[_Process]:
        """Every host that was ever started here, with the end of each that has ended."""
        found = []
        for path in sorted(self._directory.glob(f"*/{_FILE}")):
            try:
                host = msgspec.json.decode(path.read_bytes(), type=_Process)
            except msgspec.MsgspecError as error:
                raise _Unreadable(
                    f"{path} cannot be read: {error}; stop the agent of that directory and remove it"
                ) from None
            if host.ended_at is None and not _alive(host):
                host.ended_at = self._now()
                self._write(host)
            found.append(host)
        return found

    def _write(self, host: _Process) -> None:
        replace_file(self._directory / host.name / _FILE, msgspec.json.encode(host))


def _alive(host: _Process) -> bool:
    with suppress(ChildProcessError):
        os.waitpid(host.process.pid, os.WNOHANG)
    return runs(host.process)


def _observed(host: _Process) -> ObservedHost:
    return ObservedHost(host.name, host.name, host.kind, host.region, "running", host.created_at, 0)
