"""Supervised tasks: restarted after errors, with a count, and ended only by a return or a cancellation."""

import asyncio
import threading

import pytest

from core import supervise as supervised
from core.supervise import (
    FAILING,
    FAILURE_WINDOW_S,
    FAILURES,
    RESTARTS,
    FailingTasks,
    supervise,
    supervise_thread,
)
from tests.support.clock import ManualClock


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(supervised, "THREAD_PAUSE_S", 0.0)


def restarts(name: str) -> float:
    return RESTARTS.labels(name)._value.get()


async def test_an_error_restarts_the_task_with_a_log_line_and_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise KeyError("a bug")

    await supervise("test-errors", work)
    assert runs == 3
    assert restarts("test-errors") == 2
    logged = [record.message for record in caplog.records if record.name == supervised.__name__]
    assert logged == ["task test-errors failed; it is restarted"] * 2
    assert "a bug" in caplog.text


async def test_a_cancelled_task_ends() -> None:
    started = asyncio.Event()

    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    task = supervise("test-cancel", work)
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert restarts("test-cancel") == 0


async def test_the_cancellation_of_what_it_waits_for_does_not_end_the_task() -> None:
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

    await supervise("test-inner-cancel", work)
    assert runs == 2
    assert restarts("test-inner-cancel") == 1


def test_an_error_restarts_a_thread() -> None:
    runs = 0

    def work() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise KeyError("a bug")

    thread = supervise_thread("test-thread", work, threading.Event())
    thread.start()
    thread.join(10.0)
    assert not thread.is_alive()
    assert (runs, restarts("test-thread")) == (3, 2)


async def test_a_task_that_fails_again_and_again_is_named() -> None:
    runs = 0
    named: list[bool] = []

    async def work() -> None:
        nonlocal runs
        named.append("test-failing" in FAILING.names())
        runs += 1
        if runs <= FAILURES:
            raise KeyError("a bug")

    await supervise("test-failing", work)
    assert named == [False] * FAILURES + [True]


def test_a_task_that_runs_for_a_while_is_forgiven() -> None:
    clock = ManualClock()
    failing = FailingTasks(clock.monotonic)
    for _ in range(FAILURES):
        clock.advance(FAILURE_WINDOW_S / FAILURES)
        failing.add("b")
    failing.add("a")
    assert failing.names() == ["b"]
    clock.advance(FAILURE_WINDOW_S / FAILURES + 0.1)
    assert failing.names() == []
    failing.add("b")
    assert failing.names() == ["b"], "it fails as often as before"
