"""API processes with the product's own HoldManager and Meter, and the reaper's job, in a simulated world."""

import asyncio
import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from billing.metering import adoption, dedicated_connection, reaper, spool
from billing.metering.holds import HoldManager
from billing.metering.meter import Meter
from core import supervise
from tests.simulation.disk import Disk, Path, threading_module, time_module
from tests.simulation.loop import SimulatedLoop
from tests.simulation.server import Server
from tests.simulation.traffic import Request, serve, write_checkpoint
from tests.simulation.world import Process, World

URL = "postgresql://simulated/penstock"
SPOOL_DIR = "/spool"
CHECKPOINT_S = 1.0


class SimulatedClock:
    """core.clock.Clock on a world's time."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._world.unix_s(), UTC)

    def monotonic(self) -> float:
        return self._world.now


class ApiProcess(Process):
    """One incarnation of an API process."""

    def __init__(self, platform: "Platform", name: str) -> None:
        super().__init__(platform.world, name)
        self.platform = platform
        self.loop = SimulatedLoop(self)
        self.running: dict[UUID, Request] = {}
        self.ready = False
        self.stopping = False
        self.died_of = ""
        self.disk_failed = False
        """Whether an operation on its disk has failed."""
        self.was_full = False
        """Whether its spool had little room at a checkpoint, which may then be dropped."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_death.append(self._release)
        self.loop.call_soon(lambda: self._spawn(self._boot()))

    async def _boot(self) -> None:
        platform = self.platform
        self.holds = HoldManager(
            URL, self.name, ttl_s=platform.ttl_s, clock=SimulatedClock(self.world), timeout_s=0.5
        )
        self.meter = Meter(
            URL,
            Path(platform.disk, SPOOL_DIR),  # type: ignore[arg-type]
            self.name,
            spool_bytes=platform.spool_bytes,
            drain_s=3.0,
            on_settled=self.holds.stop_renewing,
        )
        try:
            await self.holds.start()
            await self.meter.start()
        except OSError as error:
            self.world.note(self.name, "cannot start", error)
            self.died_of = "start"
            self.kill()
            return
        self.ready = True
        self.world.note(self.name, "ready")
        self._spawn(self._checkpoints())

    def _spawn(self, coroutine: Any) -> None:
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _checkpoints(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            for request in list(self.running.values()):
                self.was_full = self.was_full or not self.meter.ready
                write_checkpoint(request)

    def accept(self, request: Request) -> None:
        """Begin a request; called from outside of the process."""

        def begin() -> None:
            if self.stopping:
                request.error = "stopping"
                return
            task = self.loop.create_task(serve(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if request.plan.leaves_after_s is not None:
                self.loop.call_later(request.plan.leaves_after_s, task.cancel)

        self.loop.call_soon(begin)

    def stop(self) -> None:
        """SIGTERM: end the running requests, settle, exit."""
        if not self.stopping and self.ready:
            self.stopping = True
            self.world.note(self.name, "stops")
            self.loop.call_soon(lambda: self.loop.create_task(self._shut_down()))

    async def _shut_down(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self.meter.close()
            await self.holds.close()
        except OSError as error:
            self.world.problem(f"{self.name} does not shut down: {error!r}")
        self.died_of = "stop"
        self.kill()

    def _release(self) -> None:
        self.world.note(self.name, "dies of", self.died_of or "kill")
        self.platform.disk.close_all(self)
        self.platform.server.forget(self)
        self.platform.restart_later()


class Platform:
    """One host with API processes on one disk, PostgreSQL on another, and the reaper."""

    def __init__(self, world: World, *, ttl_s: float, spool_bytes: int, processes: int) -> None:
        self.world = world
        self.ttl_s = ttl_s
        self.spool_bytes = spool_bytes
        self.wanted = processes
        self.disk = Disk(world)
        self.server = Server(world)
        self.apis: list[ApiProcess] = []
        self.requests: list[Request] = []
        self.reap_every_s = max(1.0, min(5.0, ttl_s / 6))
        self.reaper_rests_until = 0.0
        self.struck: list[str] = []
        """Names of the faults that have struck."""
        for _ in range(processes):
            self._start()
        world.after(world.random.random(), self._reap)

    @property
    def living(self) -> list[ApiProcess]:
        """API processes that take requests."""
        return [one for one in self.apis if one.ready and not one.dead and not one.stopping]

    def _start(self) -> None:
        self.apis.append(ApiProcess(self, f"api-{len(self.apis) + 1}"))

    def restart_later(self) -> None:
        """Replace a process that has died, as the supervisor does."""

        def restart() -> None:
            if sum(not one.dead for one in self.apis) < self.wanted:
                self._start()

        self.world.after(self.world.random.uniform(0.1, 3.0), restart)

    def lose_power(self) -> None:
        """The host dies, with what its disk had not made durable."""
        self.world.note("power is lost")
        for api in self.apis:
            if not api.dead:
                api.died_of = "power"
                api.kill()
        self.disk.lose_power()

    def _reap(self) -> None:
        world, server = self.world, self.server
        world.after(self.reap_every_s, self._reap)
        if world.now < max(self.reaper_rests_until, server.down_until, server.frozen_until):
            return
        for _ in range(world.random.choice((1, 1, 1, 2))):
            coroutine = reaper.reap(
                server,  # type: ignore[arg-type]
                self.ttl_s,
                gap_s=max(self.ttl_s / 2, 3 * self.reap_every_s),
            )
            try:
                coroutine.send(None)
            except StopIteration as ended:
                if ended.value:
                    world.note("reaped", ended.value)


class _Restarts:
    """Stands in for the counter of restarted tasks: each restart hides a fault of the product."""

    def __init__(self, world: World) -> None:
        self._world = world

    def labels(self, task: str) -> "_Restarts":
        if not self._world.over:
            self._world.problem(f"the task {task} has failed and was restarted")
        return self

    def inc(self) -> None:
        """Counted in `labels`."""


@contextlib.contextmanager
def simulated_modules(platform: Platform) -> Iterator[None]:
    """The product's files see this platform's disk, threads, clock, randomness and database."""
    world, disk = platform.world, platform.disk
    replaced: list[tuple[Any, str, Any]] = [
        (spool, "os", disk.os_module()),
        (spool, "fcntl", disk.fcntl_module()),
        (spool, "threading", threading_module(world)),
        (spool, "time", time_module(world)),
        (adoption, "os", disk.os_module()),
        (adoption, "fcntl", disk.fcntl_module()),
        (adoption, "time", time_module(world)),
        (dedicated_connection, "connect_system", platform.server.connect),
        (dedicated_connection, "random", world.random),
        (supervise, "RESTARTS", _Restarts(world)),
    ]
    originals = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    for module, name, value in replaced:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in originals:
            setattr(module, name, value)
