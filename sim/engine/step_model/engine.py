"""One engine, or one rank of it, as a state machine over counts: batching, KV pool, prefill, preemption and step time.

A step gives every running decode its tokens first (1 + k positions with k drafts), then spends the rest of the token
budget on prefill, first come first served, in chunks. Out of blocks, the newest running request is preempted and
recomputed later. With `Capacity.by_priority` requests are admitted in order of priority, then arrival, and the last in
this order is preempted; a request that runs is never interrupted for one that waits. Rules and formula: `pool.py`,
`host_tier.py`, `workers/step_time.py` and the model of vLLM's scheduler that they cite.

**Ranks.** With attention data parallelism each rank is such a machine; `lockstep.py` has their common step.

**Plans.** Between arrivals most steps only lengthen every sequence at its own rate. Such steps form one *plan*:
with the batch fixed, KV grows linearly, so the time of its first j steps is an arithmetic series,

    t(j) = f * (j*b + g*j*(j-1)/2),   b = seconds of the first step, g = gamma * sum of rates, f = noise

and a completion is a number of steps that is known when decoding begins. A request that comes or goes in the middle
cuts the plan at the end of the step in progress. No work is done per token.

Pure: time comes in as `now` and `until`, randomness as `rng`.
"""

import random
from bisect import bisect
from collections import deque
from collections.abc import Callable, Sequence

from sim.engine.step_model.cost import Speculation, StepCost, noise
from sim.engine.step_model.decodes import Decodes, Slot
from sim.engine.step_model.host_tier import HostTier
from sim.engine.step_model.interface import Counters, Event, EventKind, StepConfig
from sim.engine.step_model.job import Job
from sim.engine.step_model.plan import Plan
from sim.engine.step_model.pool import CountedPool
from workers.step_time import context_pairs, drafts_of

__all__ = ["Counters", "Event", "EventKind", "StepConfig", "StepEngine"]


class StepEngine:
    """One engine without ranks. The times passed to its methods must not decrease."""

    def __init__(
        self,
        config: StepConfig,
        rng: random.Random,
        *,
        on_ending: Callable[[Job], None] | None = None,
        on_steps: Callable[[float, float], None] | None = None,
    ) -> None:
        """`on_ending` is called with a job that ends, before its blocks are released.

        It is the last moment at which the job's `blocks` and `output_blocks` can grow, for a caller that
        generates the answer during the run. `on_steps` is called after steps with decodes: with their end and the
        seconds of the longest of them.
        """
        capacity = config.capacity
        if capacity.dp_ranks != 1:
            raise ValueError(
                f"a StepEngine has no ranks, but dp_ranks is {capacity.dp_ranks}; use step_engine()"
            )
        self.config = config
        self.ranks: Sequence[StepEngine] = (self,)
        """Itself: the one rank of an engine without attention data parallelism."""
        self.cost = StepCost(capacity)
        self.counters = Counters()
        self.clock = 0.0
        """End of the last completed step, in seconds."""
        self._rng = rng
        self._on_ending = on_ending
        self._on_steps = on_steps
        self._removed: list[int] | None = [] if config.kv_events else None
        self.pool = CountedPool(config.blocks, self._removed)
        self._drafts = drafts_of(capacity)
        self._speculation = Speculation(capacity.accept_per_step, self._drafts)
        self._waiting: deque[Slot] = deque()
        self._running: dict[Slot, None] = {}
        self._prefilling: list[Slot] = []
        self._slots: dict[int, Slot] = {}
        self._orders = 0
        self._head_blocked = False
        """Whether the head of the queue lacks free blocks; only a release changes this."""
        self._decodes = Decodes(self._drafts)
        self._host = HostTier(capacity)
        """Empty for good where the profile keeps no KV in host memory."""
        self._events: list[Event] = []
        self._plan = Plan()
        """The steps planned from `clock` on."""
        self._by_priority = capacity.by_priority
        self._budget = 0
        """Tokens that may still be prefilled in the planned step."""
        self._prefill_s = 0.0
        """Seconds of prefill in the planned step."""
        self._completing: list[Slot] = []
        """Slots whose prefill the planned step completes."""

    # ---------------------------------------------------------------- public interface

    @property
    def running(self) -> int:
        """Number of requests in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Number of requests queued in the engine, those that wait for KV included."""
        return len(self._waiting) + len(self._host.loading)

    @property
    def busy(self) -> bool:
        """Whether a step would do any work."""
        return bool(self._running or self._waiting or self._host.loading)

    @property
    def next_step_at(self) -> float:
        """Time at which the next step can begin; the engine must be `busy`."""
        return self.clock if self._plan.left or self._take_loaded() else self._host.loading[0][0]

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use, 0 to 1."""
        return self.pool.used / self.pool.blocks

    @property
    def kv_tokens(self) -> int:
        """Number of tokens in the KV cache of running requests."""
        return int(self._decodes.kv) + sum(slot.computed for slot in self._prefilling)

    @property
    def preemptions(self) -> int:
        """Number of preemptions so far."""
        return self.counters.preemptions

    def add(self, job: Job, now: float) -> None:
        """Queue a job; it joins at the next step boundary. Raises ValueError when it can never fit."""
        config = self.config
        most = job.prompt_tokens + job.output_tokens
        if job.prompt_tokens < 1 or job.output_tokens < 1:
            raise ValueError("a job needs at least one prompt token and one output token")
        if most > config.capacity.max_model_len:
            raise ValueError("prompt and answer are longer than the model's context")
        if -(-most // config.block_size) > self.pool.blocks:
            raise ValueError("the sequence is larger than the KV cache")
        if job.blocks and job.block_tokens % config.block_size:
            raise ValueError(f"block_tokens {job.block_tokens} is no multiple of {config.block_size}")
        if job.key in self._slots:
            raise ValueError(f"job {job.key} is already here")
        self._run(now)
        if not (self._plan.left or self._running or self._waiting) and self.clock < now:
            self.clock = now
        self._orders += 1
        slot = self._slots[job.key] = Slot(job, self._orders, self._orders)
        if self._begin_load(slot, now):
            self._plan.truncate()
            return
        self._enqueue(slot)
        if len(self._running) < config.capacity.max_num_seqs and not self._head_blocked:
            self._plan.truncate()

    def abort(self, job: Job, now: float) -> None:
        """Abort a queued or running job and free its blocks at once; a finished job is ignored."""
        self._run(now)
        slot = self._slots.get(job.key)
        if slot is None or slot.job is not job:
            return
        if slot in self._running:
            self._leave(slot)
        elif not self._host.drop(slot):
            self._waiting.remove(slot)
            self._head_blocked = False
        self._plan.truncate()
        del self._slots[job.key]
        self.counters.aborted += 1
        self.counters.generation_tokens += job.produced

    def advance(self, until: float) -> list[Event]:
        """Run every step that ends by `until` and return the events in order."""
        self._run(until)
        events = self._events
        if not events:
            return []
        self._events = []
        return events

    def next_event_at(self) -> float | None:
        """Lower bound of the time of the next event if no request is added or aborted; None = idle."""
        if not self._plan.left:
            if not self.busy:
                return None
            if not self._take_loaded():
                return self._host.loading[0][0]
            self._plan_steps()
        return self.clock + self._plan.seconds(self._plan.left)

    def step(self) -> list[Event]:
        """Run exactly one step and advance `clock` by its duration, for real-time callers; the engine must be
        `busy`.
        """
        if not self._plan.left:
            self.clock = self.next_step_at
            self._take_loaded()
            self._plan_steps()
        self._plan.truncate()
        self._complete(1)
        events, self._events = self._events, []
        return events

    def publish(self, job: Job) -> None:
        """Cache the computed part of `job.blocks`, which may have grown by blocks of the answer."""
        slot = self._slots.get(job.key)
        if slot is not None and slot.decoding:
            self._publish(slot, job.blocks, job.prompt_tokens + self._decodes.produced(slot) - 1)

    def rank_of(self, job: Job) -> int:
        """Return the number of the rank that has the job: there is one."""
        return 0

    def produced(self, job: Job) -> int:
        """Return the tokens generated so far."""
        slot = self._slots.get(job.key)
        return self._decodes.produced(slot) if slot is not None and slot.decoding else job.produced

    def forget_cache(self) -> None:
        """Clear the prefix cache, in host memory too."""
        self.pool.reset_prefix_cache()
        self._host.clear()

    # ---------------------------------------------------------------- time

    def _run(self, until: float) -> None:
        while True:
            if not self._plan.left:
                if self.clock >= until or not self.busy or self.next_step_at > until:
                    return
                self.clock = self.next_step_at
                self._take_loaded()
                self._plan_steps()
            steps = self._plan.within(self.clock, until)
            if not steps:
                return
            self._complete(steps)

    def _plan_steps(self) -> None:
        """Plan the next steps: one step with prefill, or several pure decode steps."""
        decodes, plan = self._decodes, self._plan
        preempted = self._grow_decodes(decodes.step + 1)
        budget = self.config.capacity.max_batched_tokens - decodes.count * (1 + self._drafts)
        self._budget = budget
        self._prefill_s = 0.0
        if self._prefilling:
            before = self.counters.preemptions
            self._continue_prefills()
            preempted = preempted or self.counters.preemptions != before
        if self._waiting and not preempted and not self._head_blocked:
            self._admit()
        prefilled = budget - self._budget
        plan.left = 1 if prefilled or self._prefilling or preempted else self._pure_decode_steps()
        factor = noise(self.config.noise_cv, plan.left, self._rng)
        if prefilled:
            self._prefill_s += self.config.chunk_s
        plan.first = factor * self.cost.seconds(decodes.count, decodes.kv, self._prefill_s)
        plan.slope = factor * self.cost.per_kv_token * decodes.rate
        if self._host.loading:  # what arrives meanwhile joins at the next boundary
            plan.left = min(plan.left, 1 + plan.within(self.clock, self._host.loading[0][0]))
        self.counters.prefilled_tokens += prefilled

    def _pure_decode_steps(self) -> int:
        """Return the steps until the first completion, or fewer where blocks could run out before it."""
        steps, batch, free = self._decodes.steps_to_end(), self._decodes.count, self.pool.free
        size, positions = self.config.block_size, 1 + self._drafts
        if batch * (steps * positions // size + 1) > free:
            steps = min(steps, max(1, (free // batch - 1) * size // positions))
        return steps

    def _complete(self, steps: int) -> None:
        """Complete the next `steps` steps of the plan."""
        counters, decodes, plan = self.counters, self._decodes, self._plan
        goes_on = plan.left > steps
        if steps > 1 or goes_on:  # the blocks of the plan's first step were given when it began
            self._grow_decodes(decodes.step + steps + goes_on)
        self.clock += plan.seconds(steps)
        if self._on_steps is not None and decodes.count:
            self._on_steps(self.clock, plan.first + plan.slope * (steps - 1))
        plan.advance(steps)
        decodes.advance(steps)
        counters.steps += steps
        if self._drafts:
            counters.drafts += decodes.count * steps
        if goes_on:
            return
        while (slot := decodes.ended()) is not None:
            self._finish(slot)
        if self._completing:
            fresh, self._completing = self._completing, []
            for slot in fresh:
                if slot in self._running:
                    self._prefilled(slot)

    # ---------------------------------------------------------------- prefill

    def _continue_prefills(self) -> None:
        """Schedule the next chunks of incomplete prompts."""
        for slot in list(self._prefilling):
            budget = self._budget
            if budget > 0 and slot in self._running:
                chunk = min(budget, slot.target - slot.computed)
                if self._allocate_or_preempt(slot, slot.computed + chunk):
                    self._compute(slot, chunk)

    def _admit(self) -> None:
        """Start waiting requests in order of arrival while budget, seats and blocks last."""
        waiting, running, pool = self._waiting, self._running, self.pool
        size, seats = self.config.block_size, self.config.capacity.max_num_seqs
        while (budget := self._budget) > 0 and waiting and len(running) < seats:
            slot = waiting[0]
            job = slot.job
            slot.target = job.prompt_tokens + job.produced
            width = job.block_tokens
            hit, idle = pool.match(job.blocks, (slot.target - 1) // width)
            held = len(hit) * width
            cached = max(held, min(job.loaded_tokens, slot.target - 1))
            chunk = min(budget, slot.target - cached)
            needed = -(-(cached + chunk) // size) - held // size
            if needed > pool.free - idle:
                self._head_blocked = True
                break
            pool.touch(hit)
            pool.allocate(needed)
            if self._removed:
                self._emit_removed(self.clock)
            waiting.popleft()
            self._orders += 1
            slot.order = self._orders
            slot.entries = hit
            slot.published = len(hit)
            slot.computed = cached
            slot.anonymous = needed
            slot.held_tokens = held + needed * size
            running[slot] = None
            self._prefilling.append(slot)
            if not job.produced and not job.preemptions:
                job.cached_tokens = cached
                self.counters.prefix_queries += job.prompt_tokens
                self.counters.prefix_hits += cached
            self._compute(slot, chunk)

    def _compute(self, slot: Slot, chunk: int) -> None:
        """Account for a chunk of prefill in the planned step."""
        slot.computed += chunk
        self._budget -= chunk
        self._prefill_s += self.cost.prefill(chunk, context_pairs(chunk, slot.computed))
        self._publish(slot, slot.job.blocks, slot.computed)
        if slot.computed >= slot.target:
            self._completing.append(slot)

    def _publish(self, slot: Slot, hashes: Sequence[int], tokens: int, offset: int = 0) -> None:
        """Cache the whole blocks among the first `tokens` tokens; `hashes` begin at block `offset`."""
        width = slot.job.block_tokens
        whole = min(tokens // width, offset + len(hashes))
        if whole <= slot.published:
            return
        blocks = width // self.config.block_size
        stored = self.pool.publish(hashes[slot.published - offset : whole - offset], blocks, slot.entries)
        slot.anonymous -= blocks * len(stored)
        slot.published = whole
        if stored and self._removed is not None:
            self._events.append(Event(self.clock, EventKind.STORED, slot.job, tuple(stored)))

    def _prefilled(self, slot: Slot) -> None:
        """Handle a complete prompt: its step has yielded a token, and decoding begins with the next step."""
        job = slot.job
        self._prefilling.remove(slot)
        if self.config.capacity.host_kv_tokens:
            self._copy_out(job)
        if not job.produced:
            job.first_token_at = self.clock
            self.counters.prompt_tokens += job.prompt_tokens
            self.counters.cached_prompt_tokens += job.cached_tokens
            self._events.append(Event(self.clock, EventKind.FIRST_TOKEN, job))
        job.produced += 1
        remaining = job.output_tokens - job.produced
        self._decodes.begin(slot, self._speculation.steps(remaining, self._rng) if remaining else 0)
        if not remaining:
            self._finish(slot)

    # ---------------------------------------------------------------- blocks

    def _grow_decodes(self, due: int) -> bool:
        """Give blocks to the decodes that need one before step `due` or earlier; return whether that required a
        preemption.
        """
        preempted = False
        while (slot := self._decodes.growing(due)) is not None:
            step = slot.grows_step
            while not self.pool.allocate(1):
                preempted = True
                self._preempt(self._last())
                if not slot.decoding:
                    break
            else:
                slot.anonymous += 1
                slot.held_tokens += self.config.block_size
                self._decodes.note_growth(slot)
            if self._removed:
                before = max(0, step - 1 - self._decodes.step)
                self._emit_removed(self.clock + self._plan.seconds(before))
        return preempted

    def _allocate_or_preempt(self, slot: Slot, tokens: int) -> bool:
        """Allocate blocks for `tokens` tokens, preempting the last request; False when that was the slot itself."""
        size = self.config.block_size
        missing = -(-(tokens - slot.held_tokens) // size)
        if missing > 0:
            while not self.pool.allocate(missing):
                last = self._last()
                self._preempt(last)
                if last is slot:
                    return False
            slot.anonymous += missing
            slot.held_tokens += missing * size
            if self._removed:
                self._emit_removed(self.clock)
        return True

    # ---------------------------------------------------------------- KV from elsewhere

    def _copy_out(self, job: Job) -> None:
        """Copy a prompt's whole blocks to host memory, with those that were found; vLLM copies no answers."""
        whole = job.blocks[: job.prompt_tokens // job.block_tokens]
        dropped = self._host.store(whole, job.block_tokens)
        if self._removed is not None:
            self._removed += dropped
            self._emit_removed(self.clock)

    def _begin_load(self, slot: Slot, now: float) -> bool:
        """Ask host memory for blocks of a prompt that the engine lacks; False when there are none."""
        job, width = slot.job, slot.job.block_tokens
        if not self.config.capacity.host_kv_tokens:
            return False
        limit = (job.prompt_tokens - 1) // width
        held = len(self.pool.match(job.blocks, limit)[0])
        found = self._host.found(job.blocks, held, limit)
        if found * width <= max(held * width, job.loaded_tokens):
            return False
        job.loaded_tokens = found * width
        self._host.load(slot, (found - held) * width, max(now, self.clock))
        return True

    def _take_loaded(self) -> bool:
        """Queue the requests whose blocks have arrived; return whether any request runs or waits for its turn."""
        for slot in self._host.arrived(self.clock):
            self._enqueue(slot)
        return bool(self._running or self._waiting)

    # ---------------------------------------------------------------- order

    def _enqueue(self, slot: Slot, *, again: bool = False) -> None:
        """Queue a request: last, or after a preemption (`again`) first; by priority and arrival where they decide."""
        waiting = self._waiting
        if not self._by_priority:
            (waiting.appendleft if again else waiting.append)(slot)
            return
        waiting.insert(bisect(waiting, _turn(slot), key=_turn), slot)
        if waiting[0] is slot:
            self._head_blocked = False

    def _last(self) -> Slot:
        """Return the running request that is preempted next."""
        return max(self._running, key=_turn) if self._by_priority else next(reversed(self._running))

    # ---------------------------------------------------------------- leaving

    def _preempt(self, slot: Slot) -> None:
        """Release a request's blocks and queue it again, to be recomputed."""
        self._leave(slot)
        slot.job.loaded_tokens = 0
        self._enqueue(slot, again=True)
        slot.job.preemptions += 1
        self.counters.preemptions += 1
        self._events.append(Event(self.clock, EventKind.PREEMPTED, slot.job))

    def _finish(self, slot: Slot) -> None:
        job = slot.job
        tokens = job.prompt_tokens + job.output_tokens - 1
        if self._on_ending is not None:
            self._on_ending(job)
            self._publish(slot, job.blocks, tokens)
        if job.output_blocks:
            self._publish(slot, job.output_blocks, tokens, len(job.blocks))
        self._leave(slot)
        del self._slots[job.key]
        job.finished_at = self.clock
        self.counters.finished += 1
        self.counters.generation_tokens += job.produced
        self._events.append(Event(self.clock, EventKind.FINISHED, job))

    def _leave(self, slot: Slot) -> None:
        """Remove a slot from the batch and release its blocks."""
        del self._running[slot]
        if slot.decoding:
            self._decodes.leave(slot)
        else:
            self._prefilling.remove(slot)
        self.pool.release(slot.entries, slot.anonymous)
        slot.entries = []
        slot.anonymous = slot.held_tokens = slot.computed = slot.published = 0
        self._head_blocked = False

    def _emit_removed(self, at: float) -> None:
        removed = self._removed
        if not removed:
            return
        gone = tuple(removed)
        if self.config.capacity.host_kv_tokens:
            gone = tuple(each for each in removed if each not in self._host and each not in self.pool)
        removed.clear()
        if gone:
            self._events.append(Event(at, EventKind.REMOVED, None, gone))


def _turn(slot: Slot) -> tuple[int, int]:
    """Return the place of a request in the order of an engine that schedules by priority."""
    return slot.job.priority, slot.arrived
