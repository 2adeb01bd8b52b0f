"""The hot path: /v1/chat/completions and /v1/completions as one raw ASGI callable.

It reads the key and the body, hands both to the gateway's director and turns what comes back, or is raised, into HTTP.
No routing layer, no request object, no middleware: FastAPI's cost about 0.2 ms a request.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol
from uuid import UUID

from api import errors
from core.errors import AuthenticationFailed, InvalidRequest, PenstockError
from core.ids import uuid7
from gateway.context import AbortReason
from gateway.director import Director
from gateway.limits import MAX_BODY_BYTES
from gateway.open_requests import OpenRequests
from gateway.ports import Headers
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import PreparedRequest
from gateway.schemas.completions import parse_completion
from gateway.telemetry import Telemetry
from tenants.principal import Principal

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Parse = Callable[[bytes], PreparedRequest]

BODY_TIMEOUT_S = 30.0
"""A body that takes longer to arrive is given up."""
ERROR_TIMEOUT_S = 5.0
"""For a client to take the error that its request ended with."""
ROUTES: dict[str, Parse] = {"/v1/chat/completions": parse_chat, "/v1/completions": parse_completion}
_JSON = (b"content-type", b"application/json")
_SSE: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

log = logging.getLogger(__name__)


class ClientDisconnected(Exception):
    """Nobody is left to answer."""


async def _no_op() -> None:
    """What is left to do after the end."""


class HttpReply:
    """The gateway's way back to an HTTP client (gateway.ports.Reply)."""

    __slots__ = ("_request_id_header", "_send", "finished", "started")

    def __init__(self, send: Send, request_id: UUID) -> None:
        self._send = send
        self._request_id_header: Headers = [(b"x-request-id", str(request_id).encode())]
        self.started = False
        self.finished = False

    async def start(self, headers: Headers) -> None:
        """Status 200 and the headers of an event stream."""
        self.started = True
        await self._send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": _SSE + self._request_id_header + headers,
            }
        )

    def write(self, events: bytes) -> Awaitable[None]:
        """Send whole events; awaiting it takes as long as the socket's buffer is full. Nothing follows the end."""
        if self.finished:
            return _no_op()
        return self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def end(self, events: bytes) -> None:
        """Send the last events and finish."""
        if not self.finished:
            self.finished = True
            await self._send({"type": "http.response.body", "body": events, "more_body": False})

    async def respond(self, body: bytes, headers: Headers) -> None:
        """A whole answer with status 200."""
        await self.answer(200, body, headers)

    async def answer(self, status: int, body: bytes, headers: Headers) -> None:
        """A whole JSON answer."""
        self.started = self.finished = True
        length = (b"content-length", b"%d" % len(body))
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [_JSON, length, *self._request_id_header, *headers],
            }
        )
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def fail(self, error: PenstockError) -> None:
        """Tell the client what went wrong: by status while that is possible, else by an event.

        One that does not read is not waited for: the server then closes the connection.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ERROR_TIMEOUT_S):
                if self.started:
                    await self.end(errors.to_event(error))
                else:
                    await self.answer(*errors.to_response(error))


class Keys(Protocol):
    """What the hot path needs of tenants.keys.KeyRing."""

    def authenticate_cached(self, raw: str) -> Principal | None:
        """Without waiting, when the key is warm."""

    async def authenticate(self, raw: str) -> Principal:
        """Raises AuthenticationFailed, TenantSuspended or Unavailable."""


class HotPath:
    """One per process."""

    def __init__(
        self, keys: Keys, director: Director[Any], open_requests: OpenRequests, telemetry: Telemetry
    ) -> None:
        self._keys = keys
        self._director = director
        self._open_requests = open_requests
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; every error becomes an answer in OpenAI's shape."""
        request_id = uuid7()
        reply = HttpReply(send, request_id)
        try:
            principal, prepared = await self._authenticate_and_parse(scope, receive)
        except ClientDisconnected:
            return
        except PenstockError as error:
            self._telemetry.count_refusal(error.code)
            await reply.fail(error)
            return
        watch = asyncio.create_task(self._watch_disconnect(receive, request_id))
        try:
            await self._director.handle(request_id, principal, prepared, reply)
        except PenstockError as error:
            await reply.fail(error)
        except Exception:
            log.exception("request %s failed in an unforeseen way", request_id)
            await reply.fail(errors.INTERNAL)
        finally:
            watch.cancel()

    async def _authenticate_and_parse(
        self, scope: Scope, receive: Receive
    ) -> tuple[Principal, PreparedRequest]:
        """Who asks, and for what. Keys are checked first: strangers' bodies are not read."""
        if scope["method"] != "POST":
            raise InvalidRequest(f"{scope['path']} answers POST only.", code="method_not_allowed")
        raw, length = _key_and_length(scope["headers"])
        if self._keys.authenticate_cached(raw) is None:
            await self._keys.authenticate(raw)
        if length > MAX_BODY_BYTES:
            raise errors.body_too_large(MAX_BODY_BYTES)
        body = await read_body(receive, MAX_BODY_BYTES)
        # A body may take its time: a key revoked meanwhile has no open request yet that could be cut.
        principal = self._keys.authenticate_cached(raw) or await self._keys.authenticate(raw)
        return principal, ROUTES[scope["path"]](body)

    async def _watch_disconnect(self, receive: Receive, request_id: UUID) -> None:
        """Cut the request when its client goes away."""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self._open_requests.abort_request(request_id, AbortReason.CLIENT_DISCONNECTED)
                return


def _key_and_length(headers: list[tuple[bytes, bytes]]) -> tuple[str, int]:
    """The bearer key and the announced length of the body. Raises AuthenticationFailed without a key."""
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


async def read_body(receive: Receive, limit: int) -> bytes:
    """The whole body. Raises RequestTooLarge as soon as it exceeds `limit`, InvalidRequest when it takes too long,
    ClientDisconnected when the client has gone."""
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                chunk: bytes = message.get("body", b"")
                size += len(chunk)
                if size > limit:
                    raise errors.body_too_large(limit)
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
    except TimeoutError:
        raise InvalidRequest(
            f"The body did not arrive within {BODY_TIMEOUT_S:.0f} s.", code="body_timeout"
        ) from None
