"""State of scheduling: queues, service by tenant, and the autoscaler's plan."""

from collections.abc import Mapping
from uuid import UUID

from console.components.base import Text, box, card
from console.components.table import Column, Row, cell, data_table, set_rows
from console.format import count, seconds, short_id, words
from scheduler.wire import (
    ModelPlanView,
    PlanChangeView,
    PlanView,
    PoolSnapshot,
    QueueView,
    TenantView,
    place_words,
)

_QUEUE_COLUMNS = (
    Column("model", "Model"),
    Column("in_flight", "In flight", numeric=True),
    Column("waiting", "Waiting", numeric=True),
    Column("oldest", "Oldest waits", numeric=True),
)
_TENANT_COLUMNS = (
    Column("tenant", "Tenant"),
    Column("model", "Model"),
    Column("waiting", "Waiting", numeric=True),
    Column("running", "Running", numeric=True),
    Column("service", "Served, weighted tokens", numeric=True),
)
_PLAN_COLUMNS = (
    Column("model", "Model"),
    Column("awake", "Awake", numeric=True),
    Column("target", "Wanted", numeric=True),
    Column("planned", "Planned for", numeric=True),
    Column("reason", "Why", sortable=False),
)
_CHANGE_COLUMNS = (
    Column("replica", "Replica"),
    Column("change", "Goes"),
    Column("reason", "Why", sortable=False),
)


class SchedulingPanel:
    """Queues, tenants and the plan; `show` displays a newer snapshot. `tenants` holds names by id."""

    def __init__(self, tenants: Mapping[UUID, str]) -> None:
        self._names = {str(tenant_id): name for tenant_id, name in tenants.items()}
        with card("Queues", "One per model; requests wait here, not in the engines.", flush=True):
            self._queues = data_table(_QUEUE_COLUMNS, [], label="Queues", nothing="No queue yet.")
        with card(
            "Tenants in the queues",
            "The smallest counter goes next: uncached input once, output twice, over its weight.",
            flush=True,
        ):
            self._tenants = data_table(
                _TENANT_COLUMNS, [], label="Tenants in the queues", nothing="No request waits or runs."
            )
        with card("Autoscaler", "What it plans now. The timeline shows what was done.", flush=True):
            self._plan = data_table(
                _PLAN_COLUMNS, [], label="Autoscaler", nothing="It has not seen enough yet."
            )
            self._hosts = Text("p", "", "muted")
        with box() as self._moves, card("Moves that the autoscaler plans", flush=True):
            self._changes = data_table(
                _CHANGE_COLUMNS, [], label="Moves that the autoscaler plans", nothing="None."
            )

    def show(self, snapshot: PoolSnapshot) -> None:
        """Display `snapshot`."""
        plan = snapshot.plan or PlanView()
        set_rows(self._queues, [_queue_row(queue) for queue in snapshot.queues])
        set_rows(
            self._tenants,
            [self._tenant_row(queue.model, one) for queue in snapshot.queues for one in queue.tenants],
        )
        set_rows(self._plan, [_plan_row(one) for one in plan.models])
        set_rows(self._changes, [_change_row(one) for one in plan.changes])
        self._hosts.set_text(line := hosts_line(plan))
        self._hosts.set_visibility(bool(line))
        self._moves.set_visibility(bool(plan.changes))

    def _tenant_row(self, model: str, tenant: TenantView) -> Row:
        name = self._names.get(tenant.tenant_id, short_id(tenant.tenant_id).text)
        return {
            "id": f"{model} {tenant.tier} {tenant.tenant_id}",
            "tenant": cell(name, href=f"/tenants/{tenant.tenant_id}", text=True),
            "model": cell(model, sub=tenant.tier, text=True),
            "waiting": cell(count(tenant.waiting)),
            "running": cell(count(tenant.running)),
            "service": cell(count(round(tenant.service))),
        }


def hosts_line(plan: PlanView) -> str:
    """The hosts that the plan would create or release, and the number of moves that are not listed."""
    parts = []
    parts += [
        " ".join(
            filter(
                None,
                (f"would create {row.count} {row.kind}", place_words(row.regions, ()), f"for {row.model}"),
            )
        )
        for row in plan.create
    ]
    if plan.destroy:
        gone = [f"{row.host_id} in {row.region}" if row.region else row.host_id for row in plan.destroy]
        parts.append(f"would give back {', '.join(gone)}")
    parts += [
        f"{row.kind} failed {row.failures} times, next attempt in {seconds(row.retry_in_s).text}"
        for row in plan.kinds
        if row.failures
    ]
    if (more := plan.changes_total - len(plan.changes)) > 0:
        parts.append(f"{more} more moves are not listed")
    line = "; ".join(parts)
    return line[:1].upper() + line[1:]


def _queue_row(queue: QueueView) -> Row:
    bands = ", ".join(f"{band.tier} {band.waiting} for {seconds(band.oldest_s).text}" for band in queue.bands)
    return {
        "id": queue.model,
        "model": cell(queue.model, sub=bands, text=True),
        "in_flight": cell(count(queue.in_flight)),
        "waiting": cell(count(queue.waiting)),
        "oldest": cell(seconds(queue.oldest_s if queue.waiting else None)),
    }


def _plan_row(plan: ModelPlanView) -> Row:
    tone = "ok" if plan.target == plan.awake + plan.pending else "info"
    pending = f"{plan.pending} on the way" if plan.pending else ""
    places = ", ".join(f"{place.target} {place.words}" for place in plan.places)
    return {
        "id": plan.model,
        "model": cell(plan.model, text=True),
        "awake": cell(count(plan.awake), sub=pending),
        "target": cell(count(plan.target), tone=tone, sub=places),
        "planned": cell(f"{plan.planned_rps:.1f}/s"),
        "reason": cell(plan.reason, wrap=True),
    }


def _change_row(change: PlanChangeView) -> Row:
    return {
        "id": change.replica_id,
        "replica": cell(change.replica_id, sub=change.region, text=True),
        "change": cell(f"{words(change.before)} → {words(change.after)}"),
        "reason": cell(change.reason, wrap=True),
    }
