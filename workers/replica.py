"""One replica: starts its engine, warms it up, monitors it, restarts it with backoff, and executes commands.

LOADING -> READY -> (DRAINING | ASLEEP -> READY) -> STOPPED
   ^          |
   +-- FAILED <- the engine died; back to LOADING after a backoff
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from core.clock import Clock
from core.errors import Conflict, EngineFailed, InvalidRequest, PenstockError
from core.ids import incarnation
from core.process_identity import ProcessIdentity
from workers.backoff import Backoff
from workers.engine_api import EngineApi, EngineMetrics
from workers.engine_command import EngineCommand
from workers.engine_process import EngineProcess
from workers.plan import ReplicaPlan
from workers.replica_view import EngineRefused, ReplicaView
from workers.wire import Capacity, EndedEngine, EngineCounters, ReplicaState, ReplicaStatus

log = logging.getLogger(__name__)

POLL_S = 0.1
"""Seconds between checks of the engine's process."""
SCRAPE_S = 1.0
"""Seconds between scrapes of the engine's metrics."""
MAX_FAILED_PROBES = 3
"""Failed probes in a row after which a running engine is killed."""
LOAD_TIMEOUT_S = 3600.0
"""Seconds that an engine may take until it responds."""
DEATH_GRACE_S = 10.0
"""Seconds to wait for an unhealthy engine's exit: when its core has died, vLLM ends by itself in about 6 s."""

QUIET_TIMEOUT_S = 60.0
"""Seconds after the warm-up within which the engine must run nothing."""

ENDED_KEPT = 4
"""Ended engines of a replica whose last counters are repeated in heartbeats."""


class SavedEngine(msgspec.Struct):
    """A running engine in the state file, from which a new agent can adopt it."""

    process: ProcessIdentity
    url: str
    argv: tuple[str, ...]
    boot_id: str
    warmup: EngineCounters
    ready: bool
    restarts: int = 0
    ending: bool = False
    """Whether the agent has begun to end it; it is not adopted then."""


class EngineAccess(msgspec.Struct, frozen=True):
    """How one engine is started and reached."""

    url: str
    command: EngineCommand
    api: EngineApi


class ReplicaRunner(ReplicaView):
    """A replica whose engine is a process of this host.

    `access` returns the access to the engine at a URL, or with None that to a new engine at a URL of its own. A request
    for an engine that has ended is then refused, however late it is sent; at the same URL the next engine would run it
    during its warm-up, whose tokens belong to no request of a customer.
    """

    def __init__(
        self,
        plan: ReplicaPlan,
        *,
        access: Callable[[str | None], EngineAccess],
        log_file: Path,
        clock: Clock,
        saved: SavedEngine | None,
        save: Callable[[], None],
        measure: Callable[[EngineApi], Awaitable[Capacity]] | None = None,
    ) -> None:
        """`measure` returns the capacity of a fresh engine after its warm-up. It raises EngineRefused for one that must
        not serve, which then starts again by a command alone."""
        first = access(saved.url if saved is not None else None)
        super().__init__(plan, first.url)
        self._measure = measure
        self._access = access
        self._command, self._api = first.command, first.api
        self.log_file = log_file
        self._clock = clock
        self._save = save
        self._saved = saved
        self._process: EngineProcess | None = None
        self._ready_once = False
        self._ending = False
        self._should_run = True
        self._changed = asyncio.Event()
        self._backoff = Backoff(clock)
        self._scraped_at = clock.monotonic()
        self._ended: deque[tuple[ReplicaStatus, float, float]] = deque(maxlen=ENDED_KEPT)
        """The last statuses of ended engines, with the instants of their last scrape and their end."""

    async def _scrape(self) -> None:
        """Read the engine's metrics and store them. They are as old as the request, however late the answer is read."""
        began = self._clock.monotonic()
        self.record_scrape(await self._api.metrics())
        self._scraped_at = began

    def status(self) -> ReplicaStatus:
        """The status for the heartbeat, with the age of its counters."""
        return msgspec.structs.replace(
            super().status(), scrape_age_s=self._clock.monotonic() - self._scraped_at
        )

    def ended(self) -> list[EndedEngine]:
        """The last engines of this replica that have ended, oldest first."""
        now = self._clock.monotonic()
        return [EndedEngine(status, now - scraped, now - ended) for status, scraped, ended in self._ended]

    def saved(self) -> SavedEngine | None:
        """The running engine for the state file, or that of the agent before until it is adopted; None for none."""
        if self._process is None:
            return self._saved
        return SavedEngine(
            process=self._process.identity,
            url=self.url,
            argv=self._command.argv,
            boot_id=self.boot_id,
            warmup=self.warmup,
            ready=self._ready_once,
            restarts=self.restarts,
            ending=self._ending,
        )

    async def run(self) -> None:
        """Start, warm up, monitor and restart the engine until cancelled."""
        while True:
            if not self._should_run:
                self._changed.clear()
                await self._changed.wait()
                continue
            try:
                await self._start_or_adopt()
                self._backoff.on_started()
                await self._watch()
            except EngineRefused as error:
                self._discard()
                self._should_run = False
                self.enter(ReplicaState.FAILED, f"{error.message}; it starts again by a command")
            except PenstockError as error:
                await self._on_failure(error.message)
            except OSError as error:
                await self._on_failure(f"the engine cannot be started: {error}")

    async def _start_or_adopt(self) -> None:
        if self._process is None and self._saved is not None:
            saved, self._saved = self._saved, None
            self._adopt(saved)
        if self._process is not None and self._ready_once:
            await self._probe_adopted()
            return
        if self._process is None:
            self._ready_once = self._ending = False
            self.enter(ReplicaState.LOADING, "starting the engine")
            fresh = self._access(None)
            self.url, self._command, self._api = fresh.url, fresh.command, fresh.api
            self._process = EngineProcess.start(self._command, self.log_file)
            self.boot_id = incarnation("engine")
            self.metrics, self.warmup = EngineMetrics(), EngineCounters()
            self.pid = self._process.pid
            self._save()
        await self._load()

    def _adopt(self, saved: SavedEngine) -> None:
        process = EngineProcess.adopt(saved.process)
        if process is None:
            return
        if saved.argv != self._command.argv or saved.ending:
            why = "that was being ended" if saved.ending else "of other settings"
            log.info("replica %s: ending an engine %s", self.plan.replica_id, why)
            process.kill()
            return
        log.info("replica %s: adopted the engine with pid %d", self.plan.replica_id, process.pid)
        self._process, self.pid, self.boot_id = process, process.pid, saved.boot_id
        self.warmup, self._ready_once, self.restarts = saved.warmup, saved.ready, saved.restarts

    async def _probe_adopted(self) -> None:
        """Learn how an adopted engine is. As in _watch, it may miss probes before it counts as dead."""
        missed = 0
        while True:
            try:
                healthy = await self._api.healthy()
                break
            except EngineFailed:
                missed += 1
                if missed == MAX_FAILED_PROBES or not self._alive():
                    raise
            await asyncio.sleep(SCRAPE_S)
        if not healthy:
            raise EngineFailed("the adopted engine is broken")
        self.stream_interval = await self._api.takes_stream_interval()
        await self._scrape()
        self.enter(ReplicaState.ASLEEP if self.metrics.asleep else ReplicaState.READY)

    async def _load(self) -> None:
        """Wait until the engine responds, then warm it up and record the baseline of its counters."""
        began = self._clock.monotonic()
        self.enter(ReplicaState.LOADING, "loading weights")
        while not await self._answers():
            if not self._alive():
                raise EngineFailed(f"{self._exit_text()} while loading; see {self.log_file}")
            if self._clock.monotonic() - began > LOAD_TIMEOUT_S:
                raise EngineFailed(f"the engine did not come up within {LOAD_TIMEOUT_S:.0f} s")
            await asyncio.sleep(POLL_S)
        self.enter(ReplicaState.LOADING, "warming up")
        plan, capacity = self.plan, self.plan.capacity
        await self._api.warm_up(
            plan.model_name, capacity.max_model_len, embeds=plan.embeds, ranks=capacity.dp_ranks
        )
        if self._measure is not None:
            self.capacity = await self._measure(self._api)
        self.stream_interval = await self._api.takes_stream_interval()
        await self._count_warm_up()
        self._ready_once = True
        self._save()
        if self.state is ReplicaState.LOADING:
            self.enter(ReplicaState.READY)

    async def _count_warm_up(self) -> None:
        """Record the baseline once the engine runs nothing and its counters stand still.

        The baseline and the counters of its scrape change together, so that no heartbeat has tokens of the warm-up
        without the baseline. Raises EngineFailed when the engine still works after QUIET_TIMEOUT_S.
        """
        deadline = self._clock.monotonic() + QUIET_TIMEOUT_S
        before: EngineCounters | None = None
        while True:
            began = self._clock.monotonic()
            metrics = await self._api.metrics()
            left = metrics.running + metrics.waiting
            if not left and metrics.counters == before:
                break
            before = metrics.counters
            if began >= deadline:
                raise EngineFailed(
                    f"the engine still works {QUIET_TIMEOUT_S:.0f} s after the warm-up, with {left} requests"
                )
            await asyncio.sleep(POLL_S)
        self.record_scrape(metrics)
        self._scraped_at = began
        self.warmup = metrics.counters

    async def _answers(self) -> bool:
        try:
            return await self._api.healthy()
        except EngineFailed:
            return False

    async def _watch(self) -> None:
        """Monitor the engine while it should run. Raises EngineFailed when it dies or stops responding."""
        failures = 0
        due = self._clock.monotonic() + SCRAPE_S
        while self._should_run:
            if not self._alive():
                raise EngineFailed(self._exit_text())
            if self._clock.monotonic() >= due:
                failures = 0 if await self._probe() else failures + 1
                if failures >= MAX_FAILED_PROBES:
                    raise EngineFailed(f"the engine has not answered {failures} probes in a row")
                due = self._clock.monotonic() + SCRAPE_S
            await asyncio.sleep(POLL_S)

    async def _probe(self) -> bool:
        try:
            if not await self._api.healthy():
                await self._await_death()
                raise EngineFailed("the engine says that it is broken (its core has died)")
            await self._scrape()
        except EngineFailed:
            if self.state is ReplicaState.FAILED:
                raise
            return False
        self._backoff.on_healthy()
        return True

    async def _await_death(self) -> None:
        self.enter(ReplicaState.FAILED, "the engine says that it is broken")
        if self._process is not None:
            await self._process.ended(DEATH_GRACE_S)

    def _alive(self) -> bool:
        return self._process is not None and self._process.alive()

    def _exit_text(self) -> str:
        return self._process.exit_text if self._process is not None else "the engine is gone"

    async def _on_failure(self, why: str) -> None:
        """Clean up after the engine has died, then wait for the backoff."""
        self._discard()
        if not self._should_run:
            return
        self.restarts += 1
        delay = self._backoff.next_delay()
        log.warning("replica %s failed: %s; starting again in %.1f s", self.plan.replica_id, why, delay)
        self.enter(ReplicaState.FAILED, f"{why}; starting again in {delay:.0f} s")
        self._changed.clear()
        try:
            async with asyncio.timeout(delay):
                await self._changed.wait()
        except TimeoutError:
            return

    def _discard(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None
            if self._scrapes:  # an adopted engine may die before this agent has read its counters
                ended = msgspec.structs.replace(self.status(), state=ReplicaState.STOPPED)
                self._ended.append((ended, self._scraped_at, self._clock.monotonic()))
        self.pid = 0
        self.metrics = EngineMetrics(counters=self.metrics.counters)
        self._save()

    async def command(self, action: str, deadline_s: float) -> None:
        """Execute drain, resume, sleep, wake, stop, restart or kill.

        Draining waits at most `deadline_s` seconds. Raises InvalidRequest for another action, Conflict when the
        replica's state does not allow it, and EngineFailed when the engine does not complete it.
        """
        match action:
            case "drain":
                self._require_state("drain", ReplicaState.READY, ReplicaState.DRAINING)
                await self._drain(deadline_s)
            case "resume":
                await self._resume()
            case "sleep":
                self._require_state("sleep", ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.ASLEEP)
                await self._drain(deadline_s)
                await self._api.sleep()
                self.enter(ReplicaState.ASLEEP, "asleep")
            case "wake":
                self._require_state("wake", ReplicaState.ASLEEP)
                await self._api.wake()
                self.enter(ReplicaState.READY)
            case "stop":
                await self.shut_down(deadline_s)
            case "restart":
                await self.shut_down(deadline_s)
                self._start_again()
            case "kill":
                if self._process is not None:
                    self._process.kill()
            case _:
                raise InvalidRequest(f"unknown action {action!r}", param="action")

    def _require_state(self, action: str, *states: ReplicaState) -> None:
        if self.state not in states:
            raise Conflict(f"{self.plan.replica_id} is {self.state}; it cannot {action} now")

    async def _resume(self) -> None:
        if self.state is ReplicaState.STOPPED:
            self._start_again()
            return
        self._require_state("resume", ReplicaState.DRAINING, ReplicaState.READY)
        self.enter(ReplicaState.READY)

    def _start_again(self) -> None:
        self._should_run = True
        self._backoff.reset()
        self.enter(ReplicaState.LOADING, "starting the engine")
        self._changed.set()

    async def _drain(self, deadline_s: float) -> None:
        """Enter DRAINING and wait until no request is left. Raises EngineFailed when some are after `deadline_s`."""
        if self.state is ReplicaState.ASLEEP:
            return
        self.enter(ReplicaState.DRAINING, "draining")
        deadline = self._clock.monotonic() + deadline_s
        while self._alive():
            try:
                await self._scrape()
            except EngineFailed:
                return
            left = self.metrics.running + self.metrics.waiting
            if not left:
                return
            if self._clock.monotonic() >= deadline:
                raise EngineFailed(f"{left} requests were still running after {deadline_s:.0f} s")
            await asyncio.sleep(POLL_S)

    async def shut_down(self, drain_s: float) -> None:
        """Drain for at most `drain_s` seconds, send SIGTERM, and SIGKILL after the engine's shutdown timeout."""
        saved, self._saved = self._saved, None
        if saved is not None:
            self._adopt(saved)
        process = self._process
        if (
            process is not None
            and process.alive()
            and self.state in (ReplicaState.READY, ReplicaState.DRAINING)
        ):
            try:
                await self._drain(drain_s)
            except EngineFailed as error:
                log.warning("replica %s: %s", self.plan.replica_id, error.message)
        self._should_run = False
        self._changed.set()
        if process is not None:
            self._ending = True
            self._save()
            process.terminate()
            if not await process.ended(self._command.stop_s):
                log.warning("replica %s: the engine ignored SIGTERM; killing it", self.plan.replica_id)
        self._discard()
        self.enter(ReplicaState.STOPPED, "stopped")
