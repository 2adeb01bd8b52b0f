"""The ladder of rungs: how long a replica rests on each, and on which it can rest.

Ski rental (Karlin et al., "Competitive snoopy caching", 1988): stay until the cost of staying equals the cost of
waking from below. This costs at most twice the optimum.
"""

import math
from collections.abc import Iterable

from scheduler.core.autoscale.state import HostObservation, ModelSpec, ReplicaObservation, Rung, RungFigures

RESTING = (Rung.SLEEP_1, Rung.SLEEP_2, Rung.STOPPED)
"""Rungs on which a replica can rest, from the shallowest."""


def dwell_s(wake_s: float, wake_below_s: float, hold_usd_per_s: float, busy_usd_per_s: float) -> float:
    """Seconds to stay on a rung: the extra cost of waking from the rung below over the cost of holding this one.

    `hold_usd_per_s` is saved per second by going down. A wake costs `busy_usd_per_s`, for the GPUs that load weights
    instead of serving. Infinite when holding costs nothing, as on a contracted host.
    """
    if hold_usd_per_s <= 0.0:
        return math.inf
    return max(0.0, wake_below_s - wake_s) * busy_usd_per_s / hold_usd_per_s


def rung_dwell_s(spec: ModelSpec, host: HostObservation, rung: Rung, below: Rung) -> float:
    """Seconds that a replica rests on `rung` before it goes down to `below`; infinite on a contracted host.

    Holding costs the part of the host's price for the memory that going down would free. Waking from below costs the
    GPUs for the longer wake. The price cancels.
    """
    if host.contracted:
        return math.inf
    here, there = spec.ladder[rung], spec.ladder[below]
    memory = (here.host_gb - there.host_gb) / host.ram_gb if host.ram_gb > 0.0 else 0.0
    return dwell_s(here.wake_s, there.wake_s, memory, spec.capacity.gpus / max(1, host.gpus))


def settled_rung(
    spec: ModelSpec, host: HostObservation | None, replica: ReplicaObservation, *, gpus_free: bool = True
) -> Rung:
    """The rung on which a resting replica should be now: one further down after that rung's dwell time.

    An engine goes from sleep level 1 to 2 by way of its GPUs, so without them the rung below level 1 is the stop.
    """
    if host is None or replica.draining or replica.rung not in spec.ladder:
        return replica.rung
    rungs = RESTING if gpus_free else (Rung.STOPPED,)
    deeper = (rung for rung in rungs if rung.depth > replica.rung.depth and rung in spec.ladder)
    below = next(deeper, None)
    if below is None or replica.since_s < rung_dwell_s(spec, host, replica.rung, below):
        return replica.rung
    return below


def host_dwell_s(
    host: HostObservation, wake: RungFigures, destroyed: RungFigures, replacement_usd_per_hour: float
) -> float:
    """Seconds that a host without awake replicas is kept; infinite for a contracted host.

    It is kept until it has cost as much as the hosts that come in its place would until they serve: a new one of
    `replacement_usd_per_hour` for the time of its creation, less this one for the time in which the best of its
    replicas wakes.
    """
    if host.contracted:
        return math.inf
    if host.usd_per_hour <= 0.0:
        return dwell_s(wake.wake_s, destroyed.wake_s, 1.0, 1.0)
    created = destroyed.wake_s * replacement_usd_per_hour / host.usd_per_hour
    return max(0.0, created - wake.wake_s)


def resting_rung(spec: ModelSpec, host: HostObservation, asleep_gb: float) -> Rung:
    """The shallowest rung that fits into the host's memory beside `asleep_gb`, which is in use."""
    for rung in RESTING:
        figures = spec.ladder.get(rung)
        if figures is not None and (rung is Rung.STOPPED or asleep_gb + figures.host_gb <= host.ram_gb):
            return rung
    return Rung.STOPPED


def host_memory_gb(specs: dict[str, ModelSpec], replicas: Iterable[ReplicaObservation]) -> float:
    """Host memory of resting replicas, in GB."""
    held = 0.0
    for replica in replicas:
        figures = specs[replica.model].ladder.get(replica.rung) if replica.model in specs else None
        held += figures.host_gb if figures is not None else 0.0
    return held


def wake_s(spec: ModelSpec, replica: ReplicaObservation) -> float:
    """Seconds until a replica can serve; 0 for one that is still draining."""
    if replica.rung is Rung.AWAKE:
        return replica.ready_in_s
    if replica.draining:
        return 0.0
    figures = spec.ladder.get(replica.rung)
    return figures.wake_s if figures is not None else math.inf


def next_rung(spec: ModelSpec, replicas: Iterable[ReplicaObservation]) -> Rung:
    """The rung of the next replica to wake: the quickest that rests, else a new droplet."""
    resting = [replica for replica in replicas if replica.rung is not Rung.AWAKE and not replica.held]
    if resting:
        return min(resting, key=lambda replica: (wake_s(spec, replica), replica.replica_id)).rung
    return Rung.DESTROYED if Rung.DESTROYED in spec.ladder else Rung.STOPPED
