"""Requests for a model that sleeps: which replica they wake, how long they may wait, and what they are told."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.decisions import Placed, Rejection
from scheduler.core.state import SchedulerState
from scheduler.core.waking import WakeOrder, Waker
from scheduler.messages import Announce, AnnouncedRequest
from tests.support.scheduling import MODEL, beat, replica, request
from workers.wire import LifeTimes, ReplicaState, ReplicaStatus, StageTime

FIGURES = (98.0, 5.5, 45.0)
"""Seconds from a stop and from sleep levels 1 and 2, before any was measured."""


def asleep(name: str = "host/r0", level: int = 1, **fields) -> ReplicaStatus:
    phase = f"asleep_{level}"
    return replica(name, state=ReplicaState.ASLEEP, sleep_level=level, phase=phase, **fields)


def stopped(name: str = "host/r0", **fields) -> ReplicaStatus:
    return replica(name, state=ReplicaState.STOPPED, phase="stopped", **fields)


def took(stage: str, seconds: float) -> LifeTimes:
    return msgspec.structs.replace(LifeTimes(), **{stage: StageTime(seconds, seconds, 1)})


def waking(status: ReplicaStatus, for_s: float = 0.0) -> ReplicaStatus:
    return msgspec.structs.replace(status, state=ReplicaState.LOADING, phase="waking", phase_s=for_s)


class Play:
    """A scheduler whose replicas are as the last heartbeat says."""

    def __init__(self, *statuses: ReplicaStatus, allowed: bool = True, grace_s: float = 0.0) -> None:
        self.now = 0.0
        waker = Waker(lambda model, rung: FIGURES[rung], lambda model: allowed, 2.0)
        self.state = SchedulerState("epoch-1", 0.0, grace_s=grace_s, waker=waker)
        self.beat(*statuses)

    def beat(self, *statuses: ReplicaStatus, after_s: float = 0.0) -> list[Placed | Rejection]:
        self.now += after_s
        self.state.heartbeat(beat(*statuses), self.now)
        return self.dispatch()

    def dispatch(self) -> list[Placed | Rejection]:
        return self.state.dispatch(self.now, random.Random(0))

    def ask(self, name: str = "one", wake_deadline_s: float = 120.0, **fields) -> list[Placed | Rejection]:
        self.state.submit("api", request(name, wake_deadline_s=wake_deadline_s, **fields), self.now)
        return self.dispatch()

    def orders(self) -> list[tuple[str, str]]:
        return [(order.replica_id, order.action) for order in self.state.take_wakes(self.now)]


@pytest.mark.parametrize(
    ("statuses", "order"),
    [
        ([asleep()], ("host/r0", "wake")),
        ([stopped()], ("host/r0", "resume")),
        ([asleep("host/r0", 2), asleep("host/r1", 1), stopped("host/r2")], ("host/r1", "wake")),
        ([asleep("host/r0", 2), stopped("host/r1", times=took("load", 12.0))], ("host/r1", "resume")),
        ([asleep(), replica("host/r1", state=ReplicaState.LOADING)], ("host/r0", "wake")),
        (
            [
                stopped(),
                replica("host/r1", state=ReplicaState.LOADING, phase_s=50.0, times=took("load", 60.0)),
            ],
            None,  # it comes sooner by itself
        ),
        ([replica(state=ReplicaState.DRAINING, phase="settling")], ("host/r0", "resume")),
        ([asleep(), replica("host/r1", state=ReplicaState.FAILED, phase="unfit")], ("host/r0", "wake")),
    ],
)
def test_a_request_waits_and_wakes_the_quickest(
    statuses: list[ReplicaStatus], order: tuple[str, str] | None
) -> None:
    play = Play(*statuses)
    assert play.ask() == []
    assert play.orders() == ([] if order is None else [order])
    assert play.orders() == []  # once


def test_it_is_placed_when_the_replica_is_awake_and_its_wake_teaches_the_queue_nothing() -> None:
    play = Play(asleep(times=took("wake_1", 8.0)))
    play.ask(deadline_s=1.0)
    assert play.orders() == [("host/r0", "wake")]
    for _ in range(6):
        assert play.beat(waking(asleep()), after_s=1.0) == []
    [placed] = play.beat(replica(), after_s=1.0)
    assert isinstance(placed, Placed)
    assert placed.placement.queue_s == 7.0
    queue = play.state.queues[MODEL]
    assert [queue.admission.residual(band, late=late) for band in range(3) for late in (False, True)] == [
        0.0
    ] * 6


def test_a_wake_that_takes_longer_than_the_deadline_is_refused_at_once_and_begun() -> None:
    play = Play(asleep(level=2, times=took("wake_2", 300.0)))
    [refused] = play.ask()
    assert isinstance(refused, Rejection)
    refusal = refused.refusal
    assert (refusal.status, refusal.reason, refusal.retry_after_s) == (503, "waking", 300.0)
    assert refusal.message == (
        f"no replica of model {MODEL} is awake; one needs about 300 s to serve, more than the 120 s allowed"
    )
    assert play.orders() == [("host/r0", "wake")]
    later = waking(asleep(level=2, times=took("wake_2", 300.0)), for_s=200.0)
    assert play.beat(later, after_s=200.0) == []
    assert play.ask("two") == []  # 100 s are left


def test_without_a_wake_deadline_the_deadline_of_the_queue_holds() -> None:
    [refused] = Play(asleep(level=2)).ask(wake_deadline_s=0.0, deadline_s=30.0)
    assert refused.refusal.reason == "waking"
    assert Play(asleep(level=2)).ask(wake_deadline_s=0.0, deadline_s=50.0) == []


def test_a_failed_wake_loses_no_request_and_the_reason_is_told() -> None:
    times = msgspec.structs.replace(took("load", 60.0), wake_1=StageTime(5.0, 5.0, 1))
    play = Play(asleep(times=times), asleep("host/r1", 2))
    play.ask("patient")
    play.ask("hasty", wake_deadline_s=30.0)
    assert play.orders() == [("host/r0", "wake")]
    play.state.on_wake_result("host/r0", False, "its weights are wrong", play.now)
    failed = replica(state=ReplicaState.FAILED, phase="failed", times=times)
    [refused] = play.beat(failed, asleep("host/r1", 2), after_s=5.0)  # 45 s from level 2
    assert refused.refusal.request_id == "hasty"
    assert "its weights are wrong" in refused.refusal.message
    assert play.orders() == [("host/r1", "wake")]
    [placed] = play.beat(failed, replica("host/r1"), after_s=45.0)
    assert placed.placement.replica_id == "host/r1"


def test_a_replica_that_does_not_wake_is_left_alone_for_longer_each_time() -> None:
    play = Play(asleep())
    play.ask(wake_deadline_s=600.0)
    paused = []
    for _ in range(3):
        began = play.now
        while not play.orders():
            play.beat(asleep(), after_s=1.0)
        paused.append(play.now - began)
        play.state.on_wake_result("host/r0", False, "no", play.now)
    assert paused == [0.0, 5.0, 10.0]


def test_at_its_deadline_it_is_told_that_nothing_woke() -> None:
    play = Play(asleep())
    play.ask(wake_deadline_s=20.0)
    play.orders()
    assert play.beat(waking(asleep(times=took("wake_1", 5.0)), for_s=15.0), after_s=19.0) == []
    [refused] = play.beat(waking(asleep(times=took("wake_1", 5.0)), for_s=17.0), after_s=1.0)
    assert refused.refusal.message == f"no replica of model {MODEL} woke within 20.0 s"


def test_a_model_that_must_not_wake_is_refused_as_before() -> None:
    play = Play(asleep(), allowed=False)
    [refused] = play.ask()
    assert refused.refusal.reason == "no_warm_replica"
    assert play.orders() == []
    assert not play.state.wakes(MODEL)
    assert play.state.fleet.ready_in_s(MODEL, play.now) is None


@pytest.mark.parametrize(
    "status",
    [
        replica(state=ReplicaState.DRAINING, phase="draining"),
        replica(state=ReplicaState.STOPPED, engine="external"),
        stopped(held=True),
    ],
)
def test_what_a_person_or_another_runs_is_not_woken(status: ReplicaStatus) -> None:
    play = Play(status)
    [refused] = play.ask()
    assert refused.refusal.reason == "no_warm_replica"
    assert play.orders() == []


def test_a_silent_host_wakes_nothing() -> None:
    play = Play(asleep())
    play.now = 3.0
    assert play.ask() == []  # it waits for a heartbeat
    assert play.orders() == []


def test_a_request_bound_to_a_region_wakes_a_replica_there() -> None:
    play = Play(replica(region="ams"), asleep("host/r1", region="ams"), asleep("host/r2", 2, region="nyc"))
    assert play.ask(regions=("nyc",)) == []
    assert play.orders() == [("host/r2", "wake")]
    assert play.ask("any")  # the others go on where a replica is ready
    assert play.orders() == []


def test_a_request_that_failed_on_the_only_awake_replica_wakes_another() -> None:
    play = Play(replica(), asleep("host/r1"))
    assert play.ask(exclude=["host/r0"]) == []
    assert play.orders() == [("host/r1", "wake")]


def test_before_all_agents_have_reported_nothing_is_woken_or_refused() -> None:
    play = Play(asleep(level=2, times=took("wake_2", 300.0)), grace_s=3.0)
    assert play.ask(deadline_s=100.0) == []
    assert play.orders() == []
    assert play.beat(asleep(level=2), after_s=3.0) == []
    assert play.orders() == [("host/r0", "wake")]


def test_none_is_woken_onto_gpus_that_another_one_is_only_told_to_leave() -> None:
    play = Play(asleep(gpu_ids=["0"]), replica("host/r1", model="other", gpu_ids=["0"]))
    play.state.expect_state("host/r1", ReplicaState.STOPPED)
    assert play.ask() == []
    assert play.orders() == []
    left = replica("host/r1", model="other", gpu_ids=["0"], state=ReplicaState.STOPPED)
    play.beat(asleep(gpu_ids=["0"]), left, after_s=0.5)
    assert play.orders() == [("host/r0", "wake")]


def test_of_models_on_one_gpu_the_one_that_served_longest_ago_is_woken_and_no_other() -> None:
    mine, other = asleep(gpu_ids=["0"]), asleep("host/r1", model="other", gpu_ids=["0"])
    play = Play(replica(gpu_ids=["0"]), other)
    play.beat(mine, replica("host/r1", model="other", gpu_ids=["0"]), after_s=100.0)
    play.beat(mine, other, after_s=100.0)
    play.ask("b", model="other")
    play.ask("a")
    assert play.orders() == [("host/r0", "wake")]
    play.beat(mine, other, after_s=0.5)  # it does not show yet
    assert play.orders() == []
    play.state.on_wake_result("host/r0", False, "no", play.now)
    play.beat(mine, other, after_s=0.5)
    assert play.orders() == [("host/r1", "wake")]


def test_demand_calls_no_sleep_off_whose_gpus_the_plan_gives_to_another_model() -> None:
    settling = replica(gpu_ids=["0"], state=ReplicaState.DRAINING, phase="settling")
    other = asleep("host/r1", model="other", gpu_ids=["0"])
    play = Play(settling, other)
    waker = play.state.fleet.waker
    assert waker is not None
    [agent] = {each.agent_id for each in play.state.fleet.replicas.values()}
    waker.reserved = {(agent, "0"): "other"}
    play.ask("a")
    assert play.orders() == []
    play.ask("b", model="other")
    resting = asleep(gpu_ids=["0"])
    play.beat(resting, other, after_s=0.5)
    assert play.orders() == [("host/r1", "wake")]
    waker.reserved = {}
    play = Play(settling, other)
    play.ask("a")
    assert play.orders() == [("host/r0", "resume")]


def test_the_awake_replica_is_enough() -> None:
    play = Play(replica(slots=1), asleep("host/r1"))
    assert len(play.ask()) == 1
    assert play.ask("two") == []  # more replicas are the autoscaler's decision
    assert play.orders() == []


STATUSES = st.builds(
    lambda index, state, level, seconds, count: replica(
        f"host/r{index}",
        state=state,
        sleep_level=level,
        phase_s=seconds,
        times=LifeTimes(*[StageTime(seconds, seconds, count)] * 4),
    ),
    st.integers(0, 3),
    st.sampled_from(ReplicaState),
    st.integers(0, 2),
    st.floats(0.0, 1000.0),
    st.integers(0, 1),
)


@given(st.lists(STATUSES, max_size=4), st.floats(0.0, 600.0))
def test_a_cold_model_places_refuses_or_waits_for_what_is_coming(
    statuses: list[ReplicaStatus], wake_deadline_s: float
) -> None:
    play = Play(*statuses)
    decisions = play.ask(wake_deadline_s=wake_deadline_s)
    orders = play.orders()
    assert len(decisions) <= 1
    assert len(orders) <= 1
    known = {each.replica_id: each for each in statuses}
    ready = any(each.state is ReplicaState.READY for each in known.values())
    assert bool(decisions and isinstance(decisions[0], Placed)) == ready
    for name, action in orders:
        assert not ready
        assert WakeOrder(name, MODEL, action).action == (
            "wake" if known[name].state is ReplicaState.ASLEEP else "resume"
        )


def test_a_first_load_of_which_nothing_is_known_may_take_as_long_as_a_wake() -> None:
    play = Play(replica(state=ReplicaState.LOADING, phase="loading"))
    assert play.ask(deadline_s=30.0) == []
    assert play.beat(replica(state=ReplicaState.LOADING, phase="loading"), after_s=119.0) == []
    assert len(play.beat(replica(), after_s=0.5)) == 1
    unfit = Play(replica(state=ReplicaState.FAILED, phase="unfit"))
    assert unfit.ask(deadline_s=30.0) == []
    assert len(unfit.beat(replica(state=ReplicaState.FAILED, phase="unfit"), after_s=30.0)) == 1


def announced(
    play: Play, deadline_s: float, wake_deadline_s: float, age_s: float
) -> list[Placed | Rejection]:
    left = request("held", deadline_s=deadline_s, wake_deadline_s=wake_deadline_s)
    play.state.announce("api", Announce([], [AnnouncedRequest(left, age_s)]), play.now)
    return play.dispatch()


def test_a_request_that_was_held_for_a_wake_is_held_by_the_next_scheduler() -> None:
    play = Play(grace_s=3.0)  # its agent has not reported yet
    assert announced(play, 0.0, 80.0, age_s=40.0) == []
    assert play.beat(waking(asleep(level=2), for_s=40.0), after_s=4.0) == []
    [placed] = play.beat(replica(), after_s=5.0)
    assert isinstance(placed, Placed)


def test_a_held_request_whose_replica_has_come_meanwhile_is_placed() -> None:
    play = Play(replica(), grace_s=3.0)
    [placed] = announced(play, 0.0, 80.0, age_s=40.0)
    assert isinstance(placed, Placed)
    full = Play(replica(slots=1), grace_s=3.0)
    full.state.submit("other", request("first"), full.now)
    assert len(full.dispatch()) == 1
    assert announced(full, 5.0, 80.0, age_s=25.0) == []
    [late] = full.beat(replica(slots=1, running=1), after_s=5.0)  # it waits for a slot, not for a wake
    assert isinstance(late, Rejection)


def loading(name: str, for_s: float, failures: int = 0) -> ReplicaStatus:
    times = took("load", 60.0)
    return replica(
        name, state=ReplicaState.LOADING, phase="loading", phase_s=for_s, times=times, failures=failures
    )


@pytest.mark.parametrize(
    "broken",
    [
        loading("host/r1", 121.0),
        waking(asleep("host/r1", times=took("wake_1", 5.0)), for_s=11.0),
        loading("host/r1", 59.0, failures=2),
        replica("host/r1", state=ReplicaState.FAILED, phase="failed", times=took("load", 60.0), failures=2),
    ],
)
def test_a_replica_that_is_stuck_or_fails_again_and_again_keeps_no_other_asleep(
    broken: ReplicaStatus,
) -> None:
    play = Play(broken, stopped())
    assert play.ask() == []
    assert play.orders() == [("host/r0", "resume")]


def test_a_replica_that_failed_once_comes_again_after_its_pause() -> None:
    failed = replica(
        "host/r1", state=ReplicaState.FAILED, phase="failed", times=took("load", 60.0), failures=1
    )
    play = Play(failed, stopped())
    assert play.ask() == []
    assert play.orders() == []
    assert play.state.fleet.ready_in_s(MODEL, play.now) == 61.0


def test_a_wake_that_hangs_does_not_keep_another_replica_asleep() -> None:
    play = Play(asleep(), asleep("host/r1", 2))
    play.ask(wake_deadline_s=600.0)
    assert play.orders() == [("host/r0", "wake")]
    seen = []
    while play.now < 200.0:
        play.beat(asleep(), asleep("host/r1", 2), after_s=1.0)
        seen += [(play.now, *order) for order in play.orders()]
    assert seen == [(60.0, "host/r1", "wake")]  # and neither is sent a second command


def test_a_failed_wake_is_not_told_any_more_once_the_replica_has_served() -> None:
    play = Play(asleep())
    play.ask()
    play.orders()
    play.state.on_wake_result("host/r0", False, "it is loading; it cannot wake now", play.now)
    play.beat(replica(), after_s=1.0)  # another command has woken it
    assert play.state.fleet.waker.trouble(play.state.fleet.replicas_of(MODEL)) == ""


@pytest.mark.parametrize("ok", [True, False])
def test_a_replica_that_has_served_and_rests_again_is_woken_by_one_refused_request(ok: bool) -> None:
    play = Play(asleep())
    play.ask("first")
    assert play.orders() == [("host/r0", "wake")]
    play.state.on_wake_result("host/r0", ok, "" if ok else "its probe failed; it starts anew", play.now)
    play.beat(replica(), after_s=0.5)
    play.beat(asleep(level=2), after_s=0.5)
    # It is not repeated: the next one finds a replica.
    [refused] = play.ask("second", wake_deadline_s=40.0)
    assert isinstance(refused, Rejection)
    assert play.orders() == [("host/r0", "wake")]


def test_no_replica_is_woken_onto_gpus_that_another_one_uses() -> None:
    other = replica("host/other", model="another", gpu_ids=["0", "1"])
    play = Play(other, asleep(gpu_ids=["1"]), asleep("host/r1", 2, gpu_ids=["2"]))
    assert play.ask() == []
    assert play.orders() == [("host/r1", "wake")]


class SharedGpu(Play):
    """A model that rests while another one serves on the same GPU."""

    def __init__(self) -> None:
        super().__init__(asleep(gpu_ids=["0"]), replica("host/r1", model="other", gpu_ids=["0"]))
        waker = self.state.fleet.waker
        assert waker is not None
        self.waker = waker
        waker.note_gpus(self.state.fleet.replicas.values(), self.now)

    def wait_s(self) -> float | None:
        return self.state.fleet.ready_in_s(MODEL, self.now)


def test_the_wait_of_a_model_whose_gpus_another_one_uses_is_that_for_its_turn() -> None:
    play = SharedGpu()
    assert play.wait_s() is None  # no plan has seen its demand yet
    assert play.ask() == []
    play.state.on_turns({MODEL: play.now + 200.0})
    assert play.wait_s() == 200.0
    [refused] = play.dispatch()
    assert (refused.refusal.reason, refused.refusal.retry_after_s) == ("waking", 200.0)
    assert play.ask("two", wake_deadline_s=300.0) == []
    [agent] = {each.agent_id for each in play.state.fleet.replicas.values()}
    play.waker.turns, play.waker.reserved = {}, {(agent, "0"): MODEL}  # its turn has come
    assert play.wait_s() == FIGURES[1]
    assert play.orders() == []  # not before the other one has left


def test_a_model_to_which_the_plan_gives_no_gpus_does_not_wait_for_those_that_others_use() -> None:
    play = SharedGpu()
    play.waker.gives_gpus = lambda model: False
    [refused] = play.ask()
    assert refused.refusal.reason == "no_warm_replica"
    assert "other models use the GPUs of those that rest" in refused.refusal.message
    assert not play.state.fleet.awaits(MODEL, play.now)
    rested = asleep("host/r1", model="other", gpu_ids=["0"])
    play.beat(asleep(gpu_ids=["0"]), rested, after_s=0.5)
    play.waker.note_gpus(play.state.fleet.replicas.values(), play.now)
    assert play.ask("two") == []
    assert play.orders() == [("host/r0", "wake")]


def test_a_request_for_an_adapter_wakes_only_an_engine_that_takes_adapters() -> None:
    play = Play(asleep(), asleep("host/r1", 2, max_adapters=4))
    assert play.ask(adapter="a" * 32) == []
    assert play.orders() == [("host/r1", "wake")]
    [refused] = Play(asleep()).ask(adapter="a" * 32)
    assert "that takes adapters" in refused.refusal.message
