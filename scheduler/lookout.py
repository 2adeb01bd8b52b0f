"""The autoscaler's look at the live pool, every LOOK_S seconds: nobody acts on it, so it may fail alone."""

import logging

from core.clock import Clock
from scheduler import metrics
from scheduler.autoscaling import LivePlanner
from scheduler.core.autoscale.state import Unplannable
from scheduler.core.state import SchedulerState
from scheduler.views import HostBook
from scheduler.wire import PlanView

log = logging.getLogger(__name__)


class Lookout:
    """Looks, shows what the autoscaler would do, and says where it has no answer."""

    def __init__(self, planner: LivePlanner, state: SchedulerState, hosts: HostBook, clock: Clock) -> None:
        self._planner = planner
        self._state, self._hosts, self._clock = state, hosts, clock
        self._failed: set[tuple[str, str]] = set()
        """Models and the kinds of failures that have been logged of them."""

    def look(self, now: float) -> PlanView | None:
        """The plan as of `now` (monotonic seconds); None where there is none, or arithmetic failed on some figure.

        A failure is counted each time and logged the first time; the next look begins anew.
        """
        today = self._clock.now()
        try:
            plan = self._planner.look(
                self._state.fleet.replicas,
                self._hosts.views(now),
                self._state.queue_views(now),
                now,
                today.hour * 3600.0 + today.minute * 60.0 + today.second,
            )
        except (ArithmeticError, ValueError) as error:
            self._note(error)
            plan = None
        metrics.show_plan(plan)
        return plan

    def _note(self, error: Exception) -> None:
        model, why = (error.model, error.why) if isinstance(error, Unplannable) else ("", error)
        metrics.PLAN_FAILURES.labels(model).inc()
        if (key := (model, type(why).__name__)) not in self._failed:
            self._failed.add(key)
            log.error("no plan is made: arithmetic failed on model %s", model or "(unknown)", exc_info=error)
