"""Inputs of the autoscaler: hosts, replicas with their rungs, and the demand for each model.

Times are seconds of one monotonic clock that the caller reads; money is USD.
"""

import math
from enum import StrEnum

import msgspec

from scheduler.wire import allows_place, place_words
from workers.wire import Capacity, Targets


class Rung(StrEnum):
    """The states of a replica, from quickest to serve to cheapest to hold."""

    AWAKE = "awake"
    SLEEP_1 = "sleep_1"
    """Weights in host memory, GPUs free."""
    SLEEP_2 = "sleep_2"
    """Weights dropped, process alive, GPUs free."""
    STOPPED = "stopped"
    """No process."""
    DESTROYED = "destroyed"
    """No host: a droplet has to be created first."""

    @property
    def depth(self) -> int:
        """Number of the rung from the top; 0 = awake."""
        return _ORDER.index(self)


_ORDER = (Rung.AWAKE, Rung.SLEEP_1, Rung.SLEEP_2, Rung.STOPPED, Rung.DESTROYED)


class PlanningError(ValueError):
    """A model's figures are so far out of range that the capacity laws have no result. `cause` is the arithmetic
    error."""

    def __init__(self, model: str, why: Exception) -> None:
        super().__init__(f"{model}: {type(why).__name__}: {why}")
        self.model = model
        self.cause = why


class Binding(msgspec.Struct, frozen=True, order=True):
    """Where replicas have to be: in one of `regions`, on one of the classes of GPU `gpus`, both in lower case, and on
    hosts of one of `kinds`. All are sorted; empty = any. Requests name no kinds."""

    regions: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    @property
    def bound(self) -> bool:
        """Whether it excludes any place."""
        return bool(self.regions or self.gpus or self.kinds)

    @property
    def is_set(self) -> bool:
        """Whether it names several regions or classes, any of which will do."""
        return len(self.regions) > 1 or len(self.gpus) > 1

    def allows(self, region: str, gpu: str, kind: str = "") -> bool:
        """Whether a replica may be in `region` on GPUs of the class `gpu`, on a host of that kind."""
        return allows_place(self.regions, self.gpus, region, gpu) and (not self.kinds or kind in self.kinds)

    def within(self, other: "Binding") -> bool:
        """Whether each place of this one is also one of `other`."""
        names = (self.regions, other.regions), (self.gpus, other.gpus), (self.kinds, other.kinds)
        return all(_within(*pair) for pair in names)

    def overlaps(self, other: "Binding") -> bool:
        """Whether any place of this one is also one of `other`."""
        names = (self.regions, other.regions), (self.gpus, other.gpus), (self.kinds, other.kinds)
        return all(_overlap(*pair) for pair in names)

    @property
    def words(self) -> str:
        """It in words; empty when nothing is bound."""
        return place_words(self.regions, self.gpus, self.kinds)


def _within(names: tuple[str, ...], others: tuple[str, ...]) -> bool:
    return not others or (bool(names) and set(names) <= set(others))


def _overlap(names: tuple[str, ...], others: tuple[str, ...]) -> bool:
    return not names or not others or not set(names).isdisjoint(others)


UNBOUND = Binding()
"""Demand that may be served anywhere."""


class CacheValue(msgspec.Struct, frozen=True):
    """Recent use of a replica's prefix cache."""

    hit_tokens_per_s: float = 0.0
    """Prompt tokens served from the cache per second, averaged over the last minutes."""

    def seconds_saved(self, prefill_tokens_per_s: float, over_s: float) -> float:
        """Prefill seconds that the cache saves in the next `over_s` seconds at its present hit rate."""
        return self.hit_tokens_per_s * over_s / prefill_tokens_per_s


class ReplicaObservation(msgspec.Struct, frozen=True):
    """One replica at the time of the observation."""

    replica_id: str
    model: str
    host_id: str
    rung: Rung
    """The present rung; while `ready_in_s` is above zero, the rung that is being reached."""
    since_s: float = 0.0
    """Seconds on this rung."""
    ready_in_s: float = 0.0
    """Seconds until a waking replica serves; 0 = it serves or rests."""
    draining: bool = False
    """It finishes its requests and holds its GPUs until then."""
    running: int = 0
    waiting_tokens: int = 0
    """Uncached prompt tokens that are routed there and not prefilled."""
    kv_usage: float = 0.0
    cache: CacheValue = CacheValue()
    held: bool = False
    """It rests and no command of the plan wakes it: a person drains it, or its engine fails."""
    gpu_ids: tuple[str, ...] = ()
    """The GPUs of its host that it uses while it is awake; empty = not known, any of them."""
    region: str = ""
    gpu: str = ""
    """Class of its GPUs."""
    kind: str = ""
    """Kind of its host."""


class HostObservation(msgspec.Struct, frozen=True):
    """One host at the time of the observation."""

    host_id: str
    gpus: int
    ram_gb: float
    contracted: bool
    """Paid for in any case: it is never destroyed, and its hours do not count as cost."""
    usd_per_hour: float = 0.0
    kind: str = ""
    region: str = ""
    contract: str = ""
    """The contract that covers it, in words; empty = none does."""


class RunSlot(msgspec.Struct, frozen=True):
    """A replica that a shared host will have."""

    model: str
    gpu_ids: tuple[str, ...]
    least: bool = False
    """Whether it is counted for its model's minimum."""

    def meets(self, other: "RunSlot") -> bool:
        """Whether both use one of the GPUs."""
        return not set(self.gpu_ids).isdisjoint(other.gpu_ids)


class CreatingHost(msgspec.Struct, frozen=True):
    """A host that a provider is creating. It is reported, and counts, until a replica on it is observed."""

    host_id: str
    kind: str
    model: str
    """The model that it is created for, or the models that share it (HostOption.shares)."""
    since_s: float = 0.0
    """Seconds since its creation was asked for."""
    usd_per_hour: float = 0.0
    """0 where a contract covers it."""
    region: str = ""
    gpu: str = ""
    """Class of its GPUs."""
    slots: tuple[RunSlot, ...] = ()
    """The replicas that a shared host will have; empty = it is its model's own."""
    runs: tuple[RunSlot, ...] = ()
    """Those of them that are counted as awake (coming.py)."""


class CreationFailures(msgspec.Struct, frozen=True):
    """A kind of host whose latest creations failed: refused, not finished in time, or out of capacity."""

    kind: str
    count: int
    """Failures since the last success, at least 1."""
    since_s: float
    """Seconds since the last failure."""
    why: str = ""
    region: str = ""
    """Where they failed, in lower case; empty = wherever the kind may be created."""


class DemandObservation(msgspec.Struct, frozen=True):
    """Demand for a model that is bound to the same places, since the last observation, and its queue."""

    model: str
    arrivals: int = 0
    prompt_tokens: float = 0.0
    """Mean prompt tokens of the requests that arrived; 0 when none arrived. The other token fields are means too."""
    uncached_tokens: float = 0.0
    uncached_sq: float = 0.0
    """Mean square of the uncached tokens."""
    output_tokens: float = 0.0
    output_sq: float = 0.0
    """Mean square of the output tokens; 0 when only their mean is known."""
    waiting: int = 0
    """Queued requests without a replica."""
    waiting_tokens: float = 0.0
    """Uncached prompt tokens of the queued requests."""
    where: Binding = UNBOUND


class Observation(msgspec.Struct, frozen=True):
    """Hosts, replicas and demand at one time."""

    now: float
    hosts: list[HostObservation]
    replicas: list[ReplicaObservation]
    demand: list[DemandObservation]
    """A row for each model and binding; those of different bindings have no request in common."""
    creating: list[CreatingHost] = []
    failures: list[CreationFailures] = []


class RungFigures(msgspec.Struct, frozen=True):
    """Cost of a rung and time to wake from it."""

    wake_s: float
    """Seconds until a replica on this rung serves."""
    host_gb: float = 0.0
    """Host memory that it holds, in GB."""


class HostOption(msgspec.Struct, frozen=True):
    """A kind of host that may be created for a model."""

    kind: str
    usd_per_hour: float
    """0 for `contracted` hosts and the operator's own, which are paid for in any case."""
    per_host: int = 1
    """Replicas of the model that a host of this kind runs."""
    regions: tuple[str, ...] = ()
    """Regions in which it may be created, in lower case, in the order in which they are tried; empty = not known."""
    gpu: str = ""
    """Class of its GPUs; empty = not known."""
    shares: str = ""
    """The models that share such a host, this one among them, as the agent's setting has them; empty = this one
    alone."""
    contracted: int | None = None
    """So many hosts that contracts cover may be created in `regions`, for any model; None = they are none of these."""


class PlaceLimits(msgspec.Struct, frozen=True):
    """How many replicas of a model are awake in a region, or on hosts of a kind."""

    where: Binding
    """One region, or one kind."""
    least: int = 0
    """It comes before the budget."""
    most: int = 1 << 20


class ModelSpec(msgspec.Struct, frozen=True):
    """What the autoscaler knows of a model."""

    model: str
    capacity: Capacity
    targets: Targets
    ladder: dict[Rung, RungFigures]
    """The rungs below awake that the engine supports; STOPPED is always included."""
    min_awake: int = 0
    """Replicas that are always awake; it comes before the budget."""
    max_awake: int = 64
    usd_per_request: float = 1.0
    """Revenue of an average answer; decides which model gets scarce GPUs."""
    budget_usd_per_hour: float = math.inf
    """Largest price per hour of the hosts that are held for the model (spending.py). Contracted hosts cost nothing."""
    kinds: tuple[HostOption, ...] = ()
    """Kinds of hosts for further replicas, in the order in which they are tried; empty = none are created."""
    drain_s: float = 0.0
    """Seconds in which a replica drains, as measured; 0 = never was."""
    places: tuple[PlaceLimits, ...] = ()
    """Limits of single regions and of kinds of hosts, beside `min_awake` and `max_awake`."""
