"""The life of a replica as a state machine: its phases, the events that change them, and the times that stages take.

Pure: the caller passes the time. `workers.replica.ReplicaRunner` does what a phase means and fires the events; a fire
that the table does not allow raises Conflict and changes nothing.

    LOADING -> PREFETCHING -> LOADING
    LOADING -> WARMING_UP -> PROBING -> READY -> SETTLING -> FALLING_ASLEEP -> ASLEEP_1 | ASLEEP_2
    READY -> DRAINING -> READY
    ASLEEP_1 | ASLEEP_2 -> WAKING -> READY         a wake that is not proved -> FAILED
    any phase -> STOPPING -> STOPPED -> LOADING    any phase that is to serve -> FAILED -> LOADING
"""

from enum import StrEnum

import msgspec

from core.errors import Conflict
from workers.wire import LifeTimes, ReplicaState, StageTime

MEAN_WEIGHT = 0.3
"""Weight of the newest observation in the mean of a stage's times."""


class Phase(StrEnum):
    """What a replica does now."""

    LOADING = "loading"
    """The engine's process starts and reads its weights."""
    PREFETCHING = "prefetching"
    """Its weights are downloaded to this host and checked; there is no process of the engine yet."""
    WARMING_UP = "warming_up"
    PROBING = "probing"
    """Its speed is measured, and the answer is kept that proves later wakes."""
    READY = "ready"
    DRAINING = "draining"
    """It finishes its requests and gets no new ones."""
    SETTLING = "settling"
    """As DRAINING, and then it sleeps."""
    FALLING_ASLEEP = "falling_asleep"
    ASLEEP_1 = "asleep_1"
    """Weights in host memory, GPU memory free."""
    ASLEEP_2 = "asleep_2"
    """Weights dropped, GPU memory free."""
    WAKING = "waking"
    """Weights return to the GPU, then an answer proves them."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    """No process; a command starts it."""
    FAILED = "failed"
    """No process; it starts again after a backoff."""
    UNFIT = "unfit"
    """The engine ran and must not serve, or its weights cannot be had; a command alone starts it again."""


class Event(StrEnum):
    """What changes a phase."""

    START = "start"
    FETCH = "fetch"
    """The weights are to be on this host before the engine starts."""
    FETCHED = "fetched"
    ANSWERED = "answered"
    """The engine responds for the first time."""
    WARMED = "warmed"
    PROVED = "proved"
    """The engine may serve."""
    ADOPTED = "adopted"
    """An engine of an earlier agent serves."""
    ADOPTED_ASLEEP_1 = "adopted_asleep_1"
    ADOPTED_ASLEEP_2 = "adopted_asleep_2"
    DRAIN = "drain"
    REST = "rest"
    """Finish the requests in order to sleep."""
    IDLE = "idle"
    """No request is left."""
    RESUME = "resume"
    SLEEP = "sleep"
    SLEPT_1 = "slept_1"
    SLEPT_2 = "slept_2"
    NOT_SLEPT = "not_slept"
    """The engine has no sleep mode, and goes on."""
    WAKE = "wake"
    STOP = "stop"
    ENDED = "ended"
    """The process that was stopped is gone."""
    DIED = "died"
    """The process is gone, or is given up."""
    REFUSED = "refused"
    """The checks of the host refuse the engine."""


ASLEEP = {Phase.ASLEEP_1: 1, Phase.ASLEEP_2: 2}
"""The sleeping phases with their levels."""
SLEPT = {1: Event.SLEPT_1, 2: Event.SLEPT_2}
ADOPTED_ASLEEP = {1: Event.ADOPTED_ASLEEP_1, 2: Event.ADOPTED_ASLEEP_2}
CHANGING = frozenset({Phase.FALLING_ASLEEP, Phase.WAKING})
"""Phases in which the weights may be incomplete, and in which the engine must be left alone."""

STARTING = frozenset({Phase.LOADING, Phase.PREFETCHING, Phase.WARMING_UP, Phase.PROBING})
"""Phases of an engine that has not served any request of a customer."""
_ALIVE = frozenset(Phase) - {Phase.STOPPING, Phase.STOPPED, Phase.FAILED, Phase.UNFIT}
"""Phases with a process that should run, or with weights that come for one."""

TRANSITIONS: dict[tuple[Phase, Event], Phase] = {
    (Phase.LOADING, Event.FETCH): Phase.PREFETCHING,
    (Phase.PREFETCHING, Event.FETCHED): Phase.LOADING,
    (Phase.LOADING, Event.ANSWERED): Phase.WARMING_UP,
    (Phase.LOADING, Event.ADOPTED): Phase.READY,
    (Phase.LOADING, Event.ADOPTED_ASLEEP_1): Phase.ASLEEP_1,
    (Phase.LOADING, Event.ADOPTED_ASLEEP_2): Phase.ASLEEP_2,
    (Phase.WARMING_UP, Event.WARMED): Phase.PROBING,
    (Phase.PROBING, Event.PROVED): Phase.READY,
    (Phase.READY, Event.DRAIN): Phase.DRAINING,
    (Phase.READY, Event.RESUME): Phase.READY,
    (Phase.DRAINING, Event.DRAIN): Phase.DRAINING,
    (Phase.DRAINING, Event.IDLE): Phase.DRAINING,
    (Phase.DRAINING, Event.RESUME): Phase.READY,
    **{(phase, Event.REST): Phase.SETTLING for phase in (Phase.READY, Phase.DRAINING, Phase.SETTLING)},
    (Phase.SETTLING, Event.DRAIN): Phase.DRAINING,
    (Phase.SETTLING, Event.IDLE): Phase.SETTLING,
    (Phase.SETTLING, Event.RESUME): Phase.READY,
    (Phase.SETTLING, Event.SLEEP): Phase.FALLING_ASLEEP,
    (Phase.FALLING_ASLEEP, Event.SLEPT_1): Phase.ASLEEP_1,
    (Phase.FALLING_ASLEEP, Event.SLEPT_2): Phase.ASLEEP_2,
    (Phase.FALLING_ASLEEP, Event.NOT_SLEPT): Phase.READY,
    (Phase.ASLEEP_1, Event.WAKE): Phase.WAKING,
    (Phase.ASLEEP_2, Event.WAKE): Phase.WAKING,
    (Phase.WAKING, Event.PROVED): Phase.READY,
    (Phase.WAKING, Event.SLEEP): Phase.FALLING_ASLEEP,  # from level 1 to 2, which no engine does at once
    (Phase.STOPPED, Event.START): Phase.LOADING,
    (Phase.FAILED, Event.START): Phase.LOADING,
    (Phase.UNFIT, Event.START): Phase.LOADING,
    (Phase.FAILED, Event.DIED): Phase.FAILED,
    (Phase.STOPPING, Event.ENDED): Phase.STOPPED,
    **{(phase, Event.STOP): Phase.STOPPING for phase in Phase},
    **{(phase, Event.DIED): Phase.FAILED for phase in _ALIVE},
    **{(phase, Event.REFUSED): Phase.UNFIT for phase in _ALIVE},
}
"""Every allowed change."""

STATES = {
    Phase.LOADING: ReplicaState.LOADING,
    Phase.PREFETCHING: ReplicaState.LOADING,
    Phase.WARMING_UP: ReplicaState.LOADING,
    Phase.PROBING: ReplicaState.LOADING,
    Phase.READY: ReplicaState.READY,
    Phase.DRAINING: ReplicaState.DRAINING,
    Phase.SETTLING: ReplicaState.DRAINING,
    Phase.FALLING_ASLEEP: ReplicaState.DRAINING,
    Phase.ASLEEP_1: ReplicaState.ASLEEP,
    Phase.ASLEEP_2: ReplicaState.ASLEEP,
    Phase.WAKING: ReplicaState.LOADING,
    Phase.STOPPING: ReplicaState.DRAINING,
    Phase.STOPPED: ReplicaState.STOPPED,
    Phase.FAILED: ReplicaState.FAILED,
    Phase.UNFIT: ReplicaState.FAILED,
}
"""What heartbeats say of each phase beside its name: the states that every version of the scheduler knows. Requests
are routed to READY alone."""


class Life:
    """One replica's phase, since when it lasts, and how long its stages took. Times are monotonic seconds."""

    def __init__(self, now: float, *, phase: Phase = Phase.LOADING, times: LifeTimes | None = None) -> None:
        """`times`: what an earlier agent has measured."""
        self.phase = phase
        self.since = now
        self.times = times or LifeTimes()
        self._woken_from = 0
        self._stage: tuple[str, float] | None = ("load", now) if phase is Phase.LOADING else None
        """The stage in progress, a field of LifeTimes, and when it began."""

    @property
    def state(self) -> ReplicaState:
        """The phase as every version of the scheduler knows it."""
        return STATES[self.phase]

    @property
    def sleep_level(self) -> int:
        """1 or 2 while it sleeps or wakes from there, else 0."""
        return self._woken_from if self.phase is Phase.WAKING else ASLEEP.get(self.phase, 0)

    def elapsed(self, now: float) -> float:
        """Seconds of the stage in progress, or else of the phase."""
        return now - (self._stage[1] if self._stage is not None else self.since)

    def may(self, event: Event) -> bool:
        """Whether `event` is allowed now."""
        return (self.phase, event) in TRANSITIONS

    def fire(self, event: Event, now: float) -> None:
        """Change the phase. Raises Conflict when the table does not allow it; nothing changes then."""
        after = TRANSITIONS.get((self.phase, event))
        if after is None:
            raise Conflict(f"a replica that is {self.phase} cannot {event}")
        before, self.phase = self.phase, after
        if before is not after:
            self.since = now
        self._measure(event, before, now)

    def untimed(self) -> None:
        """Record no time for the stage in progress, because its beginning is not known."""
        self._stage = None

    def _measure(self, event: Event, before: Phase, now: float) -> None:
        match event:
            case Event.START:
                self._stage = ("load", now)
            case Event.FETCH:
                self._stage = ("prefetch", now)
            case Event.FETCHED:
                self._record(now)
                self._stage = ("load", now)
            case Event.WAKE:
                self._woken_from = ASLEEP[before]
                self._stage = (f"wake_{self._woken_from}", now)
            case Event.DRAIN | Event.REST:
                if before is Phase.READY:
                    self._stage = ("drain", now)
            case Event.PROVED | Event.IDLE:
                self._record(now)
            case Event.ANSWERED | Event.WARMED:
                pass
            case _:
                self._stage = None

    def _record(self, now: float) -> None:
        if self._stage is None:
            return
        (name, began), self._stage = self._stage, None
        known: StageTime = getattr(self.times, name)
        self.times = msgspec.structs.replace(self.times, **{name: observed(known, max(0.0, now - began))})


def observed(known: StageTime, seconds: float) -> StageTime:
    """The times of a stage after another observation."""
    mean = known.mean_s + MEAN_WEIGHT * (seconds - known.mean_s) if known.count else seconds
    return StageTime(seconds, mean, known.count + 1)
