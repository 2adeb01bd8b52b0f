"""A share of the organisations uses the new version of a model's engines, and no request is lost by that."""

import random

import pytest

from scheduler.core.canary import CANARY, STABLE, Canary
from scheduler.core.decisions import Placed, Rejection
from scheduler.core.policy import Choice, place_vectorised
from scheduler.core.pool import Pool
from scheduler.core.state import SchedulerState
from scheduler.wire import PlaceRequest, Released
from tests.support.scheduling import MODEL, beat, replica, request
from workers.wire import ReplicaState, ReplicaStatus

NEW = "0a1b2c3d"
SOME = Canary(NEW, 10, frozenset({"early"}), False, "rollout-1")
TENANTS = [f"tenant-{number}" for number in range(1_000)]


def pool(new: ReplicaState = ReplicaState.READY, slots: int = 4) -> list[ReplicaStatus]:
    return [replica("old", slots=slots), replica("new", slots=slots, version=NEW, state=new)]


class World:
    """A scheduler with a canary, and where requests went."""

    def __init__(self, *statuses: ReplicaStatus) -> None:
        self.state = SchedulerState("epoch-1", 0.0, grace_s=0.0)
        self.beat(*statuses)
        self.state.set_canaries({MODEL: SOME}, 0.0)
        self.placed: dict[str, str] = {}
        self.refused: list[str] = []

    def beat(self, *statuses: ReplicaStatus, now: float = 0.0) -> None:
        self.state.heartbeat(beat(*statuses), now)

    def dispatch(self, now: float = 0.0) -> None:
        for decision in self.state.dispatch(now, random.Random(1)):
            match decision:
                case Placed(_, placement):
                    self.placed[placement.request_id] = placement.replica_id
                case Rejection(_, _, refusal):
                    self.refused.append(refusal.request_id)

    def ask(self, tenant: str, name: str = "", now: float = 0.0, **fields: object) -> str:
        asked = request(name or tenant, tenant, **fields)
        self.state.submit("api", asked, now)
        self.dispatch(now)
        return self.placed.get(asked.request_id, "")


def test_an_organisation_stays_on_its_track_and_the_share_is_that_of_the_canary() -> None:
    tracks = [SOME.track_of(tenant, "r") for tenant in TENANTS]
    assert tracks == [SOME.track_of(tenant, "r") for tenant in TENANTS]
    assert 60 < tracks.count(CANARY) < 140
    assert SOME.track_of("early", "r") == CANARY
    other = Canary(NEW, 10, frozenset(), False, "rollout-2")
    assert [other.track_of(tenant, "r") for tenant in TENANTS] != tracks
    wider = Canary(NEW, 30, frozenset(), False, "rollout-1")
    assert all(
        wider.track_of(tenant, "r") == CANARY for tenant in TENANTS if SOME.track_of(tenant, "r") == CANARY
    )


def test_the_share_may_be_of_requests() -> None:
    share = Canary(NEW, 10, frozenset({"early"}), True, "rollout-1")
    tracks = [share.track_of("one", f"request-{number}") for number in range(1_000)]
    assert 60 < tracks.count(CANARY) < 140
    assert {share.track_of("early", f"request-{number}") for number in range(100)} == {CANARY}


def test_requests_go_to_the_version_of_their_track() -> None:
    world = World(*pool(slots=1_000))
    for tenant in [*TENANTS[:100], "early"]:
        where = world.ask(tenant)
        assert where == ("new" if SOME.track_of(tenant, "r") == CANARY else "old")
        world.state.release("api", Released(tenant, where, 100, 0, 50), 0.0)
    world.state.set_canaries({}, 0.0)
    assert world.state.fleet.track_of(MODEL, "early", "r") == ""
    assert world.state.fleet.places_of(MODEL) == {("", "", "", False)}


def test_a_full_canary_holds_back_no_other_request_and_the_other_way_round() -> None:
    world = World(*pool(slots=1))
    stable = [tenant for tenant in TENANTS if SOME.track_of(tenant, "r") == STABLE][:8]
    assert world.ask("early", "e1") == "new"
    assert [world.ask("early", f"e{number}") for number in range(2, 40)] == [""] * 38
    assert world.ask(stable[0]) == "old"
    world.state.release("api", Released(stable[0], "old", 100, 0, 50), 0.0)
    assert world.ask(stable[1]) == "old"
    assert world.refused == []


@pytest.mark.parametrize("state", [ReplicaState.FAILED, ReplicaState.DRAINING, ReplicaState.LOADING])
def test_requests_use_what_serves_while_one_version_does_not(state: ReplicaState) -> None:
    world = World(*pool())
    world.beat(*pool(state))
    assert world.ask("early") == "old"
    world.beat(*pool())
    assert world.ask("early", "again") == "new"
    world.state.expect_state("new", ReplicaState.LOADING)
    assert world.ask("early", "third") == "old"


def test_requests_that_wait_for_a_version_use_the_other_when_it_goes() -> None:
    world = World(*pool(slots=1))
    assert world.ask("early", "first") == "new"
    assert world.ask("early", "second") == ""
    world.beat(replica("old", slots=1))
    world.dispatch()
    assert world.placed["second"] == "old"


def test_a_version_whose_agents_are_silent_gets_no_share() -> None:
    world = World(*pool())
    world.state.heartbeat(beat(replica("old")), 0.0)
    world.state.heartbeat(beat(pool()[1], agent="agent-2"), 0.0)
    world.state.heartbeat(beat(replica("old")), 30.0)
    world.state.set_canaries({MODEL: SOME}, 30.0)
    assert world.ask("early", now=30.0) == "old"


def test_a_silent_replica_keeps_no_share_while_another_of_its_version_only_loads() -> None:
    world = World(replica("old"))
    loads = replica("new-2", version=NEW, state=ReplicaState.LOADING)
    world.state.heartbeat(beat(pool()[1], agent="agent-2"), 0.0)
    for agent, status in (("agent-1", replica("old")), ("agent-3", loads)):
        world.state.heartbeat(beat(status, agent=agent), 30.0)
    world.state.set_canaries({MODEL: SOME}, 30.0)
    assert world.ask("early", now=30.0) == "old"
    world.state.heartbeat(beat(pool()[1], agent="agent-2"), 31.0)
    assert world.ask("early", "heard again", now=31.0) == "new"


def test_a_heartbeat_that_changes_nothing_looks_at_no_other_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(*pool())
    looks: list[float | None] = []
    steer = Pool.steer

    def counted(self: Pool, now: float | None = None) -> bool:
        looks.append(now)
        return steer(self, now)

    monkeypatch.setattr(Pool, "steer", counted)
    world.beat(*pool(), now=0.5)
    assert looks == []
    world.beat(*pool(ReplicaState.DRAINING), now=1.0)
    assert looks == [1.0]
    world.beat(replica("old"), replica("new"), now=1.5)
    assert looks == [1.0, 1.5]
    assert world.ask("early", now=1.5) in ("old", "new")


def test_a_request_that_has_failed_goes_on_on_any_version() -> None:
    world = World(*pool())
    assert world.ask("early", exclude=["new"]) == "old"


def test_both_ways_to_decide_agree() -> None:
    world = World(*pool(slots=1_000))
    fleet = world.state.fleet
    for tenant, name in (
        ("early", "new"),
        (next(t for t in TENANTS if SOME.track_of(t, "r") == STABLE), "old"),
    ):
        asked: PlaceRequest = request("x", tenant, track=fleet.track_of(MODEL, tenant, "x"))
        found = place_vectorised(asked, fleet._pools[MODEL], 0.0, random.Random(1))
        assert isinstance(found, Choice)
        assert found.replica.engine.replica_id == name
