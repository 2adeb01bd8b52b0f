"""KV deltas on a connection: the whole content of a cache follows the heartbeat that announces the boot."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from core.addresses import Address
from core.framing import pack, read_frame
from tests.support.kv_publisher import BLOCK, removed, stored
from workers.kv_events_feed import KvOutbox
from workers.scheduler_link import SchedulerLink
from workers.token_blocks import packed, token_block_hashes
from workers.wire import (
    AgentHello,
    Capacity,
    Claim,
    CommandResult,
    Heartbeat,
    KvDelta,
    KvResync,
    ReplicaCommand,
    ReplicaState,
    ReplicaStatus,
)

_decode = msgspec.msgpack.Decoder(AgentHello | Heartbeat | KvDelta).decode
ONE, TWO = ([number] * 2 * BLOCK for number in (1, 2))


def own(tokens: list[int]) -> set[int]:
    return set(token_block_hashes(packed(tokens), BLOCK, ""))


class Scheduler:
    """Accepts one agent at a time and hands out its frames."""

    def __init__(self) -> None:
        self._connections: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.StreamReader | None = None
        self.boots: set[str] = set()
        """Boots that heartbeats of this connection have announced."""

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._connections.put((reader, writer))

    async def next_connection(self) -> None:
        """Close the connection and wait until the agent reconnects."""
        await self.close()
        self.boots = set()
        self._reader, self._writer = await self._connections.get()
        self.send(Claim(1))

    async def close(self) -> None:
        """Close the connection."""
        if self._writer is not None:
            self._writer.close()
            await self._writer.wait_closed()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message to the agent."""
        assert self._writer is not None
        self._writer.write(pack(msgspec.msgpack.encode(message)))

    async def frame(self) -> object:
        """The next frame of this connection."""
        assert self._reader is not None
        return _decode(await read_frame(self._reader))

    async def delta(self) -> KvDelta:
        """The next delta, after a check that its boot was announced before it."""
        while True:
            frame = await self.frame()
            if isinstance(frame, Heartbeat):
                self.boots |= {status.boot_id for status in frame.replicas}
            elif isinstance(frame, KvDelta):
                assert frame.boot_id in self.boots
                return frame


@pytest.fixture
async def agent() -> AsyncIterator[tuple[Scheduler, KvOutbox]]:
    scheduler, outbox = Scheduler(), KvOutbox()
    server = await asyncio.start_server(scheduler.on_connection, "127.0.0.1", 0)
    feed = outbox.feed("h/m-0")

    def heartbeat() -> Heartbeat:
        status = ReplicaStatus(
            "h/m-0", "m", "http://h", "vllm", feed.boot_id, ReplicaState.READY, Capacity(1, 1, 1)
        )
        status.prefix_kind = "tokens"
        return Heartbeat("a", "h", "b", 1, "here", "local-cpu", 0, [status], {})

    async def execute(command: ReplicaCommand) -> CommandResult:
        return CommandResult(command.command_id, False)

    port = server.sockets[0].getsockname()[1]
    link = SchedulerLink(
        [Address("127.0.0.1", port)], "t", "a", heartbeat=heartbeat, execute=execute, outbox=outbox
    )
    task = asyncio.create_task(link.run())
    yield scheduler, outbox
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await scheduler.close()
    server.close()


async def test_a_reconnection_sends_the_whole_content(agent: tuple[Scheduler, KvOutbox]) -> None:
    scheduler, outbox = agent
    feed = outbox.feed("h/m-0")
    feed.begin("boot-1")
    feed.live = True
    feed.apply([stored(ONE)])
    await scheduler.next_connection()
    delta = await scheduler.delta()
    assert (delta.cleared, set(delta.stored)) == (True, own(ONE))
    feed.apply([removed(ONE), stored(TWO)])
    delta = await scheduler.delta()
    assert (delta.cleared, set(delta.stored), set(delta.removed)) == (False, own(TWO), own(ONE))

    await scheduler.next_connection()
    delta = await scheduler.delta()
    assert (delta.cleared, set(delta.stored), delta.removed) == (True, own(TWO), [])

    feed.begin("boot-2")
    feed.live = True
    feed.apply([stored(ONE)])
    delta = await scheduler.delta()
    assert (delta.boot_id, delta.seq, delta.cleared) == ("boot-2", 1, True)
    assert set(delta.stored) == own(ONE)


async def test_a_resync_request_sends_the_whole_content(agent: tuple[Scheduler, KvOutbox]) -> None:
    scheduler, outbox = agent
    feed = outbox.feed("h/m-0")
    feed.begin("boot-1")
    feed.live = True
    feed.apply([stored(ONE)])
    await scheduler.next_connection()
    await scheduler.delta()
    feed.apply([stored(TWO)])
    assert (await scheduler.delta()).cleared is False
    scheduler.send(KvResync("h/m-0"))
    delta = await scheduler.delta()
    assert (delta.cleared, delta.seq, set(delta.stored)) == (True, 3, own(ONE) | own(TWO))
