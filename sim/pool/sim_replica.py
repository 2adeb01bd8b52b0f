"""One replica of a run: its state, its engine and the engine's clock."""

import math
import random
from collections import Counter
from dataclasses import replace

from sim.engine.step_model.interface import Event
from sim.engine.step_model.job import Job
from sim.engine.step_model.lockstep import step_engine
from sim.pool.contract import ReplicaView
from sim.pool.pool import ReplicaSpec
from workers.wire import RankStatus, ReplicaState

_ROUNDING_S = 1e-9
_TAKES_WORK = frozenset({ReplicaState.READY, ReplicaState.DRAINING})
_HOLDS_GPUS = frozenset(
    {ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.LOADING, ReplicaState.FAILED}
)


class EngineClock:
    """An engine's time as a function of the run's: piecewise linear, constant while the engine hangs."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._run_from = 0.0
        self._engine_from = 0.0

    def engine_time(self, now: float) -> float:
        """Return the engine clock's time at `now`."""
        return self._engine_from + (now - self._run_from) * self.speed

    def run_time(self, engine_time: float) -> float:
        """Return when the engine's clock shows `engine_time` at its present speed; infinity while it hangs."""
        if self.speed <= 0.0:
            return math.inf
        return self._run_from + (engine_time - self._engine_from) / self.speed

    def set_speed(self, speed: float, now: float) -> None:
        """Set the engine clock's speed, relative to the run's, from `now` on."""
        self._engine_from, self._run_from = self.engine_time(now), now
        self.speed = speed


class SimReplica:
    """True state of a replica; routing systems only see its `view`."""

    def __init__(self, spec: ReplicaSpec, rng: random.Random, *, kv_events: bool = False) -> None:
        self.spec = spec
        self.state = spec.state
        self.sleep_level = spec.sleep_level if spec.state is ReplicaState.ASLEEP else 0
        self.boots = 0
        self.boot_id = f"{spec.replica_id}#0"
        self.jobs: dict[int, Job] = {}
        """Jobs that run or wait on the engine, by key."""
        self.seconds: dict[ReplicaState, float] = {}
        self.wake_at = math.inf
        """Time of the engine's next advance in seconds; timeline entries for other times are ignored."""
        self.change_id = 0
        """Number of state changes; a planned change is ignored when another came first."""
        self.kv_seq: Counter[int] = Counter()
        """Deltas of KV events that were sent, by rank."""
        self.kv_delivered_until = 0.0
        self._rng = rng
        self._clock = EngineClock(spec.speed)
        self._config = replace(spec.engine, kv_events=kv_events)
        self._engine = step_engine(self._config, rng)
        self._advanced_to = 0.0
        """Time to which the engine was advanced, on its own clock; prevents rounding from moving it back."""
        self._since = 0.0
        self._view: ReplicaView | None = None

    @property
    def takes_work(self) -> bool:
        """Whether a request that reaches the replica now is run."""
        return self.state in _TAKES_WORK

    @property
    def hangs(self) -> bool:
        """Whether its engine hangs."""
        return self._clock.speed <= 0.0

    def add(self, job: Job, now: float) -> None:
        """Add a request that reaches the engine. Raises ValueError when it can never fit there."""
        self._engine.add(job, self._engine_time(now))
        self.jobs[job.key] = job

    def abort(self, job: Job, now: float) -> None:
        """Abort a request whose caller disconnected."""
        if self.jobs.pop(job.key, None) is not None:
            self._engine.abort(job, self._engine_time(now))

    def advance(self, now: float) -> list[Event]:
        """Advance the engine to `now` and return its events, with times on the engine's clock."""
        return self._engine.advance(self._engine_time(now))

    def produced(self, job: Job) -> int:
        """Return a job's output tokens so far."""
        return self._engine.produced(job)

    def cached_hashes(self) -> list[list[int]]:
        """Return all prefix blocks in the engine's cache, by rank."""
        return [rank.pool.hashes() for rank in self._engine.ranks]

    def next_event_at(self) -> float:
        """Return the time of the engine's next event; infinity when it is idle or hangs."""
        at = self._engine.next_event_at()
        if at is None:
            return math.inf
        return self._clock.run_time(at)

    def set_speed(self, factor: float, now: float) -> None:
        """Run at `factor` times the usual speed from `now` on."""
        self._clock.set_speed(self.spec.speed * factor, now)

    def become(self, state: ReplicaState, now: float) -> None:
        """Change state, and add the time spent in the previous one."""
        self.book(now)
        self.state = state
        self.change_id += 1

    def reboot(self) -> list[Job]:
        """Start a new engine process with an empty cache, and return the jobs that the previous process lost."""
        lost = list(self.jobs.values())
        self.jobs.clear()
        self.boots += 1
        self.boot_id = f"{self.spec.replica_id}#{self.boots}"
        self._engine = step_engine(self._config, self._rng)
        self._clock = EngineClock(self.spec.speed)
        self._advanced_to = 0.0
        self.kv_seq.clear()
        self._view = None
        return lost

    def book(self, now: float) -> None:
        """Add the time since the last call to the present state's."""
        self.seconds[self.state] = self.seconds.get(self.state, 0.0) + now - self._since
        self._since = now

    def gpu_seconds_held(self) -> float:
        """Return the GPU seconds that the replica has held, as of the last `book`."""
        held = sum(seconds for state, seconds in self.seconds.items() if state in _HOLDS_GPUS)
        return held * self.spec.capacity.gpus

    def view(self, now: float) -> ReplicaView:
        """Return what a scrape shows at `now`; a hanging engine answers no scrape, so its last view stays."""
        if self._view is not None and self.hangs:
            return self._view
        serving = self.takes_work
        self._view = ReplicaView(
            self.spec.replica_id,
            self.spec.model,
            self.boot_id,
            self.state,
            self.spec.stated or self.spec.capacity,
            self.spec.targets,
            self._engine.running if serving else 0,
            self._engine.waiting if serving else 0,
            self._engine.kv_usage if serving else 0.0,
            now,
            self._rank_views(serving),
        )
        return self._view

    def _rank_views(self, serving: bool) -> tuple[RankStatus, ...]:
        """Return what a scrape shows of each rank; empty where the engine has none."""
        ranks = self._engine.ranks
        if len(ranks) == 1:
            return ()
        if not serving:
            return (RankStatus(),) * len(ranks)
        return tuple(RankStatus(rank.running, rank.waiting, rank.kv_usage) for rank in ranks)

    def _engine_time(self, now: float) -> float:
        """Return `now` on the engine's clock plus a rounding error, so that rounding does not miss a planned event."""
        self._advanced_to = max(self._advanced_to, self._clock.engine_time(now) + _ROUNDING_S)
        return self._advanced_to
