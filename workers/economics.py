"""Where a host's seconds go: every whole second of its life is booked to one state, and to its models by share.

Pure: the caller says what time it is. The totals are cumulative and whole, so they add up exactly (DESIGN §5).
"""

from fractions import Fraction

import msgspec

from workers.wire import ReplicaState

SERVING, WARM_IDLE, LOADING, ASLEEP, DRAINING = "serving", "warm_idle", "loading", "asleep", "draining"
_PRECEDENCE = (SERVING, DRAINING, LOADING, WARM_IDLE, ASLEEP)
"""A host with several replicas is in the busiest of their states."""


class ReplicaShare(msgspec.Struct, frozen=True):
    """What one replica did in the last interval."""

    model: str
    state: ReplicaState
    busy: bool
    """Requests were running or waiting, or tokens came out."""
    share: Fraction
    """Its part of the host, by GPUs; replicas of a host without GPUs share it equally."""


def economic_state(state: ReplicaState, busy: bool) -> str:
    """The state money knows. A failed replica is on its way back (loading); a stopped one leaves its host idle."""
    match state:
        case ReplicaState.READY:
            return SERVING if busy else WARM_IDLE
        case ReplicaState.LOADING | ReplicaState.FAILED:
            return LOADING
        case ReplicaState.DRAINING:
            return DRAINING
        case ReplicaState.ASLEEP:
            return ASLEEP
        case ReplicaState.STOPPED:
            return WARM_IDLE


class HostAccount:
    """Cumulative seconds of one run of the agent's accounting."""

    def __init__(self, now: float) -> None:
        """`now` is on a monotonic clock, in seconds."""
        self._start = now
        self._counted = 0
        self._host: dict[str, int] = {}
        self._models: dict[tuple[str, str], Fraction] = {}

    def tick(self, now: float, replicas: list[ReplicaShare]) -> None:
        """Book the whole seconds since the last tick to the states that `replicas` were in."""
        seconds = int(now - self._start) - self._counted
        if seconds <= 0:
            return
        self._counted += seconds
        states = [economic_state(replica.state, replica.busy) for replica in replicas]
        state = next((candidate for candidate in _PRECEDENCE if candidate in states), WARM_IDLE)
        self._host[state] = self._host.get(state, 0) + seconds
        for replica, own in zip(replicas, states, strict=True):
            key = (replica.model, own)
            self._models[key] = self._models.get(key, Fraction(0)) + replica.share * seconds

    @property
    def state_seconds(self) -> dict[str, int]:
        """Whole seconds by state; they add up to the whole seconds of the host's life."""
        return dict(self._host)

    @property
    def model_seconds(self) -> dict[str, dict[str, int]]:
        """Whole seconds by model and state, weighted by share, rounded down."""
        found: dict[str, dict[str, int]] = {}
        for (model, state), seconds in self._models.items():
            found.setdefault(model, {})[state] = int(seconds)
        return found
