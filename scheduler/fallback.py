"""Placement without the scheduler: power of two choices on the last snapshot, under a local cap."""

from collections.abc import Mapping

from scheduler.core.policy import Rng
from scheduler.wire import Placement, PlaceRequest, PoolSnapshot
from workers.wire import ReplicaState, ReplicaStatus

LOCAL_CAP = 8
"""Most requests that one process places on a replica without the scheduler."""
LOCAL_CAP_SHARE = 0.25
"""The same as a share of the replica's slots, because other processes place requests independently."""


def local_cap(replica: ReplicaStatus) -> int:
    """Requests that this process may place on `replica` without the scheduler."""
    return max(1, min(LOCAL_CAP, int(replica.capacity.max_num_seqs * LOCAL_CAP_SHARE)))


def choose(
    request: PlaceRequest, snapshot: PoolSnapshot, running: Mapping[str, int], rng: Rng
) -> Placement | None:
    """The less loaded of two random ready replicas under their local cap; None when there is none.

    `running` counts this process's placements by replica.
    """
    able = [
        replica
        for replica in snapshot.replicas
        if replica.model == request.model
        and replica.state is ReplicaState.READY
        and replica.replica_id not in request.exclude
        and running.get(replica.replica_id, 0) < local_cap(replica)
    ]
    if not able:
        return None
    first = able.pop(rng.randrange(len(able)))
    second = able[rng.randrange(len(able))] if able else first
    chosen = min(first, second, key=lambda replica: _load(replica, running))
    return Placement(
        request.request_id,
        "",
        chosen.replica_id,
        chosen.url,
        chosen.model,
        chosen.boot_id,
        chosen.simulated,
        stream_interval=chosen.stream_interval,
    )


def _load(replica: ReplicaStatus, running: Mapping[str, int]) -> float:
    count = running.get(replica.replica_id, 0) + replica.running + replica.waiting
    return count / max(1, replica.capacity.max_num_seqs)
