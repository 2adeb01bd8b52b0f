"""What refused callers are told."""

import pytest

from scheduler.core import refusals
from scheduler.core.policy import Reason
from scheduler.core.refusals import Standing
from tests.support.scheduling import MODEL, request


@pytest.mark.parametrize(
    ("wait_s", "allowed_s", "retry_s"), [(12.5, 10.0, 2.5), (10.2, 10.0, 1.0), (500.0, 10.0, 60.0)]
)
def test_come_back_when_the_wait_will_be_short_enough(
    wait_s: float, allowed_s: float, retry_s: float
) -> None:
    refusal = refusals.too_late(request(), Standing(7, 2, wait_s), allowed_s, caused_by_tenant=False)
    assert (refusal.status, refusal.reason, refusal.retry_after_s) == (503, "predicted_wait", retry_s)
    assert (refusal.position, refusal.warm_replicas, refusal.predicted_wait_s) == (7, 2, wait_s)
    assert f"{wait_s:.1f} s, more than the 10.0 s allowed" in refusal.message


def test_only_ones_own_share_is_429() -> None:
    standing = Standing(3, 1, 5.0)
    told = [
        refusals.queue_full(request(), standing, 100),
        refusals.tenant_fills_queue(request(), standing, 50),
        refusals.too_late(request(), standing, 1.0, caused_by_tenant=True),
        refusals.overdue(request(), 20.0, standing, over_share=True),
        refusals.overdue(request(), 20.0, standing, over_share=False),
        refusals.hopeless(request(), Reason.NOT_WARM, Standing(0, 0, None)),
    ]
    assert [(refusal.status, refusal.reason) for refusal in told] == [
        (503, "queue_full"),
        (429, "tenant_share"),
        (429, "tenant_share"),
        (429, "tenant_share"),
        (503, "queue_deadline"),
        (503, "no_warm_replica"),
    ]
    assert all(MODEL in refusal.message for refusal in told)


def test_where_nothing_can_be_predicted_the_deadline_is_named_and_the_retry_bounded() -> None:
    refusal = refusals.hopeless(request(deadline_s=20.0), Reason.UNKNOWN_MODEL, Standing(0, 0, None))
    assert (refusal.predicted_wait_s, refusal.retry_after_s) == (20.0, 20.0)
