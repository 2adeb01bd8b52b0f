"""One connection to the scheduler: a hello frame with the token, then an agent's or a client's frames."""

import asyncio
import hmac
import logging
from typing import Protocol

import msgspec

from core.framing import MAX_FRAME_BYTES
from scheduler import metrics
from scheduler.link import Link
from scheduler.messages import (
    WIRE_VERSION,
    Answers,
    ClientHello,
    FromAgent,
    FromClient,
    PlaceRefused,
    Welcome,
)
from scheduler.wire import Placement
from workers.wire import AgentHello

HELLO_TIMEOUT_S = 5.0
"""Seconds within which a peer must send its hello frame."""
HELLO_MAX_BYTES = 4096
"""Largest hello frame, because it is read before the peer is authenticated."""
ANSWERS_PER_FRAME = 1024
"""Placements and refusals in one frame."""
MAX_NAME = 200
"""Longest name of a peer, in characters."""

log = logging.getLogger(__name__)
_hello = msgspec.msgpack.Decoder(ClientHello | AgentHello)
_from_client = msgspec.msgpack.Decoder(FromClient)
_from_agent = msgspec.msgpack.Decoder(FromAgent)


class SessionHandler(Protocol):
    """What a session reports its events to; the service."""

    epoch: str

    def token_matches(self, token: bytes) -> bool:
        """Whether a hello frame has the right token."""

    def on_client(self, session: "Session") -> None:
        """A client is authenticated."""

    def on_agent(self, session: "Session") -> None:
        """An agent is authenticated."""

    def on_client_message(self, session: "Session", message: FromClient) -> None:
        """A client's message has arrived."""

    def on_agent_message(self, session: "Session", message: FromAgent) -> None:
        """An agent's message has arrived."""

    def dispatch(self) -> None:
        """All messages of one read were handled."""

    def on_disconnect(self, session: "Session") -> None:
        """A connection is closed; its `kind` is empty when it was never authenticated."""


class TokenCheck:
    """Compares tokens in constant time. An empty token never matches."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def matches(self, token: bytes) -> bool:
        """Whether `token` is the right one."""
        return bool(self._token) and hmac.compare_digest(self._token, token)


class Session(Link):
    """The scheduler's end of a connection."""

    def __init__(self, handler: SessionHandler) -> None:
        super().__init__(HELLO_MAX_BYTES)
        self.handler = handler
        self.name = ""
        self.kind = ""
        """Empty until the hello frame, then client or agent."""
        self._answers = Answers([], [])
        self._hello_timer: asyncio.TimerHandle | None = None

    def answer(self, decision: Placement | PlaceRefused) -> None:
        """Queue a decision on a request; the decisions of a tick leave in one frame."""
        answers = self._answers
        if isinstance(decision, Placement):
            answers.placed.append(decision)
        else:
            answers.refused.append(decision)
        if len(answers.placed) + len(answers.refused) >= ANSWERS_PER_FRAME:
            self.flush()
        else:
            self.flush_soon()

    def take_batch(self) -> list[Answers]:
        """The decisions of this tick."""
        answers = self._answers
        if not answers.placed and not answers.refused:
            return []
        self._answers = Answers([], [])
        return [answers]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timeout for the hello frame."""
        super().connection_made(transport)
        self._hello_timer = asyncio.get_running_loop().call_later(
            HELLO_TIMEOUT_S, self._reject, "no greeting in time"
        )

    def on_frame(self, frame: bytes) -> None:
        """Handle a frame according to the kind of the peer."""
        if self.kind == "client":
            self.handler.on_client_message(self, _from_client.decode(frame))
        elif self.kind == "agent":
            self.handler.on_agent_message(self, _from_agent.decode(frame))
        else:
            self._on_hello(_hello.decode(frame))

    def on_read(self) -> None:
        """Dispatch once for all frames of one read."""
        if self.kind:
            self.handler.dispatch()

    def on_malformed(self, error: Exception) -> None:
        """Log the peer, never the frame."""
        metrics.REJECTED_CONNECTIONS.labels("malformed").inc()
        log.warning("closing the connection of %s: %s", self.name or "a stranger", error)

    def on_lost(self) -> None:
        """Stop the timeout and report the end of the connection."""
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
        if isinstance(hello, ClientHello) and hello.wire != WIRE_VERSION:
            self._reject(
                "another version of the wire",
                f"the scheduler speaks version {WIRE_VERSION} of the wire, "
                f"this process {hello.wire}: run both from one release",
            )
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
            self.send(Welcome(self.handler.epoch, wire=WIRE_VERSION))
            self.handler.on_client(self)

    def _reject(self, why: str, details: str = "", *, notify: bool = True) -> None:
        metrics.REJECTED_CONNECTIONS.labels(why).inc()
        log.warning("turning a connection away: %s", details or why)
        if notify:
            self.send(Welcome("", details or why, WIRE_VERSION))
        self.close()
