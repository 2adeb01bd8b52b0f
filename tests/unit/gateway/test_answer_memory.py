"""The memory of answers that are not streamed: counted, and bounded by ending the largest."""

import asyncio
import json

import pytest

from billing.metering.records import Outcome
from core.errors import EngineFailed, Unavailable
from core.ids import uuid7
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import PreparedRequest
from tests.support.gateway_fakes import FakeEngines, FakeReply, Gateway, answer, chunk, principal
from tests.support.waiting import until

BOUND = 10_000


def prepared(**fields: object) -> PreparedRequest:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], **fields}
    return parse_chat(json.dumps(body).encode())


@pytest.mark.promise(29)
async def test_the_largest_answer_ends_when_all_take_too_much() -> None:
    release = asyncio.Event()
    ends = [answer(["y"]), [EngineFailed("aborted")], answer(["y"])]
    sizes = (3000, 8000, 2000)
    scripts = [[chunk("x" * size, tokens=1), release, *end] for size, end in zip(sizes, ends, strict=True)]
    gateway = Gateway(FakeEngines(*scripts), max_answer_bytes=BOUND)
    tasks = [
        asyncio.create_task(gateway.director.handle(uuid7(), principal(), prepared(), FakeReply()))
        for _ in scripts
    ]
    await until(lambda: sum(one.answer_bytes for one in gateway.open_requests) >= 13_000)
    assert not gateway.open_requests.full
    gateway.open_requests.tick()
    assert [stream.aborted for stream in gateway.engines.streams] == [0, 1, 0]
    release.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), EngineFailed, type(None)]
    outcomes = {record.outcome: record.cost for record in gateway.meter.settled}
    assert outcomes[Outcome.ENGINE_FAILED] == 0
    gateway.open_requests.tick()
    assert not gateway.open_requests.full
    gateway.assert_resolved()


async def test_new_answers_are_refused_from_half_of_the_memory_on() -> None:
    gateway = Gateway(FakeEngines([chunk("x" * 6000, tokens=1), asyncio.Event()]), max_answer_bytes=BOUND)
    task = asyncio.create_task(gateway.director.handle(uuid7(), principal(), prepared(), FakeReply()))
    await until(lambda: any(one.answer_bytes for one in gateway.open_requests))
    gateway.open_requests.tick()
    assert gateway.open_requests.full
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    gateway.open_requests.tick()
    assert not gateway.open_requests.full


@pytest.mark.promise(29)
async def test_an_answer_that_its_client_reads_slowly_counts_and_is_cut() -> None:
    gateway = Gateway(FakeEngines(answer(["x" * 20_000])), max_answer_bytes=BOUND)
    stuck = asyncio.Event()

    class SlowReply(FakeReply):
        async def respond(self, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
            await super().respond(body, headers)
            await stuck.wait()

    task = asyncio.create_task(gateway.director.handle(uuid7(), principal(), prepared(), SlowReply()))
    await until(lambda: any(one.outcome for one in gateway.open_requests))
    gateway.open_requests.tick()
    with pytest.raises(Unavailable, match="not read fast enough"):
        await task
    [record] = gateway.meter.settled
    assert (record.outcome, record.usage.output) == (Outcome.COMPLETED, 1)
    gateway.assert_resolved()
