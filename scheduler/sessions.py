"""One connection to the scheduler: first a greeting with the token, then an agent's or a client's frames."""

import asyncio
import hmac
import logging
from typing import Protocol

import msgspec

from core.framing import MAX_FRAME_BYTES
from scheduler import metrics
from scheduler.link import Link
from scheduler.messages import ClientHello, FromAgent, FromClient, Welcome
from workers.wire import AgentHello

HELLO_TIMEOUT_S = 5.0
HELLO_MAX_BYTES = 4096
"""Strangers may not make us keep more than this."""
MAX_NAME = 200

log = logging.getLogger(__name__)
_hello = msgspec.msgpack.Decoder(ClientHello | AgentHello)
_from_client = msgspec.msgpack.Decoder(FromClient)
_from_agent = msgspec.msgpack.Decoder(FromAgent)


class SessionHandler(Protocol):
    """What a session reports to; the service."""

    epoch: str

    def token_matches(self, token: bytes) -> bool:
        """Whether a greeting's token is ours."""

    def on_client(self, session: "Session") -> None:
        """A client has greeted."""

    def on_agent(self, session: "Session") -> None:
        """An agent has greeted."""

    def on_client_message(self, session: "Session", message: FromClient) -> None:
        """A client's message."""

    def on_agent_message(self, session: "Session", message: FromAgent) -> None:
        """An agent's message."""

    def dispatch(self) -> None:
        """All messages of one read are in: decide."""

    def on_disconnect(self, session: "Session") -> None:
        """A connection is gone; its `kind` is empty when it never greeted."""


class TokenCheck:
    """Compares tokens in constant time; never matches while none is set."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def matches(self, token: bytes) -> bool:
        """Whether `token` is ours."""
        return bool(self._token) and hmac.compare_digest(self._token, token)


class Session(Link):
    """The scheduler's end of a connection."""

    def __init__(self, handler: SessionHandler) -> None:
        super().__init__(HELLO_MAX_BYTES)
        self.handler = handler
        self.name = ""
        self.kind = ""
        """"" until greeted, then client or agent."""
        self._hello_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Give the stranger a few seconds to say who it is."""
        super().connection_made(transport)
        self._hello_timer = self._loop.call_later(HELLO_TIMEOUT_S, self._reject, "no greeting in time")

    def on_frame(self, frame: bytes) -> None:
        """Dispatch on who the peer is."""
        if self.kind == "client":
            self.handler.on_client_message(self, _from_client.decode(frame))
        elif self.kind == "agent":
            self.handler.on_agent_message(self, _from_agent.decode(frame))
        else:
            self._on_hello(_hello.decode(frame))

    def on_read(self) -> None:
        """One round of decisions for everything that came in one read."""
        if self.kind:
            self.handler.dispatch()

    def on_malformed(self, error: Exception) -> None:
        """Say who sent it; never the frame itself."""
        metrics.REJECTED_CONNECTIONS.labels("malformed").inc()
        log.warning("closing the connection of %s: %s", self.name or "a stranger", error)

    def on_lost(self) -> None:
        """Forget the timer and tell the service."""
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        if self.kind:
            metrics.CONNECTIONS.labels(self.kind).dec()
        self.handler.on_disconnect(self)

    def _on_hello(self, hello: ClientHello | AgentHello) -> None:
        is_agent = isinstance(hello, AgentHello)
        name = hello.agent_id if isinstance(hello, AgentHello) else hello.name
        if not self.handler.token_matches(hello.token.encode(errors="surrogatepass")):
            self._reject("wrong internal token", notify=not is_agent)
            return
        if not name or len(name) > MAX_NAME:
            self._reject("a name must have 1 to 200 characters", notify=not is_agent)
            return
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self.name = name
        self.splitter.max_bytes = MAX_FRAME_BYTES
        self.kind = "agent" if is_agent else "client"
        metrics.CONNECTIONS.labels(self.kind).inc()
        if is_agent:
            self.handler.on_agent(self)
        else:
            self.send(Welcome(self.handler.epoch))
            self.handler.on_client(self)

    def _reject(self, why: str, notify: bool = True) -> None:
        metrics.REJECTED_CONNECTIONS.labels(why).inc()
        log.warning("turning a connection away: %s", why)
        if notify:
            self.send(Welcome("", why))
        self.close()
