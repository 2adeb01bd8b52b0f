"""The hot path: /v1/chat/completions and /v1/completions as one raw ASGI callable.

It authenticates the key, reads the body, passes both to the gateway's director, and writes the answer or the error as
HTTP. It uses no routing, request objects or middleware, since those of FastAPI cost about 0.2 ms per request.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from api import errors
from api.customer.body import Receive, read_body
from api.customer.protocol import EXTENSION, ClientConnection
from api.key_restrictions import KeyRestrictions
from api.request_rates import InvalidRequestRate
from core.errors import (
    AuthenticationFailed,
    InvalidRequest,
    NotFound,
    PenstockError,
    PermissionDenied,
    Unavailable,
)
from core.ids import uuid7
from gateway.context import AbortReason
from gateway.director import Director
from gateway.open_requests import OpenRequests
from gateway.parsing.budget import BodyBudget
from gateway.parsing.parser import CHAT, TEXT, BodyParser
from gateway.ports import ClientDisconnected, Headers, Rates
from gateway.schemas.common import PreparedRequest
from gateway.telemetry import Telemetry
from tenants.principal import Principal

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

ERROR_TIMEOUT_S = 5.0
"""Seconds for the client to take the error that a request ended with."""
ROUTES = {"/v1/chat/completions": CHAT, "/v1/completions": TEXT}
_INVALID = (InvalidRequest, NotFound, PermissionDenied)
"""Errors of a request that is wrong in itself."""
_NO_EXTENSIONS: dict[str, Any] = {}
_ANSWERS_BUSY = Unavailable(
    "Large answers of this organisation are being collected or read; ask for a stream, or try again in a second.",
    code="answers_busy",
    retry_after_s=1.0,
)
_JSON = (b"content-type", b"application/json")
_SSE: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

log = logging.getLogger(__name__)


async def _no_op() -> None:
    """Do nothing: the result of a write after the end."""


class HttpReply:
    """The HTTP response to a client (gateway.ports.Reply)."""

    __slots__ = ("_asgi_send", "_connection", "_request_id_header", "finished", "started")

    def __init__(self, send: Send, request_id: UUID, connection: ClientConnection | None = None) -> None:
        """Without `connection`, which our own server offers, everything goes through `send`."""
        self._asgi_send = send
        self._connection = connection
        self._request_id_header: Headers = [(b"x-request-id", str(request_id).encode())]
        self.started = False
        self.finished = False

    async def _send(self, message: Message) -> None:
        """Send an ASGI message. The server's errors mean that the connection is closed (RuntimeError: uvloop's)."""
        try:
            await self._asgi_send(message)
        except (OSError, RuntimeError) as error:
            raise ClientDisconnected(str(error)) from error

    async def start(self, headers: Headers) -> None:
        """Send status 200 and the headers of an event stream."""
        self.started = True
        await self._send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": _SSE + self._request_id_header + headers,
            }
        )

    def write(self, events: bytes) -> Awaitable[None]:
        """Send whole events. Awaiting the result takes as long as the socket's buffer is full."""
        if self.finished:
            return _no_op()
        return self._send({"type": "http.response.body", "body": events, "more_body": True})

    def write_now(self, events: bytes) -> bool:
        """Send whole events without waiting; False, and nothing is sent, when only `write` can send them."""
        if self.finished:
            return True
        if self._connection is None:
            return False
        try:
            return self._connection.write_now(events)
        except (OSError, RuntimeError) as error:
            raise ClientDisconnected(str(error)) from error

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
        with self._closing_if_cancelled():
            await self._start_answer(200, len(body), headers)
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            await self._taken()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def answer(self, status: int, body: bytes, headers: Headers) -> None:
        """Send a whole JSON response without waiting for the client."""
        await self._start_answer(status, len(body), headers)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _start_answer(self, status: int, length: int, headers: Headers) -> None:
        self.started = self.finished = True
        fixed = (_JSON, (b"content-length", b"%d" % length))
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*fixed, *self._request_id_header, *headers],
            }
        )

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

    async def fail(self, error: PenstockError) -> None:
        """Send an error: as a response before headers were sent, as an event afterwards.

        When the client has not taken it after ERROR_TIMEOUT_S, the connection is closed.
        """
        try:
            async with asyncio.timeout(ERROR_TIMEOUT_S):
                if self.started:
                    await self.end(errors.to_event(error))
                else:
                    await self.answer(*errors.to_response(error))
        except TimeoutError:
            self._close()
        except ClientDisconnected:
            pass  # there is no connection to send it on


class Keys(Protocol):
    """The methods of tenants.keys.KeyRing that the hot path uses."""

    def authenticate_cached(self, raw: str) -> Principal | None:
        """Return the principal of a cached key; None when the key is not cached."""

    async def authenticate(self, raw: str) -> Principal:
        """Return the principal of a key. Raises AuthenticationFailed, TenantSuspended or Unavailable."""


class HotPath:
    """Serves inference requests. One per process."""

    def __init__(
        self,
        keys: Keys,
        rates: Rates[Any],
        parser: BodyParser,
        director: Director[Any],
        open_requests: OpenRequests,
        telemetry: Telemetry,
        invalid: InvalidRequestRate,
        budget: BodyBudget,
        restrictions: KeyRestrictions,
    ) -> None:
        self._keys = keys
        self._rates = rates
        self._parser = parser
        self._invalid = invalid
        self._budget = budget
        self._restrictions = restrictions
        self._director = director
        self._open_requests = open_requests
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Every error is answered in OpenAI's shape."""
        request_id = uuid7()
        connection: ClientConnection | None = scope.get("extensions", _NO_EXTENSIONS).get(EXTENSION)
        reply = HttpReply(send, request_id, connection)
        try:
            principal, prepared = await self._authenticate_and_parse(scope, receive)
        except ClientDisconnected:
            return
        except PenstockError as error:
            self._telemetry.count_refusal(error.code)
            await reply.fail(error)
            return
        if not prepared.stream and not self._open_requests.has_room(principal.tenant_id):
            self._telemetry.count_refusal(_ANSWERS_BUSY.code)
            await reply.fail(_ANSWERS_BUSY)
            return
        _drop_headers(scope)
        watch: asyncio.Task[None] | None = None
        if connection is None:
            watch = asyncio.create_task(self._watch_disconnect(receive, request_id))
        elif not connection.watch(partial(self._on_disconnect, request_id)):
            return
        try:
            await self._director.handle(request_id, principal, prepared, reply)
        except ClientDisconnected:
            pass  # the director has settled the request; there is no connection to answer on
        except PenstockError as error:
            if isinstance(error, _INVALID):
                self._invalid.count(scope, principal.key_id)
            await reply.fail(error)
        except Exception:
            log.exception("request %s failed with an unexpected error", request_id)
            await reply.fail(errors.INTERNAL)
        finally:
            if watch is not None:
                watch.cancel()

    async def _authenticate_and_parse(
        self, scope: Scope, receive: Receive
    ) -> tuple[Principal, PreparedRequest]:
        """Return the principal and the validated request.

        The body is read only when the key is authenticated and its rate is not used up. An invalid one counts as a
        request. Raises ClientDisconnected, or the PenstockError to answer with.
        """
        if scope["method"] != "POST":
            raise InvalidRequest(f"{scope['path']} answers POST only.", code="method_not_allowed")
        raw, length = _key_and_length(scope["headers"])
        principal = self._keys.authenticate_cached(raw) or await self._keys.authenticate(raw)
        self._restrictions.check(principal, scope, "inference")
        self._rates.check(principal)
        self._invalid.check(scope, principal.key_id)
        try:
            prepared = await self._read_and_parse(principal, ROUTES[scope["path"]], receive, length)
        except InvalidRequest:
            self._rates.charge_invalid(principal)
            self._invalid.count(scope, principal.key_id)
            raise
        # Check the key again: it may have been revoked while the body arrived, before the request was registered.
        principal = self._keys.authenticate_cached(raw) or await self._keys.authenticate(raw)
        return self._restrictions.check(principal, scope, "inference"), prepared

    async def _read_and_parse(
        self, principal: Principal, endpoint: bytes, receive: Receive, length: int
    ) -> PreparedRequest:
        """Return the validated request. `length`: the announced bytes of the body, 0 when not announced."""
        limit = self._parser.limit(principal, endpoint)
        if length > limit:
            raise errors.body_too_large(limit)
        with contextlib.ExitStack() as reservation:

            def reserve() -> None:
                reservation.enter_context(self._budget.reserve(principal, length or limit))

            body = await read_body(receive, limit, reserve)
            return await self._parser.parse(principal, endpoint, body, partial(self._rates.check, principal))

    def _on_disconnect(self, request_id: UUID) -> None:
        """Abort the request: its client has disconnected."""
        self._open_requests.abort_request(request_id, AbortReason.CLIENT_DISCONNECTED)

    async def _watch_disconnect(self, receive: Receive, request_id: UUID) -> None:
        """Wait for the client to disconnect, under a server that offers no `ClientConnection`."""
        while (await receive())["type"] != "http.disconnect":
            continue
        self._on_disconnect(request_id)


def _drop_headers(scope: Scope) -> None:
    """Free the request's headers, up to 64 KiB, except those that name the client's address."""
    headers = scope["headers"]
    headers[:] = [each for each in headers if each[0] == b"x-forwarded-for"]


def _key_and_length(headers: list[tuple[bytes, bytes]]) -> tuple[str, int]:
    """Return the bearer key and the Content-Length, 0 if absent. Raises AuthenticationFailed without a key."""
    raw = ""
    length = 0
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            raw = token.strip() if scheme.lower() == "bearer" else ""
        elif name == b"content-length" and value.isdigit():
            length = int(value[:20])
    if not raw:
        raise AuthenticationFailed(
            "No API key: send it as 'Authorization: Bearer pen_live_...'.", code="missing_api_key"
        )
    return raw, length
