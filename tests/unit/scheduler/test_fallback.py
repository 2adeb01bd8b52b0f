"""Placing without the scheduler."""

import random
from collections import Counter

import msgspec
import pytest

from scheduler.fallback import choose, local_cap, place_in_turn
from scheduler.wire import PlaceRequest, PoolSnapshot
from tests.support.scheduling import replica, request
from workers.wire import RankStatus, ReplicaState


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


def test_what_a_process_had_before_leaves_its_cap_alone() -> None:
    snapshot = PoolSnapshot(replicas=[replica("h/a", slots=64, running=60)])
    assert choose(request(), snapshot, {"h/a": 7}, random.Random(0)) is not None
    assert choose(request(), snapshot, {"h/a": 8}, random.Random(0)) is None
    assert choose(request(), snapshot, {"h/a": -20}, random.Random(0)) is not None


def test_two_ranks_that_are_compared_are_two() -> None:
    idle, busy = RankStatus(), RankStatus(running=60)
    snapshot = PoolSnapshot(replicas=[msgspec.structs.replace(replica("h/a", slots=64), ranks=[busy, idle])])
    chosen = {choose(request(), snapshot, {}, random.Random(seed)).rank for seed in range(50)}
    assert chosen == {1}


def served(waiting: list[PlaceRequest], room: int, held: list[PlaceRequest] | None = None) -> list[str]:
    """Who was placed, in order, when there is room for `room` requests."""
    placed: list[str] = []

    def place(one: PlaceRequest) -> bool:
        if len(placed) == room or one.exclude:
            return False
        placed.append(one.tenant_id)
        return True

    place_in_turn(waiting, held or [], place)
    return placed


def test_tenants_take_turns_by_what_they_run_and_by_weight() -> None:
    many = [request(tenant="a") for _ in range(10)]
    few = [request(tenant="b") for _ in range(3)]
    assert served([*many, *few], 6) == ["a", "b", "a", "b", "a", "b"]
    assert served([*many, *few], 4, held=many[:2]) == ["b", "b", "a", "b"]
    heavy = [request(tenant="c", weight=2.0) for _ in range(10)]
    assert Counter(served([*many, *heavy], 9)) == {"a": 3, "c": 6}


def test_tiers_are_strict_and_a_full_model_stops_no_other() -> None:
    batch = [request(tenant="a", tier="batch") for _ in range(2)]
    urgent = [request(tenant="b", tier="priority") for _ in range(2)]
    assert served([*batch, *urgent], 3) == ["b", "b", "a"]
    other = request(tenant="c", model="another")
    placed: list[str] = []
    place_in_turn(
        [*batch, other], [], lambda one: one.model == "another" and not placed.append(one.tenant_id)
    )
    assert placed == ["c"]


def test_a_request_that_excludes_replicas_stops_nobody() -> None:
    picky = request(tenant="a", exclude=["h/r0"])
    assert served([picky, request(tenant="a"), request(tenant="b")], 5) == ["a", "b"]


@pytest.mark.parametrize(("tier", "priority"), [("priority", 0), ("standard", 1), ("batch", 2), ("other", 1)])
def test_engines_that_order_by_priority_get_the_band(tier: str, priority: int) -> None:
    plain = replica("h/a")
    ordered = msgspec.structs.replace(
        plain, capacity=msgspec.structs.replace(plain.capacity, by_priority=True)
    )
    for status, expected in ((plain, None), (ordered, priority)):
        placement = choose(request(tier=tier), PoolSnapshot(replicas=[status]), {}, random.Random(0))
        assert placement is not None
        assert placement.priority == expected
