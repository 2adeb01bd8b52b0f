"""The queue of hold requests: deadlines, batches, and the turn of its connections, on connections without a server."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from prometheus_client import REGISTRY

from billing.metering.hold_queue import MAX_BATCH, MAX_PENDING, MAX_PENDING_IN_ALL, HoldQueue
from billing.metering.records import HoldRequest
from core.clock import CountedTime
from core.errors import Unavailable
from core.ids import uuid7
from tests.support.waiting import until

TIMEOUT_S = 0.1


class FakeConnection:
    """Answers a batch when `answer`, called with its number, returns. The accounts of `locked` are locked."""

    connected = True

    def __init__(self, answer: Callable[[int], Awaitable[object]], locked: set[UUID] | None = None) -> None:
        self.batches: list[list[UUID]] = []
        self.tenants: list[set[UUID]] = []
        self.connects = 0
        self._answer = answer
        self._locked = set() if locked is None else locked

    async def connect(self) -> None:
        self.connects += 1

    async def close(self) -> None: ...

    async def fetch(
        self, _query: str, _incarnation: str, ids: list[UUID], tenants: list[UUID], *rest: Any
    ) -> list[dict[str, Any]]:
        self.batches.append(ids)
        self.tenants.append(set(tenants))
        await self._answer(len(self.batches))
        *_, waits, _labels, _adapters = rest
        if waits and self._locked & set(tenants):
            await asyncio.sleep(TIMEOUT_S / 5)
            raise asyncpg.LockNotAvailableError("canceling statement due to lock timeout")
        return [
            {"request_id": one, "verdict": "busy" if tenant in self._locked else "granted"}
            for one, tenant in zip(ids, tenants, strict=True)
        ]


async def quick(_: int) -> None:
    await asyncio.sleep(0)


def request(tenant_id: UUID | None = None) -> HoldRequest:
    return HoldRequest(uuid7(), tenant_id or uuid7(), uuid7(), uuid7(), "m", "standard", 1, 1)


@pytest.fixture
async def make_queue() -> AsyncIterator[Callable[..., HoldQueue]]:
    started: list[tuple[HoldQueue, list[asyncio.Task[None]]]] = []

    def make(
        *connections: FakeConnection,
        retry: Sequence[FakeConnection] = (),
        unclaimed: list[UUID] | None = None,
        longest_wait_s: float = 10 * TIMEOUT_S,
    ) -> HoldQueue:
        queue = HoldQueue(
            connections,  # type: ignore[arg-type]
            retry or (FakeConnection(quick), FakeConnection(quick)),  # type: ignore[arg-type]
            "api-1",
            timeout_s=TIMEOUT_S,
            longest_wait_s=longest_wait_s,
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


async def test_connections_for_busy_tenants_are_made_before_the_first_of_them(
    make_queue: Callable[..., HoldQueue],
) -> None:
    lanes = [FakeConnection(quick) for _ in range(2)]
    make_queue(FakeConnection(quick), retry=lanes)
    await until(lambda: all(lane.connects for lane in lanes))
    assert not any(lane.batches for lane in lanes)


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
    stuck, other = FakeConnection(never), FakeConnection(quick)
    queue = make_queue(stuck, other)
    held = asyncio.create_task(queue.ask(request()))
    await until(lambda: stuck.batches)
    assert (await queue.ask(request()))["verdict"] == "granted"
    assert len(other.batches) == 1
    held.cancel()


async def test_a_locked_account_delays_no_other_tenant(make_queue: Callable[..., HoldQueue]) -> None:
    locked: set[UUID] = {uuid7()}
    [busy] = locked
    fast = FakeConnection(quick, locked)
    first, last = FakeConnection(quick, locked), FakeConnection(quick, locked)
    queue = make_queue(fast, retry=(first, last))
    waiting = [asyncio.create_task(queue.ask(request(busy))) for _ in range(3)]
    others = await asyncio.gather(*(queue.ask(request()) for _ in range(5)))
    assert {row["verdict"] for row in others} == {"granted"}
    await until(lambda: len(last.tenants) >= 2)
    assert first.tenants == [{busy}], "a tenant whose account stays locked waits on the last connection"
    commands = len(fast.tenants)
    later = asyncio.create_task(queue.ask(request(busy)))
    await until(lambda: len(last.tenants) >= 4)
    assert len(fast.tenants) == commands, "later requests of the tenant wait behind its first"
    locked.clear()
    assert {row["verdict"] for row in await asyncio.gather(*waiting, later)} == {"granted"}
    await queue.ask(request(busy))
    assert fast.tenants[-1] == {busy}, "the tenant is free again"


async def test_an_account_that_is_locked_for_long_is_waited_for(make_queue: Callable[..., HoldQueue]) -> None:
    """As during a commit that waits for a slow disk: PostgreSQL answers, and the account becomes free at last."""
    locked = {uuid7()}
    [busy] = locked
    lanes = [FakeConnection(quick, locked) for _ in range(2)]
    queue = make_queue(FakeConnection(quick, locked), retry=lanes, longest_wait_s=3600)
    asked = asyncio.create_task(queue.ask(request(busy)))
    await until(lambda: len(lanes[1].batches) >= 50)
    assert not asked.done()
    locked.clear()
    assert (await asked)["verdict"] == "granted"


async def test_a_postgresql_that_falls_silent_over_a_locked_account_is_unavailable(
    make_queue: Callable[..., HoldQueue],
) -> None:
    busy = uuid7()
    lanes = [FakeConnection(never, {busy}) for _ in range(2)]
    queue = make_queue(FakeConnection(quick, {busy}), retry=lanes, longest_wait_s=3600)
    with pytest.raises(Unavailable) as refused:
        await queue.ask(request(busy))
    assert refused.value.code == "billing_unavailable"


async def test_an_account_that_stays_locked_is_not_an_absent_account(
    make_queue: Callable[..., HoldQueue],
) -> None:
    busy = uuid7()
    connections = [FakeConnection(quick, {busy}) for _ in range(3)]
    queue = make_queue(connections[0], retry=connections[1:])
    with pytest.raises(Unavailable) as refused:
        await queue.ask(request(busy))
    assert refused.value.code == "billing_account_busy"


async def test_tenants_share_a_batch(make_queue: Callable[..., HoldQueue]) -> None:
    release = asyncio.Event()

    async def first_waits(number: int) -> None:
        if number == 1:
            await release.wait()

    connection = FakeConnection(first_waits)
    queue = make_queue(connection)
    asked = [asyncio.create_task(queue.ask(request()))]
    await until(lambda: connection.batches)
    busy, quiet = uuid7(), request()
    asked += [asyncio.create_task(queue.ask(request(busy))) for _ in range(3 * MAX_BATCH)]
    asked += [asyncio.create_task(queue.ask(quiet))]
    await asyncio.sleep(0)
    release.set()
    await asyncio.gather(*asked)
    assert quiet.request_id in connection.batches[1]
    assert len(connection.batches[1]) == MAX_BATCH


async def test_one_tenant_fills_only_its_own_queue(make_queue: Callable[..., HoldQueue]) -> None:
    busy = uuid7()
    connections = [FakeConnection(quick, {busy}) for _ in range(3)]
    queue = make_queue(connections[0], retry=connections[1:])
    asked = [asyncio.create_task(queue.ask(request(busy))) for _ in range(MAX_PENDING)]
    await until(lambda: connections[2].batches)
    with pytest.raises(Unavailable):
        await asyncio.gather(*(queue.ask(request(busy)) for _ in range(2 * MAX_BATCH)))
    assert (await queue.ask(request()))["verdict"] == "granted"
    for one in asked:
        one.cancel()


async def test_all_tenants_together_are_bounded(make_queue: Callable[..., HoldQueue]) -> None:
    """PostgreSQL answers nothing; those that wait fail in time, and leave their room to others."""
    connection = FakeConnection(never)
    queue = make_queue(connection)
    tenants = [uuid7() for _ in range(2 * MAX_PENDING_IN_ALL // MAX_PENDING)]
    asked = [asyncio.create_task(queue.ask(request(tenants[0])))]
    await until(lambda: connection.batches)
    asked += [
        asyncio.create_task(queue.ask(request(tenants[number % len(tenants)])))
        for number in range(MAX_PENDING_IN_ALL)
    ]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable) as refused:
        await queue.ask(request())
    assert (refused.value.code, refused.value.retry_after_s) == ("billing_overloaded", 1.0)
    assert REGISTRY.get_sample_value("penstock_holds_waiting") == MAX_PENDING_IN_ALL
    failed = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(one) for one in failed} == {Unavailable}
    with pytest.raises(Unavailable) as late:
        await queue.ask(request())
    assert late.value.code == "billing_unavailable", "there is room again"


async def test_an_unexpected_error_fails_its_batch_and_the_queue_goes_on(
    make_queue: Callable[..., HoldQueue],
) -> None:
    async def breaks_once(number: int) -> None:
        if number == 1:
            raise KeyError("a bug")

    unclaimed: list[UUID] = []
    queue = make_queue(FakeConnection(breaks_once), unclaimed=unclaimed)
    first = request()
    with pytest.raises(Unavailable):
        await queue.ask(first)
    assert unclaimed == [first.request_id]
    await until(lambda: _granted(queue))


async def _granted(queue: HoldQueue) -> bool:
    try:
        return (await queue.ask(request()))["verdict"] == "granted"
    except Unavailable:
        return False
