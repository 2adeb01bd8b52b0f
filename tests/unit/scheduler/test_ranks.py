"""Ranks as targets: each has load, cache and speed of its own, and all of an engine are one replica."""

import random
from collections import Counter

import msgspec
import pytest

from scheduler.core.decisions import Placed, Rejection
from scheduler.core.fleet import Fleet
from scheduler.core.state import SchedulerState
from scheduler.core.warm import WarmPool
from scheduler.fallback import choose
from scheduler.limits import valid_replicas
from scheduler.messages import Announce, AnnouncedPlacement
from scheduler.views import HostRegistry, pool_snapshot
from scheduler.wire import Placement, PlaceRequest, PoolSnapshot, Released
from tests.support.clock import ManualClock
from tests.support.scheduling import MODEL, beat, capacity, replica, request
from workers.ranks import rank_id
from workers.wire import KvDelta, RankStatus, ReplicaState, ReplicaStatus

RANKS = 4
NAMES = [f"host/r0/{rank}" for rank in range(RANKS)]


def engine(name: str = "host/r0", ranks: int = RANKS, **fields: object) -> ReplicaStatus:
    """An engine with four slots a rank."""
    whole = msgspec.structs.replace(capacity(4 * ranks, 400_000), dp_ranks=ranks)
    status = replica(name, capacity=whole, ranks=[RankStatus() for _ in range(ranks)])
    return msgspec.structs.replace(status, **fields)


def state_of(*statuses: ReplicaStatus) -> SchedulerState:
    made = SchedulerState("epoch-1", 0.0, grace_s=0.0)
    for _ in range(3):
        made.heartbeat(beat(*statuses), 0.0)
    return made


def placed(state: SchedulerState, wanted: PlaceRequest, now: float = 0.0) -> Placement:
    state.submit("api", wanted, now)
    (decision,) = state.dispatch(now, random.Random(1))
    assert isinstance(decision, Placed), decision
    return decision.placement


def test_requests_spread_over_ranks_and_carry_theirs() -> None:
    state = state_of(engine())
    placements = [placed(state, request(prompt_tokens=4000)) for _ in range(RANKS)]
    assert {each.rank for each in placements} == set(range(RANKS))
    assert {(each.replica_id, each.url) for each in placements} == {("host/r0", engine().url)}
    assert [state.fleet.replicas[name].running for name in NAMES] == [1] * RANKS
    assert state.active_on("host/r0") == RANKS
    for each in placements:
        state.release("api", Released(each.request_id, each.replica_id, 4000, 0, 5), 1.0)
    assert state.active_on("host/r0") == 0
    assert [state.fleet.replicas[name].running for name in NAMES] == [0] * RANKS
    assert not state.active


def test_a_prompt_returns_to_the_rank_that_holds_it() -> None:
    state = state_of(engine())
    blocks = list(range(100, 140))
    first = placed(state, request(prompt_tokens=8000, blocks=blocks))
    state.prefill_done("api", first.request_id, first.replica_id, 1.0)
    state.release("api", Released(first.request_id, first.replica_id, 8000, 0, 5), 2.0)
    for attempt in range(5):
        state.heartbeat(beat(engine()), 3.0 + attempt)
        again = placed(state, request(prompt_tokens=8000, blocks=blocks), 3.0 + attempt)
        assert (again.rank, again.hit_tokens) == (first.rank, 8000)
        state.release("api", Released(again.request_id, again.replica_id, 8000, 8000, 5), 3.5 + attempt)


def test_a_failed_engine_is_excluded_with_all_its_ranks() -> None:
    state = state_of(engine(), replica("host/r1"))
    for _ in range(6):
        state.heartbeat(beat(engine(), replica("host/r1", slots=40)), 0.0)
        assert placed(state, request(exclude=["host/r0"])).replica_id == "host/r1"
    alone = state_of(engine())
    alone.submit("api", request(exclude=["host/r0"]), 0.0)
    alone.tick()
    (decision,) = alone.dispatch(100.0, random.Random(1))
    assert isinstance(decision, Rejection)


def test_a_drained_engine_takes_nothing_on_any_rank() -> None:
    state = state_of(engine())
    state.expect_state("host/r0", ReplicaState.DRAINING)
    assert {state.fleet.replicas[name].state for name in NAMES} == {ReplicaState.DRAINING}
    state.submit("api", request(), 0.0)
    assert not any(isinstance(each, Placed) for each in state.dispatch(0.0, random.Random(1)))
    assert state.active_on("host/r0") == 0
    state.heartbeat(beat(engine(state=ReplicaState.FAILED)), 0.1)
    assert {state.fleet.replicas[name].state for name in NAMES} == {ReplicaState.FAILED}


def test_all_ranks_of_an_engine_are_one_warm_replica() -> None:
    fleet = Fleet()
    fleet.heartbeat(beat(engine(), replica("host/r1")), 0.0)
    warm = WarmPool(MODEL, fleet, 2.0).at(0.0)
    assert (warm.ready, warm.slots) == (2, 4 * RANKS + 4)
    assert warm.kv_tokens == 400_000 + 100_000
    assert warm.largest_kv_tokens == 100_000


def test_a_snapshot_shows_the_engine_once() -> None:
    state = state_of(engine(running=3), replica("host/r1"))
    shown = pool_snapshot(state, HostRegistry(), 0.1, ManualClock().now()).replicas
    assert [(each.replica_id, each.running, len(each.ranks)) for each in shown] == [
        ("host/r0", 3, RANKS),
        ("host/r1", 0, 0),
    ]
    silent = pool_snapshot(state, HostRegistry(), 60.0, ManualClock().now()).replicas
    assert {each.state for each in silent} == {ReplicaState.FAILED}


def test_an_agent_that_reports_no_ranks_has_one_target() -> None:
    """An older agent, and a newer one that replaces it: nothing of the other kind stays."""
    old = engine(ranks=RANKS)
    old.ranks = []
    state = state_of(old)
    assert list(state.fleet.replicas) == ["host/r0"]
    assert placed(state, request()).rank is None
    state.heartbeat(beat(engine()), 1.0)
    assert sorted(state.fleet.replicas) == NAMES
    state.heartbeat(beat(old), 2.0)
    assert list(state.fleet.replicas) == ["host/r0"]


def test_each_rank_learns_its_own_speed_and_load() -> None:
    ranks = [RankStatus(running=rank, waiting=0, kv_usage=0.1 * rank) for rank in range(RANKS)]
    state = SchedulerState("epoch-1", 0.0, grace_s=0.0)
    state.heartbeat(beat(engine(ranks=RANKS)), 0.0)
    busy = engine()
    busy.ranks = ranks
    state.heartbeat(beat(busy), 0.1)
    assert [state.fleet.replicas[name].running for name in NAMES] == [0, 1, 2, 3]
    meters = {id(state.fleet.replicas[name].meter) for name in NAMES}
    assert len(meters) == RANKS
    slow = state.fleet.replicas[NAMES[2]]
    kept = slow.meter
    state.heartbeat(beat(busy), 0.6)
    assert slow.meter is kept
    state.heartbeat(beat(msgspec.structs.replace(busy, boot_id="boot-2")), 1.1)
    assert slow.meter is not kept


def test_what_is_learnt_of_a_rank_holds_for_the_engines_figures() -> None:
    state = state_of(engine())
    rank = state.fleet.replicas[NAMES[0]]
    assert rank.engine_capacity == engine().capacity
    for turn in range(40):
        now = 10.0 * turn
        state.heartbeat(beat(engine()), now)
        entry = placed(state, request(prompt_tokens=5000), now)
        state.prefill_done("api", entry.request_id, entry.replica_id, now + 5.0)
        state.release("api", Released(entry.request_id, entry.replica_id, 5000, 0, 1), now + 5.0)
    state.heartbeat(beat(engine()), 500.0)
    learnt = [state.fleet.replicas[name].engine_capacity.prefill_tokens_per_s for name in NAMES]
    assert max(learnt) < engine().capacity.prefill_tokens_per_s


def test_events_of_a_cache_are_those_of_one_rank() -> None:
    state = state_of(engine(prefix_kind="tokens"))
    state.fleet.kv_events(KvDelta(NAMES[1], "boot-1", 1, list(range(50)), cleared=True))
    state.fleet.kv_events(KvDelta("host/r0", "boot-1", 1, list(range(50)), cleared=True))
    assert [len(state.fleet.replicas[name].prefix) for name in NAMES] == [0, 50, 0, 0]
    wanted = request(prompt_tokens=50 * 64, blocks=list(range(50)), block_tokens=64)
    assert placed(state, wanted).rank == 1


def test_announced_placements_return_to_their_rank() -> None:
    before = state_of(engine())
    held = placed(before, request(prompt_tokens=500))
    after = state_of(engine())
    announced = AnnouncedPlacement(
        held.request_id, "tenant-1", MODEL, held.replica_id, held.boot_id, 500, 0, 50, rank=held.rank
    )
    after.announce("api", Announce([announced], []), 0.0)
    assert after.fleet.replicas[NAMES[held.rank or 0]].load.running == 1
    after.announce("api", Announce([announced], []), 0.1)
    assert sum(after.fleet.replicas[name].load.running for name in NAMES) == 1
    after.release("api", Released(held.request_id, held.replica_id, 500, 0, 5), 1.0)
    assert sum(after.fleet.replicas[name].load.running for name in NAMES) == 0


def test_without_a_scheduler_a_less_busy_rank_is_chosen() -> None:
    busy = engine()
    busy.ranks = [RankStatus(running=9 * rank) for rank in range(RANKS)]
    found = [choose(request(), PoolSnapshot(replicas=[busy]), {}, random.Random(seed)) for seed in range(200)]
    counts = [sum(each is not None and each.rank == rank for each in found) for rank in range(RANKS)]
    assert sum(counts) == 200
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[3]
    alone = choose(request(), PoolSnapshot(replicas=[replica()]), {}, random.Random(1))
    assert alone is not None
    assert alone.rank is None


def test_without_a_scheduler_own_placements_count_on_their_rank() -> None:
    """The snapshot stands still meanwhile; by it alone a rank that was idle would take most of a burst."""
    shown = engine()
    shown.ranks = [RankStatus(running=6 * rank) for rank in range(RANKS)]
    snapshot, rng, added = PoolSnapshot(replicas=[shown]), random.Random(1), Counter[str]()
    for _ in range(60):
        found = choose(request(), snapshot, added, rng)
        assert found is not None
        added[rank_id(found.replica_id, found.rank or 0)] += 1
    loads = [each.running + added[name] for each, name in zip(shown.ranks, NAMES, strict=True)]
    assert max(loads) - min(loads) <= 4


def test_figures_of_ranks_are_brought_into_range_and_their_number_must_be_right() -> None:
    wild = engine()
    wild.ranks[1] = RankStatus(running=-4, waiting=2**60, kv_usage=float("nan"), kv_blocks=-1)
    (good,), _ = valid_replicas([wild])
    assert good.ranks[1].running == good.ranks[1].kv_blocks == 0
    assert good.ranks[1].kv_usage == 0.0
    assert 0 < good.ranks[1].waiting < 2**60
    wrong = engine()
    wrong.ranks = wrong.ranks[:2]
    assert valid_replicas([wrong]) == ([], ["host/r0"])


@pytest.mark.parametrize("gone", [[], [replica("host/r1")]])
def test_an_engine_that_is_no_longer_listed_leaves_no_rank(gone: list[ReplicaStatus]) -> None:
    state = state_of(engine(), replica("host/r1"))
    state.heartbeat(beat(*gone), 1.0)
    assert sorted(state.fleet.replicas) == [each.replica_id for each in gone]
    assert state.fleet.targets_of("host/r0") == []
