"""What goes into a step engine and what comes out of it."""

from dataclasses import dataclass
from enum import StrEnum

from sim.engine.step_model.job import Job
from workers.wire import Capacity


@dataclass(frozen=True, slots=True)
class StepConfig:
    """What is simulated."""

    capacity: Capacity
    block_size: int = 64
    """Tokens a KV block; a job's `block_tokens` is a multiple of it."""
    max_batched_tokens: int = 8192
    """T_max: token budget of one step."""
    noise_cv: float = 0.05
    """Coefficient of variation of one step's time (lognormal); 0 = none."""
    kv_events: bool = False
    """Whether `advance` also returns STORED and REMOVED events."""

    @property
    def blocks(self) -> int:
        """KV blocks of the pool."""
        return self.capacity.kv_cache_tokens // self.block_size


class EventKind(StrEnum):
    """What happened."""

    FIRST_TOKEN = "first_token"  # noqa: S105 - not a password
    FINISHED = "finished"
    PREEMPTED = "preempted"
    STORED = "stored"
    REMOVED = "removed"


@dataclass(slots=True, eq=False)
class Event:
    """One thing that happened, at its exact time."""

    at: float
    kind: EventKind
    job: Job | None
    """None for a removal."""
    hashes: tuple[int, ...] = ()
    """Of KV events: what was stored or removed."""


@dataclass(slots=True)
class Counters:
    """Cumulative counts since the engine began."""

    steps: int = 0
    prompt_tokens: int = 0
    """Prompt tokens of requests that got their first token."""
    cached_prompt_tokens: int = 0
    prefix_queries: int = 0
    """Prompt tokens of requests that were first scheduled."""
    prefix_hits: int = 0
    """Prompt tokens of `prefix_queries` found in the prefix cache."""
    prefilled_tokens: int = 0
    """Prompt tokens computed, recomputation after preemption included."""
    generation_tokens: int = 0
    """Output tokens of requests that finished or were aborted."""
    preemptions: int = 0
    drafts: int = 0
    """Sequences times steps that carried drafts."""
    finished: int = 0
    aborted: int = 0
