"""The cost of a run: replica and GPU time by state."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sim.pool.sim_replica import SimReplica


@dataclass(slots=True)
class GpuTime:
    """Time and GPUs of a whole pool."""

    by_state: dict[str, float] = field(default_factory=dict)
    """Replica seconds by state."""
    gpus_by_state: dict[str, float] = field(default_factory=dict)
    """GPU seconds by state."""
    gpus_held_s: float = 0.0
    """GPU seconds in states that hold GPUs."""
    usd_per_gpu_hour: float = 0.0
    """Mean price of the held GPUs in US dollars per GPU hour; 0 = unknown."""


def gpu_time(replicas: Iterable[SimReplica], now: float) -> GpuTime:
    """Return the time and GPUs of `replicas` from the start of the run to `now`."""
    total = GpuTime()
    cost = 0.0
    for replica in replicas:
        replica.book(now)
        for state, seconds in replica.seconds.items():
            gpu_seconds = seconds * replica.spec.capacity.gpus
            total.by_state[state.value] = total.by_state.get(state.value, 0.0) + seconds
            total.gpus_by_state[state.value] = total.gpus_by_state.get(state.value, 0.0) + gpu_seconds
        held_s = replica.gpu_seconds_held()
        total.gpus_held_s += held_s
        cost += held_s * replica.spec.usd_per_gpu_hour
    total.usd_per_gpu_hour = cost / total.gpus_held_s if total.gpus_held_s else 0.0
    return total
