"""The engine over counts: skipping steps changes nothing, blocks are conserved, every job ends once."""

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.step_model.cost import StepCost
from sim.engine.step_model.engine import Event, EventKind, StepConfig, StepEngine
from sim.engine.step_model.job import Job
from sim.engine.step_model.pool import CountedPool, Entry
from workers.step_time import context_pairs, drafts_of
from workers.wire import Capacity

BLOCK = 4


def capacity(**changes: float) -> Capacity:
    values = {
        "prefill_tokens_per_s": 1000.0,
        "step_base_s": 0.01,
        "step_per_seq_s": 0.001,
        "step_per_kv_token_s": 1e-5,
        "max_num_seqs": 8,
        "kv_cache_tokens": 4096,
        "max_model_len": 2048,
    }
    return Capacity(**{**values, **changes})  # type: ignore[arg-type]


def config(*, noise_cv: float = 0, tokens: int = 64, **changes: float) -> StepConfig:
    return StepConfig(
        capacity(max_batched_tokens=tokens, **changes), block_size=BLOCK, noise_cv=noise_cv, kv_events=True
    )


def engine(**options: float) -> StepEngine:
    return StepEngine(config(**options), random.Random(7))  # type: ignore[arg-type]


def drain(model: StepEngine) -> list[Event]:
    """Events until it is idle."""
    events: list[Event] = []
    while (at := model.next_event_at()) is not None:
        new = model.advance(at)
        assert all(event.at <= at for event in new)
        events += new
    return events


# ---------------------------------------------------------------- the same rules, one step after another


@dataclass(eq=False)
class Plain:
    """A request of the plain engine."""

    job: Job
    computed: int = 0
    target: int = 0
    held: list[Entry] = field(default_factory=list)
    anonymous: int = 0
    published: int = 0
    running: bool = False
    began: int = -1
    """Tokens produced when decoding began; -1 = not decoding."""
    steps: int = 0
    done: int = 0

    @property
    def blocks(self) -> int:
        return sum(entry.blocks for entry in self.held) + self.anonymous

    @property
    def left(self) -> int:
        return self.job.output_tokens - self.began


class PlainEngine:
    """The rules of StepEngine written down without any shortcut: every step looks at every request."""

    def __init__(self, config: StepConfig) -> None:
        self.config, self.cost = config, StepCost(config.capacity)
        self.drafts = drafts_of(config.capacity)
        self.removed: list[int] = []
        self.pool = CountedPool(config.blocks, self.removed)
        self.waiting: list[Plain] = []
        self.running: list[Plain] = []
        self.clock = self.pairs = 0.0
        self.ends: float | None = None
        self.completing: list[Plain] = []
        self.decoding: list[Plain] = []
        self.events: list[tuple[float, EventKind, int, tuple[int, ...]]] = []

    def add(self, job: Job, now: float) -> None:
        self.advance(now)
        if self.ends is None and not self.running and not self.waiting:
            self.clock = max(self.clock, now)
        self.waiting.append(Plain(job))
        self.order()

    def order(self) -> None:
        if self.config.capacity.by_priority:
            self.waiting.sort(key=turn)

    def abort(self, job: Job, now: float) -> None:
        self.advance(now)
        for item in [*self.running, *self.waiting]:
            if item.job is job:
                self.leave(item) if item.running else self.waiting.remove(item)

    def look(self) -> None:
        if self.ends is None and (self.running or self.waiting):
            self.begin()

    def advance(self, until: float) -> None:
        while True:
            if self.ends is None:
                if self.clock >= until or not (self.running or self.waiting):
                    return
                self.begin()
            assert self.ends is not None
            if self.ends > until:
                return
            self.complete()

    def begin(self) -> None:
        preempted = False
        self.decoding = [item for item in self.running if item.began >= 0]
        for item in self.decoding:
            job = item.job
            total = job.prompt_tokens + item.began + item.done * item.left // item.steps
            need = min(total + self.drafts, job.prompt_tokens + job.output_tokens)
            preempted |= self.room(item, need)
        self.decoding = [item for item in self.decoding if item.running]
        budget = start = self.config.capacity.max_batched_tokens - len(self.decoding) * (1 + self.drafts)
        self.completing, self.pairs = [], 0.0
        for item in [item for item in self.running if item.began < 0]:
            if budget > 0 and item.running:
                chunk = min(budget, item.target - item.computed)
                preempted |= self.room(item, item.computed + chunk)
                if item.running:
                    budget = self.compute(item, chunk, budget)
        while (
            not preempted
            and budget > 0
            and self.waiting
            and len(self.running) < self.config.capacity.max_num_seqs
        ):
            item, job = self.waiting[0], self.waiting[0].job
            item.target = job.prompt_tokens + job.produced
            hit, idle = self.pool.match(job.blocks, (item.target - 1) // job.block_tokens)
            cached = len(hit) * job.block_tokens
            chunk = min(budget, item.target - cached)
            need = -(-(cached + chunk) // BLOCK) - cached // BLOCK
            if need > self.pool.free - idle:
                break
            self.pool.touch(hit)
            self.pool.allocate(need)
            self.tell_removed()
            self.running.append(self.waiting.pop(0))
            item.running, item.held, item.published, item.computed = True, hit, len(hit), cached
            item.anonymous = need
            if not job.produced and not job.preemptions:
                job.cached_tokens = cached
            budget = self.compute(item, chunk, budget)
        self.decoding = [item for item in self.decoding if item.running]
        kv = sum(item.computed + item.done * item.left / item.steps for item in self.decoding)
        self.ends = self.clock + self.cost.seconds(
            len(self.decoding), kv, self.cost.prefill(start - budget, self.pairs)
        )

    def complete(self) -> None:
        assert self.ends is not None
        self.clock, self.ends = self.ends, None
        self.decoding = [item for item in self.decoding if item.running]
        for item in self.decoding:
            item.done += 1
        for item in self.decoding:
            if item.done == item.steps:
                self.finish(item)
        for item in self.completing:
            if item.running:
                job = item.job
                if not job.produced:
                    job.first_token_at = self.clock
                    self.tell(EventKind.FIRST_TOKEN, job)
                job.produced += 1
                item.began, item.done = job.produced, 0
                item.steps = -int(-item.left // self.config.capacity.accept_per_step)
                if not item.left:
                    self.finish(item)

    def room(self, item: Plain, tokens: int) -> bool:
        preempted = False
        while item.running and (missing := -(-tokens // BLOCK) - item.blocks) > 0:
            if self.pool.allocate(missing):
                item.anonymous += missing
                self.tell_removed()
                break
            last = max(self.running, key=turn) if self.config.capacity.by_priority else self.running[-1]
            self.leave(last)
            self.waiting.insert(0, last)
            self.order()
            last.job.preemptions += 1
            self.tell(EventKind.PREEMPTED, last.job)
            preempted = True
        return preempted

    def compute(self, item: Plain, chunk: int, budget: int) -> int:
        item.computed += chunk
        self.pairs += context_pairs(chunk, item.computed)
        self.publish(item, [*item.job.blocks], item.computed)
        if item.computed == item.target:
            self.completing.append(item)
        return budget - chunk

    def publish(self, item: Plain, hashes: list[int], tokens: int) -> None:
        stored = []
        while item.published < min(len(hashes), tokens // item.job.block_tokens):
            blocks = item.job.block_tokens // BLOCK
            new = self.pool.publish([hashes[item.published]], blocks, item.held)
            item.published += 1
            item.anonymous -= blocks * len(new)
            stored += new
        if stored:
            self.tell(EventKind.STORED, item.job, tuple(stored))

    def finish(self, item: Plain) -> None:
        job = item.job
        job.finished_at = self.clock
        if job.output_blocks:
            self.publish(item, [*job.blocks, *job.output_blocks], job.prompt_tokens + job.output_tokens - 1)
        self.leave(item)
        self.tell(EventKind.FINISHED, job)

    def leave(self, item: Plain) -> None:
        if item.began >= 0:
            made = item.done * item.left // item.steps if item.steps else 0
            item.job.produced = item.began + made
        self.running.remove(item)
        self.pool.release(item.held, item.anonymous)
        item.running, item.began, item.computed, item.anonymous, item.published = False, -1, 0, 0, 0
        item.held = []

    def tell(self, kind: EventKind, job: Job, hashes: tuple[int, ...] = ()) -> None:
        self.events.append((self.clock, kind, job.key, hashes))

    def tell_removed(self) -> None:
        if self.removed:
            self.events.append((self.clock, EventKind.REMOVED, -1, tuple(self.removed)))
            self.removed.clear()


def turn(item: Plain) -> tuple[int, int]:
    """The order of an engine that schedules by priority; keys ascend by arrival."""
    return item.job.priority, item.job.key


# ---------------------------------------------------------------- scripts of requests


@dataclass(frozen=True)
class Act:
    """Something done to an engine after `gap` seconds."""

    gap: float
    prompt: int
    answer: int
    group: int
    shared: int
    """Leading blocks of the prompt (of `width` tokens) that its group shares."""
    continues: bool
    """Whether its answer can be found afterwards."""
    aborts: int
    """-1, or which earlier request is dropped instead."""
    look: bool
    """Whether somebody asks for the next event."""
    priority: int


WIDTH = 2 * BLOCK
acts = st.builds(
    Act,
    gap=st.sampled_from([0.0, 0.001, 0.0137, 0.05, 0.3, 2.0]),
    prompt=st.integers(1, 120),
    answer=st.integers(1, 120),
    group=st.integers(0, 3),
    shared=st.integers(0, 14),
    continues=st.booleans(),
    aborts=st.sampled_from([-1, -1, -1, -1, 0, 3, 5]),
    look=st.booleans(),
    priority=st.integers(0, 2),
)


def job_of(key: int, act: Act) -> Job:
    shared = min(act.shared, act.prompt // WIDTH)
    whole = (act.prompt + act.answer) // WIDTH
    chain = [10_000 * act.group + index for index in range(shared)]
    after = [1_000_000 + 1000 * key + index for index in range(whole - shared)] if act.continues else []
    return Job(
        key,
        act.prompt,
        act.answer,
        blocks=chain,
        block_tokens=WIDTH,
        output_blocks=after,
        priority=act.priority,
    )


def play(
    script: list[Act], model: StepEngine | PlainEngine
) -> tuple[list[tuple[float, EventKind, int, tuple[int, ...]]], list[Job]]:
    """What happens to a script's requests."""
    seen: list[tuple[float, EventKind, int, tuple[int, ...]]] = []
    jobs: list[Job] = []
    now = 0.0
    for act in script:
        now += act.gap
        if isinstance(model, StepEngine):
            if act.look:
                model.next_event_at()
                seen += map(plainly, model.advance(now - act.gap / 2))
            seen += map(plainly, model.advance(now))
            slots = list(model._running)
            shared = {entry for slot in slots for entry in slot.entries}
            model.pool.check(sum(e.blocks for e in shared) + sum(slot.anonymous for slot in slots))
            assert all(
                slot.held_tokens == BLOCK * (slot.anonymous + sum(e.blocks for e in slot.entries))
                for slot in slots
            )
        else:
            if act.look:
                model.look()
            model.advance(now)
        if 0 <= act.aborts < len(jobs):
            model.abort(jobs[act.aborts], now)
        else:
            jobs.append(job_of(len(jobs), act))
            model.add(jobs[-1], now)
    if isinstance(model, StepEngine):
        seen += map(plainly, drain(model))
    else:
        model.advance(1e9)
        seen = model.events
    model.pool.check(0)
    return seen, jobs


def plainly(event: Event) -> tuple[float, EventKind, int, tuple[int, ...]]:
    return event.at, event.kind, event.job.key if event.job is not None else -1, event.hashes


@settings(deadline=None, max_examples=150)
@given(
    st.lists(acts, min_size=1, max_size=30),
    st.integers(60, 140),
    st.sampled_from([1.0, 2.0]),
    st.integers(2, 8),
    st.booleans(),
)
def test_skipping_steps_is_the_same_as_taking_them(
    script: list[Act], blocks: int, accept: float, seats: int, by_priority: bool
) -> None:
    settings_ = config(
        kv_cache_tokens=blocks * BLOCK,
        accept_per_step=accept,
        max_num_seqs=seats,
        step_experts_s=0.02,
        expert_share=0.1,
        prefill_pair_s=1e-5,
        by_priority=by_priority,
    )
    seen, jobs = play(script, StepEngine(settings_, random.Random(1)))
    expected, plain_jobs = play(script, PlainEngine(settings_))
    assert [event[1:] for event in seen] == [event[1:] for event in expected]
    assert [event[0] for event in seen] == pytest.approx([event[0] for event in expected])
    for job, plain in zip(jobs, plain_jobs, strict=True):
        assert (job.produced, job.cached_tokens, job.preemptions) == (
            plain.produced,
            plain.cached_tokens,
            plain.preemptions,
        )


@settings(deadline=None, max_examples=80)
@given(st.lists(acts, min_size=1, max_size=30), st.integers(60, 140), st.sampled_from([1.0, 1.9, 2.4]))
def test_every_job_ends_once_and_hits_what_was_stored(script: list[Act], blocks: int, accept: float) -> None:
    model = engine(kv_cache_tokens=blocks * BLOCK, accept_per_step=accept, noise_cv=0.07)
    seen, jobs = play(script, model)
    ends = Counter(key for _at, kind, key, _ in seen if kind is EventKind.FINISHED)
    firsts = Counter(key for _at, kind, key, _ in seen if kind is EventKind.FIRST_TOKEN)
    assert max(ends.values(), default=1) == max(firsts.values(), default=1) == 1
    assert ends.keys() <= firsts.keys()
    assert model.counters.finished + model.counters.aborted == len(jobs)
    assert all(jobs[key].produced == jobs[key].output_tokens for key in ends)
    assert [event[0] for event in seen] == sorted(event[0] for event in seen)
    assert sum(job.preemptions for job in jobs) == model.preemptions
    stored = Counter(
        value for _at, kind, _key, hashes in seen if kind is EventKind.STORED for value in hashes
    )
    removed = Counter(
        value for _at, kind, _key, hashes in seen if kind is EventKind.REMOVED for value in hashes
    )
    assert sum(stored.values()) - sum(removed.values()) == model.pool.cached_count
    assert all(stored[value] - removed[value] in (0, 1) for value in stored | removed)
    for job in jobs:
        assert job.cached_tokens < job.prompt_tokens
        assert all(value in stored for value in job.blocks[: job.cached_tokens // WIDTH])


@pytest.mark.parametrize(("by_priority", "order"), [(True, [0, 3, 2, 1]), (False, [0, 1, 2, 3])])
def test_the_priority_of_a_request_decides_only_where_the_profile_says_so(
    by_priority: bool, order: list[int]
) -> None:
    model = engine(max_num_seqs=1, by_priority=by_priority)
    for key, priority in enumerate((1, 2, 1, 0)):
        model.add(Job(key, 10, 5, priority=priority), 0.0 if key == 0 else 0.001)
    ends = [event.job.key for event in drain(model) if event.kind is EventKind.FINISHED and event.job]
    assert ends == order


@pytest.mark.parametrize(("by_priority", "preempted"), [(True, 0), (False, 1)])
def test_the_least_urgent_request_gives_up_its_blocks(by_priority: bool, preempted: int) -> None:
    model = engine(kv_cache_tokens=12 * BLOCK, by_priority=by_priority)
    model.add(Job(0, 5 * BLOCK, 3 * BLOCK, priority=2), 0.0)
    model.add(Job(1, 5 * BLOCK, 3 * BLOCK, priority=0), 0.0)
    lost = [event.job.key for event in drain(model) if event.kind is EventKind.PREEMPTED and event.job]
    assert lost == [preempted]


def test_a_chunk_may_cost_more_than_its_tokens() -> None:
    plain, dear = (replace(config(tokens=64), chunk_s=extra) for extra in (0.0, 0.5))
    ends = []
    for settings_ in (plain, dear):
        model, job = StepEngine(settings_, random.Random(1)), Job(0, 128, 10)
        model.add(job, 0.0)
        drain(model)
        ends.append((job.first_token_at, job.finished_at))
    assert ends[1][0] == pytest.approx(ends[0][0] + 2 * 0.5)
    assert ends[1][1] == pytest.approx(ends[0][1] + 2 * 0.5)
