"""An engine in the hands of its agent: its phase and status, and how it is drained, put to sleep and woken."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from core.clock import Clock
from core.errors import CalledOff, Conflict, EngineFailed, InvalidRequest
from workers import engine_sleep
from workers.adapter_options import max_adapters
from workers.engine_api import EngineApi, EngineMetrics
from workers.engine_command import EngineCommand
from workers.engine_process import EngineProcess
from workers.engine_sleep import PROOF_PROMPTS, Proof
from workers.plan import ReplicaPlan
from workers.replica_states import ASLEEP, SLEPT, STARTING, Event, Life, Phase
from workers.replica_view import ReplicaView
from workers.saved_engine import SavedEngine
from workers.weights_manifest import PrefetchLine
from workers.wire import EndedEngine, EngineCounters, LifeTimes, ReplicaState, ReplicaStatus

POLL_S = 0.1
"""Seconds between checks of the engine's process."""
SLEEP_QUIET_S = 1.0
"""Seconds without a request before an engine is put to sleep: one that was placed just before is on its way."""
UNLOAD_TIMEOUT_S = 10.0
"""Seconds that an engine may take to forget an adapter."""
ENDED_KEPT = 4
"""Ended engines of a replica whose last counters are repeated in heartbeats."""


class EngineAccess(msgspec.Struct, frozen=True):
    """How one engine is started and reached."""

    url: str
    command: EngineCommand
    api: EngineApi


class HeldEngine(ReplicaView):
    """A replica with a process of this host. The subclass decides when that runs."""

    plan: ReplicaPlan

    def __init__(
        self,
        plan: ReplicaPlan,
        access: Callable[[ReplicaPlan, str | None], EngineAccess],
        *,
        log_file: Path,
        clock: Clock,
        saved: SavedEngine | None,
        save: Callable[[], None],
        times: LifeTimes | None,
    ) -> None:
        first = access(plan, saved.url if saved is not None else None)
        super().__init__(plan, first.url)
        self._access = access
        self._command, self._api = first.command, first.api
        self.log_file = log_file
        self._clock = clock
        self._save = save
        self._saved = saved
        self._process: EngineProcess | None = None
        self._life = Life(clock.monotonic(), times=times)
        self._proofs: list[Proof] = []
        """The answers of each rank before the first sleep, for one prompt after the other; empty = not asked yet."""
        self._own = EngineCounters()
        """Tokens of the agent's own requests after the warm-up, which heartbeats leave out of the counters."""
        self._rests_at = 0
        """The level of its last sleep, or of the one that it is going to."""
        self._condemned = ""
        """Why the engine has been given up."""
        self._scraped_at = clock.monotonic()
        self._fetched = PrefetchLine()
        """How far its prefetch is; without bytes when there is none in progress."""
        self._ended: deque[tuple[ReplicaStatus, float, float]] = deque(maxlen=ENDED_KEPT)
        """The last statuses of ended engines, with the instants of their last scrape and their end."""

    async def _scrape(self) -> None:
        """Read the engine's metrics and store them. They are as old as the request, however late the answer is read."""
        began = self._clock.monotonic()
        self.record_scrape(await self._api.metrics())
        self._scraped_at = began

    def status(self) -> ReplicaStatus:
        """The status for the heartbeat, with the age of its counters."""
        now, status, life = self._clock.monotonic(), super().status(), self._life
        return msgspec.structs.replace(
            status,
            counters=status.counters.minus(self._own),
            scrape_age_s=now - self._scraped_at,
            sleep_level=life.sleep_level,
            phase=life.phase.value,
            phase_s=life.elapsed(now),
            weights_done_bytes=self._fetched.done_bytes,
            weights_total_bytes=self._fetched.total_bytes,
            times=life.times,
            gpu_ids=list(self.plan.gpu_ids),
            version=self.plan.spec.version,
            deploys=True,
            max_adapters=max_adapters(self.plan.profile),
        )

    @property
    def rests_at(self) -> int:
        """The level at which it sleeps, is going to or wakes from, and so holds memory; 0 = none."""
        moves = self._life.phase in (Phase.SETTLING, Phase.FALLING_ASLEEP, Phase.WAKING)
        return self._rests_at if moves else ASLEEP.get(self._life.phase, 0)

    @property
    def times(self) -> LifeTimes:
        """How long its stages took."""
        return self._life.times

    def _fire(self, event: Event, detail: str = "") -> None:
        """Change the phase; `detail` is one sentence with the reason. Raises Conflict when that is not allowed now."""
        self._life.fire(event, self._clock.monotonic())
        self.enter(self._life.state, detail)

    def _advance(self, event: Event, detail: str) -> None:
        """Change the phase of an engine that comes up. Raises EngineFailed when it has been stopped meanwhile."""
        if not self._life.may(event):
            raise EngineFailed(f"it is {self._life.phase} meanwhile")
        self._fire(event, detail)

    def ended(self) -> list[EndedEngine]:
        """The last engines of this replica that have ended, oldest first."""
        now = self._clock.monotonic()
        return [EndedEngine(status, now - scraped, now - ended) for status, scraped, ended in self._ended]

    def _require(self, action: str, event: Event) -> None:
        if not self._life.may(event):
            raise Conflict(f"{self.plan.replica_id} is {self.state}; it cannot {action} now")

    def _alive(self) -> bool:
        return self._process is not None and self._process.alive()

    def _exit_text(self) -> str:
        return self._process.exit_text if self._process is not None else "the engine is gone"

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

    async def _drain(
        self, action: str, deadline_s: float, *, event: Event = Event.DRAIN, quiet_s: float = 0.0
    ) -> None:
        """Enter DRAINING, or what else `event` says, and wait until no request has been left for `quiet_s` seconds.

        Raises EngineFailed when some are left after `deadline_s`, and when the engine ends, and CalledOff when it
        serves again.
        """
        self._require(action, event)
        self._fire(event, "draining")
        deadline = self._clock.monotonic() + deadline_s
        idle_since: float | None = None
        while self._life.may(Event.IDLE):
            await self._scrape()
            left, now = self.metrics.running + self.metrics.waiting, self._clock.monotonic()
            if left:
                idle_since = None
                if now >= deadline:
                    raise EngineFailed(f"{left} requests were still running after {deadline_s:.0f} s")
            elif idle_since is None:
                idle_since = now
            if idle_since is not None and now - idle_since >= quiet_s and self._life.may(Event.IDLE):
                self._fire(Event.IDLE, self.detail)
                return
            await asyncio.sleep(POLL_S)
        self._check_called_off(action)
        raise EngineFailed(f"{self.plan.replica_id} is {self.state} before it was drained")

    def _check_called_off(self, action: str) -> None:
        """Raise CalledOff when the replica serves, so that another command has ended `action`."""
        if self._life.phase is Phase.READY:
            raise CalledOff(f"{self.plan.replica_id} serves again: its {action} was called off")

    async def _sleep(self, level: int, deadline_s: float) -> None:
        """Drain, then sleep at `level`; a replica that sleeps as deeply already is left alone.

        Requests that are left after `deadline_s` keep it awake: it serves again, unless it was draining before.
        """
        if level not in SLEPT:
            raise InvalidRequest(f"level is {level}, must be 1 or 2", param="level")
        asleep_at = self._life.sleep_level
        if asleep_at >= level:
            return
        boot = self.boot_id
        if asleep_at:
            self._rests_at = asleep_at
            self._fire(Event.WAKE, "going from sleep level 1 to 2")
            await self._guarded(boot, Phase.WAKING, engine_sleep.wake_up(self._api, asleep_at))
            self._rests_at = level
        else:
            self._rests_at = level
            after_failure = Event.DRAIN if self._life.phase is Phase.DRAINING else Event.RESUME
            try:
                await self._drain("sleep", deadline_s, event=Event.REST, quiet_s=SLEEP_QUIET_S)
            except EngineFailed:
                if self._life.phase is Phase.SETTLING:
                    self._fire(after_failure)
                raise
            if not self._proofs:  # adopted from an agent that kept none
                await self._add_own_proofs()
        self._require("sleep", Event.SLEEP)
        self._fire(Event.SLEEP, f"going to sleep at level {level}")
        self._save()
        try:
            await self._guarded(boot, Phase.FALLING_ASLEEP, engine_sleep.put_to_sleep(self._api, level))
        except Conflict:
            self._fire(Event.NOT_SLEPT)
            self._save()
            raise
        self._require("sleep", SLEPT[level])
        self._fire(SLEPT[level], f"asleep at level {level}")
        self._save()

    async def _wake(self) -> None:
        """Wake the engine and have it prove its weights; one that does not is ended and starts again."""
        level, boot = self._life.sleep_level, self.boot_id
        self._require("wake", Event.WAKE)
        self._rests_at = level
        self._fire(Event.WAKE, f"waking from sleep level {level}")
        self._save()
        await self._guarded(boot, Phase.WAKING, self._wake_and_prove(level))
        self._require("serve", Event.PROVED)
        self._fire(Event.PROVED)
        self._save()

    async def _wake_and_prove(self, level: int) -> None:
        await engine_sleep.wake_up(self._api, level)
        if not self._proofs:
            raise EngineFailed("no answer of before its sleep is known")
        if why := engine_sleep.difference(self._proofs, await self._add_own_proofs()):
            raise EngineFailed(f"its weights are wrong: {why}")

    async def _add_own_proofs(self) -> list[Proof]:
        """Ask for the proofs and leave their tokens out of the counters; the engine must serve nothing meanwhile.

        Raises Conflict when its phase changes: the counters may then hold tokens of customers, and stay as they are.
        """
        phase = self._life.phase
        before, _ = await engine_sleep.quiet(self._api, self._clock)
        proofs = await self._ask_for_proofs(PROOF_PROMPTS[:1])
        after, scraped_at = await engine_sleep.quiet(self._api, self._clock)
        if self._life.phase is not phase:
            self._check_called_off("sleep")
            raise Conflict(f"{self.plan.replica_id} is {self.state} before its answer was proved")
        self.record_scrape(after)
        self._scraped_at = scraped_at
        self._own = self._own.plus(after.counters.minus(before.counters))
        self._proofs = self._proofs or proofs
        return proofs

    async def _guarded(self, boot: str, phase: Phase, work: Awaitable[None]) -> None:
        """Await `work` on the engine `boot` in `phase`; when it fails, the engine is ended and starts again.

        Raises EngineFailed then.
        """
        try:
            await work
        except EngineFailed as error:
            if self.boot_id == boot and self._life.phase is phase and self._process is not None:
                self._condemned = f"it failed while {phase.replace('_', ' ')}: {error.message}"
                self._fire(Event.DIED, self._condemned)
                self._process.kill()
            raise

    async def unload_adapter(self, name: str) -> None:
        """Have the engine forget an adapter, if one runs and knows it. Raises EngineFailed."""
        served = self._alive() and self._life.phase not in STARTING
        if not served or not max_adapters(self.plan.profile):
            return
        status, answer = await self._api.post(
            "/v1/unload_lora_adapter", {"lora_name": name}, timeout_s=UNLOAD_TIMEOUT_S
        )
        if status not in (200, 404):
            raise EngineFailed(
                f"the engine answered {status} to the end of an adapter: {answer[:200].decode('utf-8', 'replace')}"
            )

    async def _ask_for_proofs(self, prompts: Sequence[str]) -> list[Proof]:
        plan = self.plan
        return await engine_sleep.proofs_of(
            self._api, plan.model_name, prompts, embeds=plan.embeds, ranks=plan.capacity.dp_ranks
        )
