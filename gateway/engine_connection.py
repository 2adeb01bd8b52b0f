"""One HTTP/1.1 connection to an engine: writes a request, parses the response with httptools (llhttp).

The bytes of one read are passed on in one piece, to a function where one is given (`EngineResponse.read_into`), so that
no task wakes for a chunk. A response may be chunked, have a length, or end with its connection.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from core.errors import EngineFailed

MAX_BYTES_WITHOUT_BODY = 64 * 1024
"""Bytes that an engine may send without a byte of body: heads, trailers, chunk extensions."""
MAX_KEPT_BYTES = 256 * 1024
"""Bytes of a body that are kept while nothing takes them; reading from the engine pauses above this."""
DRAIN_TIMEOUT_S = 1.0
"""Seconds to read the end of a body so that its connection can be reused."""

MAX_LONE_CHUNK_BYTES = 4096
"""Size of the largest read that is looked at as one chunk; parsing costs less than a larger one does."""

Sink = Callable[[bytes], bool]
"""Takes the bytes of one read; returns whether it wants the next ones too."""


def _heads_of_chunks() -> tuple[bytes, ...]:
    """The head of a chunk by the length of the whole chunk: its size in hexadecimal digits, and the end of the line.

    A line end alone, with which no chunk begins, where no chunk has that length.
    """
    heads = [b"\n"] * (MAX_LONE_CHUNK_BYTES + 1)
    for size in range(1, MAX_LONE_CHUNK_BYTES):
        head = b"%x\r\n" % size
        if (length := len(head) + size + 2) <= MAX_LONE_CHUNK_BYTES:
            heads[length] = head
    return tuple(heads)


_HEADS = _heads_of_chunks()


def _is_chunk(data: bytes, body: bytes) -> bool:
    """Whether a read with this body is exactly one chunk, an event of a stream.

    Its last line end cannot be that before the size of the next chunk: then the body would end with that size.
    """
    return body.endswith(b"\n") and data == b"%x\r\n%b\r\n" % (len(body), body)


class EngineResponse:
    """An engine's answer while it arrives (gateway.ports.EngineStream)."""

    __slots__ = (
        "_connection",
        "_ended",
        "_error",
        "_kept",
        "_kept_bytes",
        "_loop",
        "_sink",
        "_sink_error",
        "_waiter",
        "status",
    )

    def __init__(self, connection: "EngineConnection", loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._sink: Sink | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._error: EngineFailed | None = None
        self._sink_error: Exception | None = None
        self.status = 0
        """The HTTP status; 0 before the headers are complete."""

    async def headers(self) -> None:
        """Wait until the headers have arrived. Raises EngineFailed when the connection breaks before."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def read_into(self, sink: Sink) -> bool:
        """Pass what arrives to `sink` until it returns False: True; or until the answer has ended: False.

        What arrives while this method does not run is kept for its next call. Raises EngineFailed when the connection
        breaks, and any error that `sink` raises.
        """
        if self._kept:
            kept = b"".join(self._kept)
            self._kept.clear()
            self._kept_bytes = 0
            if not sink(kept):
                return True
        if not self._ended:
            self._connection.resume()
            self._sink = sink
            try:
                await self._wait()
            finally:
                stopped, self._sink = self._sink is None, None
            if self._sink_error is not None:
                raise self._sink_error
            if stopped:
                return True  # also when the connection broke right after: the next call raises that
        if self._error is not None:
            raise self._error
        return False

    def close(self) -> None:
        """Let the connection be used again, after the rest of the body has been read. Must be called or `abort`."""
        if self._ended:
            return
        self._kept.clear()
        self._sink = _discard
        self._connection.resume()
        self._connection.abort_after(DRAIN_TIMEOUT_S)

    def abort(self) -> None:
        """Close the connection at once, so that the engine stops generating. A pending `read_into` raises."""
        if not self._ended:
            self._connection.abort("aborted")

    def take_headers(self, status: int) -> None:
        """Note the status; called by the connection."""
        self.status = status
        self._wake()

    def take(self, data: bytes) -> None:
        """Pass on or keep the bytes of a read; called by the connection."""
        if self._sink is None:
            self._kept.append(data)
            self._kept_bytes += len(data)
            if self._kept_bytes > MAX_KEPT_BYTES:
                self._connection.pause()
            return
        try:
            if self._sink(data):
                return
        except Exception as error:  # noqa: BLE001 # read_into raises it
            self._sink_error = error
        self._sink = None
        self._wake()

    def end(self, error: EngineFailed | None = None) -> None:
        """Note the end of the answer, or that it broke off with `error`; called by the connection."""
        self._ended = True
        self._error = error
        self._wake()

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _discard(_: bytes) -> bool:
    """Take the rest of a body that no request needs."""
    return True


class EngineConnection(asyncio.Protocol):
    """A connection that serves one request after the other. `idle` is called when it can serve the next one."""

    __slots__ = (
        "_between_chunks", "_body", "_complete", "_has_length", "_idle", "_loop", "_lost", "_parser", "_paused",
        "_response", "_reusable", "_timer", "_transport", "_without_body", "idle_since", "on_body", "untouched",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        idle: Callable[["EngineConnection"], None],
        lost: Callable[["EngineConnection"], None],
    ) -> None:
        self._loop = loop
        self._idle = idle
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._body: list[bytes] = []
        self.on_body = self._body.append  # llhttp's callback, without a Python frame per chunk
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._response: EngineResponse | None = None
        self._between_chunks = False
        """Whether the parser is known to have taken whole chunks, so that the next read begins with one."""
        self._complete = False
        self._reusable = False
        self._has_length = False
        self._without_body = 0
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self.untouched = True
        """Whether nothing of the current response has arrived."""
        self.idle_since = 0.0
        """When it became idle, by the loop's clock."""

    def send(self, request: bytes) -> EngineResponse:
        """Send a request; the connection must be idle or new."""
        if self._transport is None or self._response is not None:
            raise RuntimeError("the connection is not idle")
        self._response = response = EngineResponse(self, self._loop)
        self._complete = self._between_chunks = False
        self._without_body = 0
        self.untouched = True
        self._transport.write(request)
        return response

    @property
    def usable(self) -> bool:
        """Whether the connection is open and has no response in progress."""
        return self._transport is not None and not self._transport.is_closing() and self._response is None

    def pause(self) -> None:
        """Stop reading: the socket's buffers fill and the engine waits."""
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def abort(self, reason: str) -> None:
        """Close the connection at once. A response in progress fails with `reason`."""
        self._stop_timer()
        response, self._response = self._response, None
        if response is not None:
            response.end(EngineFailed(f"The engine's connection broke: {reason}"))
        if self._transport is not None:
            self._transport.abort()

    def abort_after(self, seconds: float) -> None:
        """Close the connection unless the response in progress has ended by then."""
        self._timer = self._loop.call_later(seconds, self.abort, "the rest of the answer did not arrive")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport. asyncio and uvloop set TCP_NODELAY."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Pass on the parts of the body in one read in one piece.

        A read that is exactly one chunk, as those of a stream are, does not need the parser.
        """
        if self._between_chunks and self._response is not None and len(data) <= MAX_LONE_CHUNK_BYTES:
            head = _HEADS[len(data)]
            if data.startswith(head) and data.endswith(b"\r\n"):
                self._response.take(data[len(head) : -2])
                return
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Parse one read, then pass on the parts of the body in it in one piece."""
        response = self._response
        if response is None or self._parser is None:
            self.abort("data without a request")
            return
        self.untouched = self._between_chunks = False
        broken = ""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            broken = str(error) or type(error).__name__
        parts = self._body
        if parts:
            self._without_body = 0
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            self._between_chunks = not (self._complete or broken) and _is_chunk(data, body)
            response.take(body)
        elif not self._complete:
            self._without_body += len(data)
            if self._without_body > MAX_BYTES_WITHOUT_BODY:
                broken = "it sends headers without end"
        if self._complete:
            self._finish(response, reusable=not broken)
        elif broken:
            self.abort(broken)

    def eof_received(self) -> None:
        """End a body that has neither length nor chunks; the transport closes itself."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End a body that ends with its connection, or fail a response in progress."""
        self._stop_timer()
        self._transport = self._parser = None  # the parser refers to this object
        response, self._response = self._response, None
        if response is not None:
            if exc is None and response.status and not self._has_length:
                response.end()
            else:
                text = str(exc or "") or "closed by the engine"
                response.end(EngineFailed(f"The engine's connection broke: {text}"))
        self._lost(self)

    def _finish(self, response: EngineResponse, *, reusable: bool) -> None:
        """End the response, and offer the connection for the next request if both sides keep it open."""
        self._stop_timer()
        self._response = None
        transport = self._transport
        reusable = reusable and self._reusable and transport is not None and not transport.is_closing()
        if not reusable or (transport is not None and transport.get_write_buffer_size()):
            self.abort("")  # also when the engine answered before it had read the request
        else:
            self.resume()
            self._idle(self)
        response.end()

    # llhttp's callbacks

    def on_message_begin(self) -> None:
        """Begin a response. A second one to the same request makes the connection unusable."""
        if self._complete:
            raise EngineFailed("a response without a request")
        self._has_length = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note whether the body has an end of its own."""
        if len(name) == 14 and name.lower() == b"content-length":
            self._has_length = True
        elif len(name) == 17 and name.lower() == b"transfer-encoding":
            self._has_length = self._has_length or value.lower().endswith(b"chunked")

    def on_headers_complete(self) -> None:
        """Report the status, except an interim one such as 100."""
        if self._parser is not None and self._response is not None:
            status = self._parser.get_status_code()
            if status >= 200:
                self._response.take_headers(status)

    def on_message_complete(self) -> None:
        """Note the end of the response; an interim one is followed by another."""
        if self._parser is not None and self._response is not None and self._response.status:
            self._complete = True
            self._reusable = self._parser.should_keep_alive()  # the parser forgets it after this callback
