"""Concurrent jobs: a long one does not delay others, and none runs twice at once in one process."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.db import Database
from core.settings import Settings
from jobs.app import Runner
from jobs.work import Job


@pytest.fixture
def runner() -> Runner:
    return Runner(Settings(database_url="postgresql://nobody@127.0.0.1:1/none"))


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
