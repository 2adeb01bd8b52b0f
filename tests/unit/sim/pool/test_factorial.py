"""Placements crossed with queues: each part decides what is its own, and both know of every request."""

from collections.abc import Mapping

import pytest

from sim.pool.baselines.base import Baseline
from sim.pool.baselines.dynamo import QueuedDynamo
from sim.pool.contract import RunResult
from sim.pool.factorial import PUBLISHED_QUEUES, PublishedQueue, WithPublished, crossed
from sim.pool.faults import Kill, KillApiProcess, RestartScheduler
from sim.pool.run import simulate
from sim.pool.settings import RoutingFactory, RoutingSetup, RunConfig
from tests.support.simulated import poisson, pool

CROSSED: Mapping[str, RoutingFactory] = crossed()
BOTH_PARTS = [name for name in CROSSED if name != "ours+engine"]


def play(factory: RoutingFactory, config: RunConfig | None = None) -> tuple[RunResult, WithPublished]:
    made: list[WithPublished] = []

    def kept(setup: RoutingSetup) -> WithPublished:
        routing = factory(setup)
        assert isinstance(routing, WithPublished)
        made.append(routing)
        return routing

    requests = poisson(14, 20, 3, families=4)
    return simulate(kept, requests, pool(3, cold_start_s=8.0), config or RunConfig()), made[0]


def placements(result: RunResult) -> list[tuple[str, float]]:
    return [(record.replica_id, record.dispatched_at) for record in result.records]


@pytest.mark.parametrize("name", BOTH_PARTS)
def test_every_request_has_one_outcome_and_neither_part_keeps_one(name: str) -> None:
    faults = (Kill(6.0, "r1"), RestartScheduler(8.0), KillApiProcess(10.0, 0))
    result, routing = play(CROSSED[name], RunConfig(faults=faults))
    assert all((record.finished_at >= 0) != bool(record.refused) for record in result.records)
    assert {record.refused for record in result.records} <= {"", "api_process_died", "queue_ttl"}
    assert routing.open_requests() == 0
    assert routing._asked == {}
    for router in routing._published.routers.values():
        assert (router.in_flight, sum(map(len, router.waiting.values()))) == ({}, 0)
        assert [endpoint.prefill_tokens for endpoint in router.endpoints.values() if endpoint.requests] == []


class NeverHolds(QueuedDynamo):
    """A queue that lets everything go."""

    def holds(self, *_: object) -> bool:
        return False


@pytest.mark.parametrize("name", PUBLISHED_QUEUES)
def test_behind_a_queue_that_lets_everything_go_our_placement_is_that_without_a_queue(name: str) -> None:
    options = play(CROSSED[f"ours+{name}"])[1]._options
    open_queue, _ = play(lambda setup: PublishedQueue(setup, options, NeverHolds))
    requests = poisson(14, 20, 3, families=4)
    alone = simulate(CROSSED["ours+engine"], requests, pool(3, cold_start_s=8.0), RunConfig())
    assert placements(open_queue) == placements(alone)


def test_what_the_published_queue_holds_is_not_placed() -> None:
    closed_until = 12.0

    class Closed(QueuedDynamo):
        def holds(self, request: object, candidates: object, now: float) -> bool:
            del request, candidates
            return now < closed_until

    options = play(CROSSED["ours+dynamo_queue"])[1]._options
    result, _ = play(lambda setup: PublishedQueue(setup, options, Closed))
    early = [record for record in result.records if record.request.at < closed_until]
    assert early
    assert min(record.dispatched_at for record in early) >= closed_until


def test_the_published_part_counts_what_our_placement_does() -> None:
    counted: list[tuple[str, str]] = []

    class Counting(NeverHolds):
        def routed(self, entry: object, router: object, now: float) -> None:
            super().routed(entry, router, now)  # type: ignore[arg-type]
            counted.append((str(entry.request.key), entry.replica_id))  # type: ignore[attr-defined]

    kind: type[Baseline] = Counting
    options = play(CROSSED["ours+dynamo_queue"])[1]._options
    result, _ = play(lambda setup: PublishedQueue(setup, options, kind))
    last = dict(counted)
    assert last == {str(record.request.key): record.replica_id for record in result.records}
