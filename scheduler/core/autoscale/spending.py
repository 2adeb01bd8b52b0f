"""What the hosts of each model cost per hour, and whether another replica is within the model's budget.

A paid host's price is divided among the replicas that are awake on it, by their GPUs. A host in creation counts in full
for its model, and a shared one for those that will be awake on it, in the same way. Contracted hosts cost nothing:
their hours are paid for in any case.
"""

from collections.abc import Iterable, Mapping, Sequence

from scheduler.core.autoscale.floors import Floor
from scheduler.core.autoscale.state import CreatingHost, HostObservation, ModelSpec, ReplicaObservation

ROUNDING_USD = 1e-6
"""Dollars per hour by which a floating-point sum may exceed a budget."""


class Spending:
    """Prices per hour of the hosts that each model holds, in USD."""

    def __init__(
        self,
        specs: Mapping[str, ModelSpec],
        hosts: Sequence[HostObservation],
        replicas: Iterable[ReplicaObservation],
        creating: Iterable[CreatingHost] = (),
    ) -> None:
        """Nothing is awake until `take` is called. `replicas` are all that there are, awake or not."""
        self._specs = specs
        self._prices = {host.host_id: 0.0 if host.contracted else host.usd_per_hour for host in hosts}
        self._homes: dict[str, set[str]] = {}
        """By model: the hosts on which it has a replica."""
        for replica in replicas:
            self._homes.setdefault(replica.model, set()).add(replica.host_id)
        self._coming: dict[str, float] = {}
        for host in creating:
            for model, part in _parts(host).items():
                self._coming[model] = self._coming.get(model, 0.0) + host.usd_per_hour * part
        self._gpus: dict[str, dict[str, int]] = {}
        """By host and model: GPUs of awake replicas."""

    def take(self, replica: ReplicaObservation) -> None:
        """Count a replica as awake."""
        held = self._gpus.setdefault(replica.host_id, {})
        held[replica.model] = held.get(replica.model, 0) + self._weight(replica)

    def release(self, replica: ReplicaObservation) -> None:
        """Count a replica that was taken as no longer awake."""
        self._gpus[replica.host_id][replica.model] -= self._weight(replica)

    def awake(self, model: str) -> float:
        """USD per hour for the model's awake replicas and its hosts in creation."""
        return self._coming.get(model, 0.0) + sum(self._share(host_id, model) for host_id in self._gpus)

    def whole(self, model: str) -> float:
        """`awake`, and the price of every host where the model rests and nothing is awake."""
        idle = (host_id for host_id in self._homes.get(model, ()) if not self._held(host_id))
        return self.awake(model) + sum(self._prices.get(host_id, 0.0) for host_id in idle)

    def affords(self, replica: ReplicaObservation) -> bool:
        """Whether the model's budget allows this replica to be awake, too."""
        if self.free(replica):
            return True
        self.take(replica)
        within = self.awake(replica.model) <= self._specs[replica.model].budget_usd_per_hour + ROUNDING_USD
        self.release(replica)
        return within

    def free(self, replica: ReplicaObservation) -> bool:
        """Whether the replica's host costs nothing: it is contracted, or has no price."""
        return self._prices.get(replica.host_id, 0.0) <= 0.0

    def exceeds(self, model: str) -> bool:
        """Whether the model's awake replicas and hosts in creation cost more than its budget."""
        return self.awake(model) > self._specs[model].budget_usd_per_hour + ROUNDING_USD

    def idle_usd(self, replica: ReplicaObservation) -> float:
        """USD per hour for which nothing is awake yet on the replica's host; 0 on a contracted host or a shared one."""
        return 0.0 if self._held(replica.host_id) else self._prices.get(replica.host_id, 0.0)

    def _held(self, host_id: str) -> int:
        return sum(self._gpus.get(host_id, {}).values())

    def _share(self, host_id: str, model: str) -> float:
        mine = self._gpus[host_id].get(model, 0)
        return self._prices.get(host_id, 0.0) * mine / self._held(host_id) if mine else 0.0

    def _weight(self, replica: ReplicaObservation) -> int:
        """GPUs of a replica; 1 without GPUs, so that a host's price is divided in any case."""
        return max(1, self._specs[replica.model].capacity.gpus)


def _parts(host: CreatingHost) -> dict[str, float]:
    """The part of a host in creation that each model pays."""
    if not host.slots:
        return {host.model: 1.0}
    whole = sum(len(slot.gpu_ids) for slot in host.runs)
    found: dict[str, float] = {}
    for slot in host.runs:
        found[slot.model] = found.get(slot.model, 0.0) + len(slot.gpu_ids) / whole
    return found


def over_budget(
    spec: ModelSpec, awake: Sequence[ReplicaObservation], spending: Spending, floors: Sequence[Floor] = ()
) -> list[ReplicaObservation]:
    """Replicas of `awake`, the model's in the order of removal, to put to rest so that it is within its budget again.

    They leave host by host, because only a host without awake replicas costs less, and never below the minimum, nor
    below that of a place, which `floors` have. `spending` counts them as released afterwards.
    """
    by_host: dict[str, list[ReplicaObservation]] = {}
    for replica in awake:
        by_host.setdefault(replica.host_id, []).append(replica)
    gone: list[ReplicaObservation] = []
    for group in by_host.values():
        if not spending.exceeds(spec.model):
            break
        if spending.free(group[0]) or len(awake) - len(gone) - len(group) < spec.min_awake:
            continue
        left = [replica for replica in awake if replica not in gone and replica not in group]
        if any(
            sum(floor.has(other) for other in left) < floor.least
            for floor in floors
            if any(floor.has(replica) for replica in group)
        ):
            continue
        for replica in group:
            spending.release(replica)
        gone += group
    return gone
