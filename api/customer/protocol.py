"""uvicorn's HTTP protocol with two further bounds: the size of a request's head, and the time until it is complete.

api/customer/hotpath.py bounds bodies. A proxy in front may bound headers too, but the API does not depend on one.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from api import errors
from core.errors import InvalidRequest, PenstockError, RequestTooLarge

MAX_HEAD_BYTES = 64 * 1024
"""Bytes of a request's head: request line and headers."""
HEAD_TIMEOUT_S = 20.0
"""Seconds from the connection, or from the first byte of a further request on it, to the end of the head."""


class HeadLimitProtocol(HttpToolsProtocol):
    """One connection. The bounds cost one comparison for a head that arrives in one read."""

    _in_head = True
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Start the timer of the first head."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._on_head_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Begin to count a head."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """End the head."""
        self._in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Parse the data, then check the bounds of a head that is not complete."""
        super().data_received(data)
        if not self._in_head:
            if self._head_timer is not None:
                self._stop_timer()
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._reject(
                RequestTooLarge(
                    f"The request's headers are larger than {MAX_HEAD_BYTES:,} bytes; send less.",
                    code="headers_too_large",
                )
            )
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        message = f"The request's headers did not arrive within {HEAD_TIMEOUT_S:.0f} s."
        self._reject(InvalidRequest(message, code="headers_timeout"))

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _reject(self, error: PenstockError) -> None:
        """Close the connection, after an error response unless an earlier request is still being answered."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            status, body, _ = errors.to_response(error)
            self.transport.write(
                STATUS_LINE[status]
                + b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
                % len(body)
                + body
            )
        self.transport.close()
