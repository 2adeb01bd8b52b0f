"""The lease of the scheduler: who may serve, with all clocks, stalls and answers of PostgreSQL played."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.lease import LEASE_S, PAUSE_S, POLL_S, RENEW_S, SILENT_S, LeaseRow, Tenure, Watch

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
TICK_S = 0.05
ANSWER_S = 1.0


def row(term: int = 3, owner: str = "other", at: float = 0.0, *, expired: bool = False) -> LeaseRow:
    return LeaseRow(term, owner, EPOCH + timedelta(seconds=at), expired)


# The standby


def watched(until: float, every: float = POLL_S, **fields) -> bool:
    """Whether a standby that has seen the same row from 0 to `until` may take it."""
    watch, now, last = Watch(), 0.0, row(**fields)
    while now <= until:
        watch.saw(last, now)
        now += every
    return watch.may_take(last, "me", until)


def test_an_expired_lease_is_taken_after_it_was_watched_for_as_long_as_it_lasts() -> None:
    assert not watched(LEASE_S - POLL_S, expired=True)
    assert watched(LEASE_S, expired=True)
    assert not watched(LEASE_S, expired=False)


def test_answers_with_pauses_prove_nothing() -> None:
    assert not watched(10 * LEASE_S, every=PAUSE_S * 1.1, expired=True)


def test_silence_and_a_renewal_begin_the_watch_anew() -> None:
    watch, old, new = Watch(), row(expired=True), row(at=1.0, expired=True)
    for step in range(11):
        watch.saw(old, step * POLL_S)
    assert watch.may_take(old, "me", 10 * POLL_S)
    watch.silence()
    watch.saw(old, 11 * POLL_S)
    assert not watch.may_take(old, "me", 11 * POLL_S)
    watch.saw(new, 12 * POLL_S)
    assert not watch.may_take(new, "me", 11 * POLL_S + LEASE_S)


def test_a_released_lease_and_that_of_an_earlier_process_at_the_address_are_taken_at_once() -> None:
    for owner in ("", "me"):
        watch, found = Watch(), row(owner=owner)
        watch.saw(found, 0.0)
        assert watch.may_take(found, "me", 0.0)


# The owner


def running(tenure: Tenure, start: float, end: float) -> bool:
    """Whether `tenure` holds at `end` in a process that looks ten times a second from `start` on."""
    now = start
    while now < end:
        tenure.holds(now)
        now += 0.1
    return tenure.holds(end)


def test_an_owner_serves_on_while_postgresql_is_away() -> None:
    assert running(Tenure(1, 0.0), 0.0, 3600.0)


def test_an_owner_that_did_not_run_stops_as_soon_as_it_runs() -> None:
    tenure = Tenure(1, 0.0)
    assert running(tenure, 0.0, 0.4)
    assert not tenure.holds(0.4 + LEASE_S)
    assert "did not run" in tenure.ended
    tenure.renewed(3.0, 3.0)
    assert not tenure.holds(3.0), "what is lost stays lost"


def test_an_owner_that_slept_through_less_than_its_lease_serves_on() -> None:
    tenure = Tenure(1, 0.0)
    assert tenure.holds(LEASE_S - 0.1)


def test_silence_before_a_long_stall_does_not_count_after_it() -> None:
    tenure = Tenure(1, 0.0)
    assert running(tenure, 0.0, 30.0)
    assert not tenure.holds(30.0 + LEASE_S)


def test_an_answer_ends_the_silence() -> None:
    tenure = Tenure(1, 0.0)
    assert running(tenure, 0.0, 30.0)
    tenure.renewed(29.9, 30.0)
    assert running(tenure, 30.0, 30.0 + SILENT_S / 2)
    assert not tenure.holds(30.0 + LEASE_S)


# All together


@dataclass
class Postgres:
    """The row, as scheduler/lease_table.py changes it; statements wait while it is frozen."""

    term: int = 0
    owner: str = ""
    renewed_at: float = 0.0
    waiting: list[tuple["Process", int, Callable[[float], object]]] = field(default_factory=list)

    def run(self, now: float) -> None:
        for process, number, statement in self.waiting:
            process.inbox.append((number, statement(now)))
        self.waiting.clear()

    def read(self, now: float) -> LeaseRow:
        return row(self.term, self.owner, self.renewed_at, expired=self.renewed_at + LEASE_S < now)

    def take(self, seen: LeaseRow, owner: str, now: float) -> int | None:
        found = self.read(now)
        same = (found.term, found.renewed_at) == (seen.term, seen.renewed_at)
        if not same or not (found.owner in ("", owner) or found.expired):
            return None
        self.term, self.owner, self.renewed_at = self.term + 1, owner, now
        return self.term

    def renew(self, term: int, owner: str, now: float) -> bool:
        if (self.term, self.owner) != (term, owner):
            return False
        self.renewed_at = now
        return True


@dataclass
class Process:
    """One scheduler, as scheduler/lease_keeper.py and scheduler/service.py drive the rules."""

    name: str
    postgres: Postgres
    clock_s: float
    """What its monotonic clock shows at 0."""
    watch: Watch = field(default_factory=Watch)
    tenure: Tenure | None = None
    inbox: list[tuple[int, object]] = field(default_factory=list)
    number: int = 0
    """Of the statement that is waited for."""
    asked_at: float | None = None
    due_at: float = -1e9
    stalled_until: float = 0.0

    def serves(self, t: float) -> bool:
        return self.tenure is not None and self.tenure.holds(t + self.clock_s)

    def step(self, t: float) -> None:
        now = t + self.clock_s
        if self.tenure is not None and not self.tenure.holds(now):
            self.tenure, self.watch, self.due_at = None, Watch(), now
            self.asked_at = None
        for number, answer in self.inbox:
            if number == self.number and self.asked_at is not None:
                asked_at, self.asked_at = self.asked_at, None
                self.answered(answer, asked_at, now)
        self.inbox.clear()
        if self.asked_at is not None and now - self.asked_at > ANSWER_S:
            self.asked_at = None
            self.watch.silence()
        if self.asked_at is None and now >= self.due_at:
            tenure = self.tenure
            if tenure is None:
                self.ask(self.postgres.read, now, POLL_S)
            else:
                self.ask(lambda at: self.postgres.renew(tenure.term, self.name, at), now, RENEW_S)

    def answered(self, answer: object, asked_at: float, now: float) -> None:
        match answer:
            case LeaseRow():
                self.watch.saw(answer, now)
                if self.watch.may_take(answer, self.name, now):
                    self.ask(lambda at: self.postgres.take(answer, self.name, at), now, POLL_S)
            case bool() if self.tenure is not None:
                if answer:
                    self.tenure.renewed(asked_at, now)
                else:
                    self.tenure.end("another scheduler has it")
            case int() if self.tenure is None:
                self.tenure = Tenure(answer, asked_at)

    def ask(self, statement: Callable[[float], object], now: float, every: float) -> None:
        self.number += 1
        self.asked_at, self.due_at = now, now + every
        self.postgres.waiting.append((self, self.number, statement))


class Play:
    """Schedulers and PostgreSQL, a tick at a time."""

    def __init__(self, count: int) -> None:
        self.postgres = Postgres()
        self.processes = [Process(f"s{n}", self.postgres, clock_s=1000.0 * n) for n in range(count)]
        self.t = 0.0
        self.frozen_until = 0.0
        self.crashed = False
        """Whether PostgreSQL loses at the end of its absence what was sent meanwhile."""
        self.served: list[str] = []
        """Name of the process that served, tick by tick; empty = none."""

    def tick(self) -> None:
        self.t += TICK_S
        if self.t >= self.frozen_until:
            if self.crashed:
                self.postgres.waiting.clear()
                self.crashed = False
            self.postgres.run(self.t)
        awake = [process for process in self.processes if self.t >= process.stalled_until]
        for process in awake:
            process.step(self.t)
        serving = [process.name for process in awake if process.serves(self.t)]
        assert len(serving) <= 1, f"{serving} serve at {self.t:.2f} s"
        self.served.append(serving[0] if serving else "")

    def run(self, seconds: float) -> list[str]:
        """Play on; return the names of those that served, tick by tick."""
        before = len(self.served)
        for _ in range(round(seconds / TICK_S)):
            self.tick()
        return self.served[before:]


SECONDS = [0.1, 0.5, 0.9, 1.4, 2.0, 2.6, 3.0, 4.5, 7.0, 12.0]
faults = st.lists(
    st.tuples(
        st.sampled_from(SECONDS),  # until it happens
        st.sampled_from(["owner", "owner", "s0", "s1", "freeze", "crash", "everything"]),
        st.sampled_from(SECONDS),  # that it lasts
    ),
    max_size=8,
)


@settings(max_examples=200)
@given(faults)
def test_two_never_serve_at_once_and_one_does_again_within_four_seconds(
    events: list[tuple[float, str, float]],
) -> None:
    play = Play(3)
    for pause_s, what, length_s in events:
        play.run(pause_s)
        if what in ("freeze", "crash", "everything"):
            play.frozen_until = max(play.frozen_until, play.t + length_s)
            play.crashed |= what == "crash"
        for process in play.processes:
            if what in (process.name, "everything") or (
                what == "owner" and process.name == play.postgres.owner
            ):
                process.stalled_until = max(process.stalled_until, play.t + length_s)
    over = max([play.frozen_until, *(process.stalled_until for process in play.processes)])
    play.run(max(0.0, over - play.t))
    play.run(4.0)
    assert play.served[-1], "no process serves"


def test_an_owner_that_was_stopped_while_postgresql_was_away_stops_when_another_has_taken_over() -> None:
    play = Play(2)
    play.run(2.0)
    [first] = [process for process in play.processes if process.name == play.served[-1]]
    play.frozen_until = play.t + 4.0
    play.run(3.0)
    first.stalled_until = play.t + 8.0
    assert play.run(7.0)[-1] not in ("", first.name)
    assert first.name not in play.run(4.0)


@given(st.integers(0, 40), st.floats(0.1, 60.0), st.booleans())
def test_no_standby_takes_over_while_and_after_postgresql_is_away(
    ticks: int, away_s: float, crashed: bool
) -> None:
    play = Play(2)
    play.run(2.0 + ticks * TICK_S)
    first = play.served[-1]
    play.frozen_until, play.crashed = play.t + away_s, crashed
    assert set(play.run(away_s + 10.0)) == {first}


@given(st.integers(0, 40), st.floats(4.0, 20.0))
def test_a_stopped_owner_is_replaced_within_four_seconds_and_stands_by_afterwards(
    ticks: int, stopped_s: float
) -> None:
    play = Play(2)
    play.run(2.0 + ticks * TICK_S)
    first = play.served[-1]
    [stopped] = [process for process in play.processes if process.name == first]
    stopped.stalled_until = play.t + stopped_s
    later = play.run(4.0)
    [second] = set(later) - {"", first}
    assert first not in later
    assert later[-1] == second
    assert set(play.run(stopped_s + 5.0)) == {second}
