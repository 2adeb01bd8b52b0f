"""Whatever goes wrong with a cloud: no host is created twice, none is left over, our cost is its bill to the cent."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.digitalocean.faults import Fault
from tests.support.host_play import GROUPS, STEPS, Play

SEEDS = 45
LENGTH = 80


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, 10_000),
    st.sampled_from([60, 250, 1500]),
    st.lists(st.sampled_from(sorted(set(STEPS))), max_size=40),
    st.booleans(),
)
def test_any_schedule_of_faults(seed: int, late_s: int, steps: list[str], records: bool) -> None:
    play = Play(seed, late_s=late_s)
    if not records:  # the token has no scope for actions
        play.cloud.denied.add("actions")
    play.desire(GROUPS[0], 2)
    for step in steps:
        play.act(step)
    play.calm()
    play.check_settled()


def seeded(seed: int, **options: bool) -> Play:
    play = Play(seed, late_s=(60, 250, 1500)[seed % 3], **options)
    play.desire(GROUPS[seed % 3], 2)
    for _ in range(LENGTH):
        play.act(play.rng.choice(STEPS))
    return play


@pytest.fixture(scope="module")
def played() -> tuple[Counter[str], Counter[Fault]]:
    """Counts over all seeded schedules, each of which ended as it must."""
    counts: Counter[str] = Counter()
    faults: Counter[Fault] = Counter()
    for seed in range(SEEDS):
        play = seeded(seed)
        faults.update(play.cloud.faults.used)
        counts.update(play.counts)
        play.calm()
        play.check_settled()
    return counts, faults


def test_the_schedules_reach_every_fault_and_every_act(played: tuple[Counter[str], Counter[Fault]]) -> None:
    """A schedule in which nothing happens proves nothing: most passes must look and act, and every fault happen."""
    counts, faults = played
    assert counts["complete"] >= 0.8 * counts["passes"], counts
    assert counts["waited"] <= 0.1 * counts["passes"], counts
    assert all(faults[fault] >= 20 for fault in Fault), faults
    for act in ("Add", "Adopt", "Saw", "Missed", "Retire", "Release", "End", "Create", "Destroy"):
        assert counts[act] >= 30, (act, counts)
    assert counts["GiveUpImage"] >= 3, counts
    assert counts["images"] >= 10, counts
    assert counts["crashes"] >= 50
    assert counts["reclaims"] >= 50
    assert counts["overlaps"] >= 50


def test_every_response_of_a_schedule_is_as_described() -> None:
    seeded(2, described=True)
