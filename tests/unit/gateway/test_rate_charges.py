"""What rates and the fair share are charged for a request, by the step that it reached."""

import asyncio
import json

import pytest

from core.errors import BudgetExceeded, EngineFailed, InsufficientCredit, PenstockError, Refused, Unavailable
from core.ids import uuid7
from gateway.context import AbortReason
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import PreparedRequest
from tests.support.gateway_fakes import FakeEngines, FakeReply, Gateway, Script, answer, chunk, principal
from tests.support.waiting import until

TEXT = "x" * 6000
ESTIMATE = 1809
"""Estimated tokens of the prompt before anything is learned."""


def prepared(**fields: object) -> PreparedRequest:
    return parse_chat(
        json.dumps({"model": "tiny", "messages": [{"role": "user", "content": TEXT}], **fields}).encode()
    )


async def leave(gateway: Gateway, *, stream: bool = True) -> None:
    """Run one request whose client leaves once its engine has said everything that it says."""
    request_id = uuid7()
    task = asyncio.create_task(
        gateway.director.handle(request_id, principal(), prepared(stream=stream), FakeReply())
    )
    await until(lambda: gateway.engines.streams and not gateway.engines.streams[0].script)
    gateway.open_requests.abort_request(request_id, AbortReason.CLIENT_DISCONNECTED)
    with pytest.raises(Unavailable):
        await task


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_before_the_first_token_is_charged_the_estimate(stream: bool) -> None:
    gateway = Gateway(FakeEngines([asyncio.Event()]))
    await leave(gateway, stream=stream)
    assert gateway.rates.settled == [(ESTIMATE, 0)]
    [released] = gateway.scheduler.released
    assert released.dispatched
    gateway.assert_resolved()


async def test_what_the_engine_has_counted_replaces_the_estimate() -> None:
    gateway = Gateway(FakeEngines([chunk("", tokens=0, role=True, prompt=1850), asyncio.Event()]))
    await leave(gateway)
    assert gateway.rates.settled == [(1850, 0)]


@pytest.mark.parametrize(
    "scripts",
    [
        [EngineFailed("down"), EngineFailed("down")],
        [[EngineFailed("reset")], [EngineFailed("reset")]],
        [[], EngineFailed("down")],
    ],
)
async def test_a_request_whose_engines_fail_is_charged_its_estimate_once(
    scripts: list[Script | Exception],
) -> None:
    gateway = Gateway(FakeEngines(*scripts))
    with pytest.raises(EngineFailed):
        await gateway.director.handle(uuid7(), principal(), prepared(stream=True), FakeReply())
    assert gateway.rates.settled == [(ESTIMATE, 0)]
    assert [one.dispatched for one in gateway.scheduler.released] == [True, True]
    gateway.assert_resolved()


@pytest.mark.parametrize("error", [InsufficientCredit("no money"), BudgetExceeded("used up")])
async def test_a_request_without_credit_counts_as_a_request(error: PenstockError) -> None:
    """Otherwise a key without money could send valid bodies without a limit."""
    gateway = Gateway(FakeEngines())
    gateway.holds.refuse, gateway.holds.pauses = error, 3
    with pytest.raises(type(error)):
        await gateway.director.handle(uuid7(), principal(), prepared(), FakeReply())
    assert gateway.rates.settled == [(0, 0)]
    assert gateway.rates.refunded == 0
    [released] = gateway.scheduler.released
    assert not released.dispatched
    gateway.assert_resolved()


@pytest.mark.parametrize("error", [Refused("full"), Unavailable("billing")])
async def test_a_request_that_the_platform_refuses_does_not_count(error: PenstockError) -> None:
    gateway = Gateway(FakeEngines())
    gateway.scheduler.refuse = error
    with pytest.raises(type(error)):
        await gateway.director.handle(uuid7(), principal(), prepared(), FakeReply())
    assert (gateway.rates.settled, gateway.rates.refunded) == ([], 1)
    gateway.assert_resolved()


async def test_a_client_that_leaves_while_it_waits_has_sent_a_request() -> None:
    gateway = Gateway(FakeEngines(answer(["x"])))
    gateway.scheduler.block = asyncio.Event()
    request_id = uuid7()
    task = asyncio.create_task(
        gateway.director.handle(request_id, principal(), prepared(stream=True), FakeReply())
    )
    await until(lambda: gateway.scheduler.requests and gateway.holds.granted)
    gateway.open_requests.abort_request(request_id, AbortReason.CLIENT_DISCONNECTED)
    with pytest.raises(Unavailable):
        await task
    assert (gateway.rates.settled, gateway.rates.refunded) == ([(0, 0)], 0)
    gateway.assert_resolved()
