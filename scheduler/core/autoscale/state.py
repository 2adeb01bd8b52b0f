"""What the autoscaler sees: hosts, replicas on their rungs, and what each model is asked for.

Seconds are seconds of one monotonic clock that the caller reads; tokens are tokens; money is USD.
"""

from enum import StrEnum

import msgspec

from workers.wire import Capacity, Targets


class Rung(StrEnum):
    """The ladder, from fastest to serve to cheapest to hold."""

    AWAKE = "awake"
    SLEEP_1 = "sleep_1"
    """Weights in host memory, GPUs free."""
    SLEEP_2 = "sleep_2"
    """Weights dropped, process alive, GPUs free."""
    STOPPED = "stopped"
    """No process."""
    DESTROYED = "destroyed"
    """No host: the droplet has to be created first."""

    @property
    def depth(self) -> int:
        """0 for awake, counting down the ladder."""
        return _ORDER.index(self)


_ORDER = (Rung.AWAKE, Rung.SLEEP_1, Rung.SLEEP_2, Rung.STOPPED, Rung.DESTROYED)


class PlanningError(ValueError):
    """The laws have no answer for a model: some figure of it is out of all range."""

    def __init__(self, model: str, why: Exception) -> None:
        super().__init__(f"{model}: {type(why).__name__}: {why}")
        self.model = model
        self.cause = why


class CacheValue(msgspec.Struct, frozen=True):
    """What a replica's prefix cache has been good for lately: the read interface to the prefix index."""

    hit_tokens_per_s: float = 0.0
    """Prompt tokens a second served from its cache, averaged over the last minutes."""
    cached_tokens: int = 0
    """Tokens in the cache that were reused at least once."""

    def seconds_saved(self, prefill_tokens_per_s: float, over_s: float) -> float:
        """Prefill seconds the cache would save over the next `over_s`, if it is used as it was.

        No more than all cached tokens once per second of reuse: the rate is observed, not guessed from size.
        """
        return self.hit_tokens_per_s * over_s / prefill_tokens_per_s


class ReplicaObservation(msgspec.Struct, frozen=True):
    """One replica as it stands."""

    replica_id: str
    model: str
    host_id: str
    rung: Rung
    """Where it is, or, while `ready_in_s` is above zero, where it is going."""
    since_s: float = 0.0
    """Seconds on this rung."""
    ready_in_s: float = 0.0
    """Seconds until a waking replica serves; 0 = it serves (or rests)."""
    draining: bool = False
    """Finishes what it has; holds its GPUs until then."""
    running: int = 0
    waiting_tokens: int = 0
    """Uncached prompt tokens routed there and not yet prefilled."""
    kv_usage: float = 0.0
    cache: CacheValue = CacheValue()


class HostObservation(msgspec.Struct, frozen=True):
    """One host."""

    host_id: str
    gpus: int
    ram_gb: float
    contracted: bool
    """Paid for whatever happens: never destroyed, its hours are no cost of a decision."""
    usd_per_hour: float = 0.0


class DemandObservation(msgspec.Struct, frozen=True):
    """What came for a model since the last observation, and what waits."""

    model: str
    arrivals: int = 0
    prompt_tokens: float = 0.0
    """Mean of the requests that came; 0 when none came. Likewise below."""
    uncached_tokens: float = 0.0
    uncached_sq: float = 0.0
    """Mean square of the uncached tokens."""
    output_tokens: float = 0.0
    output_sq: float = 0.0
    """Mean square of the output tokens; 0 where only their mean is known."""
    waiting: int = 0
    """Requests in the queue that no replica has."""
    waiting_tokens: float = 0.0
    """Their uncached prompt tokens."""


class Observation(msgspec.Struct, frozen=True):
    """One look at everything."""

    now: float
    hosts: list[HostObservation]
    replicas: list[ReplicaObservation]
    demand: list[DemandObservation]
    time_of_day_s: float = 0.0
    """Seconds since midnight, for the daily season; any origin will do if it stays the same."""


class RungFigures(msgspec.Struct, frozen=True):
    """What a rung costs and how long the way up from it takes."""

    wake_s: float
    """Seconds until it serves."""
    host_gb: float = 0.0
    """Host memory it holds."""


class ModelSpec(msgspec.Struct, frozen=True):
    """A model as the autoscaler handles it."""

    model: str
    capacity: Capacity
    targets: Targets
    ladder: dict[Rung, RungFigures]
    """The rungs below awake that its engine has; `stopped` is always among them."""
    min_awake: int = 0
    max_awake: int = 64
    usd_per_request: float = 1.0
    """What an average answer earns: who gets the GPUs when there are too few."""
    host_kind: str = ""
    """Where another replica would run; empty = no droplets may be created for it."""
    per_host: int = 1
    """Replicas that a host of that kind runs."""
