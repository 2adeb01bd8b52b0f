"""Requests with a LoRA adapter go where it is loaded, and never to engines that take none."""

import random

import msgspec
import pytest

from scheduler.core.decisions import Placed, Rejection
from scheduler.core.state import SchedulerState
from scheduler.fallback import choose
from scheduler.wire import PoolSnapshot
from tests.support.scheduling import MODEL, beat, replica, request
from workers.wire import ReplicaStatus

NAME = f"{MODEL}:support:abc"


def there(name: str, *adapters: str, most: int = 4, slots: int = 8) -> ReplicaStatus:
    return msgspec.structs.replace(replica(name, slots=slots), max_adapters=most, adapters=list(adapters))


def ask(*statuses: ReplicaStatus, times: int = 1, adapter: str = NAME) -> tuple[list[str], list[str]]:
    """Where requests went, and why others were refused."""
    state = SchedulerState("epoch-1", 0.0, grace_s=0.0)
    state.heartbeat(beat(*statuses), 0.0)
    for number in range(times):
        state.submit("api", request(f"r{number}", adapter=adapter), 0.0)
    placed, refused = [], []
    for decision in state.dispatch(0.0, random.Random(1)):
        match decision:
            case Placed(_, placement):
                placed.append(placement.replica_id)
            case Rejection(_, _, refusal):
                refused.append(refusal.message)
    return placed, refused


def test_it_goes_where_the_adapter_is_loaded() -> None:
    replicas = [there(f"r{n}") for n in range(12)]
    replicas[7] = there("r7", NAME)
    assert ask(*replicas, times=3)[0] == ["r7"] * 3
    assert set(ask(there("a"), there("b", NAME), times=3)[0]) == {"b"}


def test_it_goes_elsewhere_when_that_replica_is_full() -> None:
    placed, _ = ask(there("a"), there("b", NAME, slots=2), times=3)
    assert sorted(placed) == ["a", "b", "b"]


def test_an_engine_that_takes_none_is_no_candidate() -> None:
    assert ask(there("a", most=0), there("b"), times=4)[0] == ["b"] * 4
    placed, refused = ask(there("a", most=0))
    assert placed == []
    assert refused == [f"no host that takes adapters serves model {MODEL} now; others do"]
    assert ask(there("a", most=0), adapter="")[0] == ["a"]


@pytest.mark.parametrize("adapter", [NAME, ""])
def test_without_a_scheduler_the_same_holds(adapter: str) -> None:
    snapshot = PoolSnapshot(replicas=[there("a", most=0)])
    found = choose(request("r", adapter=adapter), snapshot, {}, random.Random(1))
    assert (found is None) == bool(adapter)
