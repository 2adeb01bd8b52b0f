"""One framed connection, for both ends: frames arrive as calls, messages leave in one write per event loop tick.

Small messages are collected in a batch, which is encoded once when it leaves.
"""

import asyncio
from collections.abc import Sequence
from typing import cast

import msgspec

from core.flush_timer import FlushTimer
from core.framing import MAX_FRAME_BYTES, FrameSplitter, FrameTooLarge, pack

MAX_UNSENT_BYTES = 8 * 1024 * 1024
"""Unsent bytes above which a peer is disconnected, so that a peer that does not read cannot exhaust memory."""
HANG_UP_S = 2.0
"""Seconds for which `hang_up` waits until everything is sent."""

_encoder = msgspec.msgpack.Encoder()


def encoded(message: msgspec.Struct) -> bytes:
    """A message as a frame; encode once to send to several peers."""
    return pack(_encoder.encode(message))


class Link(asyncio.Protocol):
    """Base of both ends. Subclasses override `on_frame`, `on_read`, `take_batch` and `on_lost`.

    A frame that is too large or not valid closes this connection only.
    """

    def __init__(
        self, max_frame_bytes: int = MAX_FRAME_BYTES, max_unsent_bytes: int = MAX_UNSENT_BYTES
    ) -> None:
        self.max_unsent_bytes = max_unsent_bytes
        self.splitter = FrameSplitter(max_frame_bytes)
        self.transport: asyncio.Transport | None = None
        self.lost = asyncio.Event()
        self._out: list[bytes] = []
        self._timer = FlushTimer(self.flush)

    @property
    def closed(self) -> bool:
        """Whether the connection cannot send any more."""
        return self.transport is None or self.transport.is_closing()

    @property
    def peer(self) -> str:
        """The address of the other end, for messages."""
        name = self.transport.get_extra_info("peername") if self.transport is not None else None
        return str(name[0]) if name else "an unknown address"

    @property
    def unsent_bytes(self) -> int:
        """Bytes in the write buffer."""
        return self.transport.get_write_buffer_size() if self.transport else 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (asyncio and uvloop set TCP_NODELAY)."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Split the data into frames and handle them."""
        try:
            for frame in self.splitter.feed(data):
                self.on_frame(frame)
                if self.closed:
                    return
        except (FrameTooLarge, msgspec.DecodeError, RecursionError) as error:
            self.on_malformed(error)
            self.abort()
        self.on_read()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop what is queued and report the end of the connection."""
        self.transport = None
        self._out.clear()
        self._timer.cancel()
        self.lost.set()
        self.on_lost()

    def send(self, message: msgspec.Struct) -> None:
        """Queue a message until the end of this event loop tick. It is dropped when the connection is closed."""
        self.send_encoded(encoded(message))

    def send_encoded(self, packed: bytes) -> None:
        """Queue a frame made by `encoded`."""
        if self.closed:
            return
        self._out.append(packed)
        self.flush_soon()

    def flush_soon(self, delay_s: float = 0.0) -> None:
        """Flush at the end of this event loop tick, or after `delay_s` seconds unless a flush is due before."""
        self._timer.due(delay_s)

    def flush(self) -> None:
        """Write all queued frames and the batch at once; disconnect a peer with more than `max_unsent_bytes`
        unsent."""
        self._timer.cancel()
        if self.transport is None or self.transport.is_closing():
            return
        try:
            self._out += [encoded(batch) for batch in self.take_batch()]
        except FrameTooLarge as error:  # made of the peer's own strings
            self.on_malformed(error)
            self.abort()
            return
        out, self._out = self._out, []
        if not out:
            return
        self.transport.write(b"".join(out))
        if self.unsent_bytes > self.max_unsent_bytes:
            self.abort()

    def close(self) -> None:
        """Send what is queued and close."""
        self.flush()
        if self.transport is not None:
            self.transport.close()

    async def hang_up(self) -> None:
        """Close and wait for the end; disconnect after HANG_UP_S."""
        self.close()
        try:
            async with asyncio.timeout(HANG_UP_S):
                await self.lost.wait()
        except TimeoutError:
            self.abort()
            await self.lost.wait()

    def abort(self) -> None:
        """Close at once and drop what is queued."""
        if self.transport is not None:
            self.transport.abort()

    def on_frame(self, frame: bytes) -> None:
        """Handle one frame."""
        raise NotImplementedError

    def on_read(self) -> None:
        """Called after all frames of one read."""

    def take_batch(self) -> Sequence[msgspec.Struct]:
        """The batch that leaves with this flush, in one frame or a few."""
        return ()

    def on_malformed(self, error: Exception) -> None:
        """Called before the connection is closed because of an invalid frame."""

    def on_lost(self) -> None:
        """Called when the connection is closed."""
