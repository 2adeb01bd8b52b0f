"""The reply to a response in the background: without a connection, it keeps the answer and the events."""

from collections.abc import Awaitable

from api.customer.reply import no_op
from billing.metering.records import UsageRecord
from gateway.dialects.responses.events import EventLog
from gateway.dialects.responses.translation import ResponseTranslation
from gateway.open_requests import KEEP_ALIVE
from gateway.ports import Headers


class BackgroundReply:
    """Takes what the gateway writes (gateway.ports.Reply) into the response object, without waiting for anything."""

    def __init__(self, response: ResponseTranslation, log: EventLog | None) -> None:
        """`log`: the events of its stream; None when the request asked for none."""
        self.response = response
        self.log = log
        self.started = False
        self.complete = False
        """Whether the whole answer has arrived."""

    @property
    def unsent(self) -> int:
        """Nothing waits for a client."""
        return 0

    def record(self, events: bytes) -> None:
        """Add events to the stream."""
        if self.log is not None:
            self.log.add(events, self.response.number)

    async def start(self, headers: Headers, prompt_tokens: int = 0) -> None:
        """Note that content comes, or that it takes long. There are no headers to send."""
        self.started = True

    def write_now(self, events: bytes) -> bool:
        """Take whole events; always True."""
        self.record(self.response.feed(events))
        return True

    def write(self, events: bytes) -> Awaitable[None]:
        """Take whole events; a comment is not recorded, since each reader's connection has its own."""
        if events != KEEP_ALIVE:
            self.write_now(events)
        return no_op()

    async def end(self, events: bytes) -> None:
        """Take the last events."""
        self.record(self.response.close(events))
        self.complete = True

    async def respond(self, body: bytes, headers: Headers) -> None:
        """Take a whole answer."""
        self.response.take_whole(body)
        self.started = self.complete = True

    def settled(self, record: UsageRecord) -> None:
        """Keep the bill for a response that has no end of its own."""
        self.response.bill(record)
