"""The plan of the autoscaler: the rung of every replica, with reasons. Deterministic and serialisable."""

from collections.abc import Sequence

import msgspec

from scheduler.core.autoscale.state import ReplicaObservation, Rung
from scheduler.wire import ModelPlanView, PlanChangeView, PlanView

MAX_CHANGES_SHOWN = 64
"""Changes shown in a snapshot."""


class ModelPlan(msgspec.Struct, frozen=True):
    """Desired number of awake replicas of a model."""

    model: str
    awake: int
    """Serving replicas."""
    pending: int
    """Replicas that are waking."""
    target: int
    forecast_rps: float
    """Upper estimate of arrivals per second at the time when a replica woken now would serve."""
    reason: str


class ReplicaPlan(msgspec.Struct, frozen=True):
    """Desired rung of a replica."""

    replica_id: str
    model: str
    host_id: str
    rung: Rung
    reason: str = ""


class HostPlan(msgspec.Struct, frozen=True):
    """A host to create (`host_id` empty) or to destroy."""

    kind: str
    count: int
    host_id: str = ""
    reason: str = ""


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
    create: list[HostPlan] = []
    destroy: list[HostPlan] = []


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
                row.model, row.awake, row.pending, row.target, round(row.forecast_rps, 3), row.reason
            )
            for row in plan.models
        ],
        changes=[
            PlanChangeView(row.replica_id, row.before.value, row.after.value, row.reason)
            for row in found[:MAX_CHANGES_SHOWN]
        ],
        changes_total=len(found),
        hosts_to_create=sum(row.count for row in plan.create),
        hosts_to_destroy=[row.host_id for row in plan.destroy],
    )
