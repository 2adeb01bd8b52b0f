"""Whatever raises while an answer is delivered, what was delivered is billed."""

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from api.customer.reply import HttpReply
from billing.metering.records import Outcome
from core.ids import uuid7
from gateway.ports import ClientDisconnected, Headers
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import PreparedRequest
from tests.support.gateway_fakes import FakeEngines, FakeReply, Gateway, Script, answer, chunk, principal
from tests.support.waiting import until

ERRORS = [ClientDisconnected("gone"), ConnectionResetError(), RuntimeError("a second request"), ValueError("bug"),
          KeyError("bug"), TimeoutError(), MemoryError()]  # fmt: skip


def prepared(*, stream: bool) -> PreparedRequest:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "stream": stream}
    return parse_chat(json.dumps(body).encode())


class BreakingReply(FakeReply):
    """Raises `error` at the call with this number; what that call would send may have arrived or not."""

    def __init__(self, error: Exception, call: int, *, arrives: bool) -> None:
        super().__init__()
        self._error, self._left, self._arrives = error, call, arrives

    def _call(self, data: bytes) -> None:
        self._left -= 1
        if self._left >= 0 or self._arrives:
            self.body += data
        if self._left < 0:
            raise self._error

    async def start(self, headers: Headers, prompt_tokens: int = 0) -> None:
        self.started = True
        self._call(b"")

    async def write(self, events: bytes) -> None:
        self._call(events)

    def write_now(self, events: bytes) -> bool:
        self._call(events)
        return True

    async def end(self, events: bytes) -> None:
        self._call(events)

    async def respond(self, body: bytes, headers: Headers) -> None:
        self._call(body)

    @property
    def delivered(self) -> int:
        """Tokens that the client has received."""
        return self.body.count(b"w")


WORDS = answer(["w", "w", "w"])
ONE_READ: Script = [b"".join(step for step in WORDS if isinstance(step, bytes))]
SEVERAL: Script = [
    chunk("w", tokens=1),
    chunk("w", tokens=2) + chunk("w", tokens=3, finish="stop"),
    WORDS[-1],
]


@pytest.mark.promise(6)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("script", [WORDS, ONE_READ, SEVERAL], ids=["events", "one read", "several"])
@pytest.mark.parametrize("stream", [True, False])
async def test_delivered_is_billed(error: Exception, arrives: bool, script: Script, stream: bool) -> None:
    for call in range(6):
        gateway, reply = Gateway(FakeEngines(script)), BreakingReply(error, call, arrives=arrives)
        task = asyncio.create_task(
            gateway.director.handle(uuid7(), principal(), prepared(stream=stream), reply)
        )
        await asyncio.gather(task, return_exceptions=True)
        [record] = gateway.meter.settled
        billed = 0 if record.outcome.free else record.usage.output
        assert reply.delivered <= billed <= 3, (call, record.outcome)
        assert reply.delivered == 0 or record.cost > 0
        gateway.assert_resolved()


class FakeConnection:
    """A client's connection that notes its end."""

    aborted = False

    def start_now(self, headers: Any, body: bytes) -> bool:
        return False

    def write_now(self, data: bytes) -> bool:
        return False

    def abort(self) -> None:
        self.aborted = True


async def test_a_whole_answer_that_is_cut_does_not_arrive_later() -> None:
    """Its client is billed for the prompt alone, so the server must not flush the rest while it shuts down."""
    connection, sent = FakeConnection(), []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    reply = HttpReply(send, uuid7(), connection)  # type: ignore[arg-type]
    task = asyncio.create_task(reply.respond(b"{}", []))
    await until(lambda: len(sent) == 2)
    assert not connection.aborted
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert connection.aborted


async def test_an_error_of_ours_before_anything_is_delivered_is_free() -> None:
    gateway, reply = Gateway(FakeEngines(WORDS)), FakeReply()
    gateway.scheduler.prefill_done = None  # type: ignore[assignment,method-assign] # calling it raises TypeError
    with pytest.raises(TypeError):
        await gateway.director.handle(uuid7(), principal(), prepared(stream=True), reply)
    [record] = gateway.meter.settled
    assert (record.outcome, record.cost) == (Outcome.ENGINE_FAILED, 0)
