"""A request in progress: its record, its phase, and how an engine sees it."""

from dataclasses import dataclass
from enum import Enum, auto

from sim.engine.step_model.job import Job
from sim.pool.contract import Record, SimRequest
from sim.pool.network import CallDelays


class Phase(Enum):
    """Phase of a call."""

    WAITING = auto()
    """The routing system has the request, or is about to receive it."""
    SENT = auto()
    """The request is on its way to a replica, or there without a first token."""
    DECODING = auto()
    """The first token has arrived."""
    OVER = auto()
    """The request has its outcome."""


@dataclass(slots=True, eq=False)
class Call:
    """One request from its arrival to its outcome, over all attempts."""

    record: Record
    delays: CallDelays
    phase: Phase = Phase.WAITING
    job: Job | None = None
    """Job of the present attempt, once it has reached the engine; None before that."""
    priority: int = 0
    """Priority of the present attempt at the engine."""
    rank: int | None = None
    """Rank that the present attempt asks for."""

    @property
    def key(self) -> int:
        """The request's key."""
        return self.record.request.key


def job_of(request: SimRequest, priority: int = 0, rank: int | None = None) -> Job:
    """Return a request as an engine sees it, with its priority there and the rank that it asks for."""
    return Job(
        request.key,
        request.prompt_tokens,
        request.output_tokens,
        request.blocks,
        request.block_tokens,
        request.output_blocks,
        priority,
        rank,
    )
