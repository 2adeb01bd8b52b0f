"""The small parts: prefix hashes, the one timer."""

import asyncio
import json

import pytest

from billing.metering.records import Outcome
from core.errors import EngineFailed
from core.ids import uuid7
from gateway import open_requests
from gateway.context import AbortReason
from gateway.open_requests import KEEP_ALIVE, StreamTimeouts
from gateway.prefix import BLOCK_BYTES, MAX_BLOCKS, block_hashes
from gateway.schemas.chat import parse_chat
from gateway.sse import StreamCodec
from gateway.time_budget import SILENCE_S
from tests.support.clock import ManualClock
from tests.support.gateway_fakes import (
    DONE,
    FakeEngines,
    FakeReply,
    Gateway,
    answer,
    chunk,
    final,
    pause,
    principal,
)
from tests.support.waiting import until

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


def test_prefix_hashes_chain_and_are_salted() -> None:
    one, two = b"a" * (3 * BLOCK_BYTES + 5), b"a" * (2 * BLOCK_BYTES) + b"b" * BLOCK_BYTES
    assert len(block_hashes(one, b"s")) == 3
    assert block_hashes(one, b"s")[:2] == block_hashes(two, b"s")[:2]
    assert block_hashes(one, b"s")[2] != block_hashes(two, b"s")[2]
    assert not set(block_hashes(one, b"s")) & set(block_hashes(one, b"t"))
    assert len(set(block_hashes(one, b"s"))) == 3
    assert len(block_hashes(b"x" * (BLOCK_BYTES * (MAX_BLOCKS + 9)), b"s")) == MAX_BLOCKS
    assert block_hashes(b"short", b"s") == []


async def test_timer_checkpoints_comments_and_gives_up_on_silence() -> None:
    clock = ManualClock()
    clock.advance(100)
    silent = asyncio.Event()
    gateway = Gateway(FakeEngines([chunk("", tokens=0, role=True), silent]), now=clock.monotonic)
    reply = FakeReply()
    asked = parse_chat(json.dumps({**BODY, "stream": True}).encode())
    task = asyncio.create_task(gateway.director.handle(uuid7(), principal(), asked, reply))
    await until(lambda: gateway.engines.streams and len(gateway.engines.streams[0].script) == 0)
    gateway.open_requests.tick()
    assert [point.usage.input for point in gateway.meter.checkpoints] == [5]
    assert not reply.started
    clock.advance(5.1)
    gateway.open_requests.tick()
    await until(lambda: reply.body)
    assert reply.body == KEEP_ALIVE
    clock.advance(SILENCE_S)
    gateway.open_requests.tick()
    assert gateway.engines.streams[0].aborted == 1
    gateway.engines.scripts.append(answer(["x"]))
    silent.set()
    await task
    assert [point.usage.input for point in gateway.meter.checkpoints] == [5, 0], (
        "the second attempt begins at 0"
    )
    gateway.assert_resolved()


async def test_checkpoints_follow_a_second_attempt_down() -> None:
    """Should the process die now, the tokens of the failed attempt must not be billed for the one that runs."""
    dies, waits = asyncio.Event(), asyncio.Event()
    hidden = chunk("", tokens=40, role=True)
    gateway = Gateway(
        FakeEngines([hidden, dies, EngineFailed("gone")], [chunk("", tokens=0, role=True), waits, DONE])
    )
    asked = parse_chat(json.dumps({**BODY, "stream": True}).encode())
    task = asyncio.create_task(gateway.director.handle(uuid7(), principal(), asked, FakeReply()))
    await until(lambda: gateway.engines.streams and len(gateway.engines.streams[0].script) == 1)
    gateway.open_requests.tick()
    assert gateway.meter.checkpoints[-1].usage.output == 40
    dies.set()
    await until(lambda: len(gateway.engines.streams) == 2 and len(gateway.engines.streams[1].script) == 1)
    gateway.open_requests.tick()
    assert gateway.meter.checkpoints[-1].usage.output == 0
    waits.set()
    await asyncio.gather(task, return_exceptions=True)
    gateway.assert_resolved()


async def test_no_error_ends_the_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it nothing is checkpointed, cut or kept alive any more."""
    monkeypatch.setattr(open_requests, "TICK_S", 0.01)
    gateway = Gateway(FakeEngines(answer(["x"])))
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        raise RuntimeError("a bug")

    monkeypatch.setattr(gateway.open_requests, "tick", tick)
    await gateway.open_requests.start()
    await until(lambda: ticks >= 3)
    await gateway.open_requests.close()


async def test_timer_comments_while_queued() -> None:
    clock = ManualClock()
    clock.advance(100)
    gateway = Gateway(FakeEngines(answer(["x"])), now=clock.monotonic)
    gateway.scheduler.block = asyncio.Event()
    reply = FakeReply()
    asked = parse_chat(json.dumps({**BODY, "stream": True}).encode())
    task = asyncio.create_task(gateway.director.handle(uuid7(), principal(), asked, reply))
    await until(lambda: gateway.scheduler.requests)
    for _ in range(3):
        clock.advance(5)
        gateway.open_requests.tick()
        await asyncio.sleep(0.01)
    assert reply.body == KEEP_ALIVE * 3
    gateway.scheduler.block.set()
    await task
    assert reply.finished


async def test_timer_comments_at_any_silence_of_a_stream() -> None:
    """Also after the first token; not between events that follow each other."""
    clock = ManualClock()
    clock.advance(100)
    silent, ends = asyncio.Event(), asyncio.Event()
    script = [chunk("a", tokens=1), chunk("b", tokens=2), silent, chunk("c", tokens=3), ends]
    gateway = Gateway(
        FakeEngines([*script, chunk("", tokens=3, finish="stop"), final(3), DONE]), now=clock.monotonic
    )
    reply = FakeReply()
    asked = parse_chat(json.dumps({**BODY, "stream": True}).encode())
    task = asyncio.create_task(gateway.director.handle(uuid7(), principal(), asked, reply))
    await until(lambda: b'"b"' in reply.body)

    async def tick(after_s: float) -> int:
        clock.advance(after_s)
        gateway.open_requests.tick()
        await asyncio.sleep(0.01)
        return reply.body.count(KEEP_ALIVE)

    assert await tick(4.9) == 0
    assert await tick(0.2) == 1
    assert await tick(4.9) == 1
    assert await tick(0.2) == 2
    silent.set()
    await until(lambda: b'"c"' in reply.body)
    assert await tick(4.9) == 2
    assert await tick(0.2) == 3
    ends.set()
    await task
    assert reply.finished
    assert await tick(60) == 3
    gateway.assert_resolved()


@pytest.mark.promise(29)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("rate", "cut"), [(0, True), (1000, True), (1100, False)])
async def test_timer_cuts_clients_that_take_less_than_their_rate(stream: bool, rate: int, cut: bool) -> None:
    """One that reads slowly but steadily is not cut, however long it takes."""
    clock = ManualClock()
    clock.advance(100)
    gateway = Gateway(FakeEngines(answer(["x", "y"])), now=clock.monotonic)
    reply = FakeReply()
    reply.stuck, reply.unsent = asyncio.Event(), 1_000_000
    asked = parse_chat(json.dumps({**BODY, "stream": stream}).encode())
    task = asyncio.create_task(gateway.director.handle(uuid7(), principal(), asked, reply))
    await until(lambda: reply.body)
    for _ in range(200):
        gateway.open_requests.tick()
        clock.advance(1.0)
        reply.unsent -= rate
    gateway.open_requests.tick()
    await pause(3)
    assert task.done() is cut, StreamTimeouts()
    if not cut:
        reply.stuck.set()
    await asyncio.gather(task, return_exceptions=True)
    [record] = gateway.meter.settled
    assert record.usage.output == (1 if stream and cut else 2)
    assert record.outcome is (Outcome.CLIENT_CANCELLED if stream and cut else Outcome.COMPLETED)
    gateway.assert_resolved()


@pytest.mark.promise(29)
async def test_an_answer_that_is_read_slowly_keeps_no_place_on_its_engine() -> None:
    gateway, reply = Gateway(FakeEngines(answer(["x"]))), FakeReply()
    reply.stuck = asyncio.Event()
    asked = parse_chat(json.dumps(BODY).encode())
    task = asyncio.create_task(gateway.director.handle(uuid7(), principal(), asked, reply))
    await until(lambda: reply.body)
    assert not gateway.scheduler.unresolved()
    assert len(gateway.open_requests) == 1
    reply.stuck.set()
    await task
    gateway.assert_resolved()


@pytest.mark.parametrize("stream", [True, False])
async def test_rate_headers_are_sent_and_not_kept(stream: bool) -> None:
    gateway, reply = Gateway(FakeEngines(answer(["x"]))), FakeReply()
    reply.stuck = asyncio.Event()
    asked = parse_chat(json.dumps({**BODY, "stream": stream}).encode())
    task = asyncio.create_task(gateway.director.handle(uuid7(), principal(), asked, reply))
    await until(lambda: reply.body)
    [context] = gateway.open_requests
    assert context.reserved.grant.headers == []
    assert (b"x-ratelimit-remaining-requests", b"9") in reply.headers
    reply.stuck.set()
    await task


def test_cut_reasons_have_words() -> None:
    assert all(reason.error().message for reason in AbortReason)


def test_codec_without_events_counts_nothing() -> None:
    assert StreamCodec(1, 10).tracker.usage.total == 0
