"""Settings of a run: the inputs of a routing system, and the conditions of the simulation."""

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
    """The inputs of a routing system at the start of a run."""

    rng: random.Random
    """The routing system's own random generator, which nothing else uses."""
    routers: int
    """Number of API processes, which are numbered from 0."""
    estimates: Estimates
    """Estimates of a request's lengths, as an API process has them."""


RoutingFactory = Callable[[RoutingSetup], Routing]


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Settings of a run."""

    seed: int = 1
    api_processes: int = 3
    network: Network = field(default_factory=Network)
    faults: Sequence[Fault] = ()
    controller: Controller | None = None
    warmup_s: float = 0.0
    """Seconds of warm-up: earlier arrivals are simulated but excluded from figures."""
    cooldown_s: float = 0.0
    """Seconds before the last arrival whose arrivals are excluded from figures, too: they keep up the load."""
    drain_s: float = 1800.0
    """Seconds after the last arrival at which requests that have not ended are abandoned."""
    max_attempts: int = 6
    """Maximum number of attempts of a request."""
    retry_s: float = 0.1
    """Seconds before the second attempt; doubled for each further one, so that together they outlast stale metrics."""
    hang_limit_s: float = 15.0
    """Seconds of hanging after which the agent kills a replica."""
    next_request: Callable[[Record, float], SimRequest | None] | None = None
    """Returns the caller's next request (closed loop) for an ended one and its end in seconds; None = no
    further request.
    """
    on_progress: Callable[["Progress"], None] | None = None
    """Called about once per simulated second."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run."""

    now: float
    arrived: int
    waiting: int
    in_flight: int
