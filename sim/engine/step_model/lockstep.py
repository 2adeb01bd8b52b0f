"""An engine with attention data parallelism: ranks that take every step together.

Each rank has a queue, a batch and a KV cache of its own, and schedules as an engine without ranks does (`engine.py`).
The experts are spread over all GPUs, so no rank begins a step before all have ended the last one, and a rank without
requests computes a dummy batch. A step takes alpha, the time of the experts that the tokens of all ranks use, and the
time of the rank with most to do:

    t = alpha + experts(sum of B) + max over ranks(n*beta*B + n*gamma*KV + n*prefill)

with n ranks and the figures of the whole engine; evenly loaded ranks take what `workers/step_time.py` says.

**Balance.** A job without a rank goes to the one with the fewest requests, of equal ones to the next in turn, as in
vLLM 0.32 (`DPLBAsyncMPClient`): waiting requests count for more where more than half of the KV cache is in use. What it
knows of other API processes' requests is up to 100 ms old; here the counts are those of the moment.
"""

import random
from collections.abc import Callable
from dataclasses import fields, replace

from sim.engine.step_model.cost import noise
from sim.engine.step_model.engine import StepEngine
from sim.engine.step_model.interface import Counters, Event, EventKind, StepConfig
from sim.engine.step_model.job import Job
from sim.engine.step_model.plan import Plan
from workers.ranks import rank_capacity
from workers.step_time import decode_step_s

WAITING_WEIGHT = 6.0
"""By how much a waiting request counts for more, times the share of the KV cache in use beyond KV_EASY."""
KV_EASY = 0.5
"""Share of the KV cache in use up to which a waiting request counts as a running one."""


class Rank(StepEngine):
    """One rank: its engine plans and completes its steps with those of the others."""

    def _run(self, until: float) -> None:
        """Do nothing: a rank takes no step by itself."""

    def begin(self, clock: float) -> bool:
        """Take what has arrived by the next common step, which begins at `clock`; return whether there is work."""
        self.clock = clock
        return self._take_loaded()

    def plan(self) -> Plan:
        """Plan the next steps as if the rank were alone, and return the plan, which the engine's replaces."""
        self._plan_steps()
        return self._plan

    def work(self) -> tuple[float, float]:
        """Return the seconds of the rank's own work in the next step, and by how much each further one takes longer."""
        decodes, cost = self._decodes, self.cost
        own = self.config.capacity.step_per_seq_s * decodes.count + cost.per_kv_token * decodes.kv
        return own + self._prefill_s, cost.per_kv_token * decodes.rate

    @property
    def decoding(self) -> int:
        """Number of decoding sequences."""
        return self._decodes.count

    @property
    def arrives_at(self) -> float | None:
        """When the next KV arrives from host memory; None = nothing is on its way."""
        return self._host.loading[0][0] if self._host.loading else None

    def complete(self, plan: Plan, clock: float, steps: int) -> None:
        """Complete the next `steps` steps of the engine's plan, which begins at `clock`."""
        own = self._plan
        own.first, own.slope, own.left = plan.first, plan.slope, plan.left
        self.clock = clock
        self._complete(steps)

    def take_events(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events


class LockstepEngine:
    """One replica with ranks; the interface of `StepEngine`. The times passed to its methods must not decrease."""

    def __init__(
        self,
        config: StepConfig,
        rng: random.Random,
        *,
        on_ending: Callable[[Job], None] | None = None,
        on_steps: Callable[[float, float], None] | None = None,
    ) -> None:
        """As of `StepEngine`; `config.capacity` is that of the whole engine."""
        capacity = config.capacity
        own = replace(config, capacity=rank_capacity(capacity), noise_cv=0.0)
        self.config = config
        self.clock = 0.0
        """End of the last completed step, in seconds."""
        self.ranks = [Rank(own, rng, on_ending=on_ending) for _ in range(capacity.dp_ranks)]
        self._rng = rng
        self._on_steps = on_steps
        self._shared_s = [
            decode_step_s(capacity, batch, 0.0) - capacity.step_per_seq_s * batch
            for batch in range(capacity.dp_ranks * own.capacity.max_num_seqs + 1)
        ]
        """Seconds of a step, by the decoding sequences of all ranks, before the work of any rank."""
        self._plan = Plan()
        self._active: list[Rank] = []
        """The ranks that the planned steps do any work for."""
        self._rank_of: dict[int, int] = {}
        """Rank by key of the job."""
        self._turn = 0
        self._steps = 0

    # ---------------------------------------------------------------- figures

    @property
    def running(self) -> int:
        """Number of requests in the batches."""
        return sum(rank.running for rank in self.ranks)

    @property
    def waiting(self) -> int:
        """Number of requests queued in the engine, those that wait for KV included."""
        return sum(rank.waiting for rank in self.ranks)

    @property
    def busy(self) -> bool:
        """Whether a step would do any work."""
        return any(rank.busy for rank in self.ranks)

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use, 0 to 1; that of the fullest rank."""
        return max(rank.kv_usage for rank in self.ranks)

    @property
    def kv_tokens(self) -> int:
        """Number of tokens in the KV cache of running requests."""
        return sum(rank.kv_tokens for rank in self.ranks)

    @property
    def preemptions(self) -> int:
        """Number of preemptions so far."""
        return sum(rank.preemptions for rank in self.ranks)

    @property
    def counters(self) -> Counters:
        """The sums of the ranks' counters; `steps` are common ones."""
        total = Counters()
        for field in fields(Counters):
            setattr(total, field.name, sum(getattr(rank.counters, field.name) for rank in self.ranks))
        total.steps = self._steps
        return total

    @property
    def next_step_at(self) -> float:
        """Time at which the next step can begin; the engine must be `busy`."""
        if self._plan.left or any([rank.begin(self.clock) for rank in self.ranks]):
            return self.clock
        return min(at for rank in self.ranks if (at := rank.arrives_at) is not None)

    # ---------------------------------------------------------------- jobs

    def add(self, job: Job, now: float) -> None:
        """Queue a job on its rank, or on one that the engine chooses. Raises ValueError when it can never fit, or when
        there is no such rank."""
        self._run(now)
        number = self._choose() if job.rank is None else job.rank
        if not 0 <= number < len(self.ranks):
            raise ValueError(f"data_parallel_rank is {number}, must be between 0 and {len(self.ranks) - 1}")
        if job.key in self._rank_of:
            raise ValueError(f"job {job.key} is already here")
        if not (self._plan.left or self.busy) and self.clock < now:
            self.clock = now
        self.ranks[number].add(job, now)
        self._rank_of[job.key] = number
        self._plan.truncate()

    def _choose(self) -> int:
        """Return the least busy rank, of equal ones the next in turn."""
        count = len(self.ranks)
        self._turn = (self._turn + 1) % count
        return min(
            ((self._turn + offset) % count for offset in range(count)),
            key=lambda number: _load(self.ranks[number]),
        )

    def abort(self, job: Job, now: float) -> None:
        """Abort a queued or running job and free its blocks at once; a finished job is ignored."""
        self._run(now)
        number = self._rank_of.pop(job.key, None)
        if number is not None:
            self.ranks[number].abort(job, now)
            self._plan.truncate()

    def rank_of(self, job: Job) -> int:
        """Return the number of the rank that has the job. Raises KeyError when none has it."""
        return self._rank_of[job.key]

    def publish(self, job: Job) -> None:
        """Cache the computed part of `job.blocks`, which may have grown by blocks of the answer."""
        number = self._rank_of.get(job.key)
        if number is not None:
            self.ranks[number].publish(job)

    def produced(self, job: Job) -> int:
        """Return the tokens generated so far."""
        number = self._rank_of.get(job.key)
        return job.produced if number is None else self.ranks[number].produced(job)

    def forget_cache(self) -> None:
        """Clear the prefix caches, in host memory too."""
        for rank in self.ranks:
            rank.forget_cache()

    # ---------------------------------------------------------------- time

    def advance(self, until: float) -> list[Event]:
        """Run every step that ends by `until` and return the events in order."""
        self._run(until)
        return self._take_events()

    def next_event_at(self) -> float | None:
        """Lower bound of the time of the next event if no request is added or aborted; None = idle."""
        if not self._plan.left:
            if not self.busy:
                return None
            if (at := self.next_step_at) > self.clock:
                return at
            self._plan_steps()
        return self.clock + self._plan.seconds(self._plan.left)

    def step(self) -> list[Event]:
        """Run exactly one step and advance `clock` by its duration, for real-time callers; the engine must be
        `busy`."""
        if not self._plan.left:
            self.clock = self.next_step_at
            self._plan_steps()
        self._plan.truncate()
        self._complete(1)
        return self._take_events()

    def _run(self, until: float) -> None:
        while True:
            if not self._plan.left:
                if self.clock >= until or not self.busy or (at := self.next_step_at) > until:
                    return
                self.clock = at
                self._plan_steps()
            steps = self._plan.within(self.clock, until)
            if not steps:
                return
            self._complete(steps)

    def _plan_steps(self) -> None:
        """Plan the next steps of all ranks: as many as the one that plans fewest, each as long as the slowest needs."""
        plan = self._plan
        self._active = active = [rank for rank in self.ranks if rank.begin(self.clock)]
        plan.left = min(rank.plan().left for rank in active)
        work = [rank.work() for rank in active]
        most_s, growth_s = max(work)
        for other_s, faster_s in work:
            if faster_s > growth_s:  # it becomes the slowest after some steps
                plan.left = min(plan.left, 1 + int((most_s - other_s) / (faster_s - growth_s)))
        factor = noise(self.config.noise_cv, plan.left, self._rng)
        plan.first = factor * (self._shared_s[sum(rank.decoding for rank in active)] + most_s)
        plan.slope = factor * growth_s
        arrivals = [at for rank in self.ranks if (at := rank.arrives_at) is not None]
        if arrivals:
            plan.left = min(plan.left, 1 + plan.within(self.clock, min(arrivals)))

    def _complete(self, steps: int) -> None:
        """Complete the next `steps` steps of the plan on every rank."""
        plan, began = self._plan, self.clock
        decoding = any(rank.decoding for rank in self._active)
        for rank in self._active:
            rank.complete(plan, began, steps)
        self.clock = began + plan.seconds(steps)
        if self._on_steps is not None and decoding:
            self._on_steps(self.clock, plan.first + plan.slope * (steps - 1))
        plan.advance(steps)
        self._steps += steps

    def _take_events(self) -> list[Event]:
        """Return what has happened on the ranks, in order, and forget the jobs that have ended."""
        events: list[Event] = []
        for number, rank in enumerate(self.ranks):
            for event in rank.take_events():
                event.rank = number
                events.append(event)
        events.sort(key=lambda event: event.at)
        for event in events:
            if event.kind is EventKind.FINISHED and event.job is not None:
                self._rank_of.pop(event.job.key, None)
        return events


def _load(rank: Rank) -> float:
    """Return the requests of a rank as vLLM weighs them when it chooses one."""
    waiting = rank.waiting
    pressure = WAITING_WEIGHT * max(0.0, rank.kv_usage - KV_EASY) if waiting else 0.0
    return rank.running + waiting * (1.0 + pressure)


def step_engine(
    config: StepConfig,
    rng: random.Random,
    *,
    on_ending: Callable[[Job], None] | None = None,
    on_steps: Callable[[float, float], None] | None = None,
) -> StepEngine | LockstepEngine:
    """Return the engine of a configuration, with ranks where its capacity has several."""
    made = StepEngine if config.capacity.dp_ranks == 1 else LockstepEngine
    return made(config, rng, on_ending=on_ending, on_steps=on_steps)
