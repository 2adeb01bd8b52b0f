"""What the scheduler tells API processes of each model."""

import pytest

from scheduler.core.placement import ActivePlacement
from scheduler.messages import PlaceRefused
from scheduler.model_activity import BUCKET_S, FORGET_S, MAX_MODELS, START_S, WINDOW_S, ModelActivity
from scheduler.wire import ModelView, Placement, Released
from tests.support.scheduling import MODEL, replica
from workers.wire import ReplicaState


def views(activity: ModelActivity, now: float, *replicas) -> dict[str, ModelView]:
    return {view.model: view for view in activity.views(replicas, now, int(now * 1000) + 1_000_000)}


def placed(tier: str = "standard", at: float = 0.0, **fields) -> ActivePlacement:
    made = ActivePlacement(
        "api",
        "t",
        MODEL,
        "host/r0",
        "boot-1",
        10,
        0,
        10,
        produced=0,
        prefilled=False,
        placed_at=at,
        tier=tier,
    )
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def place(activity: ModelActivity, tier: str = "standard", at: float = 0.0) -> None:
    activity.on_place("api", Placement("r", "e", "host/r0", "u", MODEL, "boot-1"), tier, at)


def refuse(activity: ModelActivity, status: int = 503, tier: str = "standard", at: float = 0.0) -> None:
    refusal = PlaceRefused("r", status, "queue_deadline", "text", 1.0, tier=tier)
    activity.on_refuse("api", MODEL, refusal, at)


@pytest.mark.parametrize(
    ("state", "ready_in_s"),
    [
        (ReplicaState.READY, 0.0),
        (ReplicaState.LOADING, 0.0),
        (ReplicaState.FAILED, 0.0),
        (ReplicaState.ASLEEP, None),
        (ReplicaState.DRAINING, None),
        (ReplicaState.STOPPED, None),
    ],
)
def test_a_model_serves_when_a_replica_is_ready_or_comes_by_itself(
    state: ReplicaState, ready_in_s: float | None
) -> None:
    assert views(ModelActivity(), 0.0, replica(state=state))[MODEL].ready_in_s == ready_in_s


def test_a_start_that_takes_too_long_counts_as_none() -> None:
    activity = ModelActivity()
    loading = replica(state=ReplicaState.LOADING)
    assert views(activity, 0.0, loading)[MODEL].ready_in_s == 0.0
    assert views(activity, START_S, loading)[MODEL].ready_in_s == 0.0
    assert views(activity, START_S + 1.0, loading)[MODEL].ready_in_s is None
    assert views(activity, START_S + 2.0, replica())[MODEL].ready_in_s == 0.0


def test_the_time_of_a_start_is_learnt() -> None:
    activity = ModelActivity()
    views(activity, 0.0, replica(state=ReplicaState.LOADING))
    views(activity, 90.0, replica())
    views(activity, 100.0, replica(state=ReplicaState.FAILED))
    again = replica(state=ReplicaState.LOADING)
    assert views(activity, 110.0, again)[MODEL].ready_in_s == 80.0
    assert views(activity, 200.0, again)[MODEL].ready_in_s == 0.0
    assert views(activity, 281.0, again)[MODEL].ready_in_s is None


def test_a_model_says_when_it_was_ready_last() -> None:
    activity = ModelActivity()
    asleep = replica(state=ReplicaState.ASLEEP)
    assert views(activity, 0.0, asleep)[MODEL].last_ready_unix_ms is None
    assert views(activity, 5.0, replica())[MODEL].last_ready_unix_ms == 1_005_000
    assert views(activity, 9.0, asleep)[MODEL].last_ready_unix_ms == 1_005_000
    assert views(activity, 20.0)[MODEL].last_ready_unix_ms == 1_005_000
    assert views(activity, 21.0 + FORGET_S) == {}


def test_figures_are_those_of_each_tier_and_of_the_last_minutes() -> None:
    activity = ModelActivity()
    assert views(activity, 0.0, replica())[MODEL].tiers == []
    for wait_s in (1.0, 2.0, 9.0):
        place(activity)
        activity.on_first_token("api", "r", placed(queued_s=0.5), 0.5 + wait_s)
    activity.on_first_token("api", "r", placed("batch"), 30.0)
    activity.on_first_token("api", "r", None, 99.0)
    released = Released("r", "host/r0", output_tokens=101)
    activity.on_release("api", released, placed(first_token_at=1.0), 6.0)
    activity.on_release("api", Released("r", "host/r0", output_tokens=2), placed(first_token_at=1.0), 6.0)
    activity.on_release("api", Released("r", "host/r0", failed=True), placed(), 6.0)
    refuse(activity)
    refuse(activity, status=429)
    [standard, batch] = views(activity, 30.0, replica())[MODEL].tiers
    assert (standard.tier, standard.requests, standard.availability) == ("standard", 4, 0.5)
    assert (standard.ttft_p50_s, standard.tokens_per_s) == (3.0, 20.0)
    assert (batch.tier, batch.requests, batch.availability, batch.ttft_p50_s) == ("batch", 0, None, 30.0)
    assert batch.tokens_per_s is None
    later = 31.0 + WINDOW_S + BUCKET_S
    assert {tier.availability for tier in views(activity, later, replica())[MODEL].tiers} == {None}
    assert {tier.ttft_p50_s for tier in views(activity, later, replica())[MODEL].tiers} == {None}


def test_names_that_clients_invent_are_not_kept() -> None:
    activity = ModelActivity()
    refuse(activity)
    assert views(activity, 0.0) == {}
    many = [replica(f"host/r{n}", model=f"m{n}") for n in range(MAX_MODELS + 1)]
    assert len(views(activity, 1.0, *many)) == MAX_MODELS
