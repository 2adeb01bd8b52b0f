"""How a run is set up: what a routing system is made of, and how the world around it is played."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sim.pool.contract import Record, Routing, SimRequest
from sim.pool.control import Controller
from sim.pool.estimates import Estimates
from sim.pool.faults import Fault
from sim.pool.network import Network


@dataclass(frozen=True, slots=True)
class RoutingSetup:
    """What a routing system is made of at the start of a run."""

    rng: random.Random
    """Its own generator; nothing else draws from it."""
    routers: int
    """API processes, numbered from 0."""
    estimates: Estimates
    """What an API process may know of a request's lengths."""


RoutingFactory = Callable[[RoutingSetup], Routing]


@dataclass(frozen=True, slots=True)
class RunConfig:
    """How a run is played."""

    seed: int = 1
    api_processes: int = 3
    network: Network = field(default_factory=Network)
    faults: Sequence[Fault] = ()
    controller: Controller | None = None
    warmup_s: float = 0.0
    """Arrivals before this are played but left out of figures."""
    drain_s: float = 1800.0
    """After the last arrival, what has not ended by then is given up."""
    max_attempts: int = 6
    """Times that a request is tried before it is given up."""
    retry_s: float = 0.1
    """Pause before the second attempt, doubled with each further one: metrics that still show a dead replica as ready
    are older than all pauses together."""
    hang_limit_s: float = 15.0
    """A replica that gives no sign of life for so long is killed by its agent."""
    next_request: Callable[[Record, float], SimRequest | None] | None = None
    """Closed loop: what the caller sends now that this request is over, and when it is; None = nothing more."""
    on_progress: Callable[["Progress"], None] | None = None
    """Called about every simulated second."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands."""

    now: float
    arrived: int
    waiting: int
    in_flight: int
