"""The connections of a client to all schedulers: made again whenever they are lost or silent."""

import asyncio
import logging
import random
import ssl
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from core.addresses import Address
from core.clock import Clock
from core.errors import PenstockError
from core.private_tls import NAME
from core.supervise import supervise
from scheduler.client_tls import ClientTls
from scheduler.link import Link
from scheduler.messages import WIRE_VERSION, ClientBatch, ClientHello, ToClient, Welcome
from scheduler.outbox import Outbox

FALLBACK_AFTER_S = 1.0
"""Seconds without a scheduler after which it counts as away; a supervised restart takes less."""
SILENT_S = 4.0
"""Seconds without a message after which a scheduler counts as dead; it sends a snapshot or a sign every second."""
LINGER_S = 0.002
"""Seconds for which what is not urgent waits for other messages."""
BACKOFF_S = (0.05, 1.0)
"""Shortest and longest pause between two connection attempts, in seconds."""
CONNECT_TIMEOUT_S = 2.0
"""Timeout of a connection attempt, in seconds."""
MAX_ANNOUNCED_BYTES = 256 * 1024 * 1024
"""Unsent bytes that the client's connection may hold, for large announcements."""

log = logging.getLogger(__name__)
_decoder = msgspec.msgpack.Decoder(ToClient)


class Listener(ABC):
    """What a client does with the events of its connection."""

    @abstractmethod
    def on_connected(self, epoch: str) -> None:
        """A scheduler has accepted the connection; `epoch` is its incarnation."""

    @abstractmethod
    def on_message(self, message: ToClient) -> None:
        """The scheduler has sent a message other than its welcome."""

    @abstractmethod
    def on_disconnected(self) -> None:
        """The connection has ended. Another one is being made."""


class _ClientLink(Link):
    """One connection, which reports its events."""

    def __init__(self, connection: "SchedulerConnection", address: Address) -> None:
        super().__init__(max_unsent_bytes=MAX_ANNOUNCED_BYTES)
        self.connection, self.address = connection, address
        self.outbox = Outbox()
        self.seen_at = 0.0
        """When the scheduler has sent something last, or was connected to."""

    def take_batch(self) -> list[ClientBatch]:
        """What the client has to say since the last flush."""
        return self.outbox.take()

    def on_frame(self, frame: bytes) -> None:
        self.connection._receive(self, _decoder.decode(frame))

    def on_malformed(self, error: Exception) -> None:
        log.error("the scheduler at %s sent what cannot be read, reconnecting: %s", self.address, error)

    def on_lost(self) -> None:
        self.connection._on_lost(self)


class SchedulerConnection:
    """Keeps a connection to every scheduler, as the client `name`, and uses that of the one which serves.

    That is the one with the highest term that was ever seen; `listener` gets its events alone.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        token: str,
        *,
        name: str,
        listener: Listener,
        clock: Clock,
        rng: random.Random,
        takes_keys: bool = False,
        tls: ClientTls | None = None,
    ) -> None:
        """`takes_keys`: whether the listener sends requests to engines, so that it needs their keys. Without `tls` all
        connections are plain."""
        self.denied = ""
        """Why a scheduler rejected the connection; empty if none did since one serves."""
        self.address = ", ".join(map(str, addresses))
        self.term = 0
        """The highest term that was seen."""
        self._addresses, self._token = tuple(addresses), token
        self._name, self._listener, self._takes_keys = name, listener, takes_keys
        self._clock, self._rng = clock, rng
        self._tls = tls
        self._links: set[_ClientLink] = set()
        self._link: _ClientLink | None = None
        """The connection to the scheduler that serves."""
        self._away_since = clock.monotonic()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start to connect."""
        self._away_since = self._clock.monotonic()
        self._tasks = [
            supervise("scheduler-connection", partial(self._stay_connected, address))
            for address in self._addresses
        ]

    async def close(self) -> None:
        """Send what is queued and disconnect."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await asyncio.gather(*(link.hang_up() for link in self._links))

    @property
    def connected(self) -> bool:
        """Whether a scheduler serves this client."""
        return self._link is not None

    @property
    def away(self) -> bool:
        """Whether there has been no scheduler for so long that the client decides alone."""
        return not self.connected and self._clock.monotonic() - self._away_since > FALLBACK_AFTER_S

    @property
    def outbox(self) -> Outbox | None:
        """Where messages are collected; None when not connected: the next announcement contains what still matters."""
        return self._link.outbox if self._link is not None else None

    def send(self, message: msgspec.Struct) -> None:
        """Send a message if there is a connection."""
        if self._link is not None:
            self._link.send(message)

    def send_soon(self) -> None:
        """Send what is collected at the end of this event loop tick, and at once when it is much."""
        if (link := self._link) is not None:
            if link.outbox.full:
                link.flush()
            else:
                link.flush_soon()

    def send_later(self) -> None:
        """Send what is collected within LINGER_S, and at once when it is much."""
        if (link := self._link) is not None:
            if link.outbox.full:
                link.flush()
            else:
                link.flush_soon(LINGER_S)

    def end_silent(self, now: float) -> None:
        """Make those connections anew on which the scheduler has been silent for SILENT_S."""
        for link in [link for link in self._links if now - link.seen_at > SILENT_S]:
            log.warning(
                "the scheduler at %s has been silent for %.0f s, reconnecting", link.address, SILENT_S
            )
            link.abort()

    async def _stay_connected(self, address: Address) -> None:
        backoff_s = BACKOFF_S[0]
        while True:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    link = await self._open(address)
            except (ssl.SSLError, PenstockError, SQLAlchemyError) as error:
                self._on_untrusted(address, error)
            except (OSError, TimeoutError):
                log.debug("the scheduler at %s does not answer", address)
            else:
                hello = ClientHello(self._token, self._name, WIRE_VERSION, self.term, self._takes_keys)
                link.send(hello)
                link.seen_at = self._clock.monotonic()
                self._links.add(link)
                await link.lost.wait()
                self._on_lost(link)
                if not self.denied:
                    backoff_s = BACKOFF_S[0]
            await asyncio.sleep(backoff_s * (0.5 + self._rng.random()))
            backoff_s = min(backoff_s * 2, BACKOFF_S[1])

    async def _open(self, address: Address) -> _ClientLink:
        context = await self._tls.context(address) if self._tls is not None else None
        _, link = await asyncio.get_running_loop().create_connection(
            lambda: _ClientLink(self, address),
            *address,
            ssl=context,
            server_hostname=NAME if context is not None else None,
        )
        return link

    def _on_untrusted(self, address: Address, error: Exception) -> None:
        """A connection by TLS cannot be made: say why once, and ask for the authority again."""
        if self._tls is not None:
            self._tls.forget()
        why = f"no TLS with the scheduler at {address}: {error}"
        if self.denied != why:
            self.denied = why
            log.error("%s", why)

    def _receive(self, link: _ClientLink, message: ToClient) -> None:
        link.seen_at = self._clock.monotonic()
        if isinstance(message, Welcome):
            self._on_welcome(link, message)
        elif link is self._link:
            self._listener.on_message(message)

    def _on_welcome(self, link: _ClientLink, welcome: Welcome) -> None:
        error = welcome.error
        if not error and welcome.wire != WIRE_VERSION:
            error = (
                f"the scheduler speaks version {welcome.wire} of the wire, this process {WIRE_VERSION}: "
                "run both from one release"
            )
        if error:
            self.denied = error
            log.error("the scheduler at %s turned this process away: %s", link.address, error)
            link.close()
        elif welcome.term and welcome.term < self.term:
            log.warning(
                "the scheduler at %s has term %s, but term %s was seen: it is left",
                link.address,
                welcome.term,
                self.term,
            )
            link.abort()
        elif welcome.term and link is not self._link:
            self._follow(link, welcome)

    def _follow(self, link: _ClientLink, welcome: Welcome) -> None:
        """Use the scheduler of `link` from now on."""
        previous, self._link = self._link, link
        self.term, self.denied = welcome.term, ""
        if previous is not None:
            previous.abort()
            self._listener.on_disconnected()
        self._listener.on_connected(welcome.epoch)

    def _on_lost(self, link: _ClientLink) -> None:
        self._links.discard(link)
        if link is self._link:
            self._link = None
            self._away_since = self._clock.monotonic()
            self._listener.on_disconnected()
