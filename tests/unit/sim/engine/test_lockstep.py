"""Ranks that take every step together: their common time, their own caches, and the engine's choice of one."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.step_model.engine import StepEngine
from sim.engine.step_model.interface import Event, EventKind, StepConfig
from sim.engine.step_model.job import Job
from sim.engine.step_model.lockstep import LockstepEngine, step_engine
from workers.ranks import rank_capacity
from workers.step_time import decode_step_s
from workers.wire import Capacity

BLOCK = 4


def config(ranks: int, *, tokens: int = 64, **changes: float) -> StepConfig:
    values = {
        "prefill_tokens_per_s": 1000.0,
        "step_base_s": 0.01,
        "step_per_seq_s": 0.001,
        "step_per_kv_token_s": 1e-5,
        "max_num_seqs": 16,
        "kv_cache_tokens": 4096,
        "max_model_len": 2048,
        "max_batched_tokens": tokens,
        "dp_ranks": ranks,
    }
    return StepConfig(Capacity(**{**values, **changes}), block_size=BLOCK, noise_cv=0.0, kv_events=True)  # type: ignore[arg-type]


def engine(ranks: int, **changes: float) -> LockstepEngine:
    return LockstepEngine(config(ranks, **changes), random.Random(7))  # type: ignore[arg-type]


def drain(model: LockstepEngine | StepEngine) -> list[Event]:
    """Events until it is idle."""
    events: list[Event] = []
    while (at := model.next_event_at()) is not None:
        events += model.advance(at)
    return events


def test_a_prompt_alone_has_one_ranks_share_and_prompts_together_have_all() -> None:
    """What one rank computes, the others wait for."""

    def first_tokens(ranks: int, prompts: int) -> list[float]:
        model = step_engine(config(ranks, tokens=1000, prefill_pair_s=1e-6), random.Random(7))
        jobs = [Job(key, 200, 2) for key in range(prompts)]
        for job in jobs:
            model.add(job, 0.0)
        drain(model)
        return [job.first_token_at for job in jobs]

    work = 200 / 1000 + 1e-6 * 200**2 / 2
    assert first_tokens(1, 1) == pytest.approx([0.01 + work])
    assert first_tokens(4, 1) == pytest.approx([0.01 + 4 * work])
    assert first_tokens(4, 4) == pytest.approx([0.01 + 4 * work] * 4)
    assert first_tokens(1, 4) == pytest.approx([0.01 + 4 * work] * 4)
    assert first_tokens(4, 5) == pytest.approx([0.01 + 8 * work] * 5)


def test_each_rank_has_a_token_budget_of_its_own() -> None:
    model = engine(2)
    jobs = [Job(key, 64, 2) for key in range(4)]
    for job in jobs:
        model.add(job, 0.0)
    drain(model)
    firsts = [job.first_token_at for job in jobs]
    assert firsts[0] == firsts[1] < firsts[2] == firsts[3]


def test_a_request_must_fit_into_one_ranks_cache() -> None:
    with pytest.raises(ValueError, match="larger than the KV cache"):
        engine(4, kv_cache_tokens=400).add(Job(0, 100, 10), 0.0)
    engine(4, kv_cache_tokens=400).add(Job(0, 90, 10), 0.0)


def test_evenly_loaded_ranks_take_the_whole_engines_formula_and_uneven_ones_wait_for_the_slowest() -> None:
    """Ten steps of four answers of 100 tokens of context, one a rank or all on one."""
    experts = {"step_experts_s": 0.004, "expert_share": 0.1}

    def decode_s(ranks: list[int]) -> float:
        model = engine(4, tokens=1000, **experts)
        jobs = [Job(key, 100, 11, rank=rank) for key, rank in enumerate(ranks)]
        for job in jobs:
            model.add(job, 0.0)
        drain(model)
        return jobs[0].finished_at - jobs[0].first_token_at

    whole = config(4, **experts).capacity
    even = sum(decode_step_s(whole, 4, 4 * (100 + step)) for step in range(10))
    assert decode_s([0, 1, 2, 3]) == pytest.approx(even)
    waits = sum(
        decode_step_s(whole, 4, 0.0) + 3 * 4 * 0.001 + 4 * 1e-5 * 4 * (100 + step) for step in range(10)
    )
    assert decode_s([2, 2, 2, 2]) == pytest.approx(waits)


def test_the_rank_that_becomes_the_slowest_is_waited_for_from_then_on() -> None:
    """A long context that grows by one token a step against four shorter ones, which grow by four."""
    model = engine(2, tokens=4000, step_per_seq_s=0.0, kv_cache_tokens=16_384)
    jobs = [Job(0, 1000, 61, rank=0), *(Job(key, 240, 61, rank=1) for key in range(1, 5))]
    for job in jobs:
        model.add(job, 0.0)
    drain(model)
    steps = [2 * 1e-5 * max(1000 + step, 4 * (240 + step)) for step in range(60)]
    assert jobs[0].finished_at - jobs[0].first_token_at == pytest.approx(60 * 0.01 + sum(steps))


def test_one_ranks_part_of_an_engine_predicts_the_evenly_loaded_step() -> None:
    """What the scheduler believes of a rank (`rank_capacity`) is what the engine does when all ranks do the same."""
    whole = config(8, step_experts_s=0.004, expert_share=0.03, draft_tokens=1, accept_per_step=1.9).capacity
    for batch, kv in ((1, 0), (2, 700), (7, 9000)):
        assert decode_step_s(rank_capacity(whole), batch, kv) == pytest.approx(
            decode_step_s(whole, 8 * batch, 8 * kv)
        )
    plain = config(1).capacity
    assert rank_capacity(plain) is plain


def test_a_prefix_is_cached_on_its_rank_alone() -> None:
    def cached(second_on: int) -> int:
        model = engine(2)
        blocks = list(range(10))
        model.add(Job(0, 50, 2, blocks, BLOCK, rank=0), 0.0)
        drain(model)
        again = Job(1, 50, 2, blocks, BLOCK, rank=second_on)
        model.add(again, model.clock)
        drain(model)
        return again.cached_tokens

    assert (cached(0), cached(1)) == (40, 0)


def test_events_say_on_which_rank_they_happened() -> None:
    model = engine(2)
    model.add(Job(0, 8, 2, [1, 2], BLOCK, rank=0), 0.0)
    model.add(Job(1, 8, 2, [3, 4], BLOCK, rank=1), 0.0)
    stored = {(event.rank, event.hashes) for event in drain(model) if event.kind is EventKind.STORED}
    assert stored == {(0, (1, 2)), (1, (3, 4))}
    assert [rank.pool.hashes() for rank in model.ranks] == [[1, 2], [3, 4]]


def test_an_engine_that_may_choose_takes_the_least_busy_rank() -> None:
    model = engine(3)
    for key in range(6):
        model.add(Job(key, 10, 50), 0.0)
    assert [rank.running + rank.waiting for rank in model.ranks] == [2, 2, 2]
    model.add(Job(6, 10, 50, rank=1), 0.0)
    model.add(Job(7, 10, 50, rank=1), 0.0)
    for key in range(8, 10):
        model.add(Job(key, 10, 50), 0.0)
    assert [rank.running + rank.waiting for rank in model.ranks] == [3, 4, 3]
    drain(model)
    assert model.counters.finished == 10


def test_waiting_requests_weigh_more_on_a_full_cache() -> None:
    """Two ranks with three requests each: on the full one, they wait."""
    model = engine(2, kv_cache_tokens=2 * 40 * BLOCK, max_num_seqs=8)
    for key in range(3):
        model.add(Job(key, 30 * BLOCK, 4 * BLOCK, rank=0), 0.0)
        model.add(Job(10 + key, BLOCK, 30 * BLOCK, rank=1), 0.0)
    model.advance(0.5)
    assert model.ranks[0].waiting
    assert model.ranks[0].kv_usage > 0.5
    assert not model.ranks[1].waiting
    model.add(Job(20, 8, 2, rank=1), 0.5)
    model.add(chosen := Job(21, 8, 2), 0.5)
    assert model.rank_of(chosen) == 1


def test_a_rank_that_does_not_exist_is_refused() -> None:
    for rank in (-1, 2):
        with pytest.raises(ValueError, match="between 0 and 1"):
            engine(2).add(Job(0, 10, 5, rank=rank), 0.0)
    with pytest.raises(ValueError, match="step_engine"):
        StepEngine(config(2), random.Random(1))


def test_an_idle_rank_steps_along_and_begins_with_the_next_common_step() -> None:
    model = engine(2, tokens=1000)
    model.add(long := Job(0, 10, 100, rank=0), 0.0)
    model.advance(0.05)
    ends, late = model.clock, Job(1, 10, 2, rank=1)
    model.add(late, 0.051)
    assert late.first_token_at < 0.0
    drain(model)
    steps = late.first_token_at - ends
    assert steps > 0.0
    assert long.finished_at > late.finished_at
    assert (
        late.first_token_at > 0.051 + 10 / 500
    )  # the step in progress, then one with its prompt at a rank's share


Script = list[tuple[float, int, int, int, int | None, int]]
"""Gap in seconds, prompt, answer, group of the prefix, rank, and which earlier job is aborted instead (-1 = none)."""

ACTS = st.tuples(
    st.sampled_from([0.0, 0.003, 0.02, 0.2]),
    st.integers(1, 90),
    st.integers(1, 60),
    st.integers(0, 3),
    st.sampled_from([None, 0, 1, 2]),
    st.sampled_from([-1, -1, -1, -1, 0, 1, 2]),
)


def play(script: Script, *, by_step: bool, **changes: float) -> tuple[list[tuple[object, ...]], list[Job]]:
    """The events of a script, and its jobs; `by_step` looks at the engine so often that no two steps are skipped."""
    model = LockstepEngine(config(3, **changes), random.Random(1))  # type: ignore[arg-type]
    events: list[Event] = []
    jobs: list[Job] = []
    now = 0.0

    def to(at: float) -> None:
        while by_step and model.clock < at and model.busy:
            model._run(model.clock)
            if not model._plan.left:
                model.next_event_at()
            model._plan.truncate()
            before = model.clock
            events.extend(model.advance(min(at, model.clock + model._plan.seconds(1))))
            if model.clock == before:
                break
        events.extend(model.advance(at))

    for gap, prompt, answer, group, rank, aborts in script:
        now += gap
        to(now)
        if 0 <= aborts < len(jobs):
            model.abort(jobs[aborts], now)
            continue
        shared = [1000 * group + index for index in range(prompt // BLOCK)]
        jobs.append(Job(len(jobs), prompt, answer, shared, BLOCK, rank=rank))
        model.add(jobs[-1], now)
        for each in model.ranks:
            each.pool.check()
    to(1e6)
    assert not model.busy
    for each in model.ranks:
        each.pool.check(0)
    assert model.counters.finished + model.counters.aborted == len(jobs)
    assert not model._rank_of
    plain = [
        (round(event.at, 9), event.kind, event.job.key if event.job else -1, event.hashes, event.rank)
        for event in events
    ]
    return sorted(plain, key=repr), jobs


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTS, min_size=1, max_size=14), st.sampled_from([300, 4096]))
def test_skipping_steps_changes_nothing(script: Script, cache: int) -> None:
    """Plans of several common steps have the same events as single steps, whoever is the slowest rank when."""
    fit = [(g, min(p, 40), min(a, 50), s, r, x) for g, p, a, s, r, x in script]
    skipped, _ = play(fit, by_step=False, kv_cache_tokens=3 * cache, max_num_seqs=12)
    stepped, _ = play(fit, by_step=True, kv_cache_tokens=3 * cache, max_num_seqs=12)
    assert skipped == stepped


def test_the_real_time_interface_takes_one_step_at_a_time() -> None:
    model = engine(2)
    jobs = [Job(0, 10, 3, rank=0), Job(1, 10, 5, rank=1)]
    for job in jobs:
        model.add(job, 0.0)
    ends = []
    while model.busy:
        model.step()
        ends.append(model.clock)
    assert ends == sorted(set(ends))
    assert len(ends) == model.counters.steps == 5
    assert [job.produced for job in jobs] == [3, 5]
    assert [model.produced(job) for job in jobs] == [3, 5]


def test_a_capacity_that_does_not_divide_keeps_a_seat_for_each_rank() -> None:
    model = engine(3, max_num_seqs=2)
    for key in range(3):
        model.add(Job(key, 10, 5), 0.0)
    model.step()
    assert [rank.running for rank in model.ranks] == [1, 1, 1]
    drain(model)
    assert model.counters.finished == 3
