"""The hot path: /v1/chat/completions and /v1/completions as one raw ASGI callable.

It authenticates the key, reads the body, passes both to the gateway's director, and writes the answer or the error as
HTTP. It uses no routing, request objects or middleware, since those of FastAPI cost about 0.2 ms per request.
"""

import asyncio
import contextlib
import logging
from collections.abc import MutableMapping
from functools import partial
from typing import Any, Protocol
from uuid import UUID

import msgspec

from api import cors, errors
from api.customer.answer_headers import CLIENT_REQUEST_ID, check_client_request_id
from api.customer.body import Receive, inflate, is_compressed, read_body
from api.customer.protocol import EXTENSION, ClientConnection
from api.customer.reply import HttpReply, Send
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
from gateway.ports import ClientDisconnected, Rates
from gateway.schemas.common import PreparedRequest
from gateway.schemas.fields import ignored_header
from gateway.telemetry import Telemetry
from tenants.principal import Principal

Scope = MutableMapping[str, Any]

ROUTES = {"/v1/chat/completions": CHAT, "/v1/completions": TEXT}
_INVALID = (InvalidRequest, NotFound, PermissionDenied)
"""Errors of a request that is wrong in itself."""
_NO_EXTENSIONS: dict[str, Any] = {}
_ANSWERS_BUSY = Unavailable(
    "Large answers of this organisation are being collected or read; ask for a stream, or try again in a second.",
    code="answers_busy",
    retry_after_s=1.0,
)

log = logging.getLogger(__name__)


class _Head(msgspec.Struct, gc=False):
    """What the hot path reads of a request's headers."""

    authorization: bytes = b""
    encoding: bytes = b""
    """The body's Content-Encoding."""
    client_id: bytes | None = None
    """The client's own id of the request."""
    length: int = 0
    """Announced bytes of the body; 0 = not announced."""
    origin: str = ""
    """The origin of the page that a browser sends the request for; empty without a browser."""

    @property
    def key(self) -> str:
        """The bearer key. Raises AuthenticationFailed without one."""
        scheme, _, token = self.authorization.decode("latin-1").partition(" ")
        if scheme.lower() == "bearer" and (key := token.strip()):
            return key
        raise AuthenticationFailed(
            "No API key: send it as 'Authorization: Bearer pen_live_...'.", code="missing_api_key"
        )


class Keys(Protocol):
    """The parts of tenants.keys.KeyRing that the hot path uses."""

    origins: frozenset[str]
    """Every origin of browsers that some key allows."""

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
            principal, prepared = await self._authenticate_and_parse(scope, receive, reply)
        except ClientDisconnected:
            return
        except asyncio.CancelledError:  # the server stops, and the body has not arrived
            await reply.fail(AbortReason.SHUTDOWN.error())
            return
        except PenstockError as error:
            self._telemetry.count_refusal(error.code)
            await reply.fail(error)
            return
        if prepared.ignored_fields:
            named = ignored_header(prepared.ignored_fields)
            reply.headers.append((b"x-penstock-ignored-fields", named))
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
        except asyncio.CancelledError:
            await reply.fail(AbortReason.SHUTDOWN.error())
            raise
        except Exception:
            log.exception("request %s failed with an unexpected error", request_id)
            await reply.fail(errors.INTERNAL)
        finally:
            if watch is not None:
                watch.cancel()

    async def _authenticate_and_parse(
        self, scope: Scope, receive: Receive, reply: HttpReply
    ) -> tuple[Principal, PreparedRequest]:
        """Return the principal and the validated request, and tell `reply` which headers it has for them.

        The body is read only when the key is authenticated and its rate is not used up. An invalid one counts as a
        request. Raises ClientDisconnected, or the PenstockError to answer with.
        """
        if scope["method"] != "POST":
            raise InvalidRequest(f"{scope['path']} answers POST only.", code="method_not_allowed")
        head = _read_head(scope["headers"])
        if head.client_id is not None:
            reply.headers.append(check_client_request_id(head.client_id))
        if head.origin and head.origin in self._keys.origins:
            reply.page_headers = cors.allow(head.origin)  # a page may read why its key is refused
        raw = head.key
        principal = self._keys.authenticate_cached(raw) or await self._keys.authenticate(raw)
        self._restrictions.check(principal, scope, "inference")
        reply.limits = partial(self._rates.known_headers, principal)
        reply.quota_status = principal.quota_status
        if head.origin and not cors.check_origin(principal, head.origin):
            reply.page_headers = []
        self._rates.check(principal)
        self._invalid.check(scope, principal.key_id)
        try:
            prepared = await self._read_and_parse(principal, ROUTES[scope["path"]], receive, head)
        except InvalidRequest:
            self._rates.charge_invalid(principal)
            self._invalid.count(scope, principal.key_id)
            raise
        # Check the key again: it may have been revoked while the body arrived, before the request was registered.
        principal = self._keys.authenticate_cached(raw) or await self._keys.authenticate(raw)
        return self._restrictions.check(principal, scope, "inference"), prepared

    async def _read_and_parse(
        self, principal: Principal, endpoint: bytes, receive: Receive, head: _Head
    ) -> PreparedRequest:
        """Return the validated request. A body that is compressed may have as many bytes as one that is not."""
        limit = self._parser.limit(principal, endpoint)
        if head.length > limit:
            raise errors.body_too_large(limit)
        compressed = is_compressed(head.encoding)
        size = limit if compressed else head.length or limit
        with contextlib.ExitStack() as reservation:

            def reserve() -> None:
                reservation.enter_context(self._budget.reserve(principal, size))

            body = await read_body(receive, limit, reserve)
            if compressed:
                body = await inflate(body, limit, reserve)
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


def _read_head(headers: list[tuple[bytes, bytes]]) -> _Head:
    head = _Head()
    for name, value in headers:
        if name == b"authorization":
            head.authorization = value
        elif name == b"content-length" and value.isdigit():
            head.length = int(value[:20])
        elif name == b"content-encoding":
            head.encoding = value.strip().lower()
        elif name == CLIENT_REQUEST_ID:
            head.client_id = value
        elif name == b"origin":
            head.origin = value.decode("latin-1")
    return head
