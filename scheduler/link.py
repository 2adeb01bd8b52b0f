"""One framed connection, either end: frames in as calls, messages out in one write per loop tick, both bounded."""

import asyncio
from typing import cast

import msgspec

from core.framing import MAX_FRAME_BYTES, FrameSplitter, FrameTooLarge, pack

MAX_UNSENT_BYTES = 8 * 1024 * 1024
"""A peer that lets more than this pile up is cut off: it must not hold our memory."""
HANG_UP_S = 2.0

_encoder = msgspec.msgpack.Encoder()


def encoded(message: msgspec.Struct) -> bytes:
    """A message as it goes over the wire; encode once to send to many."""
    return pack(_encoder.encode(message))


class Link(asyncio.Protocol):
    """Base of both ends. Subclasses take frames in `on_frame`, the end of a read in `on_read`, the end in `on_lost`.

    A frame that is too large or does not decode closes this connection and no other.
    """

    def __init__(
        self, max_frame_bytes: int = MAX_FRAME_BYTES, max_unsent_bytes: int = MAX_UNSENT_BYTES
    ) -> None:
        self.max_unsent_bytes = max_unsent_bytes
        self.splitter = FrameSplitter(max_frame_bytes)
        self.transport: asyncio.Transport | None = None
        self.lost = asyncio.Event()
        self._out: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    @property
    def closed(self) -> bool:
        """Nothing can be sent any more."""
        return self.transport is None or self.transport.is_closing()

    @property
    def unsent_bytes(self) -> int:
        """Bytes the peer has not taken off our hands."""
        return self.transport.get_write_buffer_size() if self.transport else 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open (asyncio and uvloop set TCP_NODELAY themselves)."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Cut what came into frames and handle them."""
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
        """The socket is gone."""
        self.transport = None
        self._out.clear()
        self.lost.set()
        self.on_lost()

    def send(self, message: msgspec.Struct) -> None:
        """Queue a message for the end of this loop tick; dropped when the connection is closed."""
        self.send_encoded(encoded(message))

    def send_encoded(self, packed: bytes) -> None:
        """Queue bytes made by `encoded`."""
        if self.closed:
            return
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out.append(packed)

    def flush(self) -> None:
        """Write what is queued in one go; cut the peer off when it does not read."""
        out, self._out = self._out, []
        if not out or self.transport is None or self.transport.is_closing():
            return
        self.transport.write(b"".join(out))
        if self.unsent_bytes > self.max_unsent_bytes:
            self.abort()

    def close(self) -> None:
        """Send what is queued, then close."""
        self.flush()
        if self.transport is not None:
            self.transport.close()

    async def hang_up(self) -> None:
        """Close and wait until it is; a peer that does not take our last words is cut off."""
        self.close()
        try:
            async with asyncio.timeout(HANG_UP_S):
                await self.lost.wait()
        except TimeoutError:
            self.abort()
            await self.lost.wait()

    def abort(self) -> None:
        """Close at once; what is queued is lost."""
        if self.transport is not None:
            self.transport.abort()

    def on_frame(self, frame: bytes) -> None:
        """One frame came."""
        raise NotImplementedError

    def on_read(self) -> None:
        """All frames of one read are handled."""

    def on_malformed(self, error: Exception) -> None:
        """The peer sent what we cannot read; the connection is about to be closed."""

    def on_lost(self) -> None:
        """The connection is gone."""
