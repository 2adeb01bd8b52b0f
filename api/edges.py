"""What every answer outside inference has in common: its ids, OpenAI's headers, and which bodies are read."""

import time
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import cors, credentials, errors
from api.customer import anthropic
from api.customer.answer_headers import (
    CLIENT_REQUEST_ID,
    OPENAI_VERSION,
    check_client_request_id,
    processing_ms,
)
from core.errors import AuthenticationFailed, PenstockError
from core.ids import uuid7
from tenants.principal import Principal

_REQUEST_ID = b"x-request-id"


class Keys(Protocol):
    """The parts of tenants.keys.KeyRing that answers to browsers need."""

    origins: frozenset[str]
    """Every origin of browsers that some key allows."""

    def authenticate_cached(self, raw: str) -> Principal | None:
        """Return the principal of a cached key; None when the key is not cached."""


class AnswerHeaders:
    """An ASGI application that adds to the answers of another one: x-request-id, OpenAI's headers, the client's own id.

    A body with a Content-Encoding is refused: only the inference routes read gzip.
    """

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; other scopes than HTTP are passed on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        request_id = str(uuid7())
        scope.setdefault("state", {})["request_id"] = request_id
        own = [(_REQUEST_ID, request_id.encode()), OPENAI_VERSION]
        if anthropic.speaks(scope):
            own.append((b"request-id", request_id.encode()))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own.extend(self._page_headers(scope))
                headers = message.get("headers", [])
                names = {name.lower() for name, _ in headers}
                added = [header for header in own if header[0] not in names]
                message["headers"] = [*headers, *added, processing_ms(time.monotonic() - began)]
            await send(message)

        try:
            own += _checked(scope["headers"])
        except PenstockError as error:
            await send_error(send_with_headers, error)
            return
        await self._app(scope, receive, send_with_headers)

    def _page_headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """The headers for a page whose origin the request's key allows, or any key where it has none that is valid."""
        origin = cors.origin_of(scope["headers"])
        if not origin or origin not in self._keys.origins or not scope["path"].startswith(cors.PREFIX):
            return []
        try:
            principal = self._keys.authenticate_cached(credentials.sent_key(scope["headers"]))
        except AuthenticationFailed:
            principal = None
        return cors.allow(origin) if principal is None or origin in principal.cors_origins else []


def _checked(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers that answer those of a request. Raises InvalidRequest for one that cannot be served."""
    found = []
    for name, value in headers:
        if name == CLIENT_REQUEST_ID:
            found.append(check_client_request_id(value))
        elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise errors.unsupported_encoding(value, gzip=False)
    return found


async def send_error(send: Send, error: PenstockError, headers: Any = ()) -> None:
    """Send an error as a whole response."""
    status, body, found = errors.to_response(error)
    content = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    start = {"type": "http.response.start", "status": status, "headers": [*content, *found, *headers]}
    await send(start)
    await send({"type": "http.response.body", "body": body, "more_body": False})
