"""Tokens of a step from an engine's counters."""

import random

import msgspec
import pytest

from scheduler.core.acceptance import HALF_LIFE, PRIOR_DRAFTS, Acceptance
from scheduler.core.fleet import Fleet
from tests.support.scheduling import beat, capacity, replica
from workers.wire import Capacity, EngineCounters

STATED = Capacity(10_000.0, 0.01, 0.0, accept_per_step=2.0, draft_tokens=3)


def counters(drafts: float, accepted: float) -> EngineCounters:
    return EngineCounters(drafts=int(drafts), accepted_tokens=int(accepted))


def test_what_is_stated_counts_until_drafts_are_seen() -> None:
    learnt = Acceptance()
    assert learnt.apply(STATED) is STATED
    learnt.observe(counters(0, 0))
    assert learnt.apply(STATED) is STATED
    learnt.observe(counters(PRIOR_DRAFTS, 2 * PRIOR_DRAFTS))
    assert learnt.apply(STATED).accept_per_step == pytest.approx(2.5)
    learnt.observe(counters(PRIOR_DRAFTS, 2 * PRIOR_DRAFTS))
    assert learnt.apply(STATED).accept_per_step == pytest.approx(2.5), "the same scrape again"


def test_the_estimate_says_how_uncertain_it_is() -> None:
    learnt = Acceptance()
    before = learnt.spread(STATED)
    learnt.observe(counters(20 * PRIOR_DRAFTS, 20 * PRIOR_DRAFTS))
    assert 0.0 < learnt.spread(STATED) < before / 4
    assert learnt.spread(msgspec.structs.replace(STATED, accept_per_step=1.0, draft_tokens=0)) < before / 4


@pytest.mark.parametrize("truth", [1.1, 1.9, 3.2])
def test_the_estimate_follows_what_the_engine_accepts(truth: float) -> None:
    learnt, drafts, accepted, rng = Acceptance(), 0, 0, random.Random(3)
    for _ in range(200):
        made = rng.randrange(50, 400)
        drafts += made
        accepted += round(made * (truth - 1.0) * rng.uniform(0.8, 1.2))
        learnt.observe(counters(drafts, accepted))
    assert learnt.apply(STATED).accept_per_step == pytest.approx(truth, rel=0.03)


def test_older_drafts_are_forgotten() -> None:
    learnt = Acceptance()
    learnt.observe(counters(10 * HALF_LIFE, 20 * HALF_LIFE))
    learnt.observe(counters(13 * HALF_LIFE, 20 * HALF_LIFE))
    assert learnt.apply(STATED).accept_per_step == pytest.approx(1.0 + 20 / 8 / (10 / 8 + 3), rel=0.01)


def test_counters_that_are_wrong_change_nothing_and_the_drafts_bound_the_rest() -> None:
    learnt = Acceptance()
    learnt.observe(counters(10**6, 10**7))
    assert learnt.apply(STATED).accept_per_step == 4.0
    learnt.observe(counters(10**5, 10**7))
    learnt.observe(counters(2 * 10**6, 10))
    assert learnt.apply(STATED).accept_per_step == 4.0


def test_a_replica_is_believed_by_its_counters_until_its_engine_restarts() -> None:
    drafting = msgspec.structs.replace(capacity(), accept_per_step=2.0, draft_tokens=3)
    fleet = Fleet()
    for boot, made, expected in (("a", 0, 2.0), ("a", 10**5, 3.5), ("b", 0, 2.0)):
        status = replica(
            capacity=drafting,
            boot_id=boot,
            counters=EngineCounters(drafts=made, accepted_tokens=int(2.5 * made)),
        )
        fleet.heartbeat(beat(status), 0.0)
        fleet.heartbeat(beat(status), 0.5)
        believed = fleet.replicas[status.replica_id].capacity
        assert believed.accept_per_step == pytest.approx(expected, rel=0.01)
