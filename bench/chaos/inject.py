"""Does faults to a machine, and notes in the journal what they excuse."""

import asyncio
import os
import resource
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import redis.asyncio
from redis.exceptions import RedisError

from bench.chaos.journal import Journal, TornAdmission
from bench.chaos.machine import Machine, send
from bench.chaos.plan import Fault
from billing.metering.frames import FILE_HEADER, Frame, parse
from billing.metering.records import OpenRecord, UsageRecord
from billing.metering.spool import RETRY_S
from sim.fault_proxy import CLEAR, Conditions

NEXT_CHECKPOINT_S = 3.0
"""Seconds from the retry of a failed spool to a checkpoint in its fresh file."""
_TORN_BYTES = 40
"""Bytes of a frame that a torn write leaves: its head and a part of what follows."""


class Injector:
    """Does one fault after another; several may last at the same time."""

    def __init__(self, machine: Machine, journal: Journal) -> None:
        self._machine = machine
        self.journal = journal
        self._kinds: dict[str, Callable[[Fault], Awaitable[str]]] = {
            "kill": self._kill,
            "crash-postgres": self._crash_postgres,
            "freeze-postgres": self._freeze_postgres,
            "stop": self._stop,
            "flush-redis": self._flush_redis,
            "full-disk": self._full_disk,
            "disk-error": self._disk_error,
            "torn-spool": self._torn_spool,
            "clock": self._clock,
            "network": self._network,
            "restart": self._restart,
        }

    async def do(self, fault: Fault) -> str:
        """Do the fault and undo it after its time; returns what was done, in words."""
        return await self._kinds[fault.kind](fault)

    # -- processes -------------------------------------------------------------------------------------------------

    def _chosen(self, role: str, pick: int) -> int:
        """Return one process of a role; 0 when none runs now."""
        pids = self._machine.pids(role)
        return pids[pick % len(pids)] if pids else 0

    def _kill_now(self, role: str, pid: int) -> None:
        """SIGKILL, noted when it excuses something."""
        send([pid], signal.SIGKILL)
        if role == "api":
            self.journal.deaths.append(time.monotonic())
        if role == "engine":
            self.journal.engine_deaths.append(time.monotonic())

    async def _kill(self, fault: Fault) -> str:
        if fault.target == "postgres-backend":
            backends = self._machine.pids("postgres")[1:]
            killed = send([backends[fault.pick % len(backends)]], signal.SIGKILL) if backends else []
            return f"backend {killed} killed"
        if fault.target == "redis":
            send(self._machine.pids("redis"), signal.SIGKILL)
            await self._start_store("redis")
            return "killed and started"
        pid = self._chosen(fault.target, fault.pick)
        if pid:
            self._kill_now(fault.target, pid)
        return f"process {pid} killed" if pid else "does not run now"

    async def _crash_postgres(self, fault: Fault) -> str:
        send(self._machine.pids("postgres"), signal.SIGKILL)
        await asyncio.sleep(fault.lasts_s)
        await self._start_store("postgres")
        return "all its processes killed; started"

    async def _start_store(self, name: str) -> None:
        async with self._machine.starting:
            await self._machine.start_store(name)

    async def _freeze_postgres(self, fault: Fault) -> str:
        frozen = await self._stopped("postgres", self._machine.pids("postgres"), fault.lasts_s)
        return f"{frozen} processes stopped"

    async def _stop(self, fault: Fault) -> str:
        if fault.target == "redis":
            pids = self._machine.pids("redis")
        else:
            pid = self._chosen(fault.target, fault.pick)
            pids = [pid] if pid else []
        return f"{await self._stopped(fault.target, pids, fault.lasts_s)} processes stopped"

    async def _stopped(self, role: str, pids: list[int], lasts_s: float) -> int:
        """Stop processes for a while, and let them go on whatever happens meanwhile."""
        began = time.monotonic()
        reached = send(pids, signal.SIGSTOP)
        try:
            await asyncio.sleep(lasts_s)
        finally:
            send(reached, signal.SIGCONT)
            if role == "api":
                self.journal.stopped.add(began, time.monotonic())
        return len(reached)

    async def _clock(self, fault: Fault) -> str:
        pid = self._chosen(fault.target, fault.pick)
        if not pid:
            return "does not run now"
        self._machine.step_clock(pid, fault.options["step_s"])
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            self._machine.step_clock(pid, 0)
        return f"process {pid}"

    # -- stores and disk -------------------------------------------------------------------------------------------

    async def _flush_redis(self, fault: Fault) -> str:
        client = redis.asyncio.Redis.from_url(
            self._machine.redis.url, socket_connect_timeout=5, socket_timeout=5
        )
        try:
            await client.flushall()
        except (RedisError, OSError) as error:
            return f"not reached: {type(error).__name__}"
        finally:
            await client.aclose()
        return "emptied"

    async def _full_disk(self, fault: Fault) -> str:
        """Fill the spool's disk and kill an API process: the next one finds no room for its spool."""
        disk = self._machine.disk
        if disk is None:
            return "left out: no disk can be mounted here"
        written = await asyncio.to_thread(disk.fill)
        try:
            pid = self._chosen("api", fault.pick)
            if pid:
                self._kill_now("api", pid)
            await asyncio.sleep(fault.lasts_s)
        finally:
            await asyncio.to_thread(disk.free)
        return f"{written >> 20} MiB written, process {pid} killed"

    async def _disk_error(self, fault: Fault) -> str:
        """Let every write of an API process to a file fail, its spool and its log, by a limit of the file size."""
        pid = self._chosen("api", fault.pick)
        if not pid:
            return "no API process runs now"
        began = time.monotonic()
        try:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
            await asyncio.sleep(fault.lasts_s)
        finally:
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            # Without a spool there are no checkpoints.
            self.journal.stopped.add(began, time.monotonic() + RETRY_S + NEXT_CHECKPOINT_S)
        return f"writes of process {pid} failed"

    async def _torn_spool(self, fault: Fault) -> str:
        """Kill an API process in the middle of a write.

        `cut` 0: a record is half written behind the last whole one. `cut` 1: the end of the last one is lost, as it
        may be when the host dies before its sync.
        """
        pid = self._chosen("api", fault.pick)
        path = _spool_of(pid)
        if path is None:
            return "no API process with a spool runs now"
        began = time.monotonic()
        send([pid], signal.SIGSTOP)
        said = self._tear(path, cut=bool(fault.options["cut"]))
        self.journal.stopped.add(began, time.monotonic())
        self._kill_now("api", pid)
        return f"process {pid} killed: {said}"

    def _tear(self, path: Path, *, cut: bool) -> str:
        frames = list(parse(path.read_bytes()))
        if not frames:
            return "its spool was empty"
        last = frames[-1]
        descriptor = os.open(path, os.O_RDWR)
        try:
            if not cut:
                torn = os.pread(descriptor, min(_TORN_BYTES, last.size - 1), last.offset)
                os.pwrite(descriptor, torn, last.offset + last.size)
                return "half a record behind the last one"
            self._excuse(last)
            os.pwrite(descriptor, bytes(last.size - last.size // 2), last.offset + last.size // 2)
            return f"half of the last record, {type(last.record).__name__}"
        finally:
            os.close(descriptor)

    def _excuse(self, last: Frame) -> None:
        record = last.record
        request_id = str(record.open.request_id if isinstance(record, UsageRecord) else record.request_id)
        self.journal.torn.add(request_id)
        if isinstance(record, OpenRecord):
            self.journal.torn_open[request_id] = TornAdmission(record.boot_id, record.max_input_tokens)

    # -- network and machine ---------------------------------------------------------------------------------------

    async def _network(self, fault: Fault) -> str:
        proxy = self._machine.proxies[fault.target]
        if "cut" in fault.options:
            proxy.cut()
            return "all connections reset"
        given = fault.options
        proxy.change(
            Conditions(given.get("latency_s", 0.0), given.get("bytes_per_s", 0.0), silent="silent" in given)
        )
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            proxy.change(CLEAR)
        return "slow" if "silent" not in given else "silent"

    async def _restart(self, fault: Fault) -> str:
        """SIGKILL everything at once, then start everything again."""
        machine = self._machine
        async with machine.starting:
            now = time.monotonic()
            await asyncio.to_thread(machine.crash)
            self.journal.deaths.append(now)
            self.journal.engine_deaths.append(now)
        await machine.start()
        return f"serves again after {time.monotonic() - now:.0f} s"


def _spool_of(pid: int) -> Path | None:
    """Return the spool that a process has open."""
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir() if pid else ():
            with suppress(OSError):
                path = Path(os.readlink(link))
                if path.suffix == ".spool" and path.stat().st_size > len(FILE_HEADER):
                    return path
    return None
