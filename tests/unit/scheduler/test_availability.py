"""Whether a model can serve within the deadline, from snapshots."""

import pytest

from core.errors import Refused
from scheduler.availability import RETRY_S, UNKNOWN, Availability
from scheduler.wire import ModelView, PoolSnapshot, TierView


def of(view: ModelView | None, *, complete: bool = True) -> Availability:
    models = [] if view is None else [view]
    snapshot = PoolSnapshot(at_unix_ms=9_000_000, models=models, started_unix_ms=1_000_000, complete=complete)
    return Availability(lambda: snapshot, lambda model: 30.0)


@pytest.mark.parametrize("wait_s", [0.0, 30.0])
def test_what_serves_within_the_deadline_is_active(wait_s: float) -> None:
    tier = TierView("standard", 3, 1.0)
    state = of(ModelView("m", wait_s, 9_000_000, [tier])).of("m")
    assert (state.serves, state.offline_since_ms, state.tiers) == (True, None, (tier,))
    of(ModelView("m", wait_s)).check("m")


def test_before_the_agents_have_reported_nothing_is_refused() -> None:
    assert Availability(PoolSnapshot, lambda model: 30.0).of("m") == UNKNOWN
    assert of(ModelView("m", None), complete=False).of("m") == UNKNOWN
    of(None, complete=False).check("m")
    assert of(ModelView("m", 0.0), complete=False).of("m").known


def test_what_never_had_a_replica_is_offline_since_the_scheduler_began() -> None:
    with pytest.raises(Refused, match="'m' is offline") as refused:
        of(None).check("m")
    assert (refused.value.code, refused.value.status) == ("model_offline", 503)
    assert refused.value.retry_after_s == RETRY_S
    assert refused.value.details["offline_since"] == 1_000
    assert refused.value.details["expected_at"] is None


def test_what_comes_too_late_says_when() -> None:
    with pytest.raises(Refused, match="It is starting; ask again in 81 s") as refused:
        of(ModelView("m", 80.5, 8_000_000)).check("m")
    assert refused.value.retry_after_s == 80.5
    assert refused.value.details == {
        "reason": "model_offline",
        "offline_since": 8_000,
        "expected_at": 9_080,
        "position": 0,
        "warm_replicas": 0,
        "predicted_wait_s": 80.5,
        "retry_after_s": 80.5,
    }


def test_a_new_snapshot_counts_at_once() -> None:
    shown = [PoolSnapshot(complete=True), PoolSnapshot(complete=True, models=[ModelView("m", 0.0)])]
    availability = Availability(lambda: shown[0], lambda model: 30.0)
    assert not availability.of("m").serves
    del shown[0]
    assert availability.of("m").serves


def test_each_model_has_its_own_deadline() -> None:
    snapshot = PoolSnapshot(complete=True, models=[ModelView("slow", 80.0), ModelView("m", 80.0)])
    availability = Availability(lambda: snapshot, lambda model: 120.0 if model == "slow" else 30.0)
    assert availability.of("slow").serves
    assert not availability.of("m").serves
