"""A TCP proxy whose network can be made slow, narrow, silent, or cut, while connections are open."""

import asyncio
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass

_READ_BYTES = 65_536


@dataclass(frozen=True)
class Conditions:
    """The state of the network, for both directions of every connection."""

    latency_s: float = 0.0
    """Seconds by which every read is delayed."""
    bytes_per_s: float = 0.0
    """Bytes that pass in a second, for each direction of each connection; 0 = no limit."""
    silent: bool = False
    """Whether nothing passes: what arrives waits, as when packets are lost, and new connections get no answer."""


CLEAR = Conditions()


class FaultProxy:
    """Forwards connections on `port` to a server, under `conditions` that may change at any time."""

    def __init__(self, target_host: str, target_port: int) -> None:
        self._target = (target_host, target_port)
        self._conditions = CLEAR
        self._passable = asyncio.Event()
        self._passable.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen on `port` (0 = any free one) and return it."""
        self._server = await asyncio.start_server(self._accept, host, port, backlog=1024)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self.port

    async def close(self) -> None:
        """Stop listening and cut all connections."""
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def change(self, conditions: Conditions) -> None:
        """Apply other conditions from now on, to open connections too."""
        self._conditions = conditions
        if conditions.silent:
            self._passable.clear()
        else:
            self._passable.set()

    def cut(self) -> None:
        """Reset all open connections, on both sides."""
        for writer in self._writers:
            _reset(writer)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._forward(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward both directions until both have ended, or one of the sides is reset."""
        both = [writer]
        self._writers.add(writer)
        try:
            await self._passable.wait()
            far, back = await asyncio.open_connection(*self._target)
            both.append(back)
            self._writers.add(back)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, back))
                pumps.create_task(self._pump(far, writer))
        except* OSError:
            for each in both:
                _reset(each)
        finally:
            for each in both:
                self._writers.discard(each)
                each.close()
                with suppress(OSError):
                    await each.wait_closed()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one direction until its end. Raises OSError when a side is reset, which ends the other direction."""
        while data := await reader.read(_READ_BYTES):
            now = self._conditions
            delay_s = now.latency_s + (len(data) / now.bytes_per_s if now.bytes_per_s else 0.0)
            if delay_s:
                await asyncio.sleep(delay_s)
            await self._passable.wait()
            writer.write(data)
            await writer.drain()
        await self._passable.wait()
        with suppress(OSError, RuntimeError):
            writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with RST, as a broken network does."""
    link = writer.get_extra_info("socket")
    if link is not None:
        with suppress(OSError):
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
