"""The rows of a plan that say what was found of each model and each kind of host."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from scheduler.core.autoscale.creation import Creations
from scheduler.core.autoscale.floors import Floor, Place, place_of
from scheduler.core.autoscale.plan import ReplicaPlan
from scheduler.core.autoscale.state import ModelSpec, Observation, PlaceLimits, ReplicaObservation, Rung
from scheduler.wire import HostKeptView, HostRemovalView, KindPlanView, ModelPlanView, PlacePlanView


def places_of(spec: ModelSpec, replicas: Iterable[ReplicaObservation]) -> set[Place]:
    """The places in which replicas of a model are, or hosts may be created for it."""
    found = {place_of(replica) for replica in replicas if replica.model == spec.model}
    return found | {
        Place(region, option.gpu, option.kind) for option in spec.kinds for region in option.regions
    }


def model_row(
    model: str,
    present: Sequence[ReplicaObservation],
    target: int,
    rate: float,
    words: str,
    floors: Sequence[Floor],
    limits: Sequence[PlaceLimits] = (),
) -> ModelPlanView:
    """A model in the plan. `present`: its replicas that serve or come. `limits`: those of single places."""
    pending = sum(row.ready_in_s > 0.0 for row in present)
    places = []
    for floor in floors:
        there = [row for row in present if floor.has(row)]
        coming = sum(row.ready_in_s > 0.0 for row in there)
        where = floor.where
        places.append(
            PlacePlanView(where.regions, where.gpus, len(there) - coming, coming, floor.need, where.kinds)
        )
    serving = len(present) - pending
    most = {kind: each.most for each in limits for kind in each.where.kinds}
    return ModelPlanView(model, serving, pending, target, rate, words, places=tuple(places), most=most)


def kind_plans(
    specs: Mapping[str, ModelSpec],
    observation: Observation,
    creations: Creations,
    destroy: Sequence[HostRemovalView],
) -> list[KindPlanView]:
    """One row for each kind of host that is present, in creation, allowed or failing, sorted by kind."""
    present = Counter(host.kind for host in observation.hosts)
    creating = Counter(host.kind for host in observation.creating)
    more = Counter[str]()
    for row in creations.found:
        more[row.kind] += row.count
    less = Counter(row.kind for row in destroy)
    failures = {row.kind: row.count for row in observation.failures if not row.region}
    allowed = {option.kind for spec in specs.values() for option in spec.kinds}
    kinds = {*present, *creating, *allowed, *failures} - {""}
    return [
        KindPlanView(
            kind,
            present[kind],
            creating[kind],
            present[kind] + creating[kind] + more[kind] - less[kind],
            failures.get(kind, 0),
            round(creations.retry_in_s(kind), 1),
        )
        for kind in sorted(kinds)
    ]


def kept_hosts(observation: Observation, planned: Sequence[ReplicaPlan]) -> list[HostKeptView]:
    """The hosts on which no replica will be awake and that are kept because a contract covers them, by name."""
    used = {row.host_id for row in planned if row.rung is Rung.AWAKE}
    return [
        HostKeptView(
            host.host_id,
            host.kind,
            f"nothing is awake on it, and it is paid for by {host.contract}",
            host.region,
        )
        for host in sorted(observation.hosts, key=lambda host: host.host_id)
        if host.contract and host.host_id not in used
    ]
