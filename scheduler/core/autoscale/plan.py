"""The plan of the autoscaler: the rung of every replica, with reasons. Deterministic and serialisable."""

from collections.abc import Sequence

import msgspec

from scheduler.core.autoscale.state import ReplicaObservation, Rung
from scheduler.wire import (
    HostCreationView,
    HostKeptView,
    HostRemovalView,
    KindPlanView,
    ModelPlanView,
    PlanChangeView,
    PlanView,
)

MAX_CHANGES_SHOWN = 64
"""Changes shown in a snapshot, of all that the scheduler carries out."""


class ReplicaPlan(msgspec.Struct, frozen=True):
    """Desired rung of a replica."""

    replica_id: str
    model: str
    host_id: str
    rung: Rung
    reason: str = ""
    region: str = ""


class Change(msgspec.Struct, frozen=True):
    """One difference between the plan and the present state."""

    replica_id: str
    model: str
    before: Rung
    after: Rung
    reason: str
    region: str = ""


class Plan(msgspec.Struct, frozen=True):
    """Desired state of all replicas and hosts."""

    at: float
    models: list[ModelPlanView]
    replicas: list[ReplicaPlan]
    kinds: list[KindPlanView] = []
    create: list[HostCreationView] = []
    """Hosts to create beside those in creation. Empty again in the first plan that has observed them."""
    destroy: list[HostRemovalView] = []
    kept: list[HostKeptView] = []


def changes(plan: Plan, replicas: Sequence[ReplicaObservation]) -> list[Change]:
    """Steps from the present state to the plan. Replicas go down first, which frees GPUs for those that wake."""
    before = {replica.replica_id: replica.rung for replica in replicas}
    found = [
        Change(want.replica_id, want.model, before[want.replica_id], want.rung, want.reason, want.region)
        for want in plan.replicas
        if want.replica_id in before and before[want.replica_id] != want.rung
    ]
    return sorted(found, key=lambda change: (change.after is Rung.AWAKE, change.replica_id))


def view(plan: Plan, replicas: Sequence[ReplicaObservation]) -> PlanView:
    """The plan with all changes."""
    found = changes(plan, replicas)
    return PlanView(
        models=plan.models,
        changes=[
            PlanChangeView(row.replica_id, row.before.value, row.after.value, row.reason, row.region)
            for row in found
        ],
        changes_total=len(found),
        kinds=plan.kinds,
        create=plan.create,
        destroy=plan.destroy,
        kept=plan.kept,
    )


def shown(plan: PlanView) -> PlanView:
    """The plan for snapshots, with at most MAX_CHANGES_SHOWN changes."""
    return msgspec.structs.replace(plan, changes=plan.changes[:MAX_CHANGES_SHOWN])
