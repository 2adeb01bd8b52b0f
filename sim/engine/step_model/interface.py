"""Input and output types of a step engine."""

from dataclasses import dataclass
from enum import StrEnum

from sim.engine.step_model.job import Job
from workers.wire import Capacity


@dataclass(frozen=True, slots=True)
class StepConfig:
    """Configuration of the simulated engine."""

    capacity: Capacity
    block_size: int = 64
    """Number of tokens per KV block; a job's `block_tokens` is a multiple of it."""
    chunk_s: float = 0.0
    """Seconds by which any prefill lengthens a step, beside those of its tokens."""
    noise_cv: float = 0.05
    """Coefficient of variation of one step's time (lognormal); 0 = no noise."""
    kv_events: bool = False
    """Whether `advance` also returns STORED and REMOVED events. What host memory still has is not REMOVED: so it is
    after an agent has read vLLM's events, which tell of both (`workers/kv_events_map.py`)."""

    @property
    def blocks(self) -> int:
        """Number of KV blocks in the pool."""
        return self.capacity.kv_cache_tokens // self.block_size


class EventKind(StrEnum):
    """Kind of an event."""

    FIRST_TOKEN = "first_token"  # noqa: S105 - not a password
    FINISHED = "finished"
    PREEMPTED = "preempted"
    STORED = "stored"
    REMOVED = "removed"


@dataclass(slots=True, eq=False)
class Event:
    """One event at its exact time."""

    at: float
    kind: EventKind
    job: Job | None
    """The job of the event; None for a removal."""
    hashes: tuple[int, ...] = ()
    """Hashes that a KV event stored or removed."""
    rank: int = 0
    """Rank of the engine that it happened on."""


@dataclass(slots=True)
class Counters:
    """Cumulative counts since the engine started."""

    steps: int = 0
    prompt_tokens: int = 0
    """Number of prompt tokens of requests that received their first token."""
    cached_prompt_tokens: int = 0
    prefix_queries: int = 0
    """Number of prompt tokens of requests that were first scheduled."""
    prefix_hits: int = 0
    """Number of prompt tokens of `prefix_queries` found in the prefix cache."""
    prefilled_tokens: int = 0
    """Number of prompt tokens computed, including recomputation after preemption."""
    generation_tokens: int = 0
    """Number of output tokens of requests that finished or were aborted."""
    preemptions: int = 0
    drafts: int = 0
    """Number of drafted sequence steps: sequences times steps with drafts."""
    finished: int = 0
    aborted: int = 0
