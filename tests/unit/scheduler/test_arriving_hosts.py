"""Requests for a model whose host is being created: when it serves, by earlier hosts, and who may wait for it."""

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.arriving_hosts import LEARNT_FROM, ArrivingHosts
from scheduler.core.decisions import Placed
from scheduler.core.waking import LONG_LOAD, MIN_LEFT_S, Arrival, Creatable
from scheduler.provider_hosts import ProviderHosts
from tests.support.scheduling import MODEL, replica
from tests.unit.scheduler.test_waking import Play, asleep, took
from tests.unit.workers.test_acting import KIND, NOW, host, written
from workers.providers.intents import Intent
from workers.wire import LifeTimes, ReplicaState, StageTime

LOAD_S, CREATE_S = 98.0, 300.0


def arriving() -> ArrivingHosts:
    return ArrivingHosts(lambda model, rung: LOAD_S, CREATE_S, lambda kind: "H100")


def been(number: int, run_s: float, join_s: float, check_s: float | None, **fields: object) -> Intent:
    """A host of long ago that went through the stages."""
    called = NOW - timedelta(hours=2)
    running = called + timedelta(seconds=run_s)
    joined = running + timedelta(seconds=join_s)
    fit = None if check_s is None else joined + timedelta(seconds=check_s)
    return host(number, called_at=called, running_at=running, joined_at=joined, first_fit_at=fit, **fields)


def coming(called_s: float, **fields: object) -> Intent:
    """A host whose creation was called so many seconds ago."""
    called = NOW - timedelta(seconds=called_s)
    return written(9, requested_at=called - timedelta(seconds=5), called_at=called, **fields)


def left_s(*intents: Intent, elapsed_s: float = 0.0, reported: frozenset[str] = frozenset()) -> float | None:
    found = arriving().arrivals(ProviderHosts(NOW, intents), elapsed_s, reported, 1000.0).get("m")
    return None if found is None else found[0].at - 1000.0


def test_until_a_host_of_its_kind_has_joined_the_catalogs_time_counts() -> None:
    assert left_s(coming(0.0)) == CREATE_S + LOAD_S
    assert left_s(coming(100.0)) == CREATE_S - 100.0 + LOAD_S
    assert left_s(coming(100.0), elapsed_s=50.0) == CREATE_S - 150.0 + LOAD_S
    assert left_s(coming(400.0)) == MIN_LEFT_S + LOAD_S
    assert left_s(coming(LONG_LOAD * (CREATE_S + LOAD_S) + 1.0)) is None
    assert left_s(coming(0.0), been(1, 60.0, 30.0, None, kind="another")) == CREATE_S + LOAD_S


def test_each_stage_is_learnt_from_earlier_hosts_of_the_kind() -> None:
    earlier = been(1, 40.0, 20.0, 8.0), been(2, 60.0, 40.0, 12.0)  # 50, 30 and 10 s
    assert left_s(*earlier, coming(0.0)) == 90.0 + LOAD_S
    assert left_s(*earlier, coming(30.0)) == 60.0 + LOAD_S
    running = coming(70.0, running_at=NOW - timedelta(seconds=10))
    assert left_s(*earlier, running) == 20.0 + 10.0 + LOAD_S
    joined = msgspec.structs.replace(running, joined_at=NOW - timedelta(seconds=4))
    assert left_s(*earlier, joined) == 6.0 + LOAD_S
    fit = msgspec.structs.replace(joined, first_fit_at=NOW - timedelta(seconds=3))
    assert left_s(*earlier, fit) == LOAD_S - 3.0


def test_the_load_of_a_host_without_checks_begins_when_its_agent_joins() -> None:
    joined = coming(90.0, running_at=NOW - timedelta(seconds=50), joined_at=NOW - timedelta(seconds=10))
    assert left_s(been(1, 50.0, 30.0, None), joined) == LOAD_S - 10.0


def test_a_shared_host_comes_for_each_of_its_models() -> None:
    found = arriving().arrivals(
        ProviderHosts(NOW, (coming(0.0, model="m,n[0-3]"),)), 0.0, frozenset(), 1000.0
    )
    assert {name: [each.at for each in rows] for name, rows in found.items()} == {
        "m": [1000.0 + CREATE_S + LOAD_S],
        "n": [1000.0 + CREATE_S + LOAD_S],
    }


def test_old_hosts_do_not_count_for_ever() -> None:
    slow = [been(each, 1000.0, 0.0, None) for each in range(3)]
    quick = [been(10 + each, 20.0, 0.0, None) for each in range(LEARNT_FROM)]
    assert left_s(*slow, *quick, coming(0.0)) == 20.0 + LOAD_S


def test_the_load_is_the_models_measured_one_with_its_download() -> None:
    known = arriving()
    times = msgspec.structs.replace(
        LifeTimes(), load=StageTime(20.0, 20.0, 1), prefetch=StageTime(5.0, 5.0, 1)
    )
    known.learn([replica("a", model="m", times=times), replica("b", model="m")])
    known.learn([])  # it has none any more
    assert known.created_in_s(ProviderHosts(NOW), "m", KIND) == CREATE_S + 25.0
    assert known.created_in_s(ProviderHosts(NOW), "other", KIND) == CREATE_S + LOAD_S


@pytest.mark.parametrize(
    "intent",
    [
        coming(10.0, wanted=False),
        coming(10.0, reclaim_at=NOW),
        coming(10.0, refused_since=NOW),
        host(1),  # it joined long ago
    ],
)
def test_no_request_waits_for_a_host_that_will_not_serve(intent: Intent) -> None:
    assert left_s(intent) is None


def test_where_its_agent_reports_replicas_those_say_more() -> None:
    assert left_s(coming(10.0), reported=frozenset({"sim-host-9"})) is None
    assert left_s(coming(10.0), reported=frozenset({"host-9"})) is None


@given(st.lists(st.floats(0.0, 2000.0), min_size=2, max_size=2), st.floats(1.0, 500.0), st.floats(0.0, 500.0))
def test_what_is_left_never_grows_with_time_and_is_never_nothing(
    ages: list[float], run_s: float, join_s: float
) -> None:
    sooner, later = sorted(ages)
    waits = [left_s(been(1, run_s, join_s, None), coming(age)) for age in (sooner, later)]
    assert waits[0] is not None or waits[1] is None
    if waits[0] is not None and waits[1] is not None:
        assert waits[0] >= waits[1] > 0.0


class Creation(Play):
    """A scheduler that knows of a host in creation."""

    def __init__(
        self, *statuses: object, in_s: float = 60.0, region: str = "nyc", model: str = MODEL
    ) -> None:
        super().__init__(*statuses)  # type: ignore[arg-type]
        assert self.state.fleet.waker is not None
        self.waker = self.state.fleet.waker
        self.waker.arrivals = {model: [Arrival(self.now + in_s, region, "H100")]}


def test_a_request_is_held_for_a_host_in_creation_and_placed_when_it_serves() -> None:
    play = Creation()
    assert play.ask(deadline_s=1.0) == []
    assert play.beat(after_s=59.0) == []
    play.waker.arrivals = {}
    assert play.beat(replica(state=ReplicaState.LOADING)) == []  # it has its own time now, which is not known
    [placed] = play.beat(replica(), after_s=1.0)
    assert isinstance(placed, Placed)


def test_one_that_takes_longer_than_the_deadline_is_refused_at_once_with_its_time() -> None:
    [refused] = Creation(in_s=400.0).ask(wake_deadline_s=120.0)
    assert (refused.refusal.reason, refused.refusal.status) == ("waking", 503)
    assert refused.refusal.retry_after_s == 400.0
    assert Creation(in_s=400.0).ask(wake_deadline_s=500.0) == []


def test_when_the_creation_is_given_up_its_requests_are_refused_at_once() -> None:
    play = Creation()
    assert play.ask() == []
    play.waker.arrivals = {}
    play.state.tick()
    [refused] = play.dispatch()
    assert refused.refusal.reason == "no_replica"


def test_a_request_bound_to_a_region_waits_for_a_host_there_alone() -> None:
    assert Creation().ask(regions=("nyc",), gpus=("h100",)) == []
    for bound in ({"regions": ("ams",)}, {"gpus": ("b300",)}):
        [refused] = Creation().ask(**bound)
        assert refused.refusal.reason == "no_replica"


def test_a_request_for_an_adapter_waits_for_a_host_whose_engine_takes_adapters() -> None:
    play = Creation()
    [refused] = play.ask(adapter="a" * 32)
    assert refused.refusal.reason == "no_replica"
    play.waker.arrivals = {MODEL: [Arrival(play.now + 60.0, "nyc", "H100", adapters=True)]}
    assert play.ask("two", adapter="a" * 32) == []
    known = arriving()
    [before] = known.arrivals(ProviderHosts(NOW, (coming(10.0),)), 0.0, frozenset(), 0.0)["m"]
    known.learn([replica("a", model="m", max_adapters=2)])
    [after] = known.arrivals(ProviderHosts(NOW, (coming(10.0),)), 0.0, frozenset(), 0.0)["m"]
    assert (before.adapters, after.adapters) == (False, True)


def test_a_host_in_creation_counts_where_a_person_drains_the_only_replica() -> None:
    drained = replica(state=ReplicaState.DRAINING, phase="draining")
    assert Creation(drained).ask() == []
    [refused] = Play(drained).ask()
    assert refused.refusal.reason == "no_warm_replica"


def test_what_wakes_sooner_is_woken() -> None:
    play = Creation(asleep(times=took("wake_1", 5.0)))
    assert play.ask() == []
    assert play.orders() == [("host/r0", "wake")]
    assert play.state.fleet.ready_in_s(MODEL, play.now) == 5.0


def test_another_models_host_is_not_waited_for() -> None:
    [refused] = Creation(model="other").ask()
    assert refused.refusal.reason == "no_replica"


def test_where_the_plan_may_create_a_host_the_refusal_says_how_long_that_takes() -> None:
    play = Play()
    assert play.state.fleet.waker is not None
    play.state.fleet.waker.creatable = {MODEL: [Creatable((), "", 398.0)]}
    [refused] = play.ask()
    assert (refused.refusal.reason, refused.refusal.retry_after_s) == ("no_replica", 398.0)
    assert "a host that is created for it serves about 398 s later" in refused.refusal.message
