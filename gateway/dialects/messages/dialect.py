"""Anthropic's form of answers, errors and headers (gateway.dialects.dialect.Dialect)."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from core.errors import PenstockError
from gateway.dialects.messages.errors import error_document, status_of
from gateway.dialects.messages.fields import NAMES
from gateway.dialects.messages.request import HIDDEN
from gateway.dialects.messages.stream import MessageTranslation
from gateway.ports import Headers
from gateway.schemas.common import PreparedRequest

_LIMITS = {
    b"x-ratelimit-%b-%b" % (value, kind): b"anthropic-ratelimit-%b-%b" % (kind, value)
    for kind in (b"requests", b"tokens")
    for value in (b"limit", b"remaining", b"reset")
}
"""By OpenAI's name of a header about a limit: Anthropic's."""


class MessagesDialect:
    """Anthropic's Messages API. One per process."""

    names = NAMES

    def __init__(self, now: Callable[[], datetime]) -> None:
        """`now` returns the time in UTC."""
        self._now = now

    def begin(self, request_id: UUID, prepared: PreparedRequest) -> MessageTranslation:
        """Return the empty answer to a request."""
        fields = prepared.dialect_fields
        return MessageTranslation(request_id, fields.get("thinking", HIDDEN), fields.get("max_tokens", 0))

    def error(self, request_id: UUID, status: int, error: PenstockError) -> tuple[int, dict[str, Any]]:
        """Return status and document of a request that is answered with an error."""
        status = status_of(status, error)
        return status, error_document(request_id, status, error)

    def headers(self, request_id: UUID, headers: Headers) -> Headers:
        """Return Anthropic's name for the request's id, and its headers for the limits in `headers`."""
        added: Headers = [(b"request-id", str(request_id).encode())]
        for name, value in headers:
            translated = _LIMITS.get(name)
            if translated is not None:
                added.append((translated, self._instant(value) if name[12:17] == b"reset" else value))
        return added

    def _instant(self, wait: bytes) -> bytes:
        """The instant that is `wait`, seconds such as 1.5s, from now, as RFC 3339 has it."""
        at = self._now() + timedelta(seconds=float(wait.removesuffix(b"s")))
        return at.strftime("%Y-%m-%dT%H:%M:%SZ").encode()
