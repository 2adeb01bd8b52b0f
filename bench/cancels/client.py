"""One connection that plays a script: requests, their answers, and the instant at which its client leaves."""

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import httptools

from bench.cancels.answers import Answer, Ids
from bench.cancels.asks import Ask, Script
from bench.chaos.journal import Entry

ANSWER_TIMEOUT_S = 120.0
"""Seconds for a whole script."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER for a connection that ends with a reset."""


class Connection(asyncio.Protocol):
    """Reads answers in the order of their requests, and leaves as the script says."""

    def __init__(self, script: Script, key: str, entry_of: Callable[[Ask], Entry], ids: Ids) -> None:
        self._script = script
        self._key = key
        self._entry_of = entry_of
        self._ids = ids
        self._waiting: deque[tuple[Ask, Entry, Answer]] = deque()
        self._left = False
        self._sent = 0
        self._headers: dict[str, str] = {}
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the client has left or every request is answered."""
        self.strange = ""
        """Bytes that belong to no request; "" = none."""

    # -- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request, or all of them."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        for _ in self._script.asks if self._script.together else self._script.asks[:1]:
            self._send()

    def data_received(self, data: bytes) -> None:
        """Read; after the client has left, nothing."""
        if self._left:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self._left:
                self._left = True
                self._finish(strange=f"no HTTP: {error}: {data[:80]!r}")

    def connection_lost(self, error: Exception | None) -> None:
        """Note a connection that the platform ended."""
        if not self._left:
            for _, entry, _ in self._waiting:
                entry.broken = f"the connection ended: {error}"
        self._finish()

    # -- the parser ------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin an answer: there must be a request for it."""
        self._headers = {}
        if not self._waiting and not self._left:
            self.strange = "an answer without a request"

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._headers[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        """Hand the head over; the client may leave at it."""
        if not self._ignores:
            self._current.head(self._parser.get_status_code(), self._headers)
            if self._leaves_here("head"):
                self._leave()

    def on_body(self, data: bytes) -> None:
        """Hand a part over; the client may leave after its tokens."""
        if self._ignores:
            return
        self._guarded(lambda: self._current.take(data))
        if self._leaves_here("middle") and self._waiting[0][1].tokens >= self._script.after_tokens:
            self._leave()

    def on_message_complete(self) -> None:
        """End an answer; the client may leave at its last byte, or sends its next request."""
        if self._ignores:
            return
        leaves = self._leaves_here("end")
        self._guarded(self._current.end)
        _, entry, _ = self._waiting.popleft()
        entry.ended_at = time.monotonic()
        if leaves:
            self._leave()
        elif not self._waiting and self._sent < len(self._script.asks):
            self._send()
        elif not self._waiting:
            self._finish()

    # -- what the client does --------------------------------------------------------------------------------------

    @property
    def _ignores(self) -> bool:
        """Whether nothing is read any more: the client has left, or has all its answers."""
        return self._left or not self._waiting

    @property
    def _current(self) -> Answer:
        return self._waiting[0][2]

    def _guarded(self, take: Callable[[], None]) -> None:
        try:
            take()
        except (ValueError, KeyError, TypeError, IndexError) as error:
            self._waiting[0][1].wrong = f"the answer cannot be read: {type(error).__name__}: {error}"

    def _leaves_here(self, way: str) -> bool:
        """Whether the client leaves in this way, in the request that is being answered."""
        script = self._script
        return script.way == way and self._waiting[0][0] is script.asks[script.leaves_in]

    def _send(self) -> None:
        assert self._transport is not None
        ask, script = self._script.asks[self._sent], self._script
        entry = self._entry_of(ask)
        raw = ask.raw(self._key)
        if self._sent == script.leaves_in:
            if script.way == "unsent":
                raw = raw[: len(raw) - 1 - int(script.after_tokens)]
            if script.way in ("early", "unsent"):
                self._timer = asyncio.get_running_loop().call_later(script.after_s, self._leave)
        self._sent += 1
        self._waiting.append((ask, entry, Answer(ask, entry, self._ids)))
        self._transport.write(raw)

    def _leave(self) -> None:
        """Close the connection with whatever it has sent and received."""
        if self._left or self.done.done():
            return
        self._left = True
        for _, entry, _ in self._waiting:
            entry.left = True
        if self._transport is not None and self._script.reset:
            connected = self._transport.get_extra_info("socket")
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._finish()

    def _finish(self, strange: str = "") -> None:
        self.strange = self.strange or strange
        if self._timer is not None:
            self._timer.cancel()
        now = time.monotonic()
        for _, entry, _ in self._waiting:
            entry.ended_at = entry.ended_at or now
        if self._transport is not None:
            self._transport.close()
        if not self.done.done():
            self.done.set_result(None)


async def play(
    host: str, port: int, script: Script, key: str, entry_of: Callable[[Ask], Entry], ids: Ids
) -> str:
    """Play a script on a connection of its own. Returns what came that belongs to no request; "" = nothing.

    Raises OSError when the platform accepts no connection, TimeoutError when it does not answer.
    """
    loop = asyncio.get_running_loop()
    made: Any = await loop.create_connection(lambda: Connection(script, key, entry_of, ids), host, port)
    connection: Connection = made[1]
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        await connection.done
    return connection.strange
