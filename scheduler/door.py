"""The scheduler's listening socket. It admits agents and clients, and leads them to the service while one serves.

A standby admits them as well and tells them that it stands by. So all are connected already when it takes over.
"""

import asyncio
import logging
from collections.abc import Callable

from core.supervise import supervise
from scheduler import metrics
from scheduler.messages import WIRE_VERSION, Welcome
from scheduler.sessions import Session, SessionHandler, TokenCheck
from workers.wire import Claim

SIGN_S = 1.0
"""Seconds between two signs of life to peers that get no snapshots."""

log = logging.getLogger(__name__)


class Door:
    """Listens, and knows all connections and who serves them."""

    def __init__(self, host: str, port: int, token: str) -> None:
        """`token` is the internal token."""
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
        self._server: asyncio.Server | None = None
        self._signs: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Afterwards `port` is the actual port. Raises OSError when the address is in use."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Session(self), self._host, self.port, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._signs = supervise("scheduler-signs", self._give_signs)

    async def close(self) -> None:
        """Stop to listen, and close all connections when everything is sent."""
        if self._server is not None:
            self._server.close()
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
            entry = self.entry_of(session.wants) if term and session.wants else ""
            if entry:
                session.wants = ""  # the agent keeps it
            session.send(Claim(term, entry))

    async def _give_signs(self) -> None:
        """Tell clients of a standby, and all agents, every SIGN_S that this process runs."""
        while True:
            await asyncio.sleep(SIGN_S)
            for session in list(self.sessions):
                if session.kind == "agent" or (session.kind == "client" and self.handler is None):
                    self._sign(session)
