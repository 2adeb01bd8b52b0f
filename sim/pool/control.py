"""The seam to an autoscaler: what it sees of a simulated pool and what it may do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from sim.pool.contract import ReplicaView


class ActionKind(StrEnum):
    """What can be done to a replica."""

    WAKE = "wake"
    """asleep -> loading for its level's wake time -> ready."""
    SLEEP = "sleep"
    """ready or draining -> asleep, once nothing runs on it."""
    STOP = "stop"
    """any -> stopped, once nothing runs on it: the droplet is destroyed."""
    START = "start"
    """stopped -> loading for droplet creation and a cold start -> ready."""
    DRAIN = "drain"
    RESUME = "resume"
    """draining -> ready."""


@dataclass(frozen=True, slots=True)
class PoolAction:
    """Do this to that replica."""

    kind: ActionKind
    replica_id: str
    level: int = 1
    """For SLEEP: 1 = weights in host memory, 2 = weights dropped."""


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """Load of one model since the last snapshot."""

    arrived: int = 0
    prompt_tokens: int = 0
    finished: int = 0
    cached_tokens: int = 0
    finished_prompt_tokens: int = 0
    output_tokens: int = 0
    waiting: int = 0
    """Requests not yet sent to a replica, now."""
    in_flight: int = 0
    """Requests on replicas, now."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """What an autoscaler sees: every replica, in whatever state, and what each model was asked for."""

    replicas: Sequence[ReplicaView]
    sleep_levels: Mapping[str, int]
    """Of the replicas that are asleep."""
    loads: Mapping[str, ModelLoad]
    cached_blocks: Mapping[str, int] = field(default_factory=dict)
    """Prefix blocks that a replica has served hits from in the last ten minutes; what is lost when it goes."""


class Controller(Protocol):
    """An autoscaler under test."""

    every_s: float
    """Seconds between two calls of `observe`."""

    def observe(self, view: PoolView, now: float) -> Sequence[PoolAction]:
        """Look at the pool and say what is to be done. Actions that a replica's state forbids are ignored."""
