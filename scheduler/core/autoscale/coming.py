"""Hosts in creation: which replicas will be awake on them, and when. Pure.

A host that several models share will have replicas of all of them, more than its GPUs can run. It counts for those that
need it: its GPUs go to one replica after the other, by the ranks of claims (claims.py), so that a host is counted once.
As soon as its replicas are observed, `arrange` decides.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from scheduler.core.autoscale.claims import Claim, Desired, Rank, Victim, turn_in_s
from scheduler.core.autoscale.floors import Floor, Place, place_of, room_at, shortfalls
from scheduler.core.autoscale.state import (
    UNBOUND,
    Binding,
    CreatingHost,
    ModelSpec,
    ReplicaObservation,
    Rung,
    RunSlot,
)

UNKNOWN_CREATE_S = 600.0
"""Seconds until a created host serves, when the ladder has no figure."""


def create_s(spec: ModelSpec) -> float:
    """Seconds until a host that is created for a model serves."""
    figures = spec.ladder.get(Rung.DESTROYED)
    return figures.wake_s if figures is not None else UNKNOWN_CREATE_S


def in_creation(
    creating: Iterable[CreatingHost],
    replicas: Iterable[ReplicaObservation],
    before: Iterable[CreatingHost] = (),
) -> list[CreatingHost]:
    """Those of `creating` on which no replica is observed yet, with what they counted for at the last observation, of
    which `before` is."""
    joined = {replica.host_id for replica in replicas}
    runs = {host.host_id: host.runs for host in before}
    return [
        msgspec.structs.replace(host, runs=runs.get(host.host_id, ()))
        for host in creating
        if host.host_id not in joined
    ]


def coming_replicas(spec: ModelSpec, creating: Sequence[CreatingHost]) -> list[ReplicaObservation]:
    """The replicas that the model's hosts in creation will run, as if they were waking; of shared hosts those that are
    counted."""
    per_host = {option.kind: option.per_host for option in spec.kinds}
    found: list[ReplicaObservation] = []
    for host in creating:
        count = per_host.get(host.kind, 1) if host.model == spec.model else 0
        if host.slots:
            count = sum(slot.model == spec.model for slot in host.runs)
        found += [_coming(spec, host, number) for number in range(count)]
    return found


def _coming(spec: ModelSpec, host: CreatingHost, number: int) -> ReplicaObservation:
    return ReplicaObservation(
        f"{host.host_id}/{spec.model}-{number}",
        spec.model,
        host.host_id,
        Rung.AWAKE,
        host.since_s,
        max(1.0, create_s(spec) - host.since_s),
        region=host.region,
        gpu=host.gpu,
        kind=host.kind,
    )


@dataclass(slots=True)
class Need:
    """What a model needs of hosts in creation."""

    spec: ModelSpec
    need: int
    """Of the whole."""
    floors: Sequence[Floor]
    held: int
    """Requests that wait."""
    awake: list[ReplicaObservation]
    """Its replicas that are awake, or are counted as such."""

    def rank(self, replica: ReplicaObservation) -> Rank | None:
        """The rank of one more replica; None = it is not needed."""
        short = [floor for floor, _ in shortfalls(self.floors, self.awake) if floor.has(replica)]
        if len(self.awake) < self.spec.min_awake or any(self._there(floor) < floor.least for floor in short):
            return Rank.MINIMUM
        if len(self.awake) >= self.need and not short:
            return None
        first = not self.awake or any(not self._there(floor) for floor in short)
        return Rank.FIRST if first else Rank.OTHER

    def has_room(self, replica: ReplicaObservation) -> bool:
        """Whether the maxima allow one more replica."""
        places = [place_of(row) for row in self.awake]
        return len(places) < self.spec.max_awake and room_at(self.spec.places, places, place_of(replica)) > 0

    def _there(self, floor: Floor) -> int:
        return sum(floor.has(row) for row in self.awake)


def share_out(creating: Iterable[CreatingHost], needs: Mapping[str, Need]) -> list[CreatingHost]:
    """The hosts in creation, the shared ones with the replicas for which they count now.

    `needs`, by model, has those that are awake or come on hosts of one model, and counts the others afterwards. What a
    host has counted for stays until another model needs the GPUs.
    """
    shared = sorted((host for host in creating if host.slots), key=lambda host: (-host.since_s, host.host_id))
    runs = {host.host_id: _strongest(host, needs) for host in shared}
    for host in shared:  # when all have what they need
        runs[host.host_id] = _with_earlier(host, runs[host.host_id], needs)
    return [msgspec.structs.replace(host, runs=runs.get(host.host_id, ())) for host in creating]


def _strongest(host: CreatingHost, needs: Mapping[str, Need]) -> tuple[RunSlot, ...]:
    """The needed replicas for which a host counts: the strongest claim first, else as the host lists them."""
    runs: tuple[RunSlot, ...] = ()
    while True:
        found = []
        for slot in _free(host.slots, runs, needs):
            need = needs[slot.model]
            replica = _coming(need.spec, host, len(runs))
            if need.has_room(replica) and (rank := need.rank(replica)) is not None:
                found.append((rank, need.held > 0, slot, replica))
        if not found:
            return runs
        rank, _, slot, replica = max(found, key=lambda row: row[:2])
        runs += (msgspec.structs.replace(slot, least=rank is Rank.MINIMUM),)
        needs[slot.model].awake.append(replica)


def _with_earlier(
    host: CreatingHost, runs: tuple[RunSlot, ...], needs: Mapping[str, Need]
) -> tuple[RunSlot, ...]:
    """And those for which it has counted before, on the GPUs that are left."""
    for earlier in host.runs:
        for slot in _free((earlier,), runs, needs):
            need = needs[slot.model]
            replica = _coming(need.spec, host, len(runs))
            if need.has_room(replica):
                runs += (msgspec.structs.replace(slot, least=False),)
                need.awake.append(replica)
    return runs


def _free(slots: Iterable[RunSlot], runs: Sequence[RunSlot], needs: Mapping[str, Need]) -> list[RunSlot]:
    """The slots of models that are planned for whose GPUs none of `runs` uses."""
    return [slot for slot in slots if slot.model in needs and not any(slot.meets(other) for other in runs)]


def keep_turns(
    creating: Iterable[CreatingHost],
    specs: Mapping[str, ModelSpec],
    desired: Mapping[str, Desired],
    awake: Mapping[str, Sequence[Place]],
    kept: dict[str, int],
    kept_there: Mapping[str, dict[Binding, int]],
) -> None:
    """Count a first replica as kept for a model that has its turn on a shared host, once that serves, before a host of
    its own would: as for hosts that serve already.

    `awake`: where the replicas of each model are that are awake or come.
    """
    shared = [host for host in creating if host.slots]
    counts = {name: len(places) for name, places in awake.items()}

    def soon(name: str, where: Binding) -> bool:
        waits = (_turn_s(host, name, specs, desired, counts) for host in shared if _is_in(host, where))
        return min(waits, default=math.inf) <= create_s(specs[name])

    for name, wanted in desired.items():
        if not awake[name] and soon(name, UNBOUND):
            kept[name] = max(kept[name], 1)
        for floor in wanted.floors:
            there = any(floor.where.allows(*place) for place in awake[name])
            if not there and soon(name, floor.where):
                kept_there[name][floor.where] = max(kept_there[name][floor.where], 1)


def _is_in(host: CreatingHost, where: Binding) -> bool:
    return where.allows(host.region, host.gpu, host.kind)


def _turn_s(
    host: CreatingHost,
    model: str,
    specs: Mapping[str, ModelSpec],
    desired: Mapping[str, Desired],
    counts: Mapping[str, int],
) -> float:
    """Seconds from when a shared host serves until the first replica of a model does there; infinite where its GPUs
    count for a minimum."""
    spec = specs[model]
    takes_s = spec.ladder[Rung.STOPPED].wake_s
    own = Claim(Rank.FIRST, _revenue(model, specs, desired, 1))
    soonest_s = math.inf
    for slot in host.slots:
        if slot.model != model:
            continue
        victims = []
        for number, other in enumerate(run for run in host.runs if run.meets(slot)):
            count = max(1, counts[other.model])
            rank = Rank.MINIMUM if other.least else Rank.FIRST if count == 1 else Rank.OTHER
            served = msgspec.structs.replace(
                _coming(specs[other.model], host, number), since_s=0.0, ready_in_s=0.0
            )
            told = Claim(rank, _revenue(other.model, specs, desired, count))
            victims.append(Victim(served, specs[other.model], told, desired[other.model].busy))
        drain_s = max((each.spec.drain_s for each in victims), default=0.0)
        soonest_s = min(soonest_s, turn_in_s(own, spec, takes_s, 1, victims) + drain_s + takes_s)
    return soonest_s


def _revenue(
    model: str, specs: Mapping[str, ModelSpec], desired: Mapping[str, Desired], replicas: int
) -> float:
    return specs[model].usd_per_request * desired[model].rate / replicas
