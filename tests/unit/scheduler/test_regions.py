"""Requests that have to run in a region, or on a class of GPU."""

import random
from collections import Counter

import msgspec
import pytest

from scheduler.core.decisions import Placed, Rejection
from scheduler.core.flow import QueuedRequest
from scheduler.core.hold import Hold
from scheduler.core.policy import Blocked, Choice, Reason, place_vectorised
from scheduler.core.rules import AdmissionRules, QueueRules, SchedulerConfig
from scheduler.core.serving import Skipped
from scheduler.core.state import SchedulerState
from scheduler.core.where import Tries, Where
from scheduler.fallback import choose, place_in_turn
from scheduler.wire import PlaceRequest, PoolSnapshot, Released
from tests.support.scheduling import MODEL, beat, capacity, replica, request
from workers.wire import ReplicaStatus

EAST, WEST = "nyc2", "sfo3"


def there(name: str, region: str, gpu: str = "B300", slots: int = 4) -> ReplicaStatus:
    return msgspec.structs.replace(replica(name, slots=slots), region=region, gpu=gpu)


class Pool:
    """A scheduler with some replicas, to which requests are submitted one by one."""

    def __init__(self, *statuses: ReplicaStatus, config: SchedulerConfig | None = None) -> None:
        config = config or SchedulerConfig(admission=AdmissionRules(enabled=False))
        self.state = SchedulerState("epoch-1", 0.0, grace_s=0.0, config=config)
        self.state.heartbeat(beat(*statuses), 0.0)
        self.rng = random.Random(1)
        self.placed: dict[str, str] = {}
        self.refused: dict[str, str] = {}

    def submit(self, *asked: PlaceRequest) -> None:
        for each in asked:
            self.state.submit("api", each, 0.0)
        self.dispatch()

    def dispatch(self) -> None:
        while True:
            for decision in self.state.dispatch(0.0, self.rng):
                match decision:
                    case Placed(_, placement):
                        self.placed[placement.request_id] = placement.replica_id
                    case Rejection(_, _, refusal):
                        self.refused[refusal.request_id] = refusal.reason
            if not self.state.unfinished:
                return

    def end(self, name: str) -> None:
        self.state.release("api", Released(name, self.placed[name], 100, 0, 50), 0.0)
        self.dispatch()


@pytest.mark.parametrize("replicas", [2, 40])
@pytest.mark.parametrize(
    ("regions", "gpus", "able"),
    [
        ((), (), {"east", "west"}),
        ((EAST,), (), {"east"}),
        ((EAST, WEST), (), {"east", "west"}),
        ((), ("h200",), {"west"}),
        ((WEST,), ("h200", "b300"), {"west"}),
        ((EAST,), ("h200",), set()),
        (("fra1",), (), set()),
    ],
)
def test_a_request_runs_where_it_may(
    replicas: int, regions: tuple[str, ...], gpus: tuple[str, ...], able: set[str]
) -> None:
    statuses = [there(f"east/r{n}", "NYC2") for n in range(replicas // 2)]
    statuses += [there(f"west/r{n}", WEST, "H200") for n in range(replicas // 2)]
    fleet = Pool(*statuses).state.fleet
    wanted = request(regions=regions, gpus=gpus)
    for seed in range(20):
        for verdict in (
            fleet.place(wanted, 0.0, random.Random(seed)),
            place_vectorised(wanted, fleet._pools[MODEL], 0.0, random.Random(seed)),
        ):
            if able:
                assert isinstance(verdict, Choice)
                assert verdict.replica.engine.replica_id.split("/")[0] in able
            else:
                assert verdict == Blocked(Reason.ELSEWHERE)


def test_a_region_without_a_replica_refuses_at_once_even_when_the_pool_is_full() -> None:
    pool = Pool(there("east/r0", EAST, slots=1))
    pool.submit(request("first"), request("second"), request("elsewhere", regions=("fra1",), gpus=("h100",)))
    assert pool.placed == {"first": "east/r0"}
    assert pool.refused == {"elsewhere": "no_replica_in_region"}


def test_the_refusal_names_the_region() -> None:
    state = Pool(there("east/r0", EAST)).state
    state.submit("api", request("r", regions=("fra1",), gpus=("h100", "h200")), 0.0)
    [rejection] = state.dispatch(0.0, random.Random(0))
    assert rejection.refusal.status == 503
    assert "no host in fra1 with h100 or h200 serves model" in rejection.refusal.message


def test_a_full_region_holds_no_request_for_the_others_up() -> None:
    """A hundred requests wait for the east; each place that others need is found all the same."""
    pool = Pool(there("east/r0", EAST, slots=1), there("west/r0", WEST, slots=64))
    pool.submit(*(request(f"east-{n}", f"t{n % 5}", regions=(EAST,)) for n in range(100)))
    assert len(pool.placed) == 1
    pool.submit(*(request(f"any-{n}", f"t{n % 5}") for n in range(30)))
    assert sum(name.startswith("any") for name in pool.placed) == 30
    pool.submit(*(request(f"west-{n}", "late", regions=(WEST,)) for n in range(10)))
    assert sum(name.startswith("west") for name in pool.placed) == 10


def test_those_that_wait_for_a_region_get_it_in_fair_order() -> None:
    pool = Pool(there("east/r0", EAST, slots=1), there("west/r0", WEST, slots=1))
    pool.submit(request("other", "z"), request("other-2", "z"))
    pool.submit(
        *(request(f"a{n}", "a", regions=(EAST,)) for n in range(3)),
        *(request(f"b{n}", "b", regions=(EAST,)) for n in range(3)),
    )
    [in_east] = [name for name, where in pool.placed.items() if where == "east/r0"]
    order = []
    for _ in range(6):
        pool.end(in_east)
        [in_east] = [
            name
            for name, where in pool.placed.items()
            if where == "east/r0" and name not in (*order, "other", "other-2")
        ]
        order.append(in_east)
    assert {frozenset(name[0] for name in order[n : n + 2]) for n in (0, 2, 4)} == {frozenset("ab")}


@pytest.mark.parametrize("odd", [1, 9, 60])
def test_names_that_no_replica_has_starve_no_one_else(odd: int) -> None:
    """Sets of names that come to the same places are one set; other sets are tried whatever these do."""
    pool = Pool(there("east/r0", EAST, slots=1), there("west/r0", WEST, slots=64))
    pool.submit(request("first", regions=(EAST,)))
    pool.submit(*(request(f"odd-{n}", f"t{n % 3}", regions=(EAST, f"fra{n}")) for n in range(odd)))
    pool.submit(*(request(f"any-{n}", "plain") for n in range(20)))
    pool.submit(*(request(f"west-{n}", "bound", regions=(WEST,)) for n in range(20)))
    assert sum(name.startswith(("any", "west")) for name in pool.placed) == 40
    assert not any(name.startswith("odd") for name in pool.placed)


def test_no_more_requests_are_looked_at_however_many_wait_for_a_full_region(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: Counter[int] = Counter()
    contains = Skipped.__contains__

    def counted(self: Skipped, queued: object) -> bool:
        looked[waiting] += 1
        return contains(self, queued)

    monkeypatch.setattr(Skipped, "__contains__", counted)
    for waiting in (50, 2_000):
        pool = Pool(there("east/r0", EAST, slots=1), there("west/r0", WEST, slots=64))
        pool.submit(*(request(f"east-{n}", "t", regions=(EAST,)) for n in range(waiting)))
        looked[waiting] = 0
        pool.submit(request("any", "t"))
        assert "any" in pool.placed
    assert looked[2_000] == looked[50] > 0


def test_a_tenant_that_waits_for_a_full_region_gives_new_ones_no_head_start() -> None:
    pool = Pool(there("east/r0", EAST, slots=1), there("west/r0", WEST, slots=1))
    pool.submit(request("r0", "patient", regions=(EAST,)), request("r1", "patient", regions=(EAST,)))
    for number in range(20):
        pool.submit(request(f"a{number}", "busy", prompt_tokens=1_000))
    for number in range(10):
        pool.end(f"a{number}")
    [flow] = [flow for flow in pool.state.queues[MODEL].queue.bands[1] if flow.name == "busy"]
    pool.submit(request("b0", "new"))
    [new] = [flow for flow in pool.state.queues[MODEL].queue.bands[1] if flow.name == "new"]
    assert flow.counter > 3_000
    assert new.counter >= flow.counter


def test_replicas_in_new_places_take_what_waits_for_them_and_lost_places_refuse() -> None:
    pool = Pool(there("east/r0", EAST, slots=1), there("west/r0", WEST, slots=1))
    pool.submit(request("first"), request("second"))
    pool.submit(request("third", regions=(EAST, "fra1")), request("fourth", regions=(WEST,)))
    assert len(pool.placed) == 2
    pool.state.heartbeat(beat(there("fra/r0", "fra1"), agent="agent-2"), 0.0)
    pool.dispatch()
    assert pool.placed["third"] == "fra/r0"
    pool.state.heartbeat(beat(there("east/r0", EAST, slots=1)), 0.0)
    pool.dispatch()
    assert pool.refused == {"fourth": "no_replica_in_region"}


def test_a_host_that_reports_another_region_takes_its_requests() -> None:
    pool = Pool(there("east/r0", EAST, slots=1))
    pool.submit(request("first"))
    pool.submit(request("second", regions=(EAST,)))
    pool.state.heartbeat(beat(there("east/r0", WEST, slots=1)), 0.0)
    pool.dispatch()
    assert pool.refused == {"second": "no_replica_in_region"}


def test_a_request_too_large_for_its_region_is_refused_at_once() -> None:
    small = msgspec.structs.replace(there("east/r0", EAST), capacity=capacity(4, 10_000))
    pool = Pool(small, there("west/r0", WEST))
    pool.submit(request("first", regions=(EAST,)))
    pool.submit(request("large", prompt_tokens=50_000, regions=(EAST,)))
    assert pool.refused == {"large": "larger_than_kv_cache"}


def test_full_places_are_tried_again_from_time_to_time_so_that_they_are_woken() -> None:
    east: frozenset[tuple[str, str, str]] = frozenset({(EAST, "b300", "")})
    looked: dict[Where, float] = {}
    tries = Tries(frozenset(), looked, 3, 10.0)
    assert not tries.over(east)
    tries.add(east)
    assert tries.over(east)
    assert Tries(frozenset(), looked, 3, 10.4).over(east)
    assert not Tries(frozenset(), looked, 3, 10.6).over(east)
    assert not Tries({(EAST, "b300", "")}, looked, 3, 10.1).over(east), "a replica has room"


def test_a_full_region_refuses_no_arrival_for_the_others() -> None:
    """With admission on: what waits for the region is not ahead of what may run elsewhere."""
    config = SchedulerConfig()
    pool = Pool(there("east/r0", EAST, slots=1), there("west/r0", WEST, slots=64), config=config)
    pool.submit(*(request(f"east-{n}", f"t{n % 5}", 5.0, regions=(EAST,)) for n in range(40)))
    pool.submit(*(request(f"any-{n}", f"u{n % 5}", 5.0) for n in range(20)))
    assert sum(name.startswith("any") for name in pool.placed) == 20
    assert not any(name.startswith("any") for name in pool.refused)


def test_requests_are_held_back_for_one_that_may_run_anywhere_alone() -> None:
    rules = QueueRules()
    skipped, hold = Skipped(Tries(frozenset(), {}, 3, 0.0)), Hold(rules)
    bound, free = (
        QueuedRequest("api", request(), 0.0, 9.0, 1, where=where, passed=1_000, passed_work=1e9)
        for where in (frozenset({(EAST, "b300", "")}), None)
    )
    skipped.add(bound)
    assert skipped.first is None
    skipped.add(free)
    assert skipped.first is free
    assert (hold.due(bound, 1.0), hold.due(free, 1.0)) == (False, True)


def test_without_the_scheduler_the_restriction_holds_too() -> None:
    snapshot = PoolSnapshot(replicas=[there("east/r0", EAST), there("west/r0", WEST, "H200")])
    for seed in range(10):
        placement = choose(request(regions=(WEST,)), snapshot, {}, random.Random(seed))
        assert placement is not None
        assert (placement.replica_id, placement.region, placement.gpu) == ("west/r0", WEST, "H200")
    assert choose(request(regions=("fra1",)), snapshot, {}, random.Random(0)) is None


def test_without_the_scheduler_a_full_region_ends_no_turn() -> None:
    placed: list[str] = []

    def place(one: PlaceRequest) -> bool:
        return not one.regions and not placed.append(one.tenant_id)

    place_in_turn([request(tenant="a", regions=(EAST,)), request(tenant="b")], [], place)
    assert placed == ["b"]


def test_a_placement_says_where_it_is() -> None:
    state = Pool(there("east/r0", EAST)).state
    state.submit("api", request("r"), 0.0)
    [placed] = state.dispatch(0.0, random.Random(0))
    assert (placed.placement.region, placed.placement.gpu) == (EAST, "B300")
