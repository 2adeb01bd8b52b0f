"""uvicorn's HTTP protocol with further bounds and a strict end of connections.

Bounded are the size of a request's head, the time until it is complete, and what a client may send ahead while an
earlier request of its connection is answered. When a connection closes, the request in progress ends even if
later ones wait behind it, and those never start. api/customer/hotpath.py bounds bodies. A proxy in front may bound
headers too, but the API does not depend on one.

Two old habits of clients are served: an HTTP/1.0 client gets bodies without chunks, and a request to change to another
protocol (h2c, which Java's client asks for by default) is answered as if it had not been asked.
"""

import asyncio

import httptools
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from api import errors
from api.customer.client_connection import ClientConnection
from core.errors import InvalidRequest, PenstockError, RequestTooLarge
from core.ids import uuid7

MAX_HEAD_BYTES = 64 * 1024
"""Bytes of a request's head: request line and headers."""
HEAD_TIMEOUT_S = 20.0
"""Seconds from the connection, or from the first byte of a further request on it, to the end of the head."""
MAX_PIPELINED_REQUESTS = 16
"""Requests that may wait on a connection while an earlier one is answered."""
MAX_PIPELINED_BYTES = 64 * 1024
"""Bytes of bodies that may wait on a connection while an earlier request is answered."""
_FRAMING = (b"content-length", b"transfer-encoding")
"""Headers that say where a body ends."""
_HEADER_OVERHEAD_BYTES = 4
"""Bytes of a header beside its name and value: colon, space and the end of the line."""


class _TooMuch(Exception):
    """Raised inside the parser to stop it; the connection is being refused."""


class SmallEvent(asyncio.Event):
    """An event with a list of waiters. An empty deque takes 760 bytes, of which each open stream would have three."""

    def __init__(self) -> None:
        super().__init__()
        self._waiters = []  # type: ignore[assignment]


class Pipeline(list[tuple[RequestResponseCycle, ASGI3Application]]):
    """The requests that wait on a connection, the next one last: what uvicorn needs of a deque."""

    __slots__ = ()

    def appendleft(self, waiting: tuple[RequestResponseCycle, ASGI3Application]) -> None:
        """Add a request behind the others."""
        self.insert(0, waiting)


class SmallFlowControl(FlowControl):
    """uvicorn's flow control with a `SmallEvent`."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_writable_event = SmallEvent()
        self._is_writable_event.set()


class HeadLimitProtocol(HttpToolsProtocol):
    """One connection. The bounds cost a few comparisons for a head that arrives in one read.

    What it keeps for an open stream is kept small: our attributes are slots, because with more than 30 attributes
    CPython gives each connection a dictionary of its own.
    """

    __slots__ = (
        "_answered", "_head_bytes", "_head_timer", "_in_head", "_read_bytes", "_refusal", "_repeats_head",
        "_upgrades",
    )  # fmt: skip

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Start the timer of the first head."""
        super().connection_made(transport)
        self.flow = SmallFlowControl(transport)
        self.pipeline = Pipeline()  # type: ignore[assignment]
        self._in_head, self._head_bytes, self._read_bytes = True, 0, 0
        self._refusal: PenstockError | None = None
        self._upgrades = False
        """Whether the request asks for another protocol: the parser stops at its head then."""
        self._repeats_head = False
        """Whether the parser reads the head of `_ignore_upgrade`, which begins no request."""
        self._answered: RequestResponseCycle | None = None
        """The cycle that was started last. `cycle` is that of the last request received."""
        self._head_timer: asyncio.TimerHandle | None = self.loop.call_later(
            HEAD_TIMEOUT_S, self._on_head_timeout
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer, disconnect the request that is being answered, and drop those that wait behind it."""
        self._stop_timer()
        self.pipeline.clear()
        if (cycle := self._in_progress) is not None:
            ClientConnection.of(cycle).lost()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Begin to count a head."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """End the head. Raises _TooMuch for a head above its bound, and for too many requests sent ahead."""
        self._in_head = False
        if self._repeats_head:
            self._repeats_head = False
            return
        self._upgrades = self.parser.should_upgrade()
        if self._head_bytes + self._read_bytes > MAX_HEAD_BYTES and self._measure_head() > MAX_HEAD_BYTES:
            self._refusal = _head_too_large()
            raise _TooMuch
        super().on_headers_complete()
        if len(self.pipeline) > MAX_PIPELINED_REQUESTS:
            raise _TooMuch

    def data_received(self, data: bytes) -> None:
        """Parse the data, then check the bounds of a head that is not complete and of requests sent ahead."""
        self._read_bytes = len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        if self.pipeline:
            self._bound_pipeline()
        if not self._in_head:
            if self._head_timer is not None:
                self._stop_timer()
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._reject(_head_too_large())
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._on_head_timeout)

    def on_message_complete(self) -> None:
        """End the body, unless the parser has only stopped at the head of a request for another protocol."""
        if not self._upgrades:
            super().on_message_complete()

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as stopped:
            self._ignore_upgrade(data[stopped.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Go on with `rest`, which follows the head of a request for another protocol, as with the request's body.

        The parser takes what follows for that protocol, so another one goes on. It is told by a head where the body
        ends.
        """
        framing = b"".join(b"%b: %b\r\n" % header for header in self.headers if header[0] in _FRAMING)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        self._upgrades, self._repeats_head = False, True
        self._parse(b"POST / HTTP/1.1\r\n%b\r\n%b" % (framing, rest))

    def pause_writing(self) -> None:
        """Write no further chunk until the client has taken what is written."""
        super().pause_writing()
        if (cycle := self._in_progress) is not None:
            ClientConnection.of(cycle).block()

    def on_response_complete(self) -> None:
        """Write no chunk to a response that has ended, and go on with the next request."""
        if self._answered is not None:
            ClientConnection.release(self._answered)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser did not accept, in OpenAI's shape."""
        self._reject(self._refusal or InvalidRequest(msg, code="invalid_http"))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        event, cycle.message_event = cycle.message_event, SmallEvent()
        if event.is_set():
            cycle.message_event.set()
        ClientConnection.of(cycle)
        if cycle.scope.get("http_version") == "1.0":
            app = _without_chunks(cycle, app)
        super()._start_asgi_task(cycle, app)

    @property
    def _in_progress(self) -> RequestResponseCycle | None:
        """The cycle that is being answered, which is not the last one received while others wait behind it."""
        cycle = self._answered
        return cycle if cycle is not None and not cycle.response_complete else None

    def _measure_head(self) -> int:
        """Bytes of the head that has just been parsed."""
        headers = sum(len(name) + len(value) + _HEADER_OVERHEAD_BYTES for name, value in self.headers)
        return len(self.url) + headers

    def _bound_pipeline(self) -> None:
        """Go on reading while requests wait, or close the connection when they exceed their bound.

        uvicorn stops to read then; the end of a connection would be noticed only at the next write.
        """
        if sum(len(cycle.body) for cycle, _ in self.pipeline) > MAX_PIPELINED_BYTES:
            self.transport.abort()
        else:
            self.flow.resume_reading()

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        message = f"The request's headers did not arrive within {HEAD_TIMEOUT_S:.0f} s."
        self._reject(InvalidRequest(message, code="headers_timeout"))

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _reject(self, error: PenstockError) -> None:
        """Close the connection: after an error response, or at once while an earlier request is being answered."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        if self._in_progress is not None:
            self.transport.abort()  # this ends that request; its client gets nothing that looks like a part of it
            return
        status, body, _ = errors.to_response(error)
        self.transport.write(
            STATUS_LINE[status]
            + b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n" % len(body)
            + b"x-request-id: %b\r\n\r\n%b" % (str(uuid7()).encode(), body)
        )
        self.transport.close()


def _without_chunks(cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
    """`app` for an HTTP/1.0 client: a body of unknown length ends with the connection, not with an empty chunk."""

    async def serve(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        async def send_plain(message: ASGISendEvent) -> None:
            if message["type"] == "http.response.start":
                names = [name.lower() for name, _ in message.get("headers", [])]
                if b"content-length" not in names:
                    cycle.chunked_encoding = False
            elif message["type"] == "http.response.body" and not cycle.expected_content_length:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return serve


def _head_too_large() -> RequestTooLarge:
    return RequestTooLarge(
        f"The request's headers are larger than {MAX_HEAD_BYTES:,} bytes; send less.",
        code="headers_too_large",
    )
