"""Runs the autoscaler on the live pool every PLAN_INTERVAL_S seconds; a failure affects nothing else."""

import logging

from scheduler import metrics
from scheduler.autoscaling import LivePlanner
from scheduler.core.autoscale.plan import shown
from scheduler.core.autoscale.state import PlanningError
from scheduler.core.state import SchedulerState
from scheduler.plan_actor import PlanActor
from scheduler.views import HostRegistry
from scheduler.wire import PlanView

log = logging.getLogger(__name__)


class AutoscalerRunner:
    """Runs the planner, has its plan acted on, sets the plan's metrics, and counts and logs failures."""

    def __init__(
        self,
        planner: LivePlanner,
        state: SchedulerState,
        hosts: HostRegistry,
        actor: PlanActor | None = None,
    ) -> None:
        """Without an `actor` nothing acts on the plan."""
        self._planner, self._actor = planner, actor
        self._state, self._hosts = state, hosts
        self._failed: set[tuple[str, str]] = set()
        """Models and error types that have been logged."""

    def run(self, now: float) -> PlanView | None:
        """The plan at `now` (monotonic seconds); None without one, or when the arithmetic failed on a model's
        figures.

        A failure is counted each time and logged the first time. The next run starts afresh.
        """
        actor, hosts, replicas = self._actor, self._hosts.views(now), self._state.fleet.replicas
        if actor is not None:
            actor.leave(hosts, self._state, now)
            if (waker := self._state.fleet.waker) is not None:
                actor.expect(waker, hosts, replicas.values(), self._planner.kinds, now)
            staying = actor.staying(hosts)
            leaving = {host.agent_id for host in hosts} - {host.agent_id for host in staying}
            hosts = staying
            replicas = {name: row for name, row in replicas.items() if row.agent_id not in leaving}
        try:
            plan = self._planner.plan(
                replicas,
                hosts,
                self._state.queue_views(now),
                now,
                creating=actor.creating(hosts) if actor is not None else (),
                failures=actor.failures() if actor is not None else (),
                drained_by_person=actor.drained_by_person if actor is not None else lambda name: True,
                waiting_at=self._state.waiting_at(),
            )
        except (ArithmeticError, ValueError) as error:
            self._record_failure(error)
            plan = None
        metrics.show_plan(plan)
        if plan is not None and actor is not None:
            actor.act(plan, hosts, self._state, now)
        return shown(plan) if plan is not None else None

    def _record_failure(self, error: Exception) -> None:
        model, why = (error.model, error.cause) if isinstance(error, PlanningError) else ("", error)
        metrics.PLAN_FAILURES.labels(model).inc()
        if (key := (model, type(why).__name__)) not in self._failed:
            self._failed.add(key)
            log.error("no plan is made: arithmetic failed on model %s", model or "(unknown)", exc_info=error)
