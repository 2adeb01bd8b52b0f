"""The agent's connection to the scheduler: sends heartbeats and KV deltas, receives commands, and reconnects.

Engines run with or without a scheduler. Nothing is queued while there is no connection: a heartbeat carries the whole
state, and the first deltas of a connection, or after a KvResync, carry all that is cached.
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
"""Seconds between heartbeats."""
_INITIAL_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 1.0
_CONNECT_TIMEOUT_S = 5.0
COALESCE_S = 0.015
"""Seconds over which changes of prefix caches are merged: a busy engine publishes at every step."""

_encode = msgspec.msgpack.Encoder().encode
_commands = msgspec.msgpack.Decoder(ReplicaCommand | KvResync)


class SchedulerLink:
    """Keeps one connection to the scheduler open and sends heartbeats on it."""

    def __init__(
        self,
        host: str,
        port: int,
        hello: AgentHello,
        *,
        heartbeat: Callable[[], Heartbeat],
        execute: Callable[[ReplicaCommand], Awaitable[CommandResult]],
        outbox: KvOutbox,
    ) -> None:
        self.connected = False
        self._host = host
        self._port = port
        self._hello = hello
        self._heartbeat = heartbeat
        self._execute = execute
        self._outbox = outbox
        self._due = asyncio.Event()
        self._commands: set[asyncio.Task[None]] = set()

    def heartbeat_now(self) -> None:
        """Send a heartbeat without waiting for the interval."""
        self._due.set()

    async def run(self) -> None:
        """Connect, exchange frames and reconnect until cancelled."""
        wait = _INITIAL_BACKOFF_S
        while True:
            try:
                await self._session()
                wait = _INITIAL_BACKOFF_S
            except (OSError, EOFError, TimeoutError, FrameTooLarge, msgspec.DecodeError) as error:
                if self.connected:
                    log.warning("the scheduler's connection was lost: %s", error)
                    wait = _INITIAL_BACKOFF_S
                self.connected = False
            await asyncio.sleep(wait)
            wait = min(wait * 2, _MAX_BACKOFF_S)

    async def _session(self) -> None:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(pack(_encode(self._hello)))
        self.connected = True
        self._outbox.on_connected()
        tasks = [
            asyncio.create_task(work)
            for work in (
                self._send_heartbeats(writer),
                self._send_deltas(writer),
                self._receive(reader, writer),
            )
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

    async def _send_heartbeats(self, writer: asyncio.StreamWriter) -> None:
        while True:
            self._due.clear()
            heartbeat = self._heartbeat()
            writer.write(pack(_encode(heartbeat)))
            self._outbox.on_heartbeat(heartbeat)
            await writer.drain()
            try:
                # Not wait_for: Python 3.11's loses a cancellation that arrives when the wait has just finished.
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._due.wait()
            except TimeoutError:
                continue

    async def _send_deltas(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._outbox.changed.wait()
            await asyncio.sleep(COALESCE_S)
            for delta in self._outbox.take():
                writer.write(pack(_encode(delta)))
                await writer.drain()

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            command = _commands.decode(await read_frame(reader))
            if isinstance(command, KvResync):
                self._outbox.resend(command.replica_id)
                continue
            task = asyncio.create_task(self._answer(command, writer))
            self._commands.add(task)
            task.add_done_callback(self._commands.discard)

    async def _answer(self, command: ReplicaCommand, writer: asyncio.StreamWriter) -> None:
        result = await self._execute(command)
        self.heartbeat_now()
        if not writer.is_closing():
            writer.write(pack(_encode(result)))
