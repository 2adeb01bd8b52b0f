"""The autoscaler's look fails alone: it is counted, logged once with the model, and the next one begins anew."""

import msgspec
import pytest
from prometheus_client import REGISTRY

from scheduler import autoscaler_runner as lookout_module
from scheduler.autoscaler_runner import AutoscalerRunner
from scheduler.autoscaling import LivePlanner
from scheduler.core.replica import Replica
from scheduler.core.state import SchedulerState
from scheduler.views import HostRegistry
from tests.support.scheduling import beat, replica
from workers.catalog import load_catalog

CATALOG = load_catalog()
SOUND, BROKEN = sorted(CATALOG.models)[:2]


def failures(model: str) -> float:
    return REGISTRY.get_sample_value("penstock_scheduler_plan_failures_total", {"model": model}) or 0.0


def served(state: SchedulerState, model: str) -> Replica:
    return next(each for each in state.fleet.replicas.values() if each.status.model == model)


def test_a_model_out_of_all_range_costs_the_plan_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, object]] = []
    monkeypatch.setattr(
        lookout_module.log, "error", lambda text, *facts, exc_info: told.append((text % facts, exc_info))
    )
    state, planner = SchedulerState("epoch-1", 0.0), LivePlanner(CATALOG)
    rows = [replica(f"host/{model}", model=model, boot_id=model) for model in (SOUND, BROKEN)]
    state.heartbeat(beat(*rows), 0.0)
    runner = AutoscalerRunner(planner, state, HostRegistry())
    assert runner.run(0.0) is not None
    before, whole = failures(BROKEN), served(state, BROKEN).capacity
    served(state, BROKEN).capacity = msgspec.structs.replace(whole, prefill_tokens_per_s=0.0)
    for number in range(1, 4):
        planner.count_arrival(BROKEN, 1_000, 100)
        assert runner.run(2.0 * number) is None
    assert failures(BROKEN) - before == 3
    [(message, error)] = told
    assert BROKEN in message
    assert isinstance(error, ArithmeticError | ValueError)
    served(state, BROKEN).capacity = whole
    plan = runner.run(8.0)
    assert plan is not None
    assert {row.model for row in plan.models} == {SOUND, BROKEN}


def test_a_failure_that_is_not_of_arithmetic_is_not_hidden() -> None:
    class Wrong(LivePlanner):
        def plan(self, *_: object, **__: object) -> None:
            raise KeyError("a mistake of ours")

    runner = AutoscalerRunner(Wrong(CATALOG), SchedulerState("epoch-1", 0.0), HostRegistry())
    with pytest.raises(KeyError):
        runner.run(0.0)
