"""The memory of answers that are not streamed: counted, and bounded by ending the largest."""

import asyncio
import json

import pytest

from billing.metering.records import Outcome
from core.errors import Unavailable
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
async def test_the_largest_answer_of_the_tenant_that_holds_most_ends_and_is_billed() -> None:
    release = asyncio.Event()
    sizes = (4500, 3000, 2500)
    scripts = [[chunk("x" * size, tokens=1), release, *answer(["y", "z"])] for size in sizes]
    gateway = Gateway(FakeEngines(*scripts), max_answer_bytes=BOUND)
    greedy, other = principal(), principal(tenant_id=uuid7())
    tasks = [
        asyncio.create_task(gateway.director.handle(uuid7(), who, prepared(), FakeReply()))
        for who in (other, greedy, greedy)
    ]
    await until(lambda: sum(one.answer_bytes for one in gateway.open_requests) > BOUND)
    gateway.open_requests.tick()
    assert not gateway.open_requests.has_room(greedy.tenant_id)
    release.set()
    await asyncio.gather(*tasks)
    ended = [(record.outcome, record.usage.output) for record in gateway.meter.settled]
    assert sorted(ended) == [(Outcome.COMPLETED, 2), (Outcome.COMPLETED, 2), (Outcome.LENGTH, 1)]
    gateway.open_requests.tick()
    assert gateway.open_requests.has_room(greedy.tenant_id)
    gateway.assert_resolved()


@pytest.mark.promise(29)
async def test_a_tenant_may_hold_a_quarter_and_leaves_room_for_others() -> None:
    gateway = Gateway(FakeEngines([chunk("x" * 3000, tokens=1), asyncio.Event()]), max_answer_bytes=BOUND)
    who = principal()
    task = asyncio.create_task(gateway.director.handle(uuid7(), who, prepared(), FakeReply()))
    await until(lambda: any(one.answer_bytes for one in gateway.open_requests))
    gateway.open_requests.tick()
    assert not gateway.open_requests.has_room(who.tenant_id)
    assert gateway.open_requests.has_room(uuid7())
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    gateway.open_requests.tick()
    assert gateway.open_requests.has_room(who.tenant_id)


@pytest.mark.promise(29)
async def test_an_answer_that_its_client_reads_slowly_counts_and_is_cut() -> None:
    gateway = Gateway(FakeEngines(answer(["x" * 20_000])), max_answer_bytes=BOUND)
    reply = FakeReply()
    reply.stuck = asyncio.Event()
    task = asyncio.create_task(gateway.director.handle(uuid7(), principal(), prepared(), reply))
    await until(lambda: any(one.outcome for one in gateway.open_requests))
    gateway.open_requests.tick()
    with pytest.raises(Unavailable, match="not read fast enough"):
        await task
    [record] = gateway.meter.settled
    assert (record.outcome, record.usage.output) == (Outcome.COMPLETED, 1)
    gateway.assert_resolved()
