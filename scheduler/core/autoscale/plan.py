"""The plan of the autoscaler: the rung of every replica, with reasons. Deterministic and serialisable."""

from collections.abc import Sequence

import msgspec

from scheduler.core.autoscale.creation import Creation
from scheduler.core.autoscale.state import ReplicaObservation, Rung
from scheduler.wire import (
    HostCreationView,
    HostRemovalView,
    KindPlanView,
    ModelPlanView,
    PlanChangeView,
    PlanView,
)

MAX_CHANGES_SHOWN = 64
"""Changes shown in a snapshot."""


class ModelPlan(msgspec.Struct, frozen=True):
    """Desired number of awake replicas of a model."""

    model: str
    awake: int
    """Serving replicas."""
    pending: int
    """Replicas that are waking, or will be on hosts in creation."""
    target: int
    planned_rps: float
    """Arrivals per second that are planned for: the measured rate and a margin for its uncertainty."""
    reason: str


class ReplicaPlan(msgspec.Struct, frozen=True):
    """Desired rung of a replica."""

    replica_id: str
    model: str
    host_id: str
    rung: Rung
    reason: str = ""


class HostRemoval(msgspec.Struct, frozen=True):
    """A host to destroy."""

    host_id: str
    kind: str
    reason: str


class KindPlan(msgspec.Struct, frozen=True):
    """Hosts of one kind: those that there are, and those that there should be."""

    kind: str
    present: int
    """Hosts that have joined, those to destroy included."""
    creating: int
    """Hosts in creation that have not joined."""
    desired: int
    """Hosts that there should be: `present` and `creating`, less those to destroy, plus those to create."""
    failures: int = 0
    """Creations that failed since the last success."""
    retry_in_s: float = 0.0
    """Seconds until one may be created again after failures; 0 = now."""


class Change(msgspec.Struct, frozen=True):
    """One difference between the plan and the present state."""

    replica_id: str
    model: str
    before: Rung
    after: Rung
    reason: str


class Plan(msgspec.Struct, frozen=True):
    """Desired state of all replicas and hosts."""

    at: float
    models: list[ModelPlan]
    replicas: list[ReplicaPlan]
    kinds: list[KindPlan] = []
    create: list[Creation] = []
    """Hosts to create beside those in creation. Empty again in the first plan that has observed them."""
    destroy: list[HostRemoval] = []


def changes(plan: Plan, replicas: Sequence[ReplicaObservation]) -> list[Change]:
    """Steps from the present state to the plan. Replicas go down first, which frees GPUs for those that wake."""
    before = {replica.replica_id: replica.rung for replica in replicas}
    found = [
        Change(want.replica_id, want.model, before[want.replica_id], want.rung, want.reason)
        for want in plan.replicas
        if want.replica_id in before and before[want.replica_id] != want.rung
    ]
    return sorted(found, key=lambda change: (change.after is Rung.AWAKE, change.replica_id))


def view(plan: Plan, replicas: Sequence[ReplicaObservation]) -> PlanView:
    """The plan for snapshots, with at most MAX_CHANGES_SHOWN changes."""
    found = changes(plan, replicas)
    return PlanView(
        models=[
            ModelPlanView(
                row.model, row.awake, row.pending, row.target, round(row.planned_rps, 3), row.reason
            )
            for row in plan.models
        ],
        changes=[
            PlanChangeView(row.replica_id, row.before.value, row.after.value, row.reason)
            for row in found[:MAX_CHANGES_SHOWN]
        ],
        changes_total=len(found),
        kinds=[
            KindPlanView(
                row.kind, row.present, row.creating, row.desired, row.failures, round(row.retry_in_s, 1)
            )
            for row in plan.kinds
        ],
        create=[HostCreationView(row.kind, row.model, row.count, row.reason) for row in plan.create],
        destroy=[HostRemovalView(row.host_id, row.kind, row.reason) for row in plan.destroy],
    )
