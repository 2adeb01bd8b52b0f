"""Placement without the scheduler: power of two choices on the last snapshot, under a local cap, in fair order."""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping

from scheduler.core.policy import Rng
from scheduler.core.rules import band_index
from scheduler.wire import Placement, PlaceRequest, PoolSnapshot
from workers.ranks import rank_id
from workers.wire import ReplicaState, ReplicaStatus

LOCAL_CAP = 8
"""Most requests that one process places on a replica without the scheduler, beyond those that it had there."""
LOCAL_CAP_SHARE = 0.25
"""The same as a share of the replica's slots, because other processes place requests independently."""


def local_cap(replica: ReplicaStatus) -> int:
    """Requests that this process may place on `replica` without the scheduler, beyond those that it had there."""
    return max(1, min(LOCAL_CAP, int(replica.capacity.max_num_seqs * LOCAL_CAP_SHARE)))


def choose(
    request: PlaceRequest, snapshot: PoolSnapshot, added: Mapping[str, int], rng: Rng
) -> Placement | None:
    """The less loaded of two random ready replicas under their local cap; None when there is none.

    `added` is by how much this process's placements on a replica, and on each rank by `rank_id`, have grown since the
    scheduler was lost; less than 0 when more have ended than begun. What it had then is part of the load in `snapshot`,
    and leaves the cap alone.
    """
    able = [
        replica
        for replica in snapshot.replicas
        if replica.model == request.model
        and replica.state is ReplicaState.READY
        and replica.replica_id not in request.exclude
        and request.allows(replica.region, replica.gpu, adapters=replica.max_adapters > 0)
        and added.get(replica.replica_id, 0) < local_cap(replica)
    ]
    if not able:
        return None
    first = able.pop(rng.randrange(len(able)))
    second = able[rng.randrange(len(able))] if able else first
    chosen = min(first, second, key=lambda replica: _load(replica, added))
    return Placement(
        request.request_id,
        "",
        chosen.replica_id,
        chosen.url,
        chosen.model,
        chosen.boot_id,
        chosen.simulated,
        stream_interval=chosen.stream_interval,
        priority=band_index(request.tier) if chosen.capacity.by_priority else None,
        rank=_rank_of(chosen, added, rng),
        region=chosen.region,
        gpu=chosen.gpu,
        counts_ids=chosen.counts_ids,
    )


def _rank_of(replica: ReplicaStatus, added: Mapping[str, int], rng: Rng) -> int | None:
    """The less loaded of two random ranks of a replica; None when it has none."""
    ranks = replica.ranks
    if not ranks:
        return None
    numbers = list(range(len(ranks)))
    first = numbers.pop(rng.randrange(len(numbers)))
    second = numbers[rng.randrange(len(numbers))] if numbers else first
    own = {number: added.get(rank_id(replica.replica_id, number), 0) for number in (first, second)}
    return min(own, key=lambda number: ranks[number].running + ranks[number].waiting + own[number])


def _load(replica: ReplicaStatus, added: Mapping[str, int]) -> float:
    count = added.get(replica.replica_id, 0) + replica.running + replica.waiting
    return count / max(1, replica.capacity.max_num_seqs)


def place_in_turn(
    waiting: Iterable[PlaceRequest], held: Iterable[PlaceRequest], place: Callable[[PlaceRequest], bool]
) -> None:
    """Call `place` for requests of `waiting`, which is ordered by age, until it returns False for want of room.

    Tiers are strict. Inside one, the tenant with the fewest requests of this process in progress (those of `held`), in
    proportion to its weight, goes first, then the oldest request. Requests that may use only some replicas end no turn.
    """
    running = Counter((request.model, request.tier, request.tenant_id) for request in held)
    queues: dict[str, dict[tuple[int, str], dict[str, deque[PlaceRequest]]]] = {}
    for request in waiting:
        tiers = queues.setdefault(request.model, {})
        tenants = tiers.setdefault((band_index(request.tier), request.tier), {})
        tenants.setdefault(request.tenant_id, deque()).append(request)
    for model, tiers in queues.items():
        for (_, tier), tenants in sorted(tiers.items()):
            counts = {tenant: running[model, tier, tenant] for tenant in tenants}
            if not _place_tenants(tenants, counts, place):
                break


def _place_tenants(
    tenants: Mapping[str, deque[PlaceRequest]], running: dict[str, int], place: Callable[[PlaceRequest], bool]
) -> bool:
    """Place requests of one model and tier; returns False when there is no more room."""
    order = {tenant: number for number, tenant in enumerate(tenants)}
    turns = [(running[tenant] / queue[0].weight, order[tenant], tenant) for tenant, queue in tenants.items()]
    heapq.heapify(turns)
    while turns:
        _, _, tenant = turns[0]
        request = tenants[tenant].popleft()
        if place(request):
            running[tenant] += 1
        elif not request.narrowed:
            return False
        if tenants[tenant]:
            weight = tenants[tenant][0].weight
            heapq.heapreplace(turns, (running[tenant] / weight, order[tenant], tenant))
        else:
            heapq.heappop(turns)
    return True
