"""The HTTP response of one inference request, as the gateway writes it (gateway.ports.Reply)."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any
from uuid import UUID

from api import errors
from api.customer.answer_headers import OPENAI_VERSION, processing_ms
from api.customer.client_connection import ClientConnection
from billing.metering.records import UsageRecord
from core.errors import PenstockError
from gateway.ports import ClientDisconnected, Headers
from gateway.schemas.common import PreparedRequest
from tenants.principal import Principal

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

ERROR_TIMEOUT_S = 5.0
"""Seconds for the client to take the error that a request ended with."""
_JSON = (b"content-type", b"application/json")
_SSE: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


async def no_op() -> None:
    """Do nothing: the result of a write after the end."""


def _never(_: bytes) -> bool:
    """Write nothing now, under a server that offers no `ClientConnection`."""
    return False


class HttpReply:
    """The HTTP response to a client (gateway.ports.Reply)."""

    __slots__ = (
        "_connection", "_now", "_received_at", "asgi_send", "finished", "headers", "limits", "page_headers",
        "quota_status", "request_id", "started",
    )  # fmt: skip

    def __init__(
        self,
        send: Send,
        request_id: UUID,
        connection: ClientConnection | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without `connection`, which our own server offers, everything goes through `send`.

        `now` returns monotonic seconds.
        """
        self.asgi_send = send
        """The server's own `send`."""
        self._connection = connection
        self._now = now
        self._received_at = now()
        self.request_id = request_id
        self.headers: Headers = [(b"x-request-id", str(request_id).encode()), OPENAI_VERSION]
        """The headers of this response, whatever it is."""
        self.page_headers: Headers = []
        """The headers for a browser, with which a page may read the answer."""
        self.quota_status = 402
        """The status of an answer that money refuses."""
        self.limits: Callable[[], Headers] = list
        """Gives the x-ratelimit-* headers of an answer that refuses the request."""
        self.started = False
        self.finished = False

    @property
    def write_now(self) -> Callable[[bytes], bool]:
        """Sends whole events without waiting; False, and nothing is sent, when only `write` can send them."""
        return _never if self._connection is None else self._connection.write_now

    async def _send(self, message: Message) -> None:
        """Send an ASGI message. The server's errors mean that the connection is closed (RuntimeError: uvloop's)."""
        try:
            await self.asgi_send(message)
        except (OSError, RuntimeError) as error:
            raise ClientDisconnected(str(error)) from error

    def take_headers(self) -> Headers:
        """Return the headers of every response, which are not kept afterwards."""
        headers, self.headers = self.headers + self.page_headers, []
        headers.append(processing_ms(self._now() - self._received_at))
        return headers

    async def start(self, headers: Headers, prompt_tokens: int = 0) -> None:
        """Send status 200 and the headers of an event stream. This form of answers tells `prompt_tokens` at the end."""
        self.started = True
        written = [*_SSE, *self.take_headers(), *headers]
        if self._connection is None or not self._connection.start_now(written):
            await self._send({"type": "http.response.start", "status": 200, "headers": written})

    def write(self, events: bytes) -> Awaitable[None]:
        """Send whole events. Awaiting the result takes as long as the socket's buffer is full."""
        if self.finished:
            return no_op()
        return self._send({"type": "http.response.body", "body": events, "more_body": True})

    @property
    def unsent(self) -> int:
        """Bytes that this process keeps for the client; 0 under a server that does not tell."""
        return self._connection.unsent if self._connection is not None else 0

    async def end(self, events: bytes) -> None:
        """Send the last events, end the response, and wait until the client has taken them.

        When it is cancelled, the connection is closed without the rest.
        """
        if self.finished:
            return
        self.finished = True
        with self._closing_if_cancelled():
            await self._send({"type": "http.response.body", "body": events, "more_body": False})
            await self._taken()

    async def respond(self, body: bytes, headers: Headers) -> None:
        """Send a whole JSON response with status 200, and wait until the client has taken it.

        When it is cancelled, the rest is not sent: such an answer counts as not received.
        """
        self.started = self.finished = True
        written = [_JSON, *self.take_headers(), *headers]
        with self._closing_if_cancelled():
            if self._connection is None or not self._connection.start_now(written, body):
                await self._start_answer(200, len(body), written)
                await self._send({"type": "http.response.body", "body": body, "more_body": True})
            await self._taken()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def answer(self, status: int, body: bytes, headers: Headers) -> None:
        """Send a whole JSON response without waiting for the client."""
        self.started = self.finished = True
        await self._start_answer(status, len(body), [_JSON, *self.take_headers(), *headers])
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _start_answer(self, status: int, length: int, headers: Headers) -> None:
        with_length = [(b"content-length", b"%d" % length), *headers]
        await self._send({"type": "http.response.start", "status": status, "headers": with_length})

    async def _taken(self) -> None:
        """Wait until the client has taken all that was written; `OpenRequests` counts it and cuts slow clients."""
        if self._connection is not None:
            await self._connection.drain()

    @contextlib.contextmanager
    def _closing_if_cancelled(self) -> Iterator[None]:
        try:
            yield
        except asyncio.CancelledError:
            self._close()
            raise

    def _close(self) -> None:
        """Close the connection without what its client has not taken."""
        if self._connection is not None:
            self._connection.abort()

    def begin(self, prepared: PreparedRequest, principal: Principal) -> None:
        """Take the valid request that is answered, and whose it is; this form of answers needs neither."""

    def settled(self, record: UsageRecord) -> None:
        """Take the bill of the request; an error of this form tells none."""

    async def fail(self, error: PenstockError) -> None:
        """Send an error: as a response before headers were sent, as an event afterwards.

        When the client has not taken it after ERROR_TIMEOUT_S, the connection is closed.
        """
        try:
            async with asyncio.timeout(ERROR_TIMEOUT_S):
                if self.started:
                    await self._end_with(error)
                else:
                    status, body, headers = self._error_answer(error)
                    await self.answer(status, body, errors.with_limits(headers, self.limits()))
        except TimeoutError:
            self._close()
        except ClientDisconnected:
            pass  # there is no connection to send it on

    async def _end_with(self, error: PenstockError) -> None:
        """End a stream with an error."""
        await self.end(errors.to_event(error))

    def _error_answer(self, error: PenstockError) -> tuple[int, bytes, Headers]:
        """Status, body and headers of an answer that is an error."""
        return errors.to_response(error, self.quota_status)
