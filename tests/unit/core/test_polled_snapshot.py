"""Rows in memory: they stay while polls fail, and follow the database again afterwards."""

import logging
import math
from typing import Any

import pytest

from core.polled_snapshot import PolledSnapshot
from tests.support.clock import ManualClock
from tests.support.waiting import until


class FakeDatabase:
    """PostgreSQL with one number, which may be away."""

    def __init__(self) -> None:
        self.away = False
        self.number = 1
        self.sessions = 0

    def read(self) -> Any:
        return self

    async def __aenter__(self) -> "FakeDatabase":
        self.sessions += 1
        if self.away:
            raise OSError("connection refused")
        return self

    async def __aexit__(self, *_: object) -> None: ...


class Number(PolledSnapshot):
    """The number of the database."""

    value = 0

    async def _read(self, connection: Any) -> None:
        self.value = connection.number


def snapshot(database: FakeDatabase, clock: ManualClock) -> Number:
    made: Any = database
    return Number(made, "numbers", task="numbers", every_s=0.001, max_age_s=60.0, now=clock.monotonic)


async def test_a_failed_poll_is_logged_once_and_the_next_that_works_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = FakeDatabase()
    polled = snapshot(database, ManualClock())
    await polled.start()
    try:
        database.number, database.away = 2, True
        failed = database.sessions
        await until(lambda: database.sessions > failed + 3)
        assert polled.value == 1
        said = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert [record.getMessage() for record in said] == [
            "numbers cannot be read; the last known ones stay in force"
        ]
        database.away = False
        await until(lambda: polled.value == 2)
    finally:
        await polled.close()


async def test_rows_are_fresh_for_a_while_after_they_were_read() -> None:
    database, clock = FakeDatabase(), ManualClock()
    polled = snapshot(database, clock)
    assert (polled.fresh, polled.age_s) == (False, math.inf)
    await polled.refresh()
    clock.advance(60.0)
    assert (polled.fresh, polled.age_s) == (True, 60.0)
    clock.advance(1.0)
    assert not polled.fresh
    database.away = True
    with pytest.raises(OSError, match="refused"):
        await polled.refresh()
    assert not polled.fresh


async def test_a_first_reading_that_fails_fails_the_start() -> None:
    database = FakeDatabase()
    database.away = True
    polled = snapshot(database, ManualClock())
    with pytest.raises(OSError, match="refused"):
        await polled.start()
    await polled.close()
