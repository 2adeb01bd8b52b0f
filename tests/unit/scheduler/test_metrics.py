"""What the scheduler shows of tenants stays bounded."""

import math

import pytest

from scheduler.core.capacity_estimate import PRIOR_SD, Parts
from scheduler.core.rules import NEW_TENANT
from scheduler.core.state import SchedulerState
from scheduler.messages import TenantCounter
from scheduler.metrics import LEARNT, LEARNT_SPREAD, OTHER, service_by_tenant, show_state, stand_by
from tests.support.scheduling import MODEL, beat, replica


def test_the_tenants_served_most_are_named_and_the_rest_is_summed_up() -> None:
    counters = [TenantCounter(f"t{n}", MODEL, float(n)) for n in range(1, 31)]
    counters += [TenantCounter("t30", MODEL, 5.0, "batch"), TenantCounter(NEW_TENANT, MODEL, 999.0)]
    shown = service_by_tenant(counters, limit=3)[MODEL]
    assert shown == {"t30": 35.0, "t29": 29.0, "t28": 28.0, OTHER: float(sum(range(1, 28)))}
    assert service_by_tenant(counters[:2])[MODEL] == {"t1": 1.0, "t2": 2.0}


def test_learnt_figures_are_shown_with_their_spread_and_go_with_the_replica() -> None:
    state = SchedulerState("epoch-1", 0.0)
    state.heartbeat(beat(replica("host/r0")), 0.0)
    estimate = state.fleet.replicas["host/r0"].meter.estimate
    for _ in range(200):
        estimate.observe(Parts(prefill=1.0, base=0.0, sequences=0.0), 2.0)
    show_state(state)

    def shown() -> dict[tuple[str, str], float]:
        return {
            (sample.labels["figure"], sample.name.rsplit("_", 1)[1]): sample.value
            for gauge in (LEARNT, LEARNT_SPREAD)
            for metric in gauge.collect()
            for sample in metric.samples
        }

    found = shown()
    assert found["prefill", "ratio"] == pytest.approx(2.0, rel=0.05)
    assert found["prefill", "spread"] < 0.1 * found["base", "spread"]
    assert found["base", "spread"] == pytest.approx(PRIOR_SD)
    assert found["accepted", "ratio"] == 1.0
    assert all(math.isfinite(value) for value in found.values())
    stand_by()
    assert shown() == {}
