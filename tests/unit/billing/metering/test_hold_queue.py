"""The queue of hold requests: deadlines, batches, and the turn of its connections, on connections without a server."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from billing.metering.hold_queue import HoldQueue
from billing.metering.records import HoldRequest
from core.clock import CountedTime
from core.errors import Unavailable
from core.ids import uuid7
from tests.support.waiting import until

TIMEOUT_S = 0.1


class FakeConnection:
    """Answers a batch when `answer`, called with its number, returns."""

    connected = True

    def __init__(self, answer: Callable[[int], Awaitable[object]]) -> None:
        self.batches: list[list[UUID]] = []
        self._answer = answer

    async def connect(self) -> None: ...

    async def close(self) -> None: ...

    async def fetch(self, _query: str, _incarnation: str, ids: list[UUID], *_: Any) -> list[dict[str, Any]]:
        self.batches.append(ids)
        await self._answer(len(self.batches))
        return [{"request_id": one, "verdict": "granted"} for one in ids]


def request() -> HoldRequest:
    return HoldRequest(uuid7(), uuid7(), uuid7(), uuid7(), "m", "standard", 1, 1)


@pytest.fixture
async def make_queue() -> AsyncIterator[Callable[..., HoldQueue]]:
    started: list[tuple[HoldQueue, list[asyncio.Task[None]]]] = []

    def make(*connections: FakeConnection, unclaimed: list[UUID] | None = None) -> HoldQueue:
        queue = HoldQueue(
            connections,  # type: ignore[arg-type]
            "api-1",
            timeout_s=TIMEOUT_S,
            on_granted=lambda _: None,
            on_unclaimed=([] if unclaimed is None else unclaimed).append,
        )
        started.append((queue, queue.start()))
        return queue

    yield make
    for queue, tasks in started:
        queue.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await queue.close()


async def never(_: int) -> None:
    await asyncio.Event().wait()


def test_time_in_which_the_process_did_not_run_is_not_counted() -> None:
    counted = CountedTime(0.1)
    began = counted.advance(10.0)
    assert counted.advance(10.05) - began == pytest.approx(0.05)
    assert counted.advance(70.0) - began == pytest.approx(0.15)
    assert counted.advance(70.02) - began == pytest.approx(0.17)


async def test_no_answer_at_all_is_a_refusal(make_queue: Callable[..., HoldQueue]) -> None:
    queue = make_queue(FakeConnection(never))
    with pytest.raises(Unavailable):
        await queue.ask(request())


async def test_an_answer_that_an_event_loop_without_cpu_finds_late_counts(
    make_queue: Callable[..., HoldQueue],
) -> None:
    async def soon(_: int) -> None:
        await asyncio.sleep(TIMEOUT_S / 4)

    connection = FakeConnection(soon)
    queue = make_queue(connection)
    asked = asyncio.create_task(queue.ask(request()))
    await until(lambda: connection.batches)
    time.sleep(4 * TIMEOUT_S)  # noqa: ASYNC251 - the process gets no CPU
    assert (await asked)["verdict"] == "granted"


async def test_a_slow_postgresql_that_answers_others_is_waited_for_but_not_for_ever(
    make_queue: Callable[..., HoldQueue],
) -> None:
    release = asyncio.Event()

    async def stuck(_: int) -> None:
        await release.wait()

    async def quick(_: int) -> None:
        await asyncio.sleep(0)

    slow = FakeConnection(stuck)
    unclaimed: list[UUID] = []
    queue = make_queue(slow, FakeConnection(quick), unclaimed=unclaimed)
    first = request()
    asked = asyncio.create_task(queue.ask(first))
    await until(lambda: slow.batches)
    began = time.monotonic()
    while not asked.done():
        await queue.ask(request())
        await asyncio.sleep(TIMEOUT_S / 20)
    with pytest.raises(Unavailable):
        await asked
    assert time.monotonic() - began >= 3 * TIMEOUT_S
    release.set()
    await until(lambda: unclaimed == [first.request_id])


async def test_requests_gather_while_a_command_runs(make_queue: Callable[..., HoldQueue]) -> None:
    release = asyncio.Event()

    async def first_waits(number: int) -> None:
        if number == 1:
            await release.wait()

    connection = FakeConnection(first_waits)
    queue = make_queue(connection)
    asked = [asyncio.create_task(queue.ask(request()))]
    await until(lambda: connection.batches)
    for _ in range(3):
        asked += [asyncio.create_task(queue.ask(request())) for _ in range(2)]
        await asyncio.sleep(0)
    release.set()
    await asyncio.gather(*asked)
    assert [len(batch) for batch in connection.batches] == [1, 6]


async def test_the_turn_passes_when_a_command_takes_long(make_queue: Callable[..., HoldQueue]) -> None:
    async def quick(_: int) -> None:
        await asyncio.sleep(0)

    stuck, other = FakeConnection(never), FakeConnection(quick)
    queue = make_queue(stuck, other)
    held = asyncio.create_task(queue.ask(request()))
    await until(lambda: stuck.batches)
    assert (await queue.ask(request()))["verdict"] == "granted"
    assert len(other.batches) == 1
    held.cancel()
