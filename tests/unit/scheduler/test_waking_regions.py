"""Requests that are bound to a region in which nothing serves: held for what comes there, or refused with its time."""

import msgspec
import pytest

from scheduler.core.decisions import Placed, Rejection
from scheduler.core.waking import Arrival, Coming, Creatable, Waker
from scheduler.messages import PlaceRefused
from scheduler.wire import PlaceRequest
from tests.support.scheduling import MODEL, replica
from tests.unit.scheduler.test_waking import Play, asleep, took, waking
from workers.wire import LifeTimes, ReplicaStatus

EAST, WEST = "nyc2", "tor1"


def there(status: ReplicaStatus, region: str, gpu: str = "B300") -> ReplicaStatus:
    return msgspec.structs.replace(status, region=region, gpu=gpu)


def east(slots: int = 4) -> ReplicaStatus:
    """One that serves."""
    return there(replica("east/r0", slots=slots), EAST)


def sleeping(wake_s: float) -> ReplicaStatus:
    return there(asleep("west/r0", times=took("wake_1", wake_s)), WEST)


def waker_of(play: Play) -> Waker:
    assert play.state.fleet.waker is not None
    return play.state.fleet.waker


def refusal(decisions: list[Placed | Rejection]) -> PlaceRefused:
    [decision] = decisions
    assert isinstance(decision, Rejection)
    return decision.refusal


def west(play: Play, name: str, **fields: object) -> list[Placed | Rejection]:
    return play.ask(name, regions=(WEST,), **fields)


def test_a_sleeping_replica_of_the_region_is_woken_within_the_deadline_of_a_wake() -> None:
    play = Play(east(), sleeping(50.0))
    assert west(play, "one", deadline_s=10.0) == []
    assert play.orders() == [("west/r0", "wake")]
    assert play.beat(east(), waking(sleeping(50.0), 45.0), after_s=45.0) == []
    [placed] = play.beat(east(), there(replica("west/r0"), WEST), after_s=5.0)
    assert isinstance(placed, Placed)
    assert placed.placement.replica_id == "west/r0"
    assert play.state.queues[MODEL].admission.residual(1, late=False) == 0.0


def test_one_that_wakes_too_late_is_refused_with_its_time_and_woken() -> None:
    play = Play(east(), sleeping(300.0))
    told = refusal(west(play, "one"))
    assert (told.status, told.reason, told.retry_after_s) == (503, "waking", 300.0)
    assert told.message == (
        f"no replica of model {MODEL} in tor1 is awake; one needs about 300 s to serve, more than the 120 s allowed"
    )
    assert play.orders() == [("west/r0", "wake")]
    assert isinstance(play.ask("anywhere")[0], Placed)


def test_the_deadline_of_those_that_serve_holds_elsewhere() -> None:
    play = Play(east(slots=1), sleeping(50.0))
    play.ask("first", regions=(EAST,))
    play.ask("second", deadline_s=10.0, regions=(EAST,))
    told = refusal(play.beat(east(slots=1), sleeping(50.0), after_s=10.1))
    assert told.reason == "queue_deadline"


def test_a_request_that_waited_for_a_wake_in_vain_is_told_the_region() -> None:
    play = Play(east(), there(asleep("west/r0", times=LifeTimes()), WEST))
    play.ask("one", regions=(WEST,), wake_deadline_s=60.0)
    told = refusal(play.beat(east(), there(asleep("west/r0"), WEST), after_s=60.1))
    assert told.reason == "waking"
    assert f"no replica of model {MODEL} in tor1 woke within 60.0 s" in told.message


def test_a_wake_that_fails_refuses_those_of_its_region_at_once() -> None:
    play = Play(east(), sleeping(50.0))
    west(play, "one")
    [order] = play.state.take_wakes(play.now)
    play.state.on_wake_result(order.replica_id, False, "out of memory", play.now)
    slower = sleeping(500.0)
    told = refusal(play.beat(east(), slower, there(replica("new/r0"), EAST), after_s=1.0))
    assert told.reason == "waking"
    assert "in tor1 is awake; one needs about 500 s" in told.message
    assert "the last wake failed: out of memory" in told.message


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_host_in_creation_in_the_region_holds_its_requests(elsewhere: bool) -> None:
    play = Play(*[east()][: int(elsewhere)])
    waker_of(play).arrivals = {MODEL: [Arrival(60.0, "TOR1", "B300"), Arrival(30.0, EAST, "B300")]}
    assert west(play, "one", deadline_s=1.0) == []
    assert play.beat(*[east()][: int(elsewhere)], after_s=50.0) == []
    [placed] = play.beat(there(replica("west/r0"), WEST), *[east()][: int(elsewhere)], after_s=10.0)
    assert isinstance(placed, Placed)
    assert placed.placement.replica_id == "west/r0"


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_host_that_serves_later_than_the_deadline_refuses_with_its_time(elsewhere: bool) -> None:
    play = Play(*[east()][: int(elsewhere)])
    waker_of(play).arrivals = {MODEL: [Arrival(400.0, WEST, "B300"), Arrival(30.0, EAST, "B300")]}
    told = refusal(west(play, "one"))
    assert (told.reason, told.retry_after_s) == ("waking", 400.0)


def test_when_the_creation_is_given_up_its_requests_are_refused() -> None:
    play = Play(east())
    waker_of(play).arrivals = {MODEL: [Arrival(60.0, WEST, "B300")]}
    assert west(play, "one") == []
    waker_of(play).arrivals = {}
    told = refusal(play.beat(east(), after_s=1.0))
    assert told.reason == "no_replica_in_region"


@pytest.mark.parametrize("elsewhere", [True, False])
def test_the_refusal_says_whether_a_host_may_be_created_there(elsewhere: bool) -> None:
    play = Play(*[east()][: int(elsewhere)])
    waker_of(play).creatable = {
        MODEL: (Creatable((EAST,), "B300", 398.0), Creatable((WEST, EAST), "H200", 350.0))
    }
    told = refusal(west(play, "one"))
    assert told.reason == ("no_replica_in_region" if elsewhere else "no_replica")
    assert told.retry_after_s == 350.0
    assert "no host in tor1 serves model" in told.message
    assert "a host that is created for it serves about 350 s later" in told.message
    for bound, where in (
        ({"regions": ("fra1",)}, "in fra1"),
        ({"regions": (WEST,), "gpus": ("b300",)}, "in tor1 with b300"),
    ):
        told = refusal(play.ask("two", **bound))
        assert f"and none may be created {where}" in told.message
        assert "serves about" not in told.message
    told = refusal(play.ask("three", gpus=("h200",)))
    assert "serves about 350 s later" in told.message


def test_a_region_in_which_nothing_comes_is_named_although_the_pool_elsewhere_is_waited_for() -> None:
    resting = there(asleep("east/r0", times=took("wake_1", 500.0)), EAST)
    play = Play(resting)
    assert play.ask("anywhere", wake_deadline_s=600.0) == []
    assert refusal(west(play, "one")).reason == "no_replica_in_region"


@pytest.mark.parametrize("regions", [(), (EAST, WEST)])
def test_a_request_for_an_adapter_is_held_for_the_engine_that_takes_it_and_not_for_the_pool(
    regions: tuple[str, ...],
) -> None:
    def with_adapters(status: ReplicaStatus) -> ReplicaStatus:
        return msgspec.structs.replace(status, max_adapters=4)

    play = Play(east(), with_adapters(sleeping(50.0)))
    assert play.ask("one", deadline_s=10.0, adapter="acme/a", regions=regions) == []
    assert play.orders() == [("west/r0", "wake")]
    assert play.beat(east(), with_adapters(waking(sleeping(50.0), 39.0)), after_s=11.0) == []
    slow = Play(east(), with_adapters(sleeping(500.0)))
    told = refusal(slow.ask("one", deadline_s=10.0, adapter="acme/a", regions=regions))
    assert (told.reason, told.retry_after_s) == ("waking", 500.0)


def test_names_of_places_in_which_nothing_is_cost_no_look_each(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(east(), sleeping(50.0))
    for number in range(400):
        assert play.ask(f"q{number}", regions=(WEST, f"x{number}")) == []
    looks: list[PlaceRequest] = []
    fleet = play.state.fleet
    coming = fleet.coming

    def counted(request: PlaceRequest, now: float, stale_s: float) -> Coming:
        looks.append(request)
        return coming(request, now, stale_s)

    monkeypatch.setattr(fleet, "coming", counted)
    play.beat(east(), sleeping(50.0), there(replica("new/r0"), EAST), after_s=1.0)
    assert 0 < len(looks) < 5
