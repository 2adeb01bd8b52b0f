"""The agent's connection to the scheduler: heartbeats and cache changes out, commands in, for ever reconnecting.

The agent runs its engines whether or not there is a scheduler; a heartbeat carries everything and the first deltas of
a connection say all that is cached, so nothing is queued; so do those after the scheduler asks for it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from core.framing import FrameTooLarge, pack, read_frame
from workers.kv_events_feed import KvOutbox
from workers.wire import AgentHello, CommandResult, Heartbeat, KvResync, ReplicaCommand

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.5
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 1.0
_CONNECT_S = 5.0
COALESCE_S = 0.015
"""Changes of prefix caches are gathered for this long: a busy engine publishes at every step."""

_encode = msgspec.msgpack.Encoder().encode
_commands = msgspec.msgpack.Decoder(ReplicaCommand | KvResync)


class SchedulerLink:
    """Keeps one connection open and beats on it."""

    def __init__(
        self,
        host: str,
        port: int,
        hello: AgentHello,
        *,
        beat: Callable[[], Heartbeat],
        obey: Callable[[ReplicaCommand], Awaitable[CommandResult]],
        outbox: KvOutbox,
    ) -> None:
        self.connected = False
        self._host = host
        self._port = port
        self._hello = hello
        self._beat = beat
        self._obey = obey
        self._outbox = outbox
        self._now = asyncio.Event()
        self._commands: set[asyncio.Task[None]] = set()

    def beat_now(self) -> None:
        """Send a heartbeat at once: something has changed that must not wait."""
        self._now.set()

    async def run(self) -> None:
        """Connect, beat, listen; until cancelled."""
        wait = _FIRST_WAIT_S
        while True:
            try:
                await self._session()
                wait = _FIRST_WAIT_S
            except (OSError, EOFError, TimeoutError, FrameTooLarge, msgspec.DecodeError) as error:
                if self.connected:
                    log.warning("the scheduler's connection was lost: %s", error)
                    wait = _FIRST_WAIT_S
                self.connected = False
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT_S)

    async def _session(self) -> None:
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(pack(_encode(self._hello)))
        self.connected = True
        self._outbox.connected()
        tasks = [
            asyncio.create_task(work)
            for work in (self._beats(writer), self._changes(writer), self._listen(reader, writer))
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            writer.close()

    async def _beats(self, writer: asyncio.StreamWriter) -> None:
        while True:
            self._now.clear()
            beat = self._beat()
            writer.write(pack(_encode(beat)))
            self._outbox.told(beat)
            await writer.drain()
            try:
                # Not wait_for: Python 3.11's swallows a cancellation that meets a finished wait.
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._now.wait()
            except TimeoutError:
                continue

    async def _changes(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._outbox.changed.wait()
            await asyncio.sleep(COALESCE_S)
            for delta in self._outbox.take():
                writer.write(pack(_encode(delta)))
                await writer.drain()

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            command = _commands.decode(await read_frame(reader))
            if isinstance(command, KvResync):
                self._outbox.resend(command.replica_id)
                continue
            task = asyncio.create_task(self._answer(command, writer))
            self._commands.add(task)
            task.add_done_callback(self._commands.discard)

    async def _answer(self, command: ReplicaCommand, writer: asyncio.StreamWriter) -> None:
        result = await self._obey(command)
        self.beat_now()
        if not writer.is_closing():
            writer.write(pack(_encode(result)))
