"""Cuts are instants at which an engine certainly stood still; ends are noticed; what is stored comes once."""

from itertools import pairwise

import msgspec
import pytest

from scheduler.engine_counters import CUT_AFTER_S, CUT_EVERY_S, KEEPALIVE_S, EngineCounterTracker
from tests.support.scheduling import beat, replica
from workers.engine_counters import CounterReport
from workers.wire import EndedEngine, EngineCounters, ReplicaState


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
