"""KV blocks in host memory: what is found there, when it arrives, and that it changes nothing else."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.step_model.engine import Event, EventKind, StepConfig, StepEngine
from sim.engine.step_model.job import Job
from workers.wire import Capacity

BLOCK = 10
LOAD_S = 1e-3


def engine(host: int = 1000, cache: int = 100, *, kv_events: bool = False, **changes: float) -> StepEngine:
    values = {
        "prefill_tokens_per_s": 100.0,
        "step_base_s": 0.01,
        "step_per_seq_s": 0.0,
        "kv_cache_tokens": cache,
        "max_num_seqs": 8,
        "host_kv_tokens": host,
        "kv_load_s": LOAD_S,
    }
    capacity = Capacity(**{**values, **changes})  # type: ignore[arg-type]
    return StepEngine(StepConfig(capacity, BLOCK, noise_cv=0.0, kv_events=kv_events), random.Random(1))


def prompt(key: int, group: int, tokens: int = 55, answer: int = 5) -> Job:
    """A prompt of whole cached blocks, which all of its group share, and five tokens more."""
    chain = [1000 * group + index for index in range(tokens // BLOCK)]
    return Job(key, tokens, answer, blocks=chain, block_tokens=BLOCK)


def served(model: StepEngine, jobs: list[Job], gap: float = 10.0) -> list[Event]:
    """Serve jobs one after the other, far apart."""
    events = []
    for number, job in enumerate(jobs):
        events += model.advance(number * gap)
        model.add(job, number * gap)
    return events + model.advance(1e6)


@pytest.mark.parametrize(("host", "cached", "first_s"), [(1000, 50, 50 * LOAD_S + 0.06), (0, 0, 0.56)])
def test_an_evicted_prefix_comes_back_from_host_memory(host: int, cached: int, first_s: float) -> None:
    jobs = [prompt(0, 0), prompt(1, 1), prompt(2, 2), prompt(3, 0)]
    served(engine(host), jobs)
    assert jobs[3].cached_tokens == cached
    assert jobs[3].first_token_at == pytest.approx(30.0 + first_s)


def test_what_the_engine_holds_is_not_loaded() -> None:
    jobs = [prompt(0, 0), prompt(1, 0)]
    served(engine(cache=400), jobs)
    assert jobs[1].cached_tokens == 50
    assert jobs[1].first_token_at == pytest.approx(10.0 + 0.06)


def test_host_memory_keeps_what_was_used_last() -> None:
    jobs = [prompt(0, 0), prompt(1, 1), prompt(2, 0), prompt(3, 2), prompt(4, 0), prompt(5, 1)]
    served(engine(host=100), jobs)
    assert [job.cached_tokens for job in jobs[2:]] == [50, 0, 50, 0]


def test_a_request_that_waits_for_its_blocks_holds_up_no_other() -> None:
    model = engine(kv_load_s=0.1)
    served(model, [prompt(0, 0), prompt(1, 1), prompt(2, 2)])
    late, other = prompt(3, 0), prompt(4, 7, tokens=10, answer=80)
    model.add(late, 2e6)
    model.add(other, 2e6 + 0.001)
    assert (model.waiting, model.busy) == (2, True)
    model.advance(3e6)
    assert other.first_token_at == pytest.approx(2e6 + 0.111)
    assert late.first_token_at == pytest.approx(2e6 + 5.06, abs=0.011), "joins at the end of a step"
    assert late.cached_tokens == 50


def test_the_link_serves_one_after_the_other() -> None:
    model = engine(kv_load_s=0.1, cache=200)
    served(model, [prompt(key, key) for key in range(6)])
    jobs = [prompt(10, 0), prompt(11, 1)]
    for job in jobs:
        model.add(job, 2e6)
    model.advance(3e6)
    assert [job.first_token_at - 2e6 for job in jobs] == pytest.approx([5.06, 10.06], abs=0.01)


def test_events_tell_of_what_is_nowhere_any_more() -> None:
    """Room for ten blocks in the engine and for twenty on the host: of seven prefixes of five blocks three are gone."""
    believed = set[int]()
    jobs = [prompt(key, key) for key in range(7)]
    for event in served(engine(host=200, kv_events=True), jobs):
        if event.kind is EventKind.STORED:
            believed |= set(event.hashes)
        elif event.kind is EventKind.REMOVED:
            believed -= set(event.hashes)
    assert believed == {hash_ for job in jobs[3:] for hash_ in job.blocks}


def test_an_aborted_load_leaves_nothing_behind() -> None:
    model = engine(kv_load_s=0.1)
    served(model, [prompt(0, 0), prompt(1, 1), prompt(2, 2)])
    job = prompt(3, 0)
    model.add(job, 2e6)
    model.abort(job, 2e6 + 1.0)
    assert not model.busy
    assert model.next_event_at() is None
    model.pool.check(0)


def test_a_forgotten_cache_is_forgotten_in_host_memory() -> None:
    model = engine()
    served(model, [prompt(0, 0), prompt(1, 1), prompt(2, 2)])
    model.forget_cache()
    job = prompt(3, 0)
    model.add(job, 2e6)
    model.advance(3e6)
    assert job.cached_tokens == 0


def test_steps_one_by_one_wait_for_blocks_too() -> None:
    model = engine(kv_load_s=0.1)
    served(model, [prompt(0, 0), prompt(1, 1), prompt(2, 2)])
    job = prompt(3, 0)
    model.add(job, 2e6)
    while model.busy:
        model.step()
    assert job.first_token_at == pytest.approx(2e6 + 5.06)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0137123, 0.2003717, 1.0007391]),
            st.integers(0, 4),
            st.integers(11, 70),
            st.integers(1, 40),
        ),
        min_size=1,
        max_size=25,
    ),
    st.integers(120, 260),
    st.sampled_from([1e-4, 1e-2]),
)
def test_looking_changes_nothing_and_every_job_ends_once(
    script: list[tuple[float, int, int, int]], cache: int, load_s: float
) -> None:
    runs = []
    for looks in (False, True):
        model, now, seen = engine(cache=cache, kv_load_s=load_s, prefill_tokens_per_s=1000.0), 0.0, []
        for key, (gap, group, tokens, answer) in enumerate(script):
            if looks:
                model.next_event_at()
                seen += model.advance(now + gap / 2)
            now += gap
            seen += model.advance(now)
            model.add(prompt(key, group, tokens, answer), now)
        while (at := model.next_event_at()) is not None:
            seen += model.advance(at)
        model.pool.check(0)
        runs.append([(event.kind, event.job.key, event.at) for event in seen if event.job is not None])
    assert [event[:2] for event in runs[0]] == [event[:2] for event in runs[1]]
    assert [event[2] for event in runs[0]] == pytest.approx([event[2] for event in runs[1]])
    ends = [key for kind, key, _ in runs[0] if kind is EventKind.FINISHED]
    assert sorted(ends) == list(range(len(script)))
