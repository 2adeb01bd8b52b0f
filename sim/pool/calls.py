"""A request under way: its record, and where it stands."""

from dataclasses import dataclass
from enum import Enum, auto

from sim.engine.step_model.job import Job
from sim.pool.contract import Record
from sim.pool.network import CallDelays


class Phase(Enum):
    """Where a call stands."""

    WAITING = auto()
    """The routing system has it, or is about to."""
    SENT = auto()
    """Under way to a replica, or there without a first token."""
    DECODING = auto()
    """Its first token was seen."""
    OVER = auto()
    """It has its outcome."""


@dataclass(slots=True, eq=False)
class Call:
    """One request from its arrival to its outcome, over all attempts."""

    record: Record
    delays: CallDelays
    phase: Phase = Phase.WAITING
    job: Job | None = None
    """Of the present attempt, once it has reached the engine."""

    @property
    def key(self) -> int:
        """The request's key."""
        return self.record.request.key
