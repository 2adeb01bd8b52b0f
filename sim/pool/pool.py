"""The replicas of a run: the definition of each, and a pool built from the catalog."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sim.engine.step_model.engine import StepConfig
from workers.catalog import Catalog
from workers.wire import Capacity, ReplicaState, Targets

COLD_START_S = 98.0
"""Seconds of a cold start: process start, weights and warm-up; vLLM's published figure for a 235B model."""
WAKE_S = (5.5, 30.0)
"""Wake seconds from sleep level 1 (published: 5-6 s for a 235B model) and level 2, where weights are read again."""
CREATE_S = 180.0
"""Seconds from the request for a droplet until its engine starts."""


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One replica of a run."""

    replica_id: str
    model: str
    engine: StepConfig
    targets: Targets
    host: str = "host-1"
    state: ReplicaState = ReplicaState.READY
    """State of the replica at the start of the run."""
    sleep_level: int = 1
    """Sleep level at the start, when the replica is asleep."""
    cold_start_s: float = COLD_START_S
    wake_s: tuple[float, float] = WAKE_S
    create_s: float = CREATE_S
    speed: float = 1.0
    """Factor on the speed of the replica's own clock; a permanent straggler has less than 1."""
    usd_per_gpu_hour: float = 0.0
    stated: Capacity | None = None
    """What its heartbeats state as its capacity, where that is not the engine's true one."""

    @property
    def capacity(self) -> Capacity:
        """The replica's true capacity, from its profile."""
        return self.engine.capacity


def pool_of(catalog: Catalog, models: Iterable[str], hosts: int, *, first_host: int = 1) -> list[ReplicaSpec]:
    """Return `hosts` hosts for each of `models` (NAME or NAME:PROFILE), each with as many replicas as its GPUs
    allow.

    Raises InvalidRequest when the catalog has no such model or profile.
    """
    pool: list[ReplicaSpec] = []
    number = first_host
    for each in models:
        name, _, profile_name = each.partition(":")
        model = catalog.model(name)
        profile = model.profile(profile_name)
        price = catalog.host_prices.get(profile.host_kind)
        gpus = max(1, catalog.hosts[profile.host_kind].gpus)
        for _ in range(hosts):
            pool += (
                ReplicaSpec(
                    f"host-{number}/{name}-{instance}",
                    name,
                    StepConfig(profile.capacity, profile.block_size),
                    model.service_level,
                    host=f"host-{number}",
                    usd_per_gpu_hour=float(price.usd_per_hour) / gpus if price else 0.0,
                )
                for instance in range(profile.instances)
            )
            number += 1
    return pool


def unvalidated(names: Iterable[str], catalog: Catalog) -> list[str]:
    """Those of some profiles whose figures no sweep validates, sorted; a name is MODEL (its default) or MODEL:PROFILE.

    Raises NotFound or InvalidRequest for an unknown name.
    """
    parts = {name: name.partition(":") for name in names}
    return sorted(
        name for name, (model, _, profile) in parts.items() if not catalog.model(model).profile(profile).sweep
    )


def unvalidated_line(names: Sequence[str]) -> list[str]:
    """Return the mark of figures that no sweep validates, as one line; none without names."""
    return [f"Unvalidated figures, for want of a sweep: {', '.join(names)}."] if names else []


def unvalidated_note(pool: Sequence[ReplicaSpec]) -> list[str]:
    """Return the mark for the models of a pool."""
    return unvalidated_line(sorted({spec.model for spec in pool if not spec.capacity.sweep}))
