"""Which replicas the plan does not wake: those that a person drains, and those whose engines fail."""

import msgspec

from scheduler.held_replicas import FAILING_S, HeldReplicas
from tests.support.scheduling import replica
from workers.wire import ReplicaState


def held(
    known: HeldReplicas, state: ReplicaState, now: float, phase: str = "", *, by_person: bool = True
) -> bool:
    row = msgspec.structs.replace(replica("r"), state=state, phase=phase)
    return known.is_held(row, now, lambda name: by_person)


def test_a_replica_that_a_person_drains_is_held() -> None:
    known = HeldReplicas()
    assert held(known, ReplicaState.DRAINING, 0.0, "draining")
    assert held(known, ReplicaState.DRAINING, 0.0)  # of an older agent
    assert not held(known, ReplicaState.DRAINING, 0.0, "draining", by_person=False)
    assert not held(known, ReplicaState.DRAINING, 0.0, "settling")
    assert not held(known, ReplicaState.STOPPED, 0.0, "stopped")


def test_an_engine_that_goes_on_failing_is_held_until_it_serves() -> None:
    known = HeldReplicas()
    assert held(known, ReplicaState.FAILED, 0.0, "unfit")
    assert not held(known, ReplicaState.FAILED, 1.0, "failed")
    assert not held(known, ReplicaState.LOADING, FAILING_S, "loading")
    assert held(known, ReplicaState.FAILED, FAILING_S, "failed")
    assert not held(known, ReplicaState.READY, FAILING_S, "ready")
    assert not held(known, ReplicaState.FAILED, FAILING_S + 1.0, "failed")
    known.keep([])
    assert not held(known, ReplicaState.FAILED, 3 * FAILING_S, "failed")
