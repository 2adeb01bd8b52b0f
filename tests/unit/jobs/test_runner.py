"""Concurrent jobs: a long one does not delay others, and none runs twice at once in one process."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.db import BATCH, Database
from core.settings import Settings
from jobs.app import Runner
from jobs.work import Job, schedule


@pytest.fixture
def runner() -> Iterator[Runner]:
    made = Runner(Settings(database_url="postgresql://nobody@127.0.0.1:1/none"))
    yield made
    made.close()


def test_a_long_job_does_not_delay_others_and_runs_once(runner: Runner) -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def long(database: Database, settings: Settings) -> int:
        begun.set()
        await asyncio.to_thread(go_on.wait)
        return 7

    async def short(database: Database, settings: Settings) -> int:
        return 1

    slow, quick = Job("penstock.slow", 2.0, long), Job("penstock.quick", 2.0, short)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(runner.run, slow)
        try:
            assert begun.wait(30)
            assert threads.submit(runner.run, quick).result(30) == 1
            assert threads.submit(runner.run, slow).result(30) == 0
            assert not first.done()
        finally:
            go_on.set()
        assert first.result(30) == 7
        assert threads.submit(runner.run, slow).result(30) == 7
    runner.close()


def test_a_job_that_failed_may_run_again(runner: Runner) -> None:
    async def fails(database: Database, settings: Settings) -> int:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            runner.run(Job("penstock.fails", 2.0, fails))
    runner.close()


def test_a_job_that_takes_longer_than_it_may_hangs(runner: Runner) -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def long(database: Database, settings: Settings) -> int:
        begun.set()
        await asyncio.to_thread(go_on.wait)
        return 7

    with ThreadPoolExecutor(2) as threads:
        for name, limit_s in (("penstock.hangs", 0.0), ("penstock.takes_time", 3600.0)):
            begun.clear()
            threads.submit(runner.run, Job(name, 2.0, long, limit_s))
            assert begun.wait(30)
        try:
            assert runner.hanging() == ["penstock.hangs"]
        finally:
            go_on.set()
    assert runner.hanging() == []


def test_a_process_without_any_success_hangs_in_the_end(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runner.hanging() == []
    monkeypatch.setattr("jobs.app.STALLED_S", -1.0)
    assert runner.hanging() == ["jobs"]


def test_an_overdue_job_that_runs_is_not_named(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def long(database: Database, settings: Settings) -> int:
        begun.set()
        await asyncio.to_thread(go_on.wait)
        return 7

    monkeypatch.setattr(runner._successes, "overdue", lambda: ["penstock.reap", "penstock.seal"])
    with ThreadPoolExecutor(1) as threads:
        threads.submit(runner.run, Job("penstock.seal", 2.0, long))
        assert begun.wait(30)
        try:
            assert runner.overdue() == ["penstock.reap"]
        finally:
            go_on.set()
    assert runner.overdue() == ["penstock.reap", "penstock.seal"]


def test_every_job_has_limits_above_its_interval_and_its_statements() -> None:
    for job in schedule(Settings()):
        assert job.limit_s > BATCH.statement_s, job.name
        assert job.overdue_s >= 3 * job.every_s, job.name
