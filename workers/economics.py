"""Accounts for a host's time: each whole second counts for one state of the host, and for its models by share.

Pure: the caller passes the time. Totals are cumulative whole seconds, so they add up exactly.
"""

from fractions import Fraction

import msgspec

from workers.wire import ReplicaState

SERVING, WARM_IDLE, LOADING, ASLEEP, DRAINING = "serving", "warm_idle", "loading", "asleep", "draining"
_PRECEDENCE = (SERVING, DRAINING, LOADING, WARM_IDLE, ASLEEP)
"""The state of a host with several replicas is the first of these that one of them is in."""


class ReplicaShare(msgspec.Struct, frozen=True):
    """State and share of one replica in the last interval."""

    model: str
    state: ReplicaState
    busy: bool
    """Whether requests were running or waiting, or tokens were produced."""
    share: Fraction
    """Its share of the host's GPUs, 0 to 1; replicas of a host without GPUs have equal shares."""


def economic_state(state: ReplicaState, busy: bool) -> str:
    """The accounting state of a replica: a failed one counts as loading, a stopped one as warm and idle."""
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
    """Cumulative seconds of one run of an agent."""

    def __init__(self, now: float) -> None:
        """`now` is in seconds of a monotonic clock."""
        self._start = now
        self._counted = 0
        self._host: dict[str, int] = {}
        self._models: dict[tuple[str, str], Fraction] = {}

    def tick(self, now: float, replicas: list[ReplicaShare]) -> None:
        """Add the whole seconds since the last tick to the states of `replicas`."""
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
        """Whole seconds by state; their sum is the whole seconds since the start."""
        return dict(self._host)

    @property
    def model_seconds(self) -> dict[str, dict[str, int]]:
        """Seconds by model and state, weighted by share and rounded down."""
        found: dict[str, dict[str, int]] = {}
        for (model, state), seconds in self._models.items():
            found.setdefault(model, {})[state] = int(seconds)
        return found
