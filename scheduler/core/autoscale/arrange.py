"""Which replicas are awake: targets per model fitted onto the GPUs that there are.

A host's GPUs hold one awake set, so waking one model may mean putting another to sleep. Where there are too few GPUs,
they go to the model that earns most with them; nobody's first replica is taken for another's second.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from scheduler.core.autoscale.ladder import host_memory_gb, resting_rung, settled_rung, wake_s
from scheduler.core.autoscale.plan import ReplicaPlan
from scheduler.core.autoscale.retire import retire_order
from scheduler.core.autoscale.state import HostObservation, ModelSpec, ReplicaObservation, Rung

MIN_STAY_S = 60.0
"""A replica that serves is not put to sleep for another model earlier than this after it woke."""
SWAP_GAIN = 1.25
"""Another model must earn this much more with the GPUs than the one that has them: swapping costs both a wake."""


@dataclass(frozen=True, slots=True)
class Desired:
    """What one model should have."""

    target: int
    """Replicas awake."""
    needed: int
    """Of these, how many the load of the last minute needs; the rest is margin that another model may take."""
    rate: float
    """Requests a second, for what its GPUs earn."""


@dataclass(slots=True)
class Arrangement:
    """The outcome."""

    replicas: list[ReplicaPlan] = field(default_factory=list)
    missing: dict[str, int] = field(default_factory=dict)
    """Model -> replicas that no host has room for."""


def arrange(
    specs: Mapping[str, ModelSpec],
    desired: Mapping[str, Desired],
    reasons: Mapping[str, str],
    hosts: Sequence[HostObservation],
    replicas: Sequence[ReplicaObservation],
    retiring: frozenset[str] = frozenset(),
) -> Arrangement:
    """Choose who is awake. `retiring` are replicas chosen by scaling down, `reasons` the models' reasons.

    Whoever is awake stays awake unless it goes or is outbid, so planning again from the planned state changes nothing.
    """
    arranger = _Arranger(specs, desired, hosts, replicas, retiring)
    while (model := arranger.most_valuable()) is not None:
        if not arranger.wake_one(model):
            arranger.mark_unsatisfiable(model)
    return arranger.result(reasons)


class _Arranger:
    """The GPUs while they are handed out."""

    def __init__(
        self,
        specs: Mapping[str, ModelSpec],
        desired: Mapping[str, Desired],
        hosts: Sequence[HostObservation],
        replicas: Sequence[ReplicaObservation],
        retiring: frozenset[str],
    ) -> None:
        self._specs, self._desired = specs, desired
        self._hosts = {host.host_id: host for host in hosts}
        self._replicas = [replica for replica in replicas if replica.model in specs]
        self._free = {host.host_id: host.gpus for host in hosts}
        self._awake: dict[str, list[ReplicaObservation]] = {model: [] for model in specs}
        self._outbid: dict[str, str] = {}
        self._unsatisfiable: set[str] = set()
        for replica in sorted(self._replicas, key=lambda replica: replica.replica_id):
            if replica.rung is Rung.AWAKE and replica.replica_id not in retiring:
                self._take(replica)

    def _take(self, replica: ReplicaObservation) -> None:
        self._awake[replica.model].append(replica)
        self._free[replica.host_id] = self._free.get(replica.host_id, 0) - self._gpus(replica)

    def _gpus(self, replica: ReplicaObservation) -> int:
        return self._specs[replica.model].capacity.gpus

    def most_valuable(self) -> str | None:
        """The model whose next replica is worth most, of those that still lack one."""
        lacking = [
            model
            for model, desired in sorted(self._desired.items())
            if model not in self._unsatisfiable and len(self._awake[model]) < desired.target
        ]
        return max(lacking, key=lambda model: self._value(model, len(self._awake[model]) + 1), default=None)

    def _value(self, model: str, nth: int) -> float:
        """USD a second and GPU that a model's `nth` replica earns; beyond what is needed now, nothing."""
        spec, desired = self._specs[model], self._desired[model]
        if nth <= spec.min_awake or (nth == 1 and desired.needed > 0):
            return math.inf
        if nth > desired.needed:
            return 0.0
        return spec.usd_per_request * desired.rate / desired.needed / max(1, spec.capacity.gpus)

    def wake_one(self, model: str) -> bool:
        """Wake the quickest of a model's resting replicas that has room, or gets it from a model that earns less."""
        spec = self._specs[model]
        awake = {replica.replica_id for replica in self._awake[model]}
        resting = sorted(
            (
                replica
                for replica in self._replicas
                if replica.model == model and replica.replica_id not in awake
            ),
            key=lambda replica: (wake_s(spec, replica), replica.replica_id),
        )
        for replica in resting:
            if self._free.get(replica.host_id, 0) >= self._gpus(replica):
                self._take(replica)
                return True
        return any(self._outbid_for(replica) for replica in resting)

    def _outbid_for(self, replica: ReplicaObservation) -> bool:
        """Make room on a replica's host at the cost of others that earn less there; False if they do not."""
        model = replica.model
        gain = self._value(model, len(self._awake[model]) + 1) * self._gpus(replica)
        short = self._gpus(replica) - self._free.get(replica.host_id, 0)
        victims: list[ReplicaObservation] = []
        loss = 0.0
        for other in self._losers(replica):
            if short <= 0:
                break
            taken = sum(victim.model == other.model for victim in victims)
            loss += self._value(other.model, len(self._awake[other.model]) - taken) * self._gpus(other)
            victims.append(other)
            short -= self._gpus(other)
        if short > 0 or not gain > SWAP_GAIN * loss:
            return False
        for victim in victims:
            self._awake[victim.model].remove(victim)
            self._free[victim.host_id] += self._gpus(victim)
            self._outbid[victim.replica_id] = model
        self._take(replica)
        return True

    def _losers(self, replica: ReplicaObservation) -> list[ReplicaObservation]:
        """Other models' replicas on the same host, the one whose model loses least by it first."""
        found: list[tuple[float, int, ReplicaObservation]] = []
        for model, awake in sorted(self._awake.items()):
            if model == replica.model:
                continue
            order = retire_order(awake, self._specs[model].capacity)
            for place, other in enumerate(order):
                if other.host_id == replica.host_id and other.since_s >= MIN_STAY_S:
                    found.append((self._value(model, len(awake)), place, other))
        return [other for _, _, other in sorted(found, key=lambda row: (row[0], row[1], row[2].replica_id))]

    def mark_unsatisfiable(self, model: str) -> None:
        """No host has room for another of `model`."""
        self._unsatisfiable.add(model)

    def result(self, reasons: Mapping[str, str]) -> Arrangement:
        """Everybody's rung with a reason, by name."""
        awake = {replica.replica_id for rows in self._awake.values() for replica in rows}
        asleep_gb = self._asleep_gb(awake)
        outcome = Arrangement()
        for replica in sorted(self._replicas, key=lambda replica: replica.replica_id):
            spec = self._specs[replica.model]
            rung, reason = replica.rung, ""
            if replica.replica_id in awake:
                rung = Rung.AWAKE
                reason = reasons.get(replica.model, "") if replica.rung is not Rung.AWAKE else ""
            elif replica.rung is Rung.AWAKE:
                host = self._hosts.get(replica.host_id)
                rung = resting_rung(spec, host, asleep_gb[replica.host_id]) if host else Rung.STOPPED
                figures = spec.ladder.get(rung)
                asleep_gb[replica.host_id] += figures.host_gb if figures else 0.0
                reason = self._reason_down(replica, reasons)
            elif (rung := self._settled(replica)) is not replica.rung:
                reason = f"{replica.rung} for {replica.since_s:.0f} s has cost as much as coming back from {rung} would"
            outcome.replicas.append(
                ReplicaPlan(replica.replica_id, replica.model, replica.host_id, rung, reason)
            )
        for model in self._unsatisfiable:
            outcome.missing[model] = self._desired[model].target - len(self._awake[model])
        return outcome

    def _settled(self, replica: ReplicaObservation) -> Rung:
        return settled_rung(self._specs[replica.model], self._hosts.get(replica.host_id), replica)

    def _asleep_gb(self, awake: set[str]) -> dict[str, float]:
        """Host memory held by those that rest now and will go on resting."""
        rest: dict[str, list[ReplicaObservation]] = {replica.host_id: [] for replica in self._replicas}
        for replica in self._replicas:
            if replica.replica_id not in awake and replica.rung is not Rung.AWAKE:
                rest[replica.host_id].append(msgspec.structs.replace(replica, rung=self._settled(replica)))
        return {host_id: host_memory_gb(dict(self._specs), rows) for host_id, rows in rest.items()}

    def _reason_down(self, replica: ReplicaObservation, reasons: Mapping[str, str]) -> str:
        if winner := self._outbid.get(replica.replica_id):
            return f"its GPUs go to {winner}: {reasons.get(winner, '')}"
        return reasons.get(replica.model, "")
