"""The HTTP response of POST /v1/responses: a dialect's, which is stored before its end is sent."""

from uuid import UUID

import msgspec

from api.customer.client_connection import ClientConnection
from api.customer.dialect_reply import DialectReply
from api.customer.reply import HttpReply, Send
from billing.metering.records import UsageRecord
from gateway.dialects.responses.store import Kept, ResponseStore
from gateway.dialects.responses.translation import Responses, ResponseTranslation
from gateway.ports import Headers
from gateway.schemas.common import PreparedRequest
from tenants.principal import Principal


class ResponseReply(DialectReply):
    """Stores what it has sent, so that a client may continue the response as soon as it has read its last event."""

    __slots__ = ("_kept", "_principal", "_response", "_responses", "_store")

    def __init__(
        self,
        send: Send,
        request_id: UUID,
        connection: ClientConnection | None,
        dialect: Responses,
        store: ResponseStore,
    ) -> None:
        super().__init__(send, request_id, connection, dialect)
        self._responses = dialect
        self._store = store
        self._response: ResponseTranslation | None = None
        self._principal: Principal | None = None
        self._kept: Kept | None = None
        """What is stored beside the answer; None = nothing is stored."""

    def begin(self, prepared: PreparedRequest, principal: Principal) -> None:
        """Begin the translation of the answer to a valid request."""
        self._response = self._responses.begin(self.request_id, prepared)
        self._translation = self._response
        self._principal = principal
        known = prepared.dialect_fields
        if known["store"]:
            self._kept = Kept(known["previous"], known["input"])

    async def _save(self, response: ResponseTranslation) -> bool:
        """Store the response, and return whether it is stored."""
        kept, self._kept = self._kept, None
        if kept is None or self._principal is None:
            return False
        document = msgspec.json.encode(response.response(stored=True))
        return await self._store.save(self._principal, self.request_id, kept, document)

    @property
    def _answer(self) -> ResponseTranslation:
        if self._response is None:
            raise RuntimeError("an answer begins after its request was parsed")
        return self._response

    async def end(self, events: bytes) -> None:
        """Send the last events and end the stream, once the response is stored."""
        if self.finished:
            return
        response = self._answer
        items = response.close(events)
        stored = await self._save(response)
        await HttpReply.end(self, items + response.finish(stored=stored))

    async def respond(self, body: bytes, headers: Headers) -> None:
        """Send a whole answer, once it is stored, and wait until the client has taken it."""
        response = self._answer
        response.take_whole(body)
        document = response.response(stored=await self._save(response))
        await HttpReply.respond(self, msgspec.json.encode(document), headers)

    def settled(self, record: UsageRecord) -> None:
        """Keep the bill for the last event of a stream that fails."""
        self._answer.bill(record)
