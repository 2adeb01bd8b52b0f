"""The pipeline of calls to Redis: order, lost connections, timeouts and scripts that must be loaded."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from core.clock import SystemClock
from core.redis_protocol import RedisProtocol, ReplyError
from tenants import rate_pipeline
from tenants.rate_pipeline import RatePipeline, RedisUnavailable, Reply
from tests.support.waiting import until
from tests.unit.core.test_redis_protocol import Transport, encoded

NOSCRIPT = ReplyError("NOSCRIPT No matching script")


class Server:
    """A server whose replies the test sends. Commands are single words."""

    def __init__(self) -> None:
        self.protocols: list[RedisProtocol] = []
        self.transports: list[Transport] = []
        self.refuses = False

    async def open(self, redis: Any, on_reply: Callable[[Any], None], on_lost: Any) -> RedisProtocol:
        await asyncio.sleep(0)
        if self.refuses:
            raise OSError("connection refused")
        protocol, transport = RedisProtocol(on_reply, on_lost), Transport()
        protocol.connection_made(transport)
        self.protocols.append(protocol)
        self.transports.append(transport)
        return protocol

    @property
    def received(self) -> list[bytes]:
        """Everything written on the latest connection, one part per write."""
        return self.transports[-1].written if self.transports else []

    def reply(self, *replies: Any) -> None:
        self.protocols[-1].data_received(b"".join([encoded(one) for one in replies]))

    def disconnect(self) -> None:
        self.protocols[-1].connection_lost(ConnectionResetError("reset"))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    monkeypatch.setattr(rate_pipeline, "open_connection", made.open)
    monkeypatch.setattr(rate_pipeline, "RETRY_INTERVAL_S", 0.05)
    monkeypatch.setattr(rate_pipeline, "CLOSE_TIMEOUT_S", 0.05)
    return made


@pytest.fixture
async def pipeline(server: Server) -> Any:
    made = RatePipeline(None, SystemClock())  # type: ignore[arg-type] # the server is a fake
    await made.start()
    yield made
    await made.close()


async def ask(pipeline: RatePipeline, *commands: bytes) -> list[asyncio.Task[Reply]]:
    """Calls made in one tick."""
    return [asyncio.create_task(pipeline.call(command)) for command in commands]


async def settled(*tasks: Awaitable[Reply]) -> list[Any]:
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)


async def test_calls_of_a_tick_are_one_write_and_replies_match_in_order(server, pipeline) -> None:
    tasks = await ask(pipeline, b"a", b"b", b"c")
    await until(lambda: server.received)
    more = await ask(pipeline, b"d")
    await asyncio.sleep(0)
    pipeline.send(b"e")
    await until(lambda: len(server.received) == 2)
    assert server.received == [b"abc", b"de"]
    server.reply([1], [2])
    server.reply([3], [4], [5])
    assert await settled(*tasks, *more) == [[1], [2], [3], [4]]


async def test_what_no_caller_waits_for_leaves_with_the_next_call(server, pipeline, monkeypatch) -> None:
    monkeypatch.setattr(rate_pipeline, "SEND_DELAY_S", 3600.0)
    first = await ask(pipeline, b"a")
    await until(lambda: server.received)
    pipeline.send(b"b")
    for _ in range(5):
        await asyncio.sleep(0)
    assert server.received == [b"a"]
    second = await ask(pipeline, b"c")
    await until(lambda: len(server.received) == 2)
    server.reply([1], [2], [3])
    assert await settled(*first, *second) == [[1], [3]]
    assert server.received == [b"a", b"bc"]


async def test_what_no_caller_waits_for_leaves_by_itself(server, pipeline) -> None:
    first = await ask(pipeline, b"a")
    await until(lambda: server.received)
    pipeline.send(b"b")
    await until(lambda: len(server.received) == 2)
    server.reply([1], [2])
    assert await settled(*first) == [[1]]


async def test_an_error_fails_its_own_call_only(server, pipeline) -> None:
    tasks = await ask(pipeline, b"a", b"b")
    await until(lambda: server.received)
    server.reply(ReplyError("ERR user_script:1"), [2])
    failed, answered = await settled(*tasks)
    assert isinstance(failed, RedisUnavailable)
    assert answered == [2]
    assert not pipeline.unavailable


async def test_a_script_that_is_not_loaded_is_loaded_once(server, pipeline) -> None:
    tasks = await ask(pipeline, b"a", b"b")
    await until(lambda: server.received)
    server.reply(NOSCRIPT, NOSCRIPT)
    await until(lambda: len(server.received) == 2)
    assert server.received[1].startswith(b"*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n")
    assert server.received[1].endswith(b"\r\nab")
    server.reply(b"sha", [1], NOSCRIPT)
    first, second = await settled(*tasks)
    assert first == [1]
    assert isinstance(second, RedisUnavailable)


async def test_a_connection_lost_in_mid_batch_fails_what_has_no_reply(server, pipeline) -> None:
    tasks = await ask(pipeline, b"a", b"b", b"c")
    await until(lambda: server.received)
    server.reply([1])
    server.protocols[-1].data_received(b"*1\r\n:")
    server.disconnect()
    first, *others = await settled(*tasks)
    assert first == [1]
    assert all(isinstance(one, RedisUnavailable) for one in others)
    assert pipeline.unavailable
    with pytest.raises(RedisUnavailable):
        await pipeline.call(b"d")
    pipeline.send(b"e")
    await until(lambda: len(server.protocols) == 2 and server.received)
    assert server.received == [b"e"]
    server.reply([1])
    assert not pipeline.unavailable


async def test_a_connection_lost_while_idle_is_opened_again_by_the_next_call(server, pipeline) -> None:
    [task] = await ask(pipeline, b"a")
    await until(lambda: server.received)
    server.reply([1])
    await task
    server.disconnect()
    assert not pipeline.unavailable
    [task] = await ask(pipeline, b"b")
    await until(lambda: len(server.protocols) == 2 and server.received)
    server.reply([2])
    assert await task == [2]


async def test_a_server_that_cannot_serve_is_left(server, pipeline) -> None:
    [task] = await ask(pipeline, b"a")
    await until(lambda: server.received)
    server.reply(ReplyError("READONLY You can't write against a read only replica."))
    assert isinstance((await settled(task))[0], RedisUnavailable)
    assert server.transports[-1].aborted


async def test_a_server_without_replies_times_out_and_late_replies_are_returned(
    server, pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_pipeline, "REPLY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(rate_pipeline, "READ_GRACE_S", 0.01)
    late: list[Reply] = []
    lost: list[str] = []
    task = asyncio.create_task(pipeline.call(b"a", late.append))
    await until(lambda: server.received)
    pipeline.send(b"b", late.append, lambda: lost.append("b"))
    assert isinstance((await settled(task))[0], RedisUnavailable)
    assert pipeline.unavailable
    assert lost == ["b"]
    pipeline.send(b"c")
    pipeline.send(b"d", late.append, lambda: lost.append("d"))
    server.reply([1])
    assert pipeline.unavailable
    server.reply([2])
    assert late == [[1]]
    assert lost == ["b", "d"]
    assert not pipeline.unavailable
    assert server.received[-1] == b"c"
    server.reply([3])


async def test_a_server_that_stays_silent_is_disconnected(server, pipeline, monkeypatch) -> None:
    for name in ("REPLY_TIMEOUT_S", "READ_GRACE_S", "DEAD_AFTER_S"):
        monkeypatch.setattr(rate_pipeline, name, 0.02)
    [task] = await ask(pipeline, b"a")
    await settled(task)
    await until(lambda: server.transports[-1].aborted)
    server.protocols[-1].connection_lost(None)
    server.refuses = True
    await until(lambda: not pipeline.unavailable)
    [task] = await ask(pipeline, b"b")
    assert isinstance((await settled(task))[0], RedisUnavailable)
    server.refuses = False
    await until(lambda: not pipeline.unavailable)
    [task] = await ask(pipeline, b"c")
    await until(lambda: len(server.protocols) == 2 and server.received)
    server.reply([3])
    assert await task == [3]


async def test_a_reply_to_a_cancelled_caller_is_passed_on(server, pipeline) -> None:
    abandoned: list[Reply] = []
    task = asyncio.create_task(pipeline.call(b"a", abandoned.append))
    await until(lambda: server.received)
    task.cancel()
    await settled(task)
    server.reply([1])
    assert abandoned == [[1]]


async def test_close_sends_what_is_queued_and_waits_for_the_replies(server, pipeline, monkeypatch) -> None:
    monkeypatch.setattr(rate_pipeline, "CLOSE_TIMEOUT_S", 10)
    lost: list[str] = []
    pipeline.send(b"a")
    closing = asyncio.create_task(pipeline.close())
    await until(lambda: server.received)
    assert not closing.done()
    with pytest.raises(RedisUnavailable):
        await pipeline.call(b"b")
    pipeline.send(b"c", None, lambda: lost.append("c"))
    assert lost == ["c"]
    server.reply([1])
    await asyncio.wait_for(closing, 10)
    assert server.transports[-1].aborted
