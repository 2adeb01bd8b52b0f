"""The way from a request to its connection, beside the messages of ASGI."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from gateway.ports import ClientDisconnected, Headers

EXTENSION = "penstock.connection"
"""The ASGI extension under which a request's scope has its `ClientConnection`."""
_CHUNKED = (b"transfer-encoding", b"chunked")


class ClientConnection:
    """The connection of one request, for what ASGI's messages would do with a task or a dictionary per chunk."""

    __slots__ = ("_cycle", "_free", "_on_disconnect")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._free: asyncio.Transport | None = None
        """The transport while it is known that a chunk can be written at once; `block` ends that."""
        self._on_disconnect: Callable[[], None] | None = None

    @classmethod
    def of(cls, cycle: RequestResponseCycle) -> "ClientConnection":
        """Return the connection of a request, which is made when it is first asked for."""
        extensions = cast(dict[str, Any], cycle.scope.setdefault("extensions", {}))
        found: ClientConnection | None = extensions.get(EXTENSION)
        if found is None:
            found = extensions[EXTENSION] = cls(cycle)
        return found

    def can_write_now(self) -> bool:
        """Whether `write_now` would write a part of the body."""
        if self._free is None:
            self._free = self._find_free()
        return self._free is not None

    def write_now(self, data: bytes) -> bool:
        """Write a part of the body as uvicorn's `send` would; False, and nothing is written, when it has to wait.

        False also before the response has begun, after its end, for a body that is not chunked, and when the client has
        disconnected: `send` knows what to do. Raises ClientDisconnected when the transport is closed.
        """
        transport = self._free
        if transport is None:
            transport = self._free = self._find_free()
            if transport is None:
                return False
        try:
            transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        except (OSError, RuntimeError) as error:
            raise ClientDisconnected(str(error)) from error
        return True

    def take_body(self, at_most: int) -> bytes | None:
        """Return the body if all of it has arrived and it has up to `at_most` bytes; None = ask `receive`."""
        cycle = self._cycle
        if (
            cycle.more_body
            or cycle.waiting_for_100_continue
            or cycle.disconnected
            or len(cycle.body) > at_most
        ):
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        cycle.message_event.clear()
        return body

    def start_now(self, headers: Headers, body: bytes | None = None) -> bool:
        """Write status 200, `headers` and the whole `body`, or the head of a chunked response, as `send` would.

        `headers` have neither length nor framing. False, and nothing is written, when only `send` can do it. `send`
        has to end the response. Raises ClientDisconnected when the transport is closed, and ValueError for a header
        with a line break.
        """
        cycle = self._cycle
        if (
            cycle.response_started
            or cycle.flow.write_paused
            or cycle.disconnected
            or not cycle.keep_alive
            or cycle.access_log
            or cycle.scope["http_version"] != "1.1"
        ):
            return False
        framing = _CHUNKED if body is None else (b"content-length", b"%d" % len(body))
        lines = [b"%b: %b\r\n" % header for header in (*cycle.default_headers, *headers, framing)]
        head = b"".join((STATUS_LINE[200], *lines, b"\r\n"))
        if head.count(b"\n") != len(lines) + 2:
            raise ValueError("a header of a response contains a line break")
        cycle.response_started, cycle.waiting_for_100_continue = True, False
        cycle.chunked_encoding, cycle.expected_content_length = body is None, 0
        try:
            cycle.transport.write(head if body is None else head + body)
        except (OSError, RuntimeError) as error:
            raise ClientDisconnected(str(error)) from error
        return True

    def _find_free(self) -> asyncio.Transport | None:
        """Return the transport if `send` would write a chunk to it at once."""
        cycle = self._cycle
        if (
            cycle.flow.write_paused
            or not cycle.response_started
            or not cycle.chunked_encoding
            or cycle.response_complete
            or cycle.disconnected
        ):
            return None
        return cycle.transport

    def block(self) -> None:
        """Look at everything again before the next chunk: the client reads slowly, or the response has ended."""
        self._free = None

    @property
    def unsent(self) -> int:
        """Bytes that were written and that the network has not taken yet; this process keeps them."""
        return self._cycle.transport.get_write_buffer_size()

    async def drain(self) -> None:
        """Wait until nothing is unsent, or the connection has ended. uvicorn waits for a part of it only."""
        transport = self._cycle.transport
        if not self.unsent:
            return
        transport.set_write_buffer_limits(high=0)
        try:
            await self._cycle.flow.drain()
        finally:
            if not transport.is_closing():
                transport.set_write_buffer_limits()

    def abort(self) -> None:
        """Close the connection at once, without what is still to be written."""
        self._cycle.transport.abort()

    def watch(self, on_disconnect: Callable[[], None]) -> bool:
        """Call `on_disconnect` when the client disconnects before the response is complete; False when it has already.

        To be called after the body was read: reading goes on, since the end of the connection is seen by reading only.
        """
        if self._cycle.disconnected:
            return False
        self._on_disconnect = on_disconnect
        self._cycle.flow.resume_reading()
        return True

    @classmethod
    def release(cls, cycle: RequestResponseCycle) -> None:
        """End what the connection of a request does for it: the response is complete.

        Without the way from the scope back to the cycle, both are freed with the request. As cyclic garbage they would
        wait for a full collection when a partial one has found them in use: some 300 bytes per request.
        """
        connection = cls.of(cycle)
        connection.block()
        connection._on_disconnect = None
        del cast(dict[str, Any], cycle.scope["extensions"])[EXTENSION]

    def lost(self) -> None:
        """Take the end of the connection; called by the protocol."""
        self.block()
        self._cycle.disconnected = True
        self._cycle.message_event.set()
        if self._on_disconnect is not None:
            self._on_disconnect()
