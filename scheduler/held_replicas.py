"""Replicas that no command of the plan wakes, so that the plan looks for others. Pure."""

from collections.abc import Callable, Iterable

from workers.wire import ReplicaState, ReplicaStatus

FAILING_S = 180.0
"""Seconds for which an engine that fails may try to start again until the plan looks for another replica."""


class HeldReplicas:
    """Tells which replicas are held, and since when engines fail. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._failing: dict[str, float] = {}
        """By replica: since when its engine has failed without having served again."""

    def is_held(self, status: ReplicaStatus, now: float, drained_by_person: Callable[[str], bool]) -> bool:
        """Whether a person drains the replica, or its engine is unfit or goes on failing."""
        name = status.replica_id
        match status.state:
            case ReplicaState.DRAINING:  # in other phases it is on its way to rest
                return status.phase in ("", "draining") and drained_by_person(name)
            case ReplicaState.FAILED:
                since = self._failing.setdefault(name, now)
                return status.phase == "unfit" or now - since >= FAILING_S
            case ReplicaState.LOADING:  # perhaps between two failures
                return False
        self._failing.pop(name, None)
        return False

    def keep(self, known: Iterable[str]) -> None:
        """Keep what is known of these replicas only."""
        names = set(known)
        self._failing = {name: since for name, since in self._failing.items() if name in names}
