"""Scaling down: which replicas can be removed, and which lose least with their caches."""

from collections.abc import Sequence

import msgspec

from scheduler.core.autoscale.capacity import Load, Margins, shortfall
from scheduler.core.autoscale.floors import Floor, keeps
from scheduler.core.autoscale.state import ReplicaObservation
from workers.wire import Capacity, Targets

REUSE_S = 600.0
"""Seconds for which a cache is assumed to stay useful."""


def retire_order(replicas: Sequence[ReplicaObservation], capacity: Capacity) -> list[ReplicaObservation]:
    """Replicas in the order of removal: the one whose cache saves least prefill first.

    Ties: replicas that do not serve yet, then the least busy, then by name, so that equal observations give equal
    orders.
    """

    def worth(replica: ReplicaObservation) -> tuple[float, bool, int, str]:
        saved = replica.cache.seconds_saved(capacity.prefill_tokens_per_s, REUSE_S)
        return saved, replica.ready_in_s <= 0.0, replica.running, replica.replica_id

    return sorted(replicas, key=worth)


def after_removal(load: Load, gone: Sequence[ReplicaObservation]) -> Load:
    """The load without the caches of `gone`: their hits have to be prefilled."""
    if load.rate <= 0.0:
        return load
    lost = sum(replica.cache.hit_tokens_per_s for replica in gone) / load.rate
    return msgspec.structs.replace(load, uncached=min(load.prompt, load.uncached + lost))


def _is_replaced(replica: ReplicaObservation, left: Sequence[ReplicaObservation], at_least: int) -> bool:
    """Whether `at_least` of the others in `left` serve, or the replica does not: one that a floor needs may only be on
    its way."""
    serving = sum(other.ready_in_s <= 0.0 for other in left)
    return replica.ready_in_s > 0.0 or serving > at_least


def removable(
    load: Load,
    awake: Sequence[ReplicaObservation],
    at_least: int,
    capacity: Capacity,
    targets: Targets,
    margins: Margins,
    floors: Sequence[Floor] = (),
) -> list[ReplicaObservation]:
    """Replicas that can be removed with all margins and `floors` kept, down to `at_least`, in the order of removal."""
    order = retire_order(awake, capacity)
    left, gone = list(order), list[ReplicaObservation]()
    for replica in order:
        if len(left) <= at_least:
            break
        if floors and not (keeps(floors, left, replica) and _is_replaced(replica, left, at_least)):
            continue
        trial = [*gone, replica]
        if shortfall(after_removal(load, trial), len(order) - len(trial), capacity, targets, margins):
            break
        gone = trial
        left.remove(replica)
    return gone
