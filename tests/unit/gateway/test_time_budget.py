"""How long a request waits for a silent engine, and what it leaves for another attempt."""

import asyncio
import json

import pytest

from core.errors import EngineFailed
from core.ids import uuid7
from gateway import time_budget
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import PreparedRequest
from gateway.time_budget import (
    DEADLINE_S,
    SILENCE_S,
    STALLED_S,
    EngineActivity,
    deadline_s,
    first_attempt_s,
    longest_silence_s,
)
from scheduler.wire import Placement, PoolSnapshot
from tests.support.clock import ManualClock
from tests.support.gateway_fakes import (
    DONE,
    FakeEngines,
    FakeModel,
    FakeReply,
    Gateway,
    answer,
    chunk,
    principal,
)
from tests.support.waiting import until
from workers.wire import Capacity, EngineCounters, ReplicaState, ReplicaStatus

TOOLS = [{"type": "function", "function": {"name": "f"}}]


def prepared(**fields: object) -> PreparedRequest:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "stream": True, **fields}
    return parse_chat(json.dumps(body).encode())


class Engine:
    """What snapshots say of the engine r1."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.at = 0

    def scrape(self, generated: int, *, kv_usage: float = 0.1) -> None:
        self.at += 1
        status = ReplicaStatus(
            "r1", "tiny", "http://r1", "vllm", "boot", ReplicaState.READY, Capacity(1, 1, 1), running=1,
            kv_usage=kv_usage, counters=EngineCounters(1, generated), scrape=self.at,
        )  # fmt: skip
        self.gateway.snapshot = PoolSnapshot(at_unix_ms=self.at, replicas=[status])


class Silence:
    """One request whose first engine says nothing more, on a clock that a test moves."""

    def __init__(self, first: list[bytes], **fields: object) -> None:
        self.clock = ManualClock()
        self.clock.advance(100)
        self.silent = asyncio.Event()
        broken = EngineFailed("aborted")
        self.gateway = Gateway(
            FakeEngines([*first, self.silent, broken], answer(["ok"])),
            model=FakeModel(max_output_tokens=100),
            now=self.clock.monotonic,
        )
        self.engine = Engine(self.gateway)
        self.fields = fields
        self.reply = FakeReply()

    async def start(self) -> "asyncio.Task[None]":
        task = asyncio.create_task(
            self.gateway.director.handle(uuid7(), principal(), prepared(**self.fields), self.reply)
        )
        await until(lambda: self.gateway.engines.streams and len(self.gateway.engines.streams[0].script) == 1)
        return task

    def lives(self, seconds: int, *, moving: bool) -> int:
        """The seconds after which the first attempt is aborted, at most `seconds`; scrapes come every second."""
        for second in range(1, seconds + 1):
            self.clock.advance(1)
            self.engine.scrape(second if moving else 1)
            self.gateway.open_requests.tick()
            if self.gateway.engines.streams[0].aborted:
                return second
        return seconds


async def test_a_silent_request_lives_while_its_engines_counters_move() -> None:
    """At most for a minute, or five times the predicted time to the first token."""
    for ttft_s, longest_s in ((1.0, 60), (20.0, 100)):
        quiet = Silence([])
        quiet.gateway.scheduler.predicted_ttft_s = ttft_s
        task = await quiet.start()
        assert quiet.lives(200, moving=True) == longest_s + 1
        quiet.silent.set()
        await task
        quiet.gateway.assert_resolved()


async def test_a_request_of_an_engine_that_stands_still_moves_on_early() -> None:
    for ttft_s, longest_s in ((1.0, 20), (30.0, 60)):
        quiet = Silence([])
        quiet.gateway.scheduler.predicted_ttft_s = ttft_s
        task = await quiet.start()
        assert longest_s < quiet.lives(200, moving=False) <= longest_s + 2
        quiet.silent.set()
        await task
        assert quiet.gateway.meter.settled[0].open.replica_id == "r2"


async def test_a_prompt_that_fills_the_cache_is_work_of_its_engine() -> None:
    quiet = Silence([])
    task = await quiet.start()
    for second in range(1, 50):
        quiet.clock.advance(1)
        quiet.engine.scrape(1, kv_usage=second / 100)
        quiet.gateway.open_requests.tick()
    assert not quiet.gateway.engines.streams[0].aborted
    quiet.silent.set()
    await task


@pytest.mark.parametrize("scrapes", ["none", "no_counters", "old"])
async def test_nothing_is_concluded_from_counters_that_are_not_known(scrapes: str) -> None:
    quiet = Silence([])
    task = await quiet.start()
    for _ in range(int(SILENCE_S)):
        quiet.clock.advance(1)
        if scrapes == "no_counters":
            quiet.engine.scrape(-1)
        elif scrapes == "old" and not quiet.engine.at:
            quiet.engine.scrape(5)
        quiet.gateway.open_requests.tick()
    assert not quiet.gateway.engines.streams[0].aborted
    quiet.silent.set()
    await task


async def test_a_stream_that_falls_silent_after_content_ends_within_a_minute() -> None:
    quiet = Silence([chunk("a", tokens=1)])
    quiet.gateway.scheduler.predicted_ttft_s = 100.0
    task = await quiet.start()
    assert quiet.lives(300, moving=True) == SILENCE_S + 1
    quiet.silent.set()
    with pytest.raises(EngineFailed):
        await task
    quiet.gateway.assert_resolved()


async def test_no_request_outlives_its_deadline_and_the_second_attempt_has_room() -> None:
    """An engine that sends events without content is not silent, and yet the request goes on elsewhere in time."""
    quiet = Silence([])
    quiet.gateway.scheduler.predicted_ttft_s = 10.0
    task = await quiet.start()
    context = next(iter(quiet.gateway.open_requests))
    lived_s = 0
    while not quiet.gateway.engines.streams[0].aborted:
        quiet.clock.advance(1)
        lived_s += 1
        context.answer.reading_since = quiet.clock.monotonic()
        quiet.gateway.open_requests.tick()
    assert lived_s == int(first_attempt_s(10.0)) + 1
    quiet.silent.set()
    await task
    [_, again] = quiet.gateway.scheduler.requests
    assert again.deadline_s == time_budget.PLACE_S
    assert lived_s + again.deadline_s + SILENCE_S <= DEADLINE_S + 1


@pytest.mark.parametrize("gap_s", [0.0, 1.0, 12.0, 45.0, 100.0, 1000.0])
def test_the_first_attempt_leaves_room_for_a_second(gap_s: float) -> None:
    left_s = deadline_s(gap_s) - first_attempt_s(gap_s)
    assert first_attempt_s(gap_s) >= min(longest_silence_s(gap_s), deadline_s(gap_s) / 2)
    assert left_s >= min(time_budget.PLACE_S + SILENCE_S, deadline_s(gap_s) / 2)
    assert left_s >= min(2 * gap_s, deadline_s(gap_s) / 2)


async def test_an_answer_in_one_piece_is_given_up_when_its_engine_stands_still() -> None:
    clock = ManualClock()
    clock.advance(100)
    gateway = Gateway(
        FakeEngines([asyncio.Event()], [asyncio.Event()]),
        model=FakeModel(max_output_tokens=100, context_len=100_000),
        now=clock.monotonic,
    )
    engine = Engine(gateway)
    task = asyncio.create_task(
        gateway.director.handle(uuid7(), principal(), prepared(stream=False, tools=TOOLS), FakeReply())
    )
    await until(lambda: gateway.engines.streams)
    for _ in range(int(STALLED_S) + 2):
        clock.advance(1)
        engine.scrape(1)
        gateway.open_requests.tick()
    await until(lambda: len(gateway.engines.streams) == 2, what="the second attempt")
    assert gateway.engines.streams[0].aborted == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    gateway.assert_resolved()


def test_activity_follows_incarnations() -> None:
    gateway_snapshot = PoolSnapshot()
    activity = EngineActivity(lambda: gateway_snapshot)
    placement = Placement("r", "e", "r1", "http://r1", "tiny", "boot")
    activity.observe(5.0)
    assert activity.still_since(placement, 7.0) == 7.0


async def test_each_chunk_ends_a_silence() -> None:
    """Also one of the steady state, which no task sees: a stream that goes on is not overdue."""
    quiet = Silence([])
    next_one = asyncio.Event()
    quiet.gateway.engines.scripts[0] = [
        chunk("a", tokens=1), chunk("b", tokens=2), next_one, chunk("c", tokens=3), quiet.silent, DONE,
    ]  # fmt: skip
    task = asyncio.create_task(quiet.gateway.director.handle(uuid7(), principal(), prepared(), quiet.reply))
    await until(lambda: b'"b"' in quiet.reply.body)
    [context] = quiet.gateway.open_requests
    quiet.clock.advance(50)
    next_one.set()
    await until(lambda: b'"c"' in quiet.reply.body)
    assert context.answer.heard_at == quiet.clock.monotonic()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert context.answer.last_read_at == quiet.clock.monotonic()
