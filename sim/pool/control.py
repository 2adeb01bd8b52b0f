"""The interface of an autoscaler: its view of a simulated pool and its actions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from sim.pool.contract import ReplicaView


class ActionKind(StrEnum):
    """Kind of an action on a replica."""

    WAKE = "wake"
    """asleep -> loading for the wake time of its sleep level -> ready."""
    SLEEP = "sleep"
    """ready or draining -> asleep, when the replica is idle."""
    STOP = "stop"
    """any -> stopped, when the replica is idle; the droplet is then destroyed."""
    START = "start"
    """stopped -> loading for droplet creation and a cold start -> ready."""
    DRAIN = "drain"
    RESUME = "resume"
    """draining -> ready."""


@dataclass(frozen=True, slots=True)
class PoolAction:
    """An action on one replica."""

    kind: ActionKind
    replica_id: str
    level: int = 1
    """Sleep level, for SLEEP only: 1 = weights in host memory, 2 = weights dropped."""


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
    """Number of requests not yet sent to a replica, now."""
    in_flight: int = 0
    """Number of requests on replicas, now."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """What an autoscaler observes: every replica in any state, and the load of each model."""

    replicas: Sequence[ReplicaView]
    sleep_levels: Mapping[str, int]
    """Sleep level of each replica that is asleep."""
    loads: Mapping[str, ModelLoad]
    cached_blocks: Mapping[str, int] = field(default_factory=dict)
    """Prefix blocks that served hits within the last ten minutes, by replica; they are lost when it leaves."""


class Controller(Protocol):
    """An autoscaler under test."""

    every_s: float
    """Seconds between two calls of `observe`."""

    def observe(self, view: PoolView, now: float) -> Sequence[PoolAction]:
        """Observe the pool and return actions. Actions that a replica's state forbids are ignored."""
