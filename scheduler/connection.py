"""The connection of a client to the scheduler: made again whenever it is lost or silent."""

import asyncio
import logging
import random
from abc import ABC, abstractmethod

import msgspec

from core.clock import Clock
from core.supervise import supervise
from scheduler.link import Link
from scheduler.messages import WIRE_VERSION, ClientBatch, ClientHello, ToClient, Welcome
from scheduler.outbox import Outbox

FALLBACK_AFTER_S = 1.0
"""Seconds without a scheduler after which it counts as away; a supervised restart takes less."""
SILENT_S = 4.0
"""Seconds without a message after which the scheduler counts as dead; it sends a snapshot every second."""
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

    def __init__(self, connection: "SchedulerConnection") -> None:
        super().__init__(max_unsent_bytes=MAX_ANNOUNCED_BYTES)
        self.connection = connection
        self.outbox = Outbox()

    def take_batch(self) -> list[ClientBatch]:
        """What the client has to say since the last flush."""
        return self.outbox.take()

    def on_frame(self, frame: bytes) -> None:
        self.connection._receive(self, _decoder.decode(frame))

    def on_malformed(self, error: Exception) -> None:
        log.error("the scheduler sent what cannot be read, reconnecting: %s", error)

    def on_lost(self) -> None:
        self.connection._on_lost(self)


class SchedulerConnection:
    """Keeps one connection to the scheduler, as the client `name`, and reports its events to `listener`."""

    def __init__(
        self,
        host: str,
        port: int,
        token: str,
        *,
        name: str,
        listener: Listener,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.connected = False
        self.denied = ""
        """Why the scheduler rejected the connection; empty if it did not."""
        self.address = f"{host}:{port}"
        self._host, self._port, self._token = host, port, token
        self._name, self._listener = name, listener
        self._clock, self._rng = clock, rng
        self._link: _ClientLink | None = None
        self._away_since = clock.monotonic()
        self._last_seen_at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to connect."""
        self._away_since = self._clock.monotonic()
        self._task = supervise("scheduler-connection", self._stay_connected)

    async def close(self) -> None:
        """Send what is queued and disconnect."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._link is not None:
            await self._link.hang_up()

    @property
    def away(self) -> bool:
        """Whether there has been no scheduler for so long that the client decides alone."""
        return not self.connected and self._clock.monotonic() - self._away_since > FALLBACK_AFTER_S

    @property
    def outbox(self) -> Outbox | None:
        """Where messages are collected; None when not connected: the next announcement contains what still matters."""
        return self._link.outbox if self.connected and self._link is not None else None

    def send(self, message: msgspec.Struct) -> None:
        """Send a message if there is a connection."""
        if self.connected and self._link is not None:
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

    def end_if_silent(self, now: float) -> None:
        """Make another connection when the scheduler has been silent for SILENT_S."""
        if self._link is not None and now - self._last_seen_at > SILENT_S:
            log.warning("the scheduler has been silent for %.0f s, reconnecting", SILENT_S)
            self._link.abort()

    async def _stay_connected(self) -> None:
        backoff_s = BACKOFF_S[0]
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    _, link = await loop.create_connection(lambda: _ClientLink(self), self._host, self._port)
            except (OSError, TimeoutError):
                log.debug("the scheduler at %s does not answer", self.address)
            else:
                link.send(ClientHello(self._token, self._name, WIRE_VERSION))
                self._last_seen_at = self._clock.monotonic()
                self._link = link
                await link.lost.wait()
                self._on_lost(link)
                if not self.denied:
                    backoff_s = BACKOFF_S[0]
            await asyncio.sleep(backoff_s * (0.5 + self._rng.random()))
            backoff_s = min(backoff_s * 2, BACKOFF_S[1])

    def _receive(self, link: _ClientLink, message: ToClient) -> None:
        if link is not self._link:
            return
        self._last_seen_at = self._clock.monotonic()
        if isinstance(message, Welcome):
            self._on_welcome(link, message)
        else:
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
            log.error("the scheduler turned this process away: %s", error)
            link.close()
            return
        self.connected, self.denied = True, ""
        self._listener.on_connected(welcome.epoch)

    def _on_lost(self, link: _ClientLink) -> None:
        if link is not self._link:
            return
        self._link = None
        if self.connected:  # a connection without an answer does not restart the time without a scheduler
            self._away_since = self._clock.monotonic()
        self.connected = False
        self._listener.on_disconnected()
