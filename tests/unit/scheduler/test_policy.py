"""Filter, score and pick on hand-made replicas."""

import random
from collections import Counter

import pytest

from scheduler.core.policy import HEARTBEAT_STALE_S, Blocked, Choice, Reason, obstacle, place, score
from scheduler.core.prefix import PrefixMirror
from scheduler.core.replica import Load, Replica
from tests.support.scheduling import replica, request
from workers.wire import ReplicaState


def seen(name: str = "host/r0", load: Load | None = None, heard_at: float = 0.0, **fields) -> Replica:
    status = replica(name, **fields)
    return Replica(status, "agent", heard_at, load or Load(), PrefixMirror(100_000), beats=10)


@pytest.mark.parametrize(
    ("reason", "unable"),
    [
        (None, seen()),
        (Reason.UNKNOWN_MODEL, seen(model="another")),
        (Reason.SILENT, seen(heard_at=-HEARTBEAT_STALE_S - 0.1)),
        (Reason.STARTING, seen(state=ReplicaState.LOADING)),
        (Reason.STARTING, seen(state=ReplicaState.FAILED)),
        (Reason.NOT_WARM, seen(state=ReplicaState.ASLEEP)),
        (Reason.NOT_WARM, seen(state=ReplicaState.DRAINING)),
        (Reason.BUSY, seen(load=Load(running=4))),
        (Reason.BUSY, seen(waiting=5)),
        (Reason.KV_FULL, seen(load=Load(running=1, kv_tokens=89_900))),
        (Reason.KV_FULL, seen(load=Load(running=1), kv_usage=0.9)),
        (Reason.KV_FULL, seen(load=Load(running=1), kv_blocks=10, block_size=16)),
    ],
)
def test_what_keeps_a_replica_from_a_request(reason: Reason | None, unable: Replica) -> None:
    assert obstacle(request(), unable, 0.0) is reason
    verdict = place(request(), [unable], 0.0, random.Random(0))
    assert isinstance(verdict, Choice) if reason is None else verdict == Blocked(reason)


def test_an_idle_replica_takes_what_does_not_fit_the_plan() -> None:
    assert obstacle(request(prompt_tokens=99_000), seen(), 0.0) is None


def test_a_command_under_way_counts_before_the_heartbeat_says_so() -> None:
    drained = seen()
    drained.hold = ReplicaState.DRAINING
    assert obstacle(request(), drained, 0.0) is Reason.NOT_WARM


def test_the_most_hopeful_reason_is_given() -> None:
    excluded = request(exclude=["host/r0"])
    busy = seen("host/r1", load=Load(running=4))
    assert place(excluded, [seen(), busy], 0.0, random.Random(0)) == Blocked(Reason.BUSY)
    assert place(excluded, [seen()], 0.0, random.Random(0)) == Blocked(Reason.EXCLUDED)
    assert place(request(), [], 0.0, random.Random(0)) == Blocked(Reason.UNKNOWN_MODEL)


def test_the_score_is_the_documented_formula() -> None:
    loaded = seen(load=Load(running=2, unprefilled=900))
    scored = score(request(prompt_tokens=100, output_tokens=50), loaded)
    assert scored.ttft_s == pytest.approx((900 + 100) / 10_000)
    assert scored.cost_s == pytest.approx(0.1 + 50 * (0.01 + 0.001 * 3))


def test_the_less_loaded_replica_is_chosen() -> None:
    lighter = seen("host/r1", load=Load(running=1, unprefilled=100))
    heavier = seen("host/r0", load=Load(running=1, unprefilled=50_000))
    for seed in range(20):
        choice = place(request(), [heavier, lighter], 0.0, random.Random(seed))
        assert isinstance(choice, Choice)
        assert choice.replica is lighter


def test_near_ties_are_shared_evenly() -> None:
    rng = random.Random(0)
    pool = [seen(f"host/r{n}") for n in range(4)]
    counts = Counter(place(request(), pool, 0.0, rng).replica.status.replica_id for _ in range(4000))
    assert all(900 < count < 1100 for count in counts.values())


def test_a_cached_prefix_draws_a_request_though_the_replica_is_busier() -> None:
    warm = seen("host/warm", slots=100, load=Load(running=2))
    warm.prefix.remember([1, 2, 3, 4, 5], 1000)
    cold = seen("host/cold", slots=100)
    again = request(blocks=[1, 2, 3, 4, 5], prompt_tokens=1000, output_tokens=10)
    choice = place(again, [cold, warm], 0.0, random.Random(0))
    assert isinstance(choice, Choice)
    assert (choice.replica, choice.hit_tokens) == (warm, 1000)


@pytest.mark.parametrize("load", [Load(running=60), Load(running=2, unprefilled=30_000)])
def test_a_shared_prefix_does_not_send_everybody_to_one_replica(load: Load) -> None:
    warm = seen("host/warm", slots=100, load=load)
    warm.prefix.remember([1, 2, 3], 300)
    cold = seen("host/cold", slots=100)
    choice = place(request(blocks=[1, 2, 3], prompt_tokens=300), [warm, cold], 0.0, random.Random(0))
    assert isinstance(choice, Choice)
    assert choice.replica is cold


def test_after_a_restart_the_engines_own_count_is_believed() -> None:
    fresh = seen(running=3, waiting=1)
    fresh.beats = 1
    assert obstacle(request(), fresh, 0.0) is Reason.BUSY
    fresh.beats = 3
    assert obstacle(request(), fresh, 0.0) is None
