"""The bound: its greedy against brute force, its parts against hand-made cases, and that no policy passes it."""

from dataclasses import replace
from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.step_model.cost import StepCost
from sim.engine.step_model.engine import StepConfig
from sim.pool.bound import Task, decode_step_s, on_time, served_at_most
from sim.pool.contract import SimRequest
from sim.pool.network import Network
from sim.pool.pool import ReplicaSpec
from sim.pool.registry import OURS, policy
from sim.pool.run import simulate
from sim.pool.settings import RunConfig
from sim.pool.summary import service_levels, summarise
from tests.support.simulated import CAPACITY, MODEL, poisson
from workers.wire import Capacity, Targets


def fits(tasks: tuple[Task, ...]) -> bool:
    """First come first served, which is earliest deadline first here."""
    now = 0.0
    for task in tasks:
        now = max(now, task.release) + task.seconds
        if now > task.deadline:
            return False
    return True


@st.composite
def agreeable(draw: st.DrawFn) -> list[Task]:
    releases = sorted(draw(st.lists(st.integers(0, 20), max_size=8)))
    tasks, latest = [], 0
    for release in releases:
        seconds = draw(st.integers(1, 8))
        latest = max(latest, release + draw(st.integers(0, 12)))
        tasks.append(Task(release, seconds, latest))
    return tasks


@settings(max_examples=300, deadline=None)
@given(agreeable())
def test_the_greedy_is_optimal_where_deadlines_follow_releases(tasks: list[Task]) -> None:
    best = max(
        size for size in range(len(tasks) + 1) if any(fits(chosen) for chosen in combinations(tasks, size))
    )
    assert on_time(tasks) == best


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8), st.integers(0, 15)), max_size=7))
def test_with_any_deadlines_it_is_an_upper_bound(drawn: list[tuple[int, int, int]]) -> None:
    tasks = [Task(release, seconds, release + seconds + slack) for release, seconds, slack in sorted(drawn)]
    by_deadline = sorted(tasks, key=lambda task: task.deadline)
    best = max(
        size
        for size in range(len(tasks) + 1)
        if any(
            fits(tuple(sorted(chosen, key=lambda task: task.deadline)))
            for chosen in combinations(by_deadline, size)
        )
    )
    assert on_time(tasks) >= best


def test_a_sequences_share_of_a_step_grows_with_a_tight_target() -> None:
    cost = StepCost(CAPACITY)
    full = cost.base(CAPACITY.max_num_seqs) / CAPACITY.max_num_seqs
    assert decode_step_s(cost, CAPACITY.max_num_seqs, 10.0) == pytest.approx(full)
    tight = 0.0166 + 0.000188 * 20
    exact = tight / 20
    assert 0.9 * exact < decode_step_s(cost, CAPACITY.max_num_seqs, tight) <= exact + 1e-12


def pool(replicas: int, targets: Targets, prefill: float = 7000.0) -> list[ReplicaSpec]:
    capacity = replace_capacity(prefill)
    return [
        ReplicaSpec(f"r{number}", MODEL, StepConfig(capacity, noise_cv=0.0), targets)
        for number in range(replicas)
    ]


def replace_capacity(prefill: float) -> Capacity:

    return msgspec.structs.replace(CAPACITY, prefill_tokens_per_s=prefill)


def test_prefill_that_fits_no_window_is_not_served() -> None:
    asked = [SimRequest(key, 0.0, "t", MODEL, 7000, 1) for key in range(10)]
    # 1 s each on one replica, all due 1 + 1 s after the start
    assert served_at_most(asked, pool(1, Targets(1.0, 1.0))) == 2
    assert served_at_most(asked, pool(5, Targets(1.0, 1.0))) == 10


def test_what_earlier_arrivals_brought_is_free_once() -> None:
    blocks = tuple(range(100))
    asked = [SimRequest(key, 0.01 * key, "t", MODEL, 6400, 1, blocks) for key in range(10)]
    assert served_at_most(asked, pool(1, Targets(0.05, 1.0))) == 10
    cold = [replace(each, blocks=()) for each in asked]
    assert served_at_most(cold, pool(1, Targets(0.05, 1.0))) == 1


def test_arrivals_of_the_warmup_bring_prefixes_and_do_not_count() -> None:
    blocks = tuple(range(100))
    asked = [SimRequest(key, float(key), "t", MODEL, 6400, 1, blocks) for key in range(10)]
    assert served_at_most(asked, pool(1, Targets(0.05, 1.0)), warmup_s=4.5) == 5


@pytest.mark.parametrize("name", [OURS, "llmd_sticky", "cache_aware", "least_request"])
@pytest.mark.parametrize(
    ("rate", "replicas", "targets", "output"),
    [
        (6.0, 1, Targets(0.5, 0.03), 60),
        (25.0, 2, Targets(1.0, 0.05), 40),
        (12.0, 3, Targets(0.2, 0.02), 100),
    ],
)
def test_no_policy_serves_more_than_the_bound(
    name: str, rate: float, replicas: int, targets: Targets, output: int
) -> None:
    made = pool(replicas, targets)
    asked = poisson(rate, 25.0, seed=int(rate), prompt=2500, output=output)
    most = served_at_most(asked, made, warmup_s=5.0)
    entry = policy(name)
    config = RunConfig(seed=3, warmup_s=5.0, network=entry.network(Network()))
    summary = summarise(simulate(entry.make, asked, made, config), service_levels(made))
    good = round(summary.slo_met * summary.requests)
    assert good <= most <= summary.requests
