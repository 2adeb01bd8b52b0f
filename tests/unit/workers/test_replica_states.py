"""The state machine of a replica: every walk through its table keeps what the rest of the platform relies on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import Conflict
from workers.replica_states import ASLEEP, CHANGING, STATES, TRANSITIONS, Event, Life, Phase
from workers.wire import ReplicaState

STEPS = st.lists(st.tuples(st.sampled_from(Event), st.floats(0.0, 100.0)), max_size=60)


def walk(life: Life, steps: list[tuple[Event, float]]) -> list[tuple[Phase, Event, Phase]]:
    """Fire what is allowed; what is not must change nothing."""
    done, now = [], 0.0
    for event, seconds in steps:
        now += seconds
        before = (life.phase, life.since, life.times)
        if life.may(event):
            life.fire(event, now)
            done.append((before[0], event, life.phase))
        else:
            with pytest.raises(Conflict, match=before[0].value):
                life.fire(event, now)
            assert (life.phase, life.since, life.times) == before
    return done


@given(STEPS)
def test_no_change_outside_the_table(steps: list[tuple[Event, float]]) -> None:
    for before, event, after in walk(Life(0.0), steps):
        assert TRANSITIONS[before, event] is after


@given(STEPS)
def test_it_serves_only_what_was_proved_since_its_weights_last_changed(
    steps: list[tuple[Event, float]],
) -> None:
    proved = False
    for before, event, after in walk(Life(0.0), steps):
        if event in (Event.PROVED, Event.ADOPTED, Event.NOT_SLEPT):
            proved = True
        elif event in (Event.SLEPT_1, Event.SLEPT_2, Event.DIED, Event.START):
            proved = False
        if after is Phase.READY:
            assert proved, (before, event)


@given(STEPS)
def test_it_sleeps_only_after_it_was_drained(steps: list[tuple[Event, float]]) -> None:
    for before, _, after in walk(Life(0.0), steps):
        if after in ASLEEP and before is not after:
            assert before in (Phase.FALLING_ASLEEP, Phase.LOADING)  # the latter: adopted asleep
        if after is Phase.FALLING_ASLEEP:
            assert before in (Phase.SETTLING, Phase.WAKING)


@given(STEPS)
def test_from_every_phase_it_can_be_stopped_and_started_again(steps: list[tuple[Event, float]]) -> None:
    life = Life(0.0)
    walk(life, steps)
    life.fire(Event.STOP, 7000.0)
    life.fire(Event.ENDED, 7000.0)
    assert life.state is ReplicaState.STOPPED
    life.fire(Event.START, 7000.0)
    assert life.phase is Phase.LOADING


def test_a_wake_that_fails_is_never_ready() -> None:
    for phase in CHANGING:
        life = Life(0.0, phase=phase)
        life.fire(Event.DIED, 1.0)
        assert life.state is ReplicaState.FAILED
        assert [event for event in Event if life.may(event)] == [Event.START, Event.STOP, Event.DIED]


def test_only_one_phase_is_routed_to() -> None:
    assert set(STATES) == set(Phase)
    assert [phase for phase, state in STATES.items() if state is ReplicaState.READY] == [Phase.READY]


def test_times_of_stages_are_learned() -> None:
    life = Life(0.0)
    for event, now in [
        (Event.ANSWERED, 60.0), (Event.WARMED, 70.0), (Event.PROVED, 80.0),
        (Event.REST, 100.0), (Event.REST, 101.0), (Event.IDLE, 103.0), (Event.SLEEP, 104.0), (Event.SLEPT_2, 110.0),
        (Event.WAKE, 200.0), (Event.PROVED, 240.0),
        (Event.REST, 300.0), (Event.IDLE, 301.0), (Event.SLEEP, 301.0), (Event.SLEPT_2, 302.0),
        (Event.WAKE, 400.0), (Event.PROVED, 420.0),
    ]:  # fmt: skip
        life.fire(event, now)
    assert (life.times.load.last_s, life.times.load.mean_s, life.times.load.count) == (80.0, 80.0, 1)
    assert (life.times.drain.last_s, life.times.drain.count) == (1.0, 2)
    assert (life.times.wake_2.last_s, life.times.wake_2.mean_s, life.times.wake_2.count) == (20.0, 34.0, 2)
    assert life.times.wake_1.count == 0


def test_a_stage_that_did_not_end_well_is_no_time() -> None:
    life = Life(0.0, phase=Phase.ASLEEP_1)
    life.fire(Event.WAKE, 1.0)
    life.fire(Event.DIED, 2.0)
    life.fire(Event.START, 3.0)
    life.untimed()
    for event in (Event.ANSWERED, Event.WARMED, Event.PROVED):
        life.fire(event, 9.0)
    assert life.times.wake_1.count == life.times.load.count == 0
