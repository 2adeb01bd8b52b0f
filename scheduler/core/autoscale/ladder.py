"""The ladder: how long a replica rests on a rung before it goes down one, and on which rung it can rest at all.

Ski rental (Karlin et al., "Competitive snoopy caching", 1988): stay until what staying has cost equals what coming back
from below would cost. Whatever the future brings, that is at most twice the cost of having known it.
"""

import math
from collections.abc import Iterable

from scheduler.core.autoscale.state import HostObservation, ModelSpec, ReplicaObservation, Rung, RungFigures

RESTING = (Rung.SLEEP_1, Rung.SLEEP_2, Rung.STOPPED)


def dwell_s(wake_s: float, wake_below_s: float, hold_usd_per_s: float, busy_usd_per_s: float) -> float:
    """Seconds to stay on a rung: the extra wake cost of the rung below over what holding this one costs.

    `hold_usd_per_s` is what going down saves each second; a wake costs `busy_usd_per_s` (the GPUs that load weights
    instead of serving) for as long as it takes. Infinite where holding costs nothing, as on a contracted host.
    """
    if hold_usd_per_s <= 0.0:
        return math.inf
    return max(0.0, wake_below_s - wake_s) * busy_usd_per_s / hold_usd_per_s


def rung_dwell_s(spec: ModelSpec, host: HostObservation, rung: Rung, below: Rung) -> float:
    """Seconds a replica rests on `rung` before it goes down to `below`; infinite on a contracted host.

    Holding costs the share of the host's price that belongs to the memory which going down would free; coming back from
    below costs that of the replica's GPUs for as long as it wakes later. The price itself cancels.
    """
    if host.contracted:
        return math.inf
    here, there = spec.ladder[rung], spec.ladder[below]
    memory = (here.host_gb - there.host_gb) / host.ram_gb if host.ram_gb > 0.0 else 0.0
    return dwell_s(here.wake_s, there.wake_s, memory, spec.capacity.gpus / max(1, host.gpus))


def settled_rung(spec: ModelSpec, host: HostObservation | None, replica: ReplicaObservation) -> Rung:
    """Where a resting replica should be by now: one rung further down once it has rested for that rung's dwell."""
    if host is None or replica.draining or replica.rung not in spec.ladder:
        return replica.rung
    deeper = (rung for rung in RESTING if rung.depth > replica.rung.depth and rung in spec.ladder)
    below = next(deeper, None)
    if below is None or replica.since_s < rung_dwell_s(spec, host, replica.rung, below):
        return replica.rung
    return below


def host_dwell_s(host: HostObservation, wake: RungFigures, destroyed: RungFigures) -> float:
    """Seconds a host may rest with nobody awake before it is destroyed; infinite for a contracted one.

    A droplet costs the same whatever rests on it, and is paid for while it boots, so the price cancels: it stays as
    long as bringing a new one up would take longer than waking the best of what it holds.
    """
    if host.contracted:
        return math.inf
    price = host.usd_per_hour / 3600.0 or 1.0
    return dwell_s(wake.wake_s, destroyed.wake_s, price, price)


def resting_rung(spec: ModelSpec, host: HostObservation, asleep_gb: float) -> Rung:
    """The shallowest rung that fits into the host's memory beside the `asleep_gb` that rest there already."""
    for rung in RESTING:
        figures = spec.ladder.get(rung)
        if figures is not None and (rung is Rung.STOPPED or asleep_gb + figures.host_gb <= host.ram_gb):
            return rung
    return Rung.STOPPED


def host_memory_gb(specs: dict[str, ModelSpec], replicas: Iterable[ReplicaObservation]) -> float:
    """Host memory that resting replicas hold, in GB."""
    held = 0.0
    for replica in replicas:
        figures = specs[replica.model].ladder.get(replica.rung) if replica.model in specs else None
        held += figures.host_gb if figures is not None else 0.0
    return held


def wake_s(spec: ModelSpec, replica: ReplicaObservation) -> float:
    """Seconds until a replica could serve: nothing for one that still drains, else its rung's figure."""
    if replica.rung is Rung.AWAKE:
        return replica.ready_in_s
    if replica.draining:
        return 0.0
    figures = spec.ladder.get(replica.rung)
    return figures.wake_s if figures is not None else math.inf


def next_rung(spec: ModelSpec, replicas: Iterable[ReplicaObservation]) -> Rung:
    """The rung that the next replica would come up from: the quickest of those that rest, else a new droplet."""
    resting = [replica for replica in replicas if replica.rung is not Rung.AWAKE]
    if resting:
        return min(resting, key=lambda replica: (wake_s(spec, replica), replica.replica_id)).rung
    return Rung.DESTROYED if Rung.DESTROYED in spec.ladder else Rung.STOPPED
