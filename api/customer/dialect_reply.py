"""The HTTP response of an inference request in another API's form (gateway/dialects)."""

from collections.abc import Awaitable, Callable
from uuid import UUID

import msgspec

from api import errors
from api.customer.client_connection import ClientConnection
from api.customer.reply import HttpReply, Send, no_op
from core.errors import PenstockError
from gateway.dialects.dialect import Dialect, Translation
from gateway.open_requests import KEEP_ALIVE
from gateway.ports import Headers
from gateway.schemas.common import PreparedRequest
from tenants.principal import Principal


class DialectReply(HttpReply):
    """Translates what the gateway writes, which are chat events and documents."""

    __slots__ = ("_dialect", "_translation")

    def __init__(
        self, send: Send, request_id: UUID, connection: ClientConnection | None, dialect: Dialect
    ) -> None:
        super().__init__(send, request_id, connection)
        self._dialect = dialect
        self._translation: Translation | None = None
        """Set when the request is known to be valid; until then only errors are answered."""

    def begin(self, prepared: PreparedRequest, principal: Principal) -> None:
        """Begin the translation of the answer to a valid request."""
        self._translation = self._dialect.begin(self.request_id, prepared)

    @property
    def _begun(self) -> Translation:
        if self._translation is None:
            raise RuntimeError("an answer begins after its request was parsed")
        return self._translation

    @property
    def write_now(self) -> Callable[[bytes], bool]:
        """Sends the translated events without waiting; False, and nothing is translated, when only `write` can."""
        return self._write_translated_now

    def _write_translated_now(self, events: bytes) -> bool:
        connection = self._connection
        if connection is None or not connection.can_write_now():
            return False
        translated = self._begun.feed(events)
        return not translated or connection.write_now(translated)

    def write(self, events: bytes) -> Awaitable[None]:
        """Send whole events in the dialect's form. The result must be awaited."""
        if self.finished:
            return no_op()
        translation = self._begun
        translated = translation.keep_alive() if events == KEEP_ALIVE else translation.feed(events)
        return super().write(translated) if translated else no_op()

    async def start(self, headers: Headers, prompt_tokens: int = 0) -> None:
        """Send status 200 and the headers of an event stream."""
        self._begun.start(prompt_tokens)
        await super().start(self._with_own(headers))

    async def end(self, events: bytes) -> None:
        """Send the last events in the dialect's form, end the response, and wait until the client has taken them."""
        await super().end(self._begun.end(events))

    async def respond(self, body: bytes, headers: Headers) -> None:
        """Send a whole answer in the dialect's form, and wait until the client has taken it."""
        await super().respond(self._begun.whole(body), self._with_own(headers))

    async def answer(self, status: int, body: bytes, headers: Headers) -> None:
        """Send a whole response, which is in the dialect's form already, without waiting for the client."""
        await super().answer(status, body, self._with_own(headers))

    def _with_own(self, headers: Headers) -> Headers:
        """`headers` and those that the dialect adds."""
        return headers + self._dialect.headers(self.request_id, headers)

    async def fail(self, error: PenstockError) -> None:
        """Send an error with the caller's names of fields: the parser knows them, checks behind it know chat's."""
        await super().fail(error if self._translation is None else self._dialect.names.in_error(error))

    async def _end_with(self, error: PenstockError) -> None:
        status, _ = errors.status_of(error)
        await super().end(self._begun.fail(status, error))

    def _error_answer(self, error: PenstockError) -> tuple[int, bytes, Headers]:
        status, body, headers = super()._error_answer(error)
        status, document = self._dialect.error(self.request_id, status, error)
        return status, body if document is None else msgspec.json.encode(document), headers
