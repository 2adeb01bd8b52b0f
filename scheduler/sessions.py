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
from workers.join_token import secret_hash
from workers.wire import (
    AgentHello,
    AgentJoin,
    AgentRefusal,
    AgentRotation,
    AuthorityAnswer,
    AuthorityRequest,
)

HELLO_TIMEOUT_S = 5.0
"""Seconds within which a peer must send its hello frame."""
HELLO_MAX_BYTES = 4096
"""Largest hello frame, because it is read before the peer is authenticated."""
ANSWERS_PER_FRAME = 1024
"""Placements and refusals in one frame."""
MAX_NAME = 200
"""Longest name of a peer, in characters."""

log = logging.getLogger(__name__)
_hello = msgspec.msgpack.Decoder(ClientHello | AgentHello | AgentJoin | AgentRotation | AuthorityRequest)
_from_client = msgspec.msgpack.Decoder(FromClient)
_from_agent = msgspec.msgpack.Decoder(FromAgent)


class SessionHandler(Protocol):
    """What a session reports its events to; the service."""

    epoch: str
    term: int
    """Of the lease under which it serves."""

    def may_serve(self) -> bool:
        """Whether it still serves; asked before each read is handled. When not, it has closed all connections."""

    def outdated(self, term: int) -> None:
        """A peer knows a scheduler of the higher term `term`."""

    def refusal(self, session: "Session") -> str:
        """Why a peer is turned away although it is authenticated; empty when it is not."""

    def on_peer(self, session: "Session") -> None:
        """A client or an agent is authenticated."""

    def on_client_message(self, session: "Session", message: FromClient) -> None:
        """A client's message has arrived."""

    def on_agent_message(self, session: "Session", message: FromAgent) -> None:
        """An agent's message has arrived."""

    def dispatch(self) -> None:
        """All messages of one read were handled."""

    def on_disconnect(self, session: "Session") -> None:
        """A connection is closed; its `kind` is empty when it was never authenticated."""


class Host(Protocol):
    """What accepts connections; the door."""

    sessions: "set[Session]"
    handler: SessionHandler | None

    def token_matches(self, token: bytes) -> bool:
        """Whether a hello frame has the right token."""

    @property
    def authority(self) -> bytes:
        """The certificate of the authority that signs this scheduler's; empty without TLS."""

    def plain_fault(self, peer: str) -> str:
        """Why a peer is not heard without TLS; empty when it is."""

    def agent_fault(self, hello: AgentHello, peer: str) -> str:
        """Why an agent with the right token, or with a secret, is turned away; empty when it is not."""

    def join(self, session: "Session", message: AgentJoin | AgentRotation, refusal: str) -> None:
        """A host wants to join, or another secret: answer it, and close the connection. With `refusal` it may not."""

    def introduce(self, session: "Session") -> None:
        """A peer is authenticated: lead it to what serves."""


class TokenCheck:
    """Compares tokens in constant time. An empty token never matches."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def matches(self, token: bytes) -> bool:
        """Whether `token` is the right one."""
        return bool(self._token) and hmac.compare_digest(self._token, token)


class Session(Link):
    """The scheduler's end of a connection."""

    def __init__(self, host: Host, *, encrypted: bool = False) -> None:
        super().__init__(HELLO_MAX_BYTES)
        self.host, self.encrypted = host, encrypted
        self.handler: SessionHandler | None = None
        """What serves the peer; None before the hello frame, and while the scheduler stands by."""
        self.name = ""
        self.kind = ""
        """Empty until the hello frame, then client or agent."""
        self.term = 0
        """The highest term that the peer knew when it connected."""
        self.waits = False
        """Whether the peer is an agent that waits for a Claim."""
        self.run = ""
        """The agent's id of its run; empty for other peers."""
        self.heard_at = 0.0
        """When an agent has sent something last, in seconds of the service's clock."""
        self.wants: list[str] = []
        """The added models whose entries the peer needs and has not been sent."""
        self.secret_hash: bytes | None = None
        """Of the secret of a host that has joined; None = another peer."""
        self.engines = ("", b"")
        """Key of the agent's engines, empty = the platform's, and certificate of their authority, empty = no TLS."""
        self.takes_keys = False
        """Whether the client sends requests to engines, so that it needs their keys."""
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
        self.host.sessions.add(self)
        self._hello_timer = asyncio.get_running_loop().call_later(
            HELLO_TIMEOUT_S, self._reject, "no greeting in time"
        )

    def data_received(self, data: bytes) -> None:
        """Handle what has arrived, unless the scheduler has lost its lease."""
        if self.handler is None or self.handler.may_serve():
            super().data_received(data)

    def on_frame(self, frame: bytes) -> None:
        """Handle a frame according to the kind of the peer. What comes before this process serves is dropped."""
        if not self.kind:
            self._on_hello(_hello.decode(frame))
        elif self.handler is None:
            return
        elif self.kind == "client":
            self.handler.on_client_message(self, _from_client.decode(frame))
        else:
            self.handler.on_agent_message(self, _from_agent.decode(frame))

    def on_read(self) -> None:
        """Dispatch once for all frames of one read."""
        if self.handler is not None:
            self.handler.dispatch()

    def on_malformed(self, error: Exception) -> None:
        """Log the peer, never the frame."""
        metrics.REJECTED_CONNECTIONS.labels("malformed").inc()
        log.warning("closing the connection of %s: %s", self.name or "a stranger", error)

    def on_lost(self) -> None:
        """Stop the timeout and report the end of the connection."""
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self.host.sessions.discard(self)
        if self.kind:
            metrics.CONNECTIONS.labels(self.kind).dec()
        if self.handler is not None:
            self.handler.on_disconnect(self)

    def _on_hello(
        self, hello: ClientHello | AgentHello | AgentJoin | AgentRotation | AuthorityRequest
    ) -> None:
        if isinstance(hello, AuthorityRequest):
            self.send(AuthorityAnswer(self.host.authority))
            self.close()
            return
        exposed = "" if self.encrypted else self.host.plain_fault(self.peer)
        if isinstance(hello, AgentJoin | AgentRotation):
            self.splitter.max_bytes = 0  # nothing may follow
            self.host.join(self, hello, exposed)
            return
        is_agent = isinstance(hello, AgentHello)
        if isinstance(hello, AgentHello):
            self.waits, self.run, name = hello.waits, hello.run, hello.agent_id
            self.wants = [name for name in hello.wants.split(",") if name]
            self.engines = (hello.engine_key, hello.engine_authority)
            self.secret_hash = secret_hash(hello.token) if hello.joined else None
        else:
            name, self.takes_keys = hello.name, hello.takes_keys
        why, details = ("a connection without TLS", exposed) if exposed else self._fault(hello, name)
        if why:
            self._reject(why, details, is_agent=is_agent)
            return
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self.name, self.term = name, hello.term
        self.splitter.max_bytes = MAX_FRAME_BYTES
        self.kind = "agent" if is_agent else "client"
        metrics.CONNECTIONS.labels(self.kind).inc()
        self.host.introduce(self)

    def _fault(self, hello: ClientHello | AgentHello, name: str) -> tuple[str, str]:
        """Why the peer is turned away, for the metric and, where that says too little, for the log; "" if it is not."""
        joined = isinstance(hello, AgentHello) and hello.joined
        if not joined and not self.host.token_matches(hello.token.encode(errors="surrogatepass")):
            return (
                "wrong internal token",
                "wrong internal token: PENSTOCK_INTERNAL_TOKEN must be the scheduler's",
            )
        if isinstance(hello, AgentHello) and (problem := self.host.agent_fault(hello, self.peer)):
            return "an agent without a secret that holds", problem
        if not name or len(name) > MAX_NAME:
            return "a name must have 1 to 200 characters", ""
        if isinstance(hello, ClientHello) and hello.wire != WIRE_VERSION:
            return (
                "another version of the wire",
                f"the scheduler speaks version {WIRE_VERSION} of the wire, "
                f"this process {hello.wire}: run both from one release",
            )
        if isinstance(hello, AgentHello) and not hello.waits and self.host.handler is None:
            return "an agent of an older release, and this scheduler stands by", ""
        return "", ""

    def turn_away(self, why: str, details: str) -> None:
        """Refuse a peer that is authenticated: `why` for the metric, `details` for its log and this one's."""
        self._reject(why, details, is_agent=self.kind == "agent")

    def _reject(self, why: str, details: str = "", *, is_agent: bool = False) -> None:
        metrics.REJECTED_CONNECTIONS.labels(why).inc()
        log.warning("turning a connection away: %s", details or why)
        if not is_agent:
            self.send(Welcome("", details or why, WIRE_VERSION))
        elif self.waits:
            self.send(AgentRefusal(details or why))
        self.close()
