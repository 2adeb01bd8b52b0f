"""The hot path: the routes of inference as one raw ASGI callable.

It authenticates the key, reads the body, passes both to the gateway's director, and writes the answer or the error as
HTTP. It uses no routing, request objects or middleware, since those of FastAPI cost about 0.2 ms per request.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import msgspec

from api import cors, credentials, errors
from api.customer.answer_headers import CLIENT_REQUEST_ID, check_client_request_id
from api.customer.background import BackgroundResponses
from api.customer.body import Receive, inflate, is_compressed, read_body
from api.customer.client_connection import EXTENSION, ClientConnection
from api.customer.deprecation import Endings, deprecation_headers
from api.customer.dialect_reply import DialectReply
from api.customer.reply import HttpReply, Send
from api.customer.response_reply import ResponseReply
from api.customer.response_stream import ResponseStreams, send_stream
from api.key_restrictions import KeyRestrictions
from api.request_rates import InvalidRequestRate
from core.errors import (
    InvalidRequest,
    NotFound,
    PenstockError,
    PermissionDenied,
    Unavailable,
)
from core.ids import uuid7
from gateway.context import AbortReason
from gateway.dialects.dialect import Dialect
from gateway.dialects.messages.dialect import MessagesDialect
from gateway.dialects.responses.store import ResponseStore
from gateway.dialects.responses.stored import framed
from gateway.dialects.responses.translation import Responses, response_id
from gateway.director import Director
from gateway.open_requests import OpenRequests
from gateway.parsing.budget import INLINE_BYTES, BodyBudget
from gateway.parsing.parser import (
    CHAT,
    CONTINUED,
    COUNT,
    DETOKENIZE,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    TEXT,
    TOKENIZE,
    BodyParser,
)
from gateway.places import GPU, REGION, named_places
from gateway.ports import ClientDisconnected, Rates
from gateway.schemas.common import PreparedRequest
from gateway.schemas.fields import ignored_header
from gateway.telemetry import Telemetry
from gateway.token_counts import TokenCounts
from tenants.principal import Principal

Scope = MutableMapping[str, Any]


TokenAnswer = Callable[[TokenCounts[Any], UUID, Principal, PreparedRequest], Awaitable[bytes]]
"""Returns the body of an answer about tokens."""


class Route(NamedTuple):
    """A route of inference."""

    endpoint: bytes
    """The parser of its bodies (gateway/parsing/worker.py)."""
    dialect: Dialect | None = None
    """The form of its answers; None = OpenAI's chat and completions, as the gateway writes them."""
    tokens: TokenAnswer | None = None
    """The answer of a route that tells the tokens of a prompt, without an engine; None for others."""


def _count_as(form: bytes) -> TokenAnswer:
    """Answers how many tokens a prompt has; `form`: the body with %d for the number."""

    async def answer(
        counts: TokenCounts[Any], request_id: UUID, principal: Principal, prepared: PreparedRequest
    ) -> bytes:
        return form % await counts.count(request_id, principal, prepared)

    return answer


def _utc_now() -> datetime:
    return datetime.now(UTC)


_MESSAGES, _RESPONSES = MessagesDialect(_utc_now), Responses(time.time)
ROUTES = {
    "/v1/chat/completions": Route(CHAT),
    "/v1/completions": Route(TEXT),
    "/v1/embeddings": Route(EMBEDDINGS),
    "/v1/messages": Route(MESSAGES, _MESSAGES),
    "/v1/messages/count_tokens": Route(COUNT, _MESSAGES, _count_as(b'{"input_tokens":%d}')),
    "/v1/responses": Route(RESPONSES, _RESPONSES),
    "/v1/responses/input_tokens": Route(
        RESPONSES, _RESPONSES, _count_as(b'{"object":"response.input_tokens","input_tokens":%d}')
    ),
    "/v1/tokenize": Route(TOKENIZE, None, TokenCounts.tokenize),
    "/v1/detokenize": Route(DETOKENIZE, None, TokenCounts.detokenize),
}
TOKENS_TIMEOUT_S = 30.0
"""Seconds in which a client takes a large list of tokens; then its connection is closed."""
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
    api_key: bytes = b""
    """The key as Anthropic's SDKs send it."""
    encoding: bytes = b""
    """The body's Content-Encoding."""
    client_id: bytes | None = None
    """The client's own id of the request."""
    length: int = 0
    """Announced bytes of the body; 0 = not announced."""
    regions: bytes | None = None
    gpus: bytes | None = None
    """Names of regions and of classes of GPU that the request has to run in and on; None = any."""
    origin: str = ""
    """The origin of the page that a browser sends the request for; empty without a browser."""

    @property
    def key(self) -> str:
        """The API key. Raises AuthenticationFailed without one."""
        return credentials.key_of(self.authorization, self.api_key)


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
        counts: TokenCounts[Any],
        responses: ResponseStore,
        background: BackgroundResponses,
        streams: ResponseStreams,
        endings: Endings,
    ) -> None:
        self._keys = keys
        self._responses = responses
        self._background = background
        self._streams = streams
        self._endings = endings
        self._rates = rates
        self._parser = parser
        self._invalid = invalid
        self._budget = budget
        self._restrictions = restrictions
        self._counts = counts
        self._director = director
        self._open_requests = open_requests
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Every error is answered in the shape of its route."""
        request_id = uuid7()
        connection: ClientConnection | None = scope.get("extensions", _NO_EXTENSIONS).get(EXTENSION)
        route = ROUTES[scope["path"]]
        reply = self._reply(route.dialect, send, request_id, connection)
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
        reply.begin(prepared, principal)
        if (told := self._endings.deprecation(prepared.model, principal.allowed_models)) is not None:
            reply.headers += deprecation_headers(told)
        if prepared.ignored_fields:
            named = ignored_header(prepared.ignored_fields)
            reply.headers.append((b"x-penstock-ignored-fields", named))
        if not prepared.stream and not self._open_requests.has_room(principal.tenant_id):
            self._telemetry.count_refusal(_ANSWERS_BUSY.code)
            await reply.fail(_ANSWERS_BUSY)
            return
        _drop_headers(scope)
        if prepared.dialect_fields.get("background") and route.tokens is None:
            await self._serve_background(scope, receive, principal, prepared, reply)
            return
        watch: asyncio.Task[None] | None = None
        if connection is None:
            watch = asyncio.create_task(self._watch_disconnect(receive, request_id))
        elif not connection.watch(partial(self._on_disconnect, request_id)):
            return
        try:
            if route.tokens is not None:
                body = await route.tokens(self._counts, request_id, principal, prepared)
                await self._send_tokens(principal, reply, body)
            else:
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

    async def _send_tokens(self, principal: Principal, reply: HttpReply, body: bytes) -> None:
        """Send an answer about tokens. A large one counts as a large body until its client has taken it.

        Raises what `BodyBudget.reserve` raises, and ClientDisconnected.
        """
        if len(body) <= INLINE_BYTES:
            await reply.answer(200, body, [])
            return
        with self._budget.reserve(principal, len(body)), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TOKENS_TIMEOUT_S):
                await reply.respond(body, [])

    async def _serve_background(
        self,
        scope: Scope,
        receive: Receive,
        principal: Principal,
        prepared: PreparedRequest,
        reply: HttpReply,
    ) -> None:
        """Start a response in the background and answer it as queued or with its stream. It outlives the connection."""
        streamed = prepared.stream
        try:
            document = await self._background.begin(reply.request_id, principal, prepared)
            if not streamed:
                await reply.answer(200, msgspec.json.encode(document), reply.limits())
                return
            stream = self._streams.stream(principal, response_id(reply.request_id))
            await send_stream(stream, reply.take_headers() + reply.limits(), scope, receive, reply.asgi_send)
        except ClientDisconnected:
            pass  # its response goes on
        except PenstockError as error:
            if isinstance(error, _INVALID):
                self._invalid.count(scope, principal.key_id)
            await reply.fail(error)
        except Exception:
            log.exception("request %s failed with an unexpected error", reply.request_id)
            await reply.fail(errors.INTERNAL)

    def _reply(
        self, dialect: Dialect | None, send: Send, request_id: UUID, connection: ClientConnection | None
    ) -> HttpReply:
        """Return the empty answer of a request, in the form of its route."""
        if dialect is None:
            return HttpReply(send, request_id, connection)
        if isinstance(dialect, Responses):
            return ResponseReply(send, request_id, connection, dialect, self._responses)
        return DialectReply(send, request_id, connection, dialect)

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
            connection = scope.get("extensions", _NO_EXTENSIONS).get(EXTENSION)
            endpoint = ROUTES[scope["path"]].endpoint
            regions, gpus = named_places(head.regions, REGION), named_places(head.gpus, GPU)
            prepared = await self._read_and_parse(principal, endpoint, receive, head, connection)
            prepared.regions, prepared.gpus = regions, gpus
        except InvalidRequest:
            self._rates.charge_invalid(principal)
            self._invalid.count(scope, principal.key_id)
            raise
        # Check the key again: it may have been revoked while the body arrived, before the request was registered.
        principal = self._keys.authenticate_cached(raw) or await self._keys.authenticate(raw)
        return self._restrictions.check(principal, scope, "inference"), prepared

    async def _read_and_parse(
        self,
        principal: Principal,
        endpoint: bytes,
        receive: Receive,
        head: _Head,
        connection: ClientConnection | None,
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

            body = connection.take_body(min(limit, INLINE_BYTES)) if connection is not None else None
            if body is None:
                body = await read_body(receive, limit, reserve)
            if compressed:
                body = await inflate(body, limit, reserve)
            if endpoint == RESPONSES and (stored := await self._responses.context_of(principal, body)):
                endpoint, body = CONTINUED, framed(stored, body)
                reservation.enter_context(self._budget.reserve(principal, len(body)))
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
        elif name == credentials.API_KEY:
            head.api_key = value
        elif name == b"content-length" and value.isdigit():
            head.length = int(value[:20])
        elif name == b"content-encoding":
            head.encoding = value.strip().lower()
        elif name == CLIENT_REQUEST_ID:
            head.client_id = value
        elif name == REGION:
            head.regions = value if head.regions is None else head.regions + b"," + value
        elif name == GPU:
            head.gpus = value if head.gpus is None else head.gpus + b"," + value
        elif name == b"origin":
            head.origin = value.decode("latin-1")
    return head
