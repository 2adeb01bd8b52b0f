"""What holds for a request that no replica can take now: it waits for a replica that wakes, starts or is created."""

from collections.abc import Iterable

from scheduler.core.policy import Blocked, Reason
from scheduler.core.replica import Replica
from scheduler.core.waking import Waker
from scheduler.wire import PlaceRequest

_NONE_COMES = (Reason.NOT_WARM, Reason.ELSEWHERE, Reason.UNKNOWN_MODEL)
"""Reasons that a host in creation undoes."""


def blocked(
    waker: Waker | None, request: PlaceRequest, found: Blocked, replicas: Iterable[Replica]
) -> Blocked:
    """`found`, with what wakes or is created taken into account; a request that waits for a wake is noted.

    `replicas`: those of its model.
    """
    if waker is None:
        return Blocked(Reason.NOT_WARM) if found.reason is Reason.ASLEEP else found
    if found.reason is Reason.STARTING:
        if waker.allowed(request.model):
            waker.want(request)
        return found
    if found.reason is Reason.ASLEEP and waker.wakes_for(request, replicas):
        waker.want(request)
        return found
    if found.reason is Reason.ASLEEP:
        found = Blocked(Reason.NOT_WARM)
    return Blocked(Reason.STARTING) if found.reason in _NONE_COMES and waker.arrives(request) else found
