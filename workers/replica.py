"""One replica: starts its engine, warms it up, monitors it, restarts it with backoff, and executes commands.

`replica_states` says what may follow what. Draining, sleeping and waking are in `held_engine`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from core.clock import Clock
from core.errors import CalledOff, Conflict, EngineFailed, InvalidRequest, PenstockError
from core.ids import incarnation
from workers import engine_sleep
from workers.answer_quality import ANY_ANSWER, AnswerRule, compare, problem
from workers.backoff import Backoff
from workers.engine_api import EngineApi, EngineMetrics
from workers.engine_process import EngineProcess
from workers.engine_sleep import PROOF_PROMPTS, Proof
from workers.engine_spec import EngineSpec
from workers.held_engine import POLL_S, SLEEP_QUIET_S, EngineAccess, HeldEngine
from workers.plan import ReplicaPlan
from workers.replica_states import ADOPTED_ASLEEP, ASLEEP, CHANGING, Event, Phase
from workers.replica_view import EngineRefused
from workers.saved_engine import BASE_VERSION, Deployed, SavedEngine
from workers.weights_fetch import Fetch
from workers.weights_manifest import PrefetchLine, progress_text
from workers.wire import AnswerQuality, Capacity, EngineCounters, LifeTimes, ReplicaState, ReplicaStatus

log = logging.getLogger(__name__)

SCRAPE_S = 1.0
"""Seconds between scrapes of the engine's metrics."""
MAX_FAILED_PROBES = 3
"""Failed probes in a row after which a running engine is killed."""
LOAD_TIMEOUT_S = 3600.0
"""Seconds that an engine may take until it responds."""
DEATH_GRACE_S = 10.0
"""Seconds to wait for an unhealthy engine's exit: when its core has died, vLLM ends by itself in about 6 s."""


class ReplicaRunner(HeldEngine):
    """A replica whose engine is a process of this host.

    `access` returns the access to the engine of a plan at a URL, or with None that to a new engine at a URL of its own.
    A request for an engine that has ended is then refused, however late it is sent; at the same URL the next engine
    would run it during its warm-up, whose tokens belong to no request of a customer.
    """

    def __init__(
        self,
        plan: ReplicaPlan,
        *,
        access: Callable[[ReplicaPlan, str | None], EngineAccess],
        log_file: Path,
        clock: Clock,
        saved: SavedEngine | None,
        save: Callable[[], None],
        measure: Callable[[EngineApi], Awaitable[Capacity]] | None = None,
        times: LifeTimes | None = None,
        fetch: Fetch | None = None,
        deployed: Deployed = BASE_VERSION,
        gpus_taken: Callable[["ReplicaRunner"], str] = lambda replica: "",
    ) -> None:
        """`times`: what an earlier agent has measured of the replica. `deployed`: the version that it runs, in place of
        the base version that `plan` is of.

        `measure` returns the capacity of a fresh engine after its warm-up. It raises EngineRefused for one that must
        not serve, which then starts again by a command alone. `fetch` has the weights on this host before the engine
        starts. `gpus_taken` says why its GPUs are not free; its engine then stays stopped.
        """
        self._base, self._rule = plan, deployed.rule
        self._reference, self._beside = deployed.reference or deployed.answers, deployed.beside
        """The answers that its next engine's are compared with, and the version that gave them."""
        self._quality: AnswerQuality | None = None
        """Its answers beside those of the version before."""
        self._proved: tuple[Proof, ...] = ()
        """What the last engine of this version that served has answered."""
        current = plan.of_version(deployed.spec)
        super().__init__(current, access, log_file=log_file, clock=clock, saved=saved, save=save, times=times)
        self._measure = measure
        self._fetch, self._gpus_taken = fetch, gpus_taken
        self.held = False
        """Whether requests must not wake it from its last stop."""
        self._stopping = asyncio.Lock()
        self._ready_once = False
        self._ending = False
        self._should_run = True
        self._may_start = False
        """Whether a start has been accepted: from then on LOADING means that it is to use its GPUs."""
        self._changed = asyncio.Event()
        self._backoff = Backoff(clock)

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
            changing=self._life.phase in CHANGING,
            proofs=tuple(self._proofs),
            own=self._own,
            quality=self._quality,
        )

    @property
    def deployed(self) -> Deployed:
        """The version that it runs, for the state file."""
        same, other = (self._reference, ()) if self._rule.same else ((), self._reference)
        return Deployed(self.plan.spec, same, self._rule, other, self._beside)

    def status(self) -> ReplicaStatus:
        """The status for the heartbeat."""
        held = self.held and self._life.phase is Phase.STOPPED
        return msgspec.structs.replace(
            super().status(), failures=self._backoff.failures, held=held, quality=self._quality
        )

    async def run(self) -> None:
        """Start, warm up, monitor and restart the engine until cancelled."""
        while True:
            if not self._should_run:
                self._changed.clear()
                await self._changed.wait()
                continue
            self.adopt()
            if self._process is None and (why := self._gpus_taken(self)):
                self._rest(why)
                continue
            self._may_start = True
            try:
                await self._start_or_adopt()
                self._backoff.on_started()
                await self._watch()
            except EngineRefused as error:
                self._discard()
                self._should_run = False
                if self._life.may(Event.REFUSED):
                    self._fire(Event.REFUSED, f"{error.message}; it starts again by a command")
            except PenstockError as error:
                fetching = self._life.phase is Phase.PREFETCHING
                if self._process is not None or fetching:  # else it was ended on purpose
                    await self._on_failure(error.message)
            except OSError as error:
                await self._on_failure(f"the engine cannot be started: {error}")

    @property
    def phase(self) -> Phase:
        """What it does now."""
        return self._life.phase

    @property
    def on_gpus(self) -> bool:
        """Whether its engine uses its GPUs, or is about to: not while it sleeps."""
        phase = self._life.phase
        if phase is Phase.PREFETCHING or (phase is Phase.LOADING and self._may_start):
            return True
        return self._process is not None and phase not in ASLEEP

    def adopt(self) -> None:
        """Take over the engine of an earlier agent, if it lives."""
        if self._process is None and self._saved is not None:
            saved, self._saved = self._saved, None
            self._adopt(saved)

    def _rest(self, why: str) -> None:
        """Stay stopped until a command: another replica uses the GPUs."""
        self._should_run = False
        self._fire(Event.STOP)
        self._fire(Event.ENDED, why)

    async def _start_or_adopt(self) -> None:
        if self._process is not None and self._ready_once:
            await self._probe_adopted()
            return
        if self._process is None:
            self._ready_once = self._ending = False
            if self._life.phase is not Phase.LOADING:
                self._fire(Event.START)
            if self._fetch is not None:
                await self._prefetch(self._fetch)
            self.enter(self.state, "starting the engine")
            fresh = self._access(self.plan, None)
            self.url, self._command, self._api = fresh.url, fresh.command, fresh.api
            self._process = EngineProcess.start(self._command, self.log_file)
            self.boot_id = incarnation("engine")
            self.metrics, self.warmup, self._own = EngineMetrics(), EngineCounters(), EngineCounters()
            self._proofs, self._condemned = [], ""
            self.pid = self._process.pid
            self._save()
        await self._load()

    async def _prefetch(self, fetch: Fetch) -> None:
        """Have the weights on this host. Raises EngineFailed when that fails or a command stops the replica."""

        def tell(line: PrefetchLine) -> None:
            self._fetched = line
            self.enter(self.state, progress_text(line))

        work = fetch(tell)
        if work is None:
            return
        self._fire(Event.FETCH, "prefetching the weights")
        fetching = asyncio.create_task(work)
        try:
            while self._life.phase is Phase.PREFETCHING and not fetching.done():
                await asyncio.wait({fetching}, timeout=POLL_S)
            if self._life.phase is not Phase.PREFETCHING:
                raise EngineFailed(f"it is {self._life.phase} meanwhile")
            fetching.result()
        finally:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)
            self._fetched = PrefetchLine()
        self._fire(Event.FETCHED)

    def _adopt(self, saved: SavedEngine) -> None:
        process = EngineProcess.adopt(saved.process)
        if process is None:
            return
        if saved.argv != self._command.argv or saved.ending or saved.changing:
            why = "of other settings"
            if saved.ending or saved.changing:
                why = "that was being ended" if saved.ending else "whose weights may be incomplete"
            log.info("replica %s: ending an engine %s", self.plan.replica_id, why)
            process.kill()
            return
        log.info("replica %s: adopted the engine with pid %d", self.plan.replica_id, process.pid)
        self._process, self.pid, self.boot_id = process, process.pid, saved.boot_id
        self.warmup, self._ready_once, self.restarts = saved.warmup, saved.ready, saved.restarts
        self._proofs, self._own, self._quality = list(saved.proofs), saved.own, saved.quality
        self._life.untimed()

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
        self._advance(ADOPTED_ASLEEP.get(self.metrics.sleep_level, Event.ADOPTED), "adopted")

    async def _load(self) -> None:
        """Wait until the engine responds, then warm it up and record the baseline of its counters."""
        began = self._clock.monotonic()
        self.enter(self.state, "loading weights")
        while not await self._answers():
            if not self._alive():
                raise EngineFailed(f"{self._exit_text()} while loading; see {self.log_file}")
            if self._clock.monotonic() - began > LOAD_TIMEOUT_S:
                raise EngineFailed(f"the engine did not come up within {LOAD_TIMEOUT_S:.0f} s")
            await asyncio.sleep(POLL_S)
        self._advance(Event.ANSWERED, "warming up")
        plan, capacity = self.plan, self.plan.capacity
        await self._api.warm_up(
            plan.model_name, capacity.max_model_len, embeds=plan.embeds, ranks=capacity.dp_ranks
        )
        self._advance(Event.WARMED, "being measured")
        if self._measure is not None:
            self.capacity = await self._measure(self._api)
        self.stream_interval = await self._api.takes_stream_interval()
        proofs = await self._ask_for_proofs(PROOF_PROMPTS)
        # The answer of another number of ranks says nothing of this engine.
        same_ranks = len(self._reference) == len(proofs)
        if same_ranks:
            if why := problem(self._rule, self._reference, proofs):
                raise EngineRefused(f"version {self.plan.spec.version or 'base'} must not serve: {why}")
            if (found := compare(self._reference, proofs)) is not None:
                self._quality = msgspec.structs.replace(found, beside=self._beside)
        # The baseline and the counters of its scrape change together, so that no heartbeat has tokens of the warm-up
        # without the baseline.
        metrics, scraped_at = await engine_sleep.quiet(self._api, self._clock)
        self._advance(Event.PROVED, "")
        self.record_scrape(metrics)
        self._scraped_at, self.warmup, self._ready_once = scraped_at, metrics.counters, True
        self._reference = ()  # it has been given; a later engine of this version may differ for reasons of its own
        self._proofs, self._proved = proofs, tuple(proofs)
        self._save()

    async def _answers(self) -> bool:
        try:
            return await self._api.healthy()
        except EngineFailed:
            return False

    async def _watch(self) -> None:
        """Monitor the engine while it should run. Raises EngineFailed when it dies or stops responding."""
        failures, process = 0, self._process
        due = self._clock.monotonic() + SCRAPE_S
        while self._should_run and self._process is process:
            if self._condemned:
                raise EngineFailed(self._condemned)
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
            if self._life.phase not in CHANGING:  # the tokens of a proof are counted by the wake
                await self._scrape()
        except EngineFailed:
            if self.state is ReplicaState.FAILED:
                raise
            return False
        self._backoff.on_healthy()
        return True

    async def _await_death(self) -> None:
        if self._life.may(Event.DIED):
            self._fire(Event.DIED, "the engine says that it is broken")
        if self._process is not None:
            await self._process.ended(DEATH_GRACE_S)

    async def _on_failure(self, why: str) -> None:
        """Clean up after the engine has died, then wait for the backoff."""
        self._discard()
        if not self._should_run:
            return
        self.restarts += 1
        delay = self._backoff.next_delay()
        log.warning("replica %s failed: %s; starting again in %.1f s", self.plan.replica_id, why, delay)
        self._fire(Event.DIED, f"{why}; starting again in {delay:.0f} s")
        self._changed.clear()
        try:
            async with asyncio.timeout(delay):
                await self._changed.wait()
        except TimeoutError:
            return

    async def command(self, action: str, deadline_s: float, level: int = 1) -> None:
        """Execute drain, resume, sleep at `level` 1 or 2, wake, stop, restart or kill.

        Draining waits at most `deadline_s` seconds. Raises InvalidRequest for another action or level, Conflict when
        the replica's state does not allow it, and EngineFailed when the engine does not complete it.
        """
        match action:
            case "drain":
                await self._drain(action, deadline_s)
            case "resume":
                self._resume()
            case "sleep":
                await self._sleep(level, deadline_s)
            case "wake":
                await self._wake()
            case "stop":
                await self._stop(deadline_s)
            case "restart":
                await self._stop(deadline_s)
                self._start_again()
            case "kill":
                if self._process is not None:
                    self._process.kill()
            case _:
                raise InvalidRequest(f"unknown action {action!r}", param="action")

    def answers(self) -> str:
        """The greedy answers that its engine gave when it was loaded, as JSON; none of one that has given none."""
        return msgspec.json.encode(self._proofs).decode()

    async def deploy(self, spec: EngineSpec, *, rule: AnswerRule, deadline_s: float) -> None:
        """Run the version `spec` from now on.

        A running engine gets `deadline_s` seconds to end its requests, ends, and starts anew; a sleeping one ends, and
        a stopped one stays so. The new engine serves only if its greedy answers are as close to those of the one
        before it as `rule` says; they may be any where no engine of the version that is replaced has answered. Raises
        InvalidRequest for a version that this replica cannot run, with nothing changed, and Conflict when its stop is
        called off, or when requests are left at the deadline: it is as before then.
        """
        plan = self._base.of_version(spec)
        if plan == self.plan:
            return
        again = self._life.phase not in (*ASLEEP, Phase.STOPPED, Phase.STOPPING)
        replaced, beside = self.plan.spec.version, self._beside
        if reference := tuple(self._proofs) or self._proved:
            beside = replaced
        else:
            reference = self._reference
        if self._life.phase is not Phase.STOPPED:
            await self._stop(deadline_s, quiet_s=SLEEP_QUIET_S, whole=True)
        # Nothing is awaited from the end of the old engine on, so that no other command starts it again.
        self.plan, self.capacity = plan, plan.capacity
        self._proofs, self._proved, self._reference, self._beside = [], (), reference, beside
        self._rule, self._quality = rule if beside == replaced else ANY_ANSWER, None
        self._save()
        if again:
            self._start_again()

    def _resume(self) -> None:
        if self._life.may(Event.START) and not self._should_run:
            self._start_again()
            return
        self._require("resume", Event.RESUME)
        self._fire(Event.RESUME)

    def _start_again(self) -> None:
        self._require("start", Event.START)
        self._fire(Event.START, "starting the engine")
        self._should_run = self._may_start = True
        self._backoff.reset()
        self._changed.set()

    async def shut_down(self, drain_s: float) -> None:
        """Drain for at most `drain_s` seconds, send SIGTERM, and SIGKILL after the engine's shutdown timeout."""
        await self._stop(drain_s, even_if_resumed=True)

    async def _stop(
        self, drain_s: float, *, even_if_resumed: bool = False, quiet_s: float = 0.0, whole: bool = False
    ) -> None:
        """As `shut_down`, after `quiet_s` seconds without a request; `whole`: not before the last request has ended.

        Raises Conflict when a command has called off the drain, so that requests are routed to it again, and when it is
        to be `whole` and requests are left after `drain_s`.
        """
        saved, self._saved = self._saved, None
        if saved is not None:
            self._adopt(saved)
        async with self._stopping:
            served = self._life.phase is Phase.READY
            if self._alive() and self._life.may(Event.DRAIN):
                try:
                    await self._drain("stop", drain_s, quiet_s=quiet_s)
                except (CalledOff, EngineFailed) as error:
                    if isinstance(error, CalledOff) and not even_if_resumed:
                        raise
                    if whole and self._alive() and self._life.phase is Phase.DRAINING:
                        if served:
                            self._fire(Event.RESUME)
                        raise Conflict(f"{self.plan.replica_id} is {self.state}: {error.message}") from error
                    log.warning("replica %s: %s", self.plan.replica_id, error.message)
            self._should_run = False
            self._changed.set()
            self._fire(Event.STOP, "stopping")
            if (process := self._process) is not None:
                self._ending = True
                self._save()
                process.terminate()
                if not await process.ended(self._command.stop_s):
                    log.warning("replica %s: the engine ignored SIGTERM; killing it", self.plan.replica_id)
            self._discard()
            self._fire(Event.ENDED, "stopped")
