"""Placing without the scheduler."""

import random
from collections import Counter

from scheduler.fallback import choose, local_cap
from scheduler.wire import PoolSnapshot
from tests.support.scheduling import replica, request
from workers.wire import ReplicaState


def test_only_ready_replicas_of_the_model_under_their_cap_are_chosen() -> None:
    snapshot = PoolSnapshot(
        replicas=[
            replica("h/asleep", state=ReplicaState.ASLEEP),
            replica("h/failed", state=ReplicaState.FAILED),
            replica("h/other", model="another"),
            replica("h/full", slots=8),
            replica("h/tried"),
            replica("h/good"),
        ]
    )
    running = {"h/full": 2}
    for seed in range(20):
        placement = choose(request(exclude=["h/tried"]), snapshot, running, random.Random(seed))
        assert placement is not None
        assert (placement.replica_id, placement.epoch) == ("h/good", "")
    assert choose(request(), PoolSnapshot(), {}, random.Random(0)) is None


def test_the_less_loaded_of_two_is_taken() -> None:
    busy, idle = replica("h/busy", slots=100, running=50), replica("h/idle", slots=100)
    snapshot = PoolSnapshot(replicas=[busy, idle])
    chosen = {choose(request(), snapshot, {}, random.Random(seed)).replica_id for seed in range(20)}
    assert chosen == {"h/idle"}


def test_load_spreads_over_many_replicas() -> None:
    snapshot = PoolSnapshot(replicas=[replica(f"h/{n}", slots=100) for n in range(10)])
    rng, running = random.Random(0), Counter()
    while (placement := choose(request(), snapshot, running, rng)) is not None:
        running[placement.replica_id] += 1
        assert max(running.values()) - min(running[f"h/{n}"] for n in range(10)) <= 4
    assert set(running.values()) == {8}


def test_even_a_small_replica_may_be_used() -> None:
    assert local_cap(replica(slots=1)) == 1
    assert local_cap(replica(slots=16)) == 4
    assert local_cap(replica(slots=512)) == 8
