"""What the scheduler shows of tenants stays bounded."""

from scheduler.core.rules import NEW_TENANT
from scheduler.messages import TenantCounter
from scheduler.metrics import OTHER, service_by_tenant
from tests.support.scheduling import MODEL


def test_the_tenants_served_most_are_named_and_the_rest_is_summed_up() -> None:
    counters = [TenantCounter(f"t{n}", MODEL, float(n)) for n in range(1, 31)]
    counters += [TenantCounter("t30", MODEL, 5.0, "batch"), TenantCounter(NEW_TENANT, MODEL, 999.0)]
    shown = service_by_tenant(counters, limit=3)[MODEL]
    assert shown == {"t30": 35.0, "t29": 29.0, "t28": 28.0, OTHER: float(sum(range(1, 28)))}
    assert service_by_tenant(counters[:2])[MODEL] == {"t1": 1.0, "t2": 2.0}
