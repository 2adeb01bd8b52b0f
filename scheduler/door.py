"""The scheduler's listening socket. It admits agents and clients, and leads them to the service while one serves.

A standby admits them as well and tells them that it stands by. So all are connected already when it takes over.
"""

import asyncio
import logging
from collections.abc import Callable

from core.addresses import is_loopback
from core.supervise import supervise
from scheduler import metrics
from scheduler.accept import Acceptor
from scheduler.host_admission import HostAdmission
from scheduler.messages import WIRE_VERSION, Welcome
from scheduler.server_tls import ServerTls
from scheduler.sessions import Session, SessionHandler, TokenCheck
from workers.wire import AgentHello, AgentJoin, AgentRotation, Claim, JoinAnswer

SIGN_S = 1.0
"""Seconds between two signs of life to peers that get no snapshots."""

log = logging.getLogger(__name__)


class Door:
    """Listens, and knows all connections and who serves them."""

    def __init__(
        self,
        host: str,
        port: int,
        token: str,
        hosts: HostAdmission | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """`token` is the internal token. Without `hosts` no host joins, and the token admits every agent. With `tls`
        other machines are only heard by it."""
        self.port = port
        self.sessions: set[Session] = set()
        self.handler: SessionHandler | None = None
        """What serves; None while this process stands by."""
        self.heard = 0
        """The highest term that a peer has named."""
        self.entry_of: Callable[[str], str] = lambda name: ""
        """The entry of an added model by name, for agents that need it; empty = not known here."""
        self._host = host
        self._token = TokenCheck(token)
        self._hosts = hosts
        self._joins: set[asyncio.Task[None]] = set()
        self._tls = tls
        self._acceptor = Acceptor(
            lambda encrypted: Session(self, encrypted=encrypted),
            lambda: tls.context if tls is not None else None,
        )
        self._signs: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Afterwards `port` is the actual port. Raises OSError when the address is in use."""
        self.port = await self._acceptor.start(self._host, self.port)
        self._signs = supervise("scheduler-signs", self._give_signs)

    async def close(self) -> None:
        """Stop to listen, and close all connections when everything is sent."""
        await self._acceptor.close()
        if self._signs is not None:
            self._signs.cancel()
            await asyncio.gather(self._signs, return_exceptions=True)
        await asyncio.gather(*(session.hang_up() for session in self.sessions))

    def serve(self, handler: SessionHandler) -> None:
        """Lead all peers to `handler` from now on."""
        self.handler = handler
        metrics.TERM.set(handler.term)
        for session in list(self.sessions):
            if session.kind:
                self.introduce(session)

    def stand_by(self) -> None:
        """Stop to serve: close all connections at once. The peers connect again, here as well."""
        self.handler = None
        metrics.stand_by()
        for session in list(self.sessions):
            session.handler = None
            session.abort()

    def token_matches(self, token: bytes) -> bool:
        """Whether `token` is the internal token; compared in constant time."""
        return self._token.matches(token)

    def plain_fault(self, peer: str) -> str:
        """Why a peer is not heard without TLS; empty when it is."""
        if self._tls is None or is_loopback(peer):
            return ""
        return (
            f"{peer} connects without TLS, and this scheduler takes nothing else from other machines: is its "
            "PENSTOCK_SCHEDULER_TLS never, or its release older?"
        )

    @property
    def authority(self) -> bytes:
        """The certificate of the authority that signs this scheduler's; empty without TLS."""
        return self._tls.authority if self._tls is not None else b""

    def agent_fault(self, hello: AgentHello, peer: str) -> str:
        """Why an agent with the right token, or with a secret, is turned away; empty when it is not."""
        if self._hosts is None:
            return "no host can join at this scheduler" if hello.joined else ""
        return self._hosts.fault(hello) if hello.joined else self._hosts.shared_fault(peer)

    def join(self, session: Session, message: AgentJoin | AgentRotation, refusal: str) -> None:
        """Let a host join, or replace its secret, unless there is a `refusal`; answer it and close its connection."""
        task = asyncio.create_task(self._join(session, message, refusal))
        self._joins.add(task)
        task.add_done_callback(self._joins.discard)

    async def _join(self, session: Session, message: AgentJoin | AgentRotation, refusal: str) -> None:
        problem, joins = refusal or "no host can join at this scheduler", isinstance(message, AgentJoin)
        if not refusal and self._hosts is not None:
            problem = await (
                self._hosts.join(message) if isinstance(message, AgentJoin) else self._hosts.rotate(message)
            )
        if problem:
            metrics.REJECTED_CONNECTIONS.labels("a join that failed").inc()
            log.warning("%s cannot %s: %s", session.peer, "join" if joins else "replace its secret", problem)
        session.send(JoinAnswer(problem))
        session.close()

    def introduce(self, session: Session) -> None:
        """Lead an authenticated peer to what serves, or tell it that this process stands by."""
        self.heard = max(self.heard, session.term)
        handler = self.handler
        if handler is not None and session.term > handler.term:
            handler.outdated(session.term)
            return
        if handler is not None and (details := handler.refusal(session)):
            session.turn_away("the name of another that is connected", details)
            return
        session.handler = handler
        self._sign(session)
        if handler is not None:
            handler.on_peer(session)

    def _sign(self, session: Session) -> None:
        term, epoch = (self.handler.term, self.handler.epoch) if self.handler is not None else (0, "")
        if session.kind == "client":
            session.send(Welcome(epoch, wire=WIRE_VERSION, term=term))
        elif session.waits:
            session.send(Claim(term, self._next_entry(session) if term else "", self._rotates(session)))

    def _next_entry(self, session: Session) -> str:
        """The first entry that an agent wants and that is known here; it is sent once, because the agent keeps it."""
        for name in session.wants:
            if entry := self.entry_of(name):
                session.wants.remove(name)
                return entry
        return ""

    def _rotates(self, session: Session) -> bool:
        return (
            session.secret_hash is not None and self._hosts is not None and self._hosts.rotates(session.name)
        )

    def _still_holds(self, session: Session) -> bool:
        return self._hosts is not None and self._hosts.holds(session.name, session.secret_hash or b"")

    async def _give_signs(self) -> None:
        """Tell clients of a standby, and all agents, every SIGN_S that this process runs."""
        while True:
            await asyncio.sleep(SIGN_S)
            for session in list(self.sessions):
                if session.secret_hash is not None and session.kind and not self._still_holds(session):
                    session.turn_away(
                        "a host's secret was revoked", f"the secret of host {session.name} was revoked"
                    )
                elif session.kind == "agent" or (session.kind == "client" and self.handler is None):
                    self._sign(session)
