"""Cuts are instants at which an engine certainly stood still; ends are noticed; what is stored comes once."""

from itertools import pairwise

import msgspec
import pytest

from scheduler.engine_counters import CUT_AFTER_S, CUT_EVERY_S, KEEPALIVE_S, EngineCounterTracker
from scheduler.heartbeat_delay import HeartbeatDelays
from tests.support.scheduling import beat, replica
from workers.engine_counters import CounterReport
from workers.wire import EndedEngine, EngineCounters, Heartbeat, ReplicaState


class Pool:
    """One replica, heard every half second, scraped every second."""

    def __init__(self) -> None:
        self.tracker = EngineCounterTracker()
        self.now = 100.0
        self.status = replica()
        self.placed = 0

    def beats(self, number: int, **fields: object) -> None:
        for _ in range(number):
            self.now += 0.5
            scrape = self.status.scrape + (self.now == int(self.now))
            self.status = msgspec.structs.replace(self.status, scrape=scrape, **fields)
            self.tracker.on_heartbeat(beat(self.status), lambda _: self.placed, self.now)

    def count(self, tokens: int) -> None:
        self.beats(1, counters=EngineCounters(prompt_tokens=tokens, generation_tokens=2 * tokens))

    def stored(self) -> list[CounterReport]:
        boots = self.tracker.due(self.now)
        reports = [boot.report(self.now) for boot in boots]
        self.tracker.stored(boots, reports, self.now)
        return reports


def cuts(reports: list[CounterReport], now: float) -> list[tuple[float, int]]:
    return [(now - cut.age_s, cut.prompt_tokens) for report in reports for cut in report.cuts]


def test_an_engine_that_stands_still_is_cut_once() -> None:
    pool = Pool()
    pool.count(10)
    began = pool.now
    pool.beats(8)
    assert cuts(pool.stored(), pool.now) == [(began + CUT_AFTER_S, 10)]
    pool.beats(40)
    assert cuts(pool.stored(), pool.now) == [], "nothing has happened since"
    pool.count(20)
    pool.beats(8)
    assert [tokens for _, tokens in cuts(pool.stored(), pool.now)] == [20]


def test_no_cut_while_something_is_placed_runs_waits_or_counts() -> None:
    for busy in ({"running": 1}, {"waiting": 1}, {"state": ReplicaState.LOADING}):
        pool = Pool()
        pool.beats(20, **busy)
        assert cuts(pool.stored(), pool.now) == [], busy
    pool = Pool()
    pool.placed = 1
    pool.beats(20)
    assert cuts(pool.stored(), pool.now) == []
    pool = Pool()
    for tokens in range(20):
        pool.count(tokens)
    assert cuts(pool.stored(), pool.now) == []


def test_a_request_between_two_heartbeats_puts_the_cut_off() -> None:
    pool = Pool()
    pool.beats(3)
    pool.count(7)
    pool.beats(2)
    assert cuts(pool.stored(), pool.now) == []
    pool.beats(6)
    assert [tokens for _, tokens in cuts(pool.stored(), pool.now)] == [7]


def test_cuts_do_not_come_more_often_than_they_may() -> None:
    pool = Pool()
    for tokens in range(1, 10):
        pool.count(tokens)
        pool.beats(7)
    times = [at for at, _ in cuts(pool.stored(), pool.now)]
    assert len(times) >= 3
    assert all(later - earlier >= CUT_EVERY_S - 2 for earlier, later in pairwise(times))


def test_an_end_is_told_when_the_process_fails_or_another_takes_its_place() -> None:
    pool = Pool()
    pool.count(5)
    assert [report.ended for report in pool.stored()] == [False]
    pool.beats(1, state=ReplicaState.FAILED)
    assert [(report.ended, report.counters.prompt_tokens) for report in pool.stored()] == [(True, 5)]
    other = Pool()
    other.count(5)
    other.stored()
    other.beats(1, boot_id="boot-2", counters=EngineCounters())
    assert sorted((r.boot_id, r.ended, r.counters.prompt_tokens) for r in other.stored()) == [
        ("boot-1", True, 5),
        ("boot-2", False, 0),
    ]


def test_an_engine_that_ended_while_no_scheduler_listened_keeps_its_last_counters() -> None:
    pool = Pool()
    last = replica(boot_id="boot-0", counters=EngineCounters(prompt_tokens=20_151, generation_tokens=7))
    for _ in range(3):
        pool.now += 0.5
        ended = EndedEngine(last, scrape_age_s=pool.now - 90.2, ended_age_s=pool.now - 90.0)
        told = msgspec.structs.replace(beat(pool.status), ended=[ended])
        pool.tracker.on_heartbeat(told, lambda _: 0, pool.now)
        found = {report.boot_id: report for report in pool.stored()}
        if pool.now == 100.5:
            report = found["boot-0"]
            assert (report.ended, report.counters.prompt_tokens) == (True, 20_151)
            assert report.scrape_age_s == pytest.approx(10.3)
            assert report.seen_age_s == pytest.approx(10.5)
        else:
            assert "boot-0" not in found, "stored once"


def test_the_last_scrape_of_an_engine_that_was_followed_counts() -> None:
    pool = Pool()
    pool.count(5)
    pool.stored()
    last = msgspec.structs.replace(
        pool.status, counters=EngineCounters(prompt_tokens=9, generation_tokens=18)
    )
    pool.status = replica(boot_id="boot-2")
    told = msgspec.structs.replace(beat(pool.status), ended=[EndedEngine(last, 0.5, 0.1)])
    pool.tracker.on_heartbeat(told, lambda _: 0, pool.now + 1)
    found = {report.boot_id: report for report in pool.stored()}
    assert (found["boot-1"].ended, found["boot-1"].counters.prompt_tokens) == (True, 9)


def test_only_what_changed_is_stored_and_now_and_then_what_lives() -> None:
    pool = Pool()
    pool.beats(1)
    assert len(pool.stored()) == 1
    pool.beats(4)
    pool.stored()
    pool.beats(2)
    assert pool.stored() == []
    pool.beats(int(KEEPALIVE_S * 2))
    assert len(pool.stored()) == 1


def test_an_engine_of_somebody_else_is_left_out() -> None:
    pool = Pool()
    pool.beats(5, engine="external")
    assert pool.stored() == []


def test_heartbeats_that_waited_do_not_make_a_scrape_younger() -> None:
    """A scheduler that was stopped for five seconds reads ten old heartbeats at once."""
    tracker, agents_clock = EngineCounterTracker(), -5000.0

    def sent(at: float, scrape: int, tokens: int) -> Heartbeat:
        counters = EngineCounters(prompt_tokens=tokens, generation_tokens=tokens)
        status = msgspec.structs.replace(replica(), scrape=scrape, scrape_age_s=0.25, counters=counters)
        return msgspec.structs.replace(beat(status), sent_at=at + agents_clock)

    tracker.on_heartbeat(sent(10_000.0, 1, 5), lambda _: 1, 10_000.02)
    for late in range(10):
        at = 10_001.0 + late / 2
        tracker.on_heartbeat(sent(at, 2 + late, 6 + late), lambda _: 1, 10_006.5)
    (report,) = [boot.report(10_006.5) for boot in tracker.due(10_006.5)]
    assert report.counters.prompt_tokens == 15
    assert report.scrape_age_s == pytest.approx(10_006.5 - (10_005.5 + 0.02) + 0.25, abs=0.01)


def test_the_delay_of_a_heartbeat_is_told_from_the_fastest_one_of_its_agent() -> None:
    delays = HeartbeatDelays()

    def arrived(sent_at: float, now: float, **fields: str) -> float:
        return delays.arrived(msgspec.structs.replace(beat(replica()), sent_at=sent_at, **fields), now)

    assert arrived(0.0, 50.0) == 50.0, "an agent that does not say when it sent"
    assert arrived(7.0, 100.0) == 100.0, "the first one is taken as fast"
    assert arrived(8.0, 104.0) == pytest.approx(101.0, abs=0.01)
    assert arrived(9.0, 101.5) == 101.5, "a faster one"
    assert arrived(10.0, 104.0) == pytest.approx(102.5, abs=0.01)
    assert arrived(3.0, 105.0, boot_id="accounting-2") == 105.0, "another start has another clock"
    for day in range(1, 30):  # clocks run apart by 50 parts per million
        later = 86_400.0 * day
        assert arrived(3.0 + later, 105.0 + later * (1 + 5e-5), boot_id="accounting-2") == pytest.approx(
            105.0 + later * (1 + 5e-5), abs=0.01
        )
    delays.forget(10**9)
    assert arrived(1.0, 2.0, boot_id="accounting-2") == 2.0
